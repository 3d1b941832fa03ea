use std::time::Duration;

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of the answer has arrived.
    Succeeded(Pace),
    /// Status 529.
    Refused,
    /// Anything else, in few words.
    Failed(String),
    /// The client had no more patience. If the first token had arrived, this
    /// is how long it took, from when it was due.
    GaveUp(Option<Duration>),
}

/// When the tokens of an answer arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From the time that the trace says to the first token.
    pub first_token: Duration,
    /// From the first token to the last one, divided by the tokens after the
    /// first.
    pub per_token: Duration,
}
