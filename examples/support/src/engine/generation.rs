use super::{Batch, Ledger, Occupancy, Share, Timing};
use std::{
    fmt,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep};

/// One request in the engine: it yields its tokens when they are due.
///
/// There is no task behind it. Whoever wants the tokens polls for them, and
/// dropping it takes the request out of the engine. If nobody asks for a
/// while, all tokens that were due meanwhile are there at once.
pub struct Generation {
    occupancy: Occupancy,
    timing: Timing,
    prompt_tokens: u64,
    choices: u64,
    tokens: u64,
    generated: u64,
    entered: Instant,
    share: Option<Share>,
    interval: NonZeroU32,
    /// Made when the first token is waited for: an infinitely fast engine
    /// registers no timer.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Generation {
    /// A request enters the engine, to answer with `tokens_each` tokens for
    /// each of its `choices`, which are generated side by side.
    pub fn enter(
        ledger: &Arc<Ledger>,
        timing: Timing,
        prompt_tokens: u64,
        choices: u32,
        tokens_each: u32,
    ) -> Self {
        Self {
            occupancy: ledger.enter(prompt_tokens),
            timing,
            prompt_tokens,
            choices: u64::from(choices.max(1)),
            tokens: u64::from(choices.max(1)) * u64::from(tokens_each),
            generated: 0,
            entered: Instant::now(),
            share: None,
            interval: NonZeroU32::MIN,
            sleep: None,
        }
    }

    /// It shares the speed of the engine with what else is in `batch`, from
    /// now on.
    #[must_use]
    pub fn in_batch(mut self, batch: &Arc<Batch>) -> Self {
        self.share = Some(batch.enter(self.occupancy.rank()));
        self
    }

    /// After the first token, the tokens of a choice come `interval` at a
    /// time, when the last of them is there.
    #[must_use]
    pub fn every(mut self, interval: NonZeroU32) -> Self {
        self.interval = interval;
        self
    }

    /// The tokens of the prompt.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The tokens generated so far, of all choices.
    pub fn generated(&self) -> u64 {
        self.generated
    }

    /// The next token, as its choice and its place in that choice (both from
    /// 0), or `None` after the last one.
    pub fn poll_token(&mut self, cx: &mut Context<'_>) -> Poll<Option<(u64, u64)>> {
        if self.generated == self.tokens {
            return Poll::Ready(None);
        }
        let place = self.generated / self.choices;
        let last = self.tokens / self.choices - 1;
        let seen_with = place.next_multiple_of(u64::from(self.interval.get()));
        let after = self
            .timing
            .token_after(self.prompt_tokens, seen_with.min(last));
        if after > Duration::ZERO {
            ready!(self.poll_reached(cx, after));
        }
        let choice = self.generated % self.choices;
        self.generated += 1;
        self.occupancy.end_prefill();
        self.occupancy.grow();
        Poll::Ready(Some((choice, place)))
    }

    fn poll_reached(&mut self, cx: &mut Context<'_>, after: Duration) -> Poll<()> {
        loop {
            let deadline = match &self.share {
                None => self.entered + after,
                Some(share) => match share.wait(after) {
                    Some(wait) => Instant::now() + wait,
                    None => return Poll::Ready(()),
                },
            };
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            let sleep = match &mut self.sleep {
                Some(sleep) => {
                    if sleep.deadline() != deadline {
                        sleep.as_mut().reset(deadline);
                    }
                    sleep
                }
                none => none.insert(Box::pin(tokio::time::sleep_until(deadline))),
            };
            ready!(sleep.as_mut().poll(cx));
        }
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("occupancy", &self.occupancy)
            .field("generated", &self.generated)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}
