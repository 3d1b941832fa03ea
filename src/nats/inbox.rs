use super::message::{Reason, Registration};
use crate::{
    load::LoadEvent,
    metrics::{self, Prefix},
};
use ::metrics::Counter;
use futures::task::AtomicWaker;
use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroUsize,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;

/// A process that did nothing for this long was stopped, or has no time: then
/// it is not the others who were silent.
const STALL: Duration = Duration::from_millis(500);

/// A queue that keeps the newest.
#[derive(Debug)]
pub(super) struct Ring<T> {
    items: VecDeque<T>,
    capacity: NonZeroUsize,
}

impl<T> Ring<T> {
    pub(super) fn new(capacity: NonZeroUsize) -> Self {
        Self {
            items: VecDeque::new(),
            capacity,
        }
    }

    /// Adds an item; what had to make room is returned.
    fn push(&mut self, item: T) -> Option<T> {
        let full = self.items.len() >= self.capacity.get();
        let oldest = if full { self.items.pop_front() } else { None };
        self.items.push_back(item);
        oldest
    }

    fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }
}

/// What a worker said of its being there.
#[derive(Debug)]
pub(super) enum Presence<K> {
    Registered(K, Registration),
    Left(K),
}

/// What the reader of an inbox gets.
#[derive(Debug)]
pub(super) enum Item<K> {
    Presence(Instant, Presence<K>),
    Load(LoadEvent<K>),
}

/// What stands between the subscription and a reader that may be slow: the
/// newest messages, and whether there is a connection.
pub(super) struct Inbox<K> {
    state: Mutex<State<K>>,
    reader: AtomicWaker,
    drops: Drops,
}

struct State<K> {
    /// Of their own, so that load does not push out who is there.
    presences: Ring<(Instant, Presence<K>)>,
    loads: Ring<LoadEvent<K>>,
    up_since: Option<Instant>,
    /// When whoever fills it was last seen to run.
    filled: Instant,
    closed: bool,
}

impl<K> Inbox<K> {
    pub(super) fn new(capacity: NonZeroUsize, drops: Drops) -> Self {
        Self {
            state: Mutex::new(State {
                presences: Ring::new(capacity),
                loads: Ring::new(capacity),
                up_since: None,
                filled: Instant::now(),
                closed: false,
            }),
            reader: AtomicWaker::new(),
            drops,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn drops(&self) -> &Drops {
        &self.drops
    }

    pub(super) fn push_load(&self, event: LoadEvent<K>) {
        let pushed_out = self.state().loads.push(event);
        if pushed_out.is_some() {
            self.drops.count(Reason::SlowConsumer);
        }
        self.reader.wake();
    }

    pub(super) fn push_presence(&self, presence: Presence<K>, now: Instant) {
        let pushed_out = self.state().presences.push((now, presence));
        if pushed_out.is_some() {
            self.drops.count(Reason::SlowConsumer);
        }
        self.reader.wake();
    }

    /// The connection is up since then, or down.
    pub(super) fn connection(&self, up_since: Option<Instant>) {
        self.state().up_since = up_since;
        self.reader.wake();
    }

    /// Whoever fills it runs. If that was not so for [`STALL`], it is as if the
    /// connection were made now: what was said is yet to be read.
    pub(super) fn runs(&self, now: Instant) {
        let mut state = self.state();
        if now > state.filled + STALL {
            state.up_since = state.up_since.map(|_| now);
        }
        state.filled = now;
    }

    /// Whether what was said may be yet to be read.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        now > self.state().filled + STALL
    }

    pub(super) fn up_since(&self) -> Option<Instant> {
        self.state().up_since
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.up_since = None;
        drop(state);
        self.reader.wake();
    }

    /// The oldest presence, or else the oldest load; `None` at the end.
    ///
    /// Who is there comes first, so that a load finds its worker registered.
    pub(super) fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<Item<K>>> {
        if let Poll::Ready(item) = self.pop() {
            return Poll::Ready(item);
        }
        self.reader.register(cx.waker());
        self.pop()
    }

    fn pop(&self) -> Poll<Option<Item<K>>> {
        let mut state = self.state();
        if let Some((heard, presence)) = state.presences.pop() {
            return Poll::Ready(Some(Item::Presence(heard, presence)));
        }
        match state.loads.pop() {
            Some(event) => Poll::Ready(Some(Item::Load(event))),
            None if state.closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl<K> fmt::Debug for Inbox<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Inbox")
            .field("presences", &state.presences.items.len())
            .field("loads", &state.loads.items.len())
            .field("up_since", &state.up_since)
            .field("closed", &state.closed)
            .finish()
    }
}

/// Counts what is dropped, by reason.
#[derive(Clone)]
pub(super) struct Drops([Counter; Reason::ALL.len()]);

impl Drops {
    pub(super) fn new(prefix: &Prefix) -> Self {
        Self(
            Reason::ALL
                .map(|reason| metrics::LOAD_MESSAGES_DROPPED.counter(prefix, &[reason.as_str()])),
        )
    }

    pub(super) fn count(&self, reason: Reason) {
        self.0[reason as usize].increment(1);
    }
}

impl fmt::Debug for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drops").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, future::poll_fn};
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    fn inbox(capacity: usize) -> Inbox<u32> {
        let capacity = NonZeroUsize::new(capacity).unwrap();
        Inbox::new(capacity, Drops::new(&Prefix::default()))
    }

    fn next(inbox: &Inbox<u32>) -> Option<Option<Item<u32>>> {
        poll_fn(|cx| inbox.poll_pop(cx)).now_or_never()
    }

    fn load(inbox: &Inbox<u32>) -> u32 {
        match next(inbox) {
            Some(Some(Item::Load(event))) => event.worker,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_slow_reader_gets_the_newest_and_the_rest_is_counted() {
        let recorder = DebuggingRecorder::new();
        let inbox = ::metrics::with_local_recorder(&recorder, || inbox(3));
        for worker in 0..10 {
            inbox.push_load(LoadEvent::new(worker, 0));
        }
        assert_eq!([load(&inbox), load(&inbox), load(&inbox)], [7, 8, 9]);
        assert!(next(&inbox).is_none());
        let counted: Vec<_> = recorder
            .snapshotter()
            .snapshot()
            .into_vec()
            .into_iter()
            .map(|(key, _, _, value)| {
                (key.key().labels().next().unwrap().value().to_owned(), value)
            })
            .filter(|(_, value)| *value != DebugValue::Counter(0))
            .collect();
        assert_eq!(
            counted,
            [("slow_consumer".to_owned(), DebugValue::Counter(7))]
        );
    }

    #[test]
    fn load_does_not_push_out_who_is_there_and_comes_after() {
        let inbox = inbox(2);
        inbox.push_load(LoadEvent::new(1, 0));
        inbox.push_presence(Presence::Left(7), Instant::now());
        inbox.push_load(LoadEvent::new(2, 0));
        inbox.push_load(LoadEvent::new(3, 0));
        assert!(matches!(
            next(&inbox),
            Some(Some(Item::Presence(_, Presence::Left(7))))
        ));
        assert_eq!([load(&inbox), load(&inbox)], [2, 3]);
    }

    #[test]
    fn after_a_stall_it_is_as_if_the_connection_were_made_now() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let inbox = inbox(1);
        inbox.runs(start);
        inbox.connection(Some(start));
        inbox.runs(after(400));
        assert_eq!(inbox.up_since(), Some(start));
        assert!(!inbox.is_stalled(after(800)));
        assert!(inbox.is_stalled(after(1000)));
        inbox.runs(after(1000));
        assert!(!inbox.is_stalled(after(1000)));
        assert_eq!(inbox.up_since(), Some(after(1000)));
        inbox.connection(None);
        inbox.runs(after(9000));
        assert_eq!(inbox.up_since(), None);
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_an_event_and_by_the_end() {
        let inbox = std::sync::Arc::new(inbox(2));
        let reader = inbox.clone();
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while poll_fn(|cx| reader.poll_pop(cx)).await.is_some() {
                read += 1;
            }
            read
        });
        tokio::task::yield_now().await;
        inbox.push_load(LoadEvent::new(1, 0));
        tokio::task::yield_now().await;
        inbox.close();
        assert_eq!(reading.await.unwrap(), 1);
    }
}
