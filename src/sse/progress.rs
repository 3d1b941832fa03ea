//! How far an answer has come.

use super::{
    json::{Json, Word},
    reader::{Part, Reader},
};

/// Bytes of text that are taken for one token where nothing says better.
const BYTES_OF_TOKEN: u64 = 4;

/// How far the answer of a model has come that streams as server-sent events:
/// see the [module](super) for what counts.
///
/// ```
/// use tower_overload::sse::StreamProgress;
///
/// let mut progress = StreamProgress::default();
/// progress.feed(b": ping\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n");
/// assert!(!progress.has_begun());
/// progress.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hel");
/// assert_eq!(progress.tokens(), 0);
/// progress.feed(b"lo\"}}]}\n\n");
/// assert_eq!((progress.has_begun(), progress.tokens()), (true, 1 + 1));
/// progress.feed(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n");
/// assert_eq!((progress.prompt_tokens(), progress.output_tokens()), (Some(9), Some(1)));
/// assert_eq!(progress.tokens(), 1);
/// progress.feed(b"data: [DONE]\n\n");
/// assert!(progress.has_ended());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StreamProgress {
    reader: Reader,
    event: Event,
    has_begun: bool,
    has_ended: bool,
    prompt_tokens: Option<u64>,
    output_tokens: Option<u64>,
    /// What came since the last time that the stream gave its tokens.
    since: Since,
}

#[derive(Clone, Copy, Debug, Default)]
struct Since {
    events: u64,
    /// Of the text of events without ids.
    bytes: u64,
    ids: u64,
}

impl Since {
    /// Of the tokens, each event has one at least.
    fn tokens(self) -> u64 {
        let estimate = self.events.max(self.bytes.div_ceil(BYTES_OF_TOKEN));
        estimate.saturating_add(self.ids)
    }
}

/// The event that is under way.
#[derive(Clone, Debug, Default)]
struct Event {
    name: Word,
    json: Json,
    /// Its data without what is blank around it: how it begins, and its
    /// length.
    head: Word,
    length: u64,
    blanks: u64,
}

impl Event {
    fn data(&mut self, mut data: &[u8]) {
        if self.length == 0 {
            data = data.trim_ascii_start();
        }
        let Some(first) = data.first() else { return };
        if self.length == 0 && matches!(first, b'{' | b'[') || self.is_json() {
            self.json.feed(data);
        }
        if self.length < 8 {
            self.head.push(data);
        }
        let text = data.trim_ascii_end().len() as u64;
        let blanks = data.len() as u64 - text;
        if text > 0 {
            self.length = self.length.saturating_add(self.blanks).saturating_add(text);
            self.blanks = blanks;
        } else {
            self.blanks = self.blanks.saturating_add(blanks);
        }
    }

    fn is_json(&self) -> bool {
        matches!(self.head.get().first(), Some(b'{' | b'['))
    }
}

impl StreamProgress {
    /// Takes the next piece of the stream, cut wherever it is.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(part) = self.reader.next(&mut bytes) {
            match part {
                Part::Name(name) => self.event.name.push(name),
                Part::Data(data) => self.event.data(data),
                Part::End => self.end_event(),
                Part::Between => {}
            }
        }
    }

    /// The stream has ended, perhaps without the empty line after its last
    /// event. That counts as well, if there is any data of it.
    pub fn finish(&mut self) {
        if self.event.length > 0 {
            self.end_event();
        }
        self.has_ended = true;
    }

    /// Whether the prefill is over: there is a token, or an answer that has
    /// none is finished.
    pub const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The tokens so far, by what the stream last said and by an estimate of
    /// what came since. It may become less when the stream says how many there
    /// are.
    pub fn tokens(&self) -> u64 {
        let said = self.output_tokens.unwrap_or(0);
        said.saturating_add(self.since.tokens())
    }

    /// The tokens of the answer so far, as the stream last gave them.
    pub const fn output_tokens(&self) -> Option<u64> {
        self.output_tokens
    }

    /// The tokens of the prompt, cached ones included, if the stream gave them.
    pub const fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens
    }

    /// Whether the last event was there, or the end.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn end_event(&mut self) {
        let mut event = std::mem::take(&mut self.event);
        event.json.said.name(event.name.get());
        let said = event.json.said;
        let is_done = event.length == 6 && event.head.get().starts_with(b"[DONE]");
        self.has_ended |= said.is_last || is_done;
        self.prompt_tokens = said.prompt_tokens().or(self.prompt_tokens);
        let text = match said.text() {
            _ if is_done || said.is_last => 0,
            0 if said.is_known || said.ids > 0 => 0,
            0 if event.is_json() => 1,
            0 => event.length,
            text => text,
        };
        if said.ids > 0 {
            self.since.ids = self.since.ids.saturating_add(said.ids);
        } else if text > 0 {
            self.since.events = self.since.events.saturating_add(1);
            self.since.bytes = self.since.bytes.saturating_add(text);
        }
        // Some say 0 all the time, and with several answers it may be of one.
        if let Some(tokens) = said.output_tokens {
            if tokens >= self.output_tokens.unwrap_or(1) {
                self.output_tokens = Some(tokens);
                self.since = Since::default();
            }
        }
        self.has_begun |= said.is_finished || self.tokens() > 0;
    }
}
