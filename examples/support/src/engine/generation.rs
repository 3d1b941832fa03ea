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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::{
        future::poll_fn,
        num::{NonZeroU64, NonZeroUsize},
    };

    fn ledger() -> Arc<Ledger> {
        Arc::new(Ledger::new(1, NonZeroU64::new(16).unwrap()))
    }

    const SLOW: Timing = Timing {
        prefill_tokens_per_second: 1000.0,
        decode_tokens_per_second: 50.0,
    };

    async fn next(generation: &mut Generation) -> Option<(u64, u64)> {
        poll_fn(|cx| generation.poll_token(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_when_they_are_due() {
        let ledger = ledger();
        let start = Instant::now();
        let mut generation = Generation::enter(&ledger, SLOW, 100, 1, 3);
        let mut at = Vec::new();
        while let Some(token) = next(&mut generation).await {
            at.push((token.1, start.elapsed().as_millis()));
        }
        assert_eq!(at, [(0, 100), (1, 120), (2, 140)]);
        assert_eq!(generation.generated(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_token_ends_the_prefill() {
        let ledger = ledger();
        let load = || ledger.snapshot().next().unwrap();
        let mut generation = Generation::enter(&ledger, SLOW, 32, 1, 2);
        assert!(next(&mut generation).now_or_never().is_none());
        assert_eq!((load().prefill_tokens, load().kv_blocks), (32, 2));
        next(&mut generation).await;
        assert_eq!((load().prefill_tokens, load().kv_blocks), (0, 3));
        drop(generation);
        assert_eq!((load().prefill_tokens, load().kv_blocks), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn choices_are_generated_side_by_side() {
        let ledger = ledger();
        let start = Instant::now();
        let mut generation = Generation::enter(&ledger, SLOW, 0, 2, 2);
        let mut tokens = Vec::new();
        while let Some(token) = next(&mut generation).await {
            tokens.push(token);
        }
        assert_eq!(tokens, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert_eq!(start.elapsed().as_millis(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_an_interval_at_a_time_and_the_rest_at_the_end() {
        let start = Instant::now();
        let interval = NonZeroU32::new(3).unwrap();
        let mut generation = Generation::enter(&ledger(), SLOW, 100, 1, 6).every(interval);
        let mut at = Vec::new();
        while next(&mut generation).await.is_some() {
            at.push(start.elapsed().as_millis());
        }
        assert_eq!(at, [100, 160, 160, 160, 200, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn two_in_a_batch_of_one_take_twice_as_long_until_one_leaves() {
        let ledger = ledger();
        let batch = Arc::new(Batch::new(1, NonZeroUsize::MIN));
        let start = Instant::now();
        let enter = || Generation::enter(&ledger, SLOW, 100, 1, 2).in_batch(&batch);
        let (mut first, second) = (enter(), enter());
        next(&mut first).await;
        assert_eq!(start.elapsed().as_millis(), 200);
        drop(second);
        next(&mut first).await;
        assert_eq!(start.elapsed().as_millis(), 220);
    }

    #[test]
    fn an_infinitely_fast_engine_needs_no_timer() {
        let ledger = ledger();
        let mut generation = Generation::enter(&ledger, Timing::INSTANT, 1000, 1, 2);
        // Outside of a runtime a timer would panic.
        assert_eq!(next(&mut generation).now_or_never(), Some(Some((0, 0))));
        assert_eq!(next(&mut generation).now_or_never(), Some(Some((0, 1))));
        assert_eq!(next(&mut generation).now_or_never(), Some(None));
    }
}
