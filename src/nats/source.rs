use super::{
    Defect, dynamo,
    inbox::{Drops, Inbox, Item, Presence},
    link::{Change, LOOK_EVERY, Link},
    message::{self, MAX_MESSAGE, Reason, Registration, Said},
    registrations::{Heard, Registrations},
    subjects::{InvalidName, Subjects, check_subject},
};
use crate::{
    WorkerId,
    load::{Counted, LoadEvent},
    metrics::{self, Prefix},
};
use async_nats::{Client, Message};
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, stream::select_all};
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, Sleep, interval, sleep_until},
};

/// How many events a source keeps for a reader that is slow.
pub const DEFAULT_CAPACITY: usize = 65_536;

/// How many workers a [`FleetSource`] keeps the registrations of.
pub const DEFAULT_MAX_WORKERS: usize = 65_536;

/// How a source of load events is set up.
///
/// ```no_run
/// use std::sync::Arc;
/// use tower_overload::nats::{LoadSource, SourceBuilder};
///
/// # async fn example(client: async_nats::Client) -> Result<(), tower_overload::BoxError> {
/// let source: LoadSource<Arc<str>> = SourceBuilder::new()
///     .model("tiny")
///     .capacity(10_000)
///     .loads(&client, |id| id.strip_prefix("prod-").map(Arc::from))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SourceBuilder {
    subjects: Subjects,
    models: Vec<String>,
    capacity: usize,
    max_workers: usize,
    prefix: Prefix,
}

impl Default for SourceBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl SourceBuilder {
    /// A source of the workers of all models, on the default subjects.
    pub fn new() -> Self {
        Self {
            subjects: Subjects::default(),
            models: Vec::new(),
            capacity: DEFAULT_CAPACITY,
            max_workers: DEFAULT_MAX_WORKERS,
            prefix: Prefix::default(),
        }
    }

    /// The subjects of the fleet.
    pub fn subjects(mut self, subjects: Subjects) -> Self {
        self.subjects = subjects;
        self
    }

    /// Only the workers of this model; may be said of several.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.models.push(model.into());
        self
    }

    /// How many events are kept for a reader that is slow. When there are
    /// more, the oldest are dropped and counted.
    pub fn capacity(mut self, events: usize) -> Self {
        self.capacity = events;
        self
    }

    /// How many workers a [`FleetSource`] keeps. The registration of one more
    /// is dropped and counted.
    pub fn max_workers(mut self, workers: usize) -> Self {
        self.max_workers = workers;
        self
    }

    /// What the names of the metrics start with.
    pub fn prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// The load of workers. `id` makes a worker's id of its name; messages of
    /// one that it gives none are dropped, and counted as foreign.
    ///
    /// # Errors
    ///
    /// If a model has no name, or the capacity is 0.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn loads<K, F>(self, client: &Client, id: F) -> Result<LoadSource<K>, InvalidSource>
    where
        K: WorkerId,
        F: FnMut(&str) -> Option<K> + Send + 'static,
    {
        let feed = self.plain_feed(client, |model| self.subjects.all_load(model), id)?;
        Ok(LoadSource(feed))
    }

    /// Workers that come and go, and their load. `id` is as for
    /// [`loads`](Self::loads).
    ///
    /// # Errors
    ///
    /// If a model has no name, or the capacity is 0.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn fleet<K, F>(self, client: &Client, id: F) -> Result<FleetSource<K>, InvalidSource>
    where
        K: WorkerId,
        F: FnMut(&str) -> Option<K> + Send + 'static,
    {
        let feed = self.plain_feed(client, |model| self.subjects.all(model), id)?;
        Ok(FleetSource {
            feed,
            workers: Registrations::new(self.max_workers),
            up_since: None,
            gone: VecDeque::new(),
            next_end: None,
            timer: Box::pin(sleep_until(Instant::now())),
        })
    }

    /// The load of a Dynamo fleet, as its workers publish it on `subject`;
    /// [`dynamo::SUBSCRIPTION`] is all of them. `id` makes a worker's id of its
    /// number; messages of one that it gives none are dropped, and counted as
    /// foreign.
    ///
    /// # Errors
    ///
    /// If `subject` is none, or the capacity is 0.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn dynamo<K, F>(
        self,
        client: &Client,
        subject: &str,
        id: F,
    ) -> Result<LoadSource<K>, InvalidSource>
    where
        K: WorkerId,
        F: FnMut(u64) -> Option<K> + Send + 'static,
    {
        check_subject(subject).map_err(InvalidSource::Name)?;
        let feed = self.feed(client, vec![subject.to_owned()], None, of_dynamo(id))?;
        Ok(LoadSource(feed))
    }

    /// What is said on our own subjects, by workers that are asked to announce
    /// themselves.
    fn plain_feed<K, F>(
        &self,
        client: &Client,
        subject: impl Fn(Option<&str>) -> Result<String, InvalidName>,
        id: F,
    ) -> Result<Feed<K>, InvalidSource>
    where
        K: WorkerId,
        F: FnMut(&str) -> Option<K> + Send + 'static,
    {
        let subscriptions = self.of_each_model(subject)?;
        let announce = Some(self.subjects.announce());
        let read = plain(self.subjects.clone(), id);
        self.feed(client, subscriptions, announce, read)
    }

    fn of_each_model(
        &self,
        subject: impl Fn(Option<&str>) -> Result<String, InvalidName>,
    ) -> Result<Vec<String>, InvalidSource> {
        let subjects: Result<_, _> = if self.models.is_empty() {
            subject(None).map(|all| vec![all])
        } else {
            let mut models = self.models.clone();
            models.sort_unstable();
            models.dedup();
            models.iter().map(|model| subject(Some(model))).collect()
        };
        subjects.map_err(InvalidSource::Name)
    }

    fn feed<K: WorkerId>(
        &self,
        client: &Client,
        subjects: Vec<String>,
        announce: Option<String>,
        read: impl FnMut(&Message) -> Result<Read<K>, Reason> + Send + 'static,
    ) -> Result<Feed<K>, InvalidSource> {
        let capacity = NonZeroUsize::new(self.capacity).ok_or(InvalidSource::NoCapacity)?;
        let inbox = Arc::new(Inbox::new(capacity, Drops::new(&self.prefix)));
        let connected = metrics::LOAD_SOURCES.gauge(&self.prefix, &[]);
        let mut pump = JoinSet::new();
        pump.spawn(
            Pump {
                client: client.clone(),
                subjects,
                announce,
                inbox: Closes(inbox.clone()),
                connected,
            }
            .run(read),
        );
        Ok(Feed { inbox, _pump: pump })
    }
}

/// A source that cannot be set up like this.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidSource {
    /// A capacity of 0.
    NoCapacity,
    /// A model, or a subject.
    Name(InvalidName),
}

impl fmt::Display for InvalidSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCapacity => f.write_str("a capacity of 0 events, allowed: at least 1"),
            Self::Name(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidSource {}

/// A stream of the load events of a fleet, made to
/// [drive](crate::load::WorkerMonitor::drive) a monitor.
///
/// It subscribes again by itself when its connection is made again, and ends
/// only with its client, which is when the client was told to drain or to stop
/// trying. While there is no connection it is silent; the marks of the monitor
/// fall when their evidence is stale.
///
/// Dropping it ends the subscription and the task that empties it.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct LoadSource<K>(Feed<K>);

impl<K: WorkerId + for<'a> From<&'a str>> LoadSource<K> {
    /// The load of the workers of all models, on the default subjects; see
    /// [`SourceBuilder`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn subscribe(client: &Client) -> Self {
        let source = SourceBuilder::new().loads(client, |id| Some(K::from(id)));
        source.expect("the defaults can be used")
    }
}

impl<K> LoadSource<K> {
    /// Whether there is a connection to hear anything on.
    pub fn is_connected(&self) -> bool {
        self.0.inbox.up_since().is_some()
    }
}

impl<K: WorkerId> Stream for LoadSource<K> {
    type Item = LoadEvent<K>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(self.0.inbox.poll_pop(cx)) {
                Some(Item::Load(event)) => return Poll::Ready(Some(event)),
                Some(Item::Presence(..)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

/// What happened in a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetEvent<K> {
    /// A worker is new, or it says something else of itself than before.
    Joined {
        /// Which one.
        worker: K,
        /// What it says of itself.
        registration: Registration,
    },
    /// A worker is gone.
    Left {
        /// Which one.
        worker: K,
        /// How that is known.
        because: Leaving,
    },
    /// A worker reported its load.
    Load(LoadEvent<K>),
}

/// How it is known that a worker is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// It said so.
    Goodbye,
    /// It has not renewed its registration in time.
    Silence,
}

/// A stream of the workers of a fleet that come and go, and of their load.
///
/// A registration is good for its time to live. Workers renew theirs three
/// times as often, and when a gateway asks for it, as this source does
/// whenever it has connected: it soon knows the fleet, however late it is. A
/// worker that says goodbye or does not renew its registration has left. While
/// there is no connection nobody leaves, since silence means nothing then; and
/// when there is one again, each worker has its whole time to live, and 5 s at
/// least, since it has to connect again too. So it is when this process was
/// stopped for a while.
///
/// Of a worker, what is said first comes first, and who is there before any
/// load. It connects again and ends like a [`LoadSource`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct FleetSource<K> {
    feed: Feed<K>,
    workers: Registrations<K>,
    up_since: Option<Instant>,
    gone: VecDeque<K>,
    /// When to look for workers that were silent for too long.
    next_end: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<K: WorkerId + for<'a> From<&'a str>> FleetSource<K> {
    /// The workers of all models, on the default subjects; see
    /// [`SourceBuilder`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn subscribe(client: &Client) -> Self {
        let source = SourceBuilder::new().fleet(client, |id| Some(K::from(id)));
        source.expect("the defaults can be used")
    }
}

impl<K> FleetSource<K> {
    /// Whether there is a connection to hear anything on.
    pub fn is_connected(&self) -> bool {
        self.feed.inbox.up_since().is_some()
    }
}

impl<K: WorkerId> FleetSource<K> {
    fn hear(&mut self, presence: Presence<K>, heard: Instant) -> Option<FleetEvent<K>> {
        match presence {
            Presence::Registered(worker, registration) => {
                match self.workers.hear(&worker, &registration, heard) {
                    Heard::Renewed => None,
                    Heard::NoRoom => {
                        self.feed.inbox.drops().count(Reason::TooManyWorkers);
                        None
                    }
                    Heard::Changed => {
                        let end = heard + registration.ttl;
                        self.look_at(self.next_end.map_or(end, |next| next.min(end)));
                        Some(FleetEvent::Joined {
                            worker,
                            registration,
                        })
                    }
                }
            }
            Presence::Left(worker) => {
                let was_there = self.workers.leave(&worker);
                let because = Leaving::Goodbye;
                was_there.then_some(FleetEvent::Left { worker, because })
            }
        }
    }

    fn look_at(&mut self, end: Instant) {
        if self.next_end != Some(end) {
            self.next_end = Some(end);
            self.timer.as_mut().reset(end);
        }
    }

    /// Removes whoever was silent for too long. The timer is for the earliest
    /// end that was known when it was set, which may have been renewed.
    fn expire(&mut self, cx: &mut Context<'_>) {
        let up_since = self.feed.inbox.up_since();
        if up_since != self.up_since {
            self.up_since = up_since;
            self.workers.connection(up_since);
            self.next_end = None;
            if let Some(end) = self.workers.next_end() {
                self.look_at(end);
            }
        }
        while self.next_end.is_some() && self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.feed.inbox.is_stalled(now) {
                self.look_at(now + LOOK_EVERY);
                continue;
            }
            self.gone.extend(self.workers.expire(now));
            self.next_end = None;
            match self.workers.next_end() {
                Some(end) => self.look_at(end),
                None => break,
            }
        }
    }
}

/// Only the timer has to stay where it is, and it is in a box.
impl<K> Unpin for FleetSource<K> {}

impl<K: WorkerId> Stream for FleetSource<K> {
    type Item = FleetEvent<K>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(worker) = this.gone.pop_front() {
                let because = Leaving::Silence;
                return Poll::Ready(Some(FleetEvent::Left { worker, because }));
            }
            match this.feed.inbox.poll_pop(cx) {
                Poll::Ready(Some(Item::Presence(heard, presence))) => {
                    if let Some(event) = this.hear(presence, heard) {
                        return Poll::Ready(Some(event));
                    }
                }
                // Only now and below, when whoever has renewed its
                // registration is heard.
                Poll::Ready(Some(Item::Load(event))) => {
                    this.expire(cx);
                    return Poll::Ready(Some(FleetEvent::Load(event)));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    this.expire(cx);
                    if this.gone.is_empty() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

/// An inbox, and the task that fills it.
#[derive(Debug)]
struct Feed<K> {
    inbox: Arc<Inbox<K>>,
    _pump: JoinSet<()>,
}

/// What was read from a message.
enum Read<K> {
    Presence(Presence<K>),
    Loads(K, Vec<LoadEvent<()>>),
}

/// Reads the messages of our own subjects.
fn plain<K: WorkerId>(
    subjects: Subjects,
    mut id: impl FnMut(&str) -> Option<K> + Send + 'static,
) -> impl FnMut(&Message) -> Result<Read<K>, Reason> + Send + 'static {
    move |message| {
        let address = subjects.parse(&message.subject).ok_or(Reason::Foreign)?;
        let said = message::decode(&address, &message.payload)?;
        let worker = id(&address.worker).ok_or(Reason::Foreign)?;
        Ok(match said {
            Said::Loads(loads) => Read::Loads(worker, loads),
            Said::Registered(registration) => {
                Read::Presence(Presence::Registered(worker, registration))
            }
            Said::Leaves => Read::Presence(Presence::Left(worker)),
        })
    }
}

/// Reads the load events of a Dynamo fleet.
fn of_dynamo<K: WorkerId>(
    mut id: impl FnMut(u64) -> Option<K> + Send + 'static,
) -> impl FnMut(&Message) -> Result<Read<K>, Reason> + Send + 'static {
    move |message| {
        let load = dynamo::decode(&message.payload).map_err(|error| {
            tracing::debug!(%error, "no load event of a Dynamo fleet");
            match error.defect() {
                Defect::Truncated | Defect::Mistyped => Reason::Malformed,
                Defect::Oversized => Reason::Oversized,
                Defect::Foreign => Reason::Foreign,
            }
        })?;
        let worker = id(load.worker_id).ok_or(Reason::Foreign)?;
        Ok(Read::Loads(worker, vec![load.into_event(())]))
    }
}

/// Takes messages out of the client's queue as they come, so that it is the
/// oldest that a slow reader misses: the client by itself drops the newest.
struct Pump<K> {
    client: Client,
    subjects: Vec<String>,
    announce: Option<String>,
    inbox: Closes<K>,
    connected: ::metrics::Gauge,
}

/// Closes the inbox when the task ends, however it does.
struct Closes<K>(Arc<Inbox<K>>);

impl<K> Drop for Closes<K> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<K: WorkerId> Pump<K> {
    async fn run(self, mut read: impl FnMut(&Message) -> Result<Read<K>, Reason>) {
        let inbox = &*self.inbox.0;
        let mut link = Link::new(
            self.client.clone(),
            "a source of load events",
            Instant::now(),
        );
        let mut subscriptions = Vec::new();
        for subject in &self.subjects {
            match self.client.subscribe(subject.clone()).await {
                Ok(subscription) => subscriptions.push(subscription),
                Err(error) => {
                    tracing::error!(%error, "cannot subscribe to load events");
                    return;
                }
            }
        }
        let mut messages = select_all(subscriptions);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut counted = None;
        let mut to_announce = false;
        loop {
            let message = tokio::select! {
                message = messages.next() => match message {
                    Some(message) => Some(message),
                    None => return,
                },
                _ = look.tick() => None,
            };
            // What comes says that there is a connection, before the tick does.
            if message.is_none() || !link.is_up() {
                let now = Instant::now();
                inbox.runs(now);
                match link.look(now) {
                    Some(Change::Up) => {
                        inbox.connection(Some(now));
                        counted.get_or_insert_with(|| Counted::new(&self.connected));
                        to_announce = true;
                    }
                    Some(Change::Lost) => {
                        inbox.connection(None);
                        counted = None;
                        to_announce = false;
                    }
                    Some(Change::Missed) | None => {}
                }
                // If the client takes nothing now, it is tried again.
                if let Some(subject) = self.announce.as_ref().filter(|_| to_announce) {
                    let asked = self.client.publish(subject.clone(), Bytes::new());
                    to_announce = !matches!(asked.now_or_never(), Some(Ok(())));
                }
            }
            if let Some(message) = message {
                take(inbox, &mut read, &message);
            }
        }
    }
}

fn take<K: WorkerId>(
    inbox: &Inbox<K>,
    read: &mut impl FnMut(&Message) -> Result<Read<K>, Reason>,
    message: &Message,
) {
    let said = if message.payload.len() > MAX_MESSAGE {
        Err(Reason::Oversized)
    } else {
        read(message)
    };
    match said {
        Ok(Read::Loads(worker, loads)) => {
            for load in loads {
                inbox.push_load(LoadEvent {
                    worker: worker.clone(),
                    dp_rank: load.dp_rank,
                    active_decode_blocks: load.active_decode_blocks,
                    kv_used_blocks: load.kv_used_blocks,
                    active_prefill_tokens: load.active_prefill_tokens,
                });
            }
        }
        Ok(Read::Presence(presence)) => inbox.push_presence(presence, Instant::now()),
        Err(reason) => {
            let (subject, reason_text) = (&*message.subject, reason.as_str());
            tracing::debug!(subject, reason = reason_text, "a message is dropped");
            inbox.drops().count(reason);
        }
    }
}
