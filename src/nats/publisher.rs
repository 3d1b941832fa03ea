use super::{
    link::{Change, LOOK_EVERY, Link},
    message::{self, InvalidRegistration, Registration},
    subjects::Subjects,
};
use crate::load::{DropReason, LoadEvent, ReportSchedule};
use async_nats::{Client, Message, Subscriber, client::PublishErrorKind};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::pending};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// A rank reports at most once in this time; what changes in between is
/// reported in one.
pub const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(10);

/// Every rank reports at least once in this time, changed or not.
pub const MAX_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// However often it is asked, a worker announces itself at most once in this
/// time.
const ANSWER_EVERY: Duration = Duration::from_secs(1);

/// How long the goodbye may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A worker's side: it announces the worker for as long as it lives, and
/// publishes its load.
///
/// Nothing here waits for the network. A report replaces the one before it
/// that was not sent yet; without a connection nothing is sent, and what is
/// the newest by then is sent when there is one again, after the
/// announcement. So nothing piles up, and no gateway reads old load.
///
/// What is longer than the server's `max_payload` cannot be said, and the log
/// tells so, once for each connection. A registration with long names of many
/// models may need 100 KiB, and the load of 1024 ranks as much.
///
/// Dropping it is the worker's sudden death: nobody is told, and gateways find
/// out when its registration ends. [`leave`](Self::leave) says goodbye.
///
/// ```no_run
/// use tower_overload::{
///     load::LoadEvent,
///     nats::{self, Publisher, Registration, Subjects},
/// };
///
/// # async fn example() -> Result<(), tower_overload::BoxError> {
/// let client = nats::connect(&"nats://127.0.0.1:4222".parse()?).await?;
/// let registration = Registration::new("http://10.0.0.1:8100", ["tiny"]).kv_total_blocks(4096);
/// let publisher = Publisher::start(client, &Subjects::default(), "worker-0", registration)?;
///
/// publisher.report(LoadEvent::new((), 0).kv_used_blocks(17))?; // whenever it changes
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Publisher {
    client: Client,
    subjects: Subjects,
    worker: String,
    shared: Arc<Shared>,
    task: JoinSet<()>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    registration: Registration,
    /// Raised when it changes.
    edition: u64,
    loads: BTreeMap<u32, LoadEvent<()>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl State {
    fn new(registration: Registration) -> Self {
        let ranks = registration.dp_ranks.iter();
        Self {
            loads: ranks
                .map(|rank| (*rank, LoadEvent::new((), *rank)))
                .collect(),
            registration,
            edition: 0,
        }
    }

    fn update(&mut self, registration: Registration) {
        let mut next = Self::new(registration);
        next.edition = self.edition.wrapping_add(1);
        for (rank, load) in &mut next.loads {
            if let Some(known) = self.loads.remove(rank) {
                *load = known;
            }
        }
        *self = next;
    }

    fn report(&mut self, event: &LoadEvent<()>) -> Result<(), DropReason> {
        let load = self
            .loads
            .get_mut(&event.dp_rank)
            .ok_or(DropReason::UndeclaredRank)?;
        // An absent count leaves the last one.
        let merge = |known: &mut Option<u64>, count: Option<u64>| *known = count.or(*known);
        merge(&mut load.active_decode_blocks, event.active_decode_blocks);
        merge(&mut load.kv_used_blocks, event.kv_used_blocks);
        merge(&mut load.active_prefill_tokens, event.active_prefill_tokens);
        Ok(())
    }
}

impl Publisher {
    /// Announces `worker` from now on.
    ///
    /// # Errors
    ///
    /// If the id or the registration is one that no gateway would take.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(
        client: Client,
        subjects: &Subjects,
        worker: impl Into<String>,
        registration: Registration,
    ) -> Result<Self, InvalidRegistration> {
        let worker = worker.into();
        registration.check()?;
        // So that no subject can fail later.
        let any_model = &registration.models[0];
        subjects
            .worker(any_model, &worker)
            .map_err(InvalidRegistration::Name)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(registration)),
            changed: Notify::new(),
        });
        let mut task = JoinSet::new();
        task.spawn(
            Voice {
                client: client.clone(),
                subjects: subjects.clone(),
                worker: worker.clone(),
                shared: shared.clone(),
                told_of_length: false,
            }
            .run(),
        );
        Ok(Self {
            client,
            subjects: subjects.clone(),
            worker,
            shared,
            task,
        })
    }

    /// Publishes the load of a rank, soon: at most once in
    /// [`MIN_REPORT_INTERVAL`], then every [`MAX_REPORT_INTERVAL`]. A count
    /// that is absent is as it was.
    ///
    /// # Errors
    ///
    /// If the registration does not declare the rank.
    pub fn report(&self, event: LoadEvent<()>) -> Result<(), DropReason> {
        self.shared.state().report(&event)?;
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Announces that the worker is something else now: that it drains, say.
    ///
    /// # Errors
    ///
    /// If the registration is one that no gateway would take; nothing has
    /// changed then.
    pub fn update(&self, registration: Registration) -> Result<(), InvalidRegistration> {
        registration.check()?;
        self.shared.state().update(registration);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Says goodbye: gateways send nothing more. It takes two seconds at most.
    ///
    /// Cancelling it may leave the goodbye unsaid, as a drop does.
    ///
    /// # Errors
    ///
    /// If nobody could be told: gateways find out when the registration ends.
    pub async fn leave(mut self) -> Result<(), NotTold> {
        self.task.shutdown().await;
        if self.client.connection_state() != async_nats::connection::State::Connected {
            return Err(NotTold);
        }
        let models = std::mem::take(&mut self.shared.state().registration.models);
        let say = async {
            for model in models {
                let subject = self.subjects.worker(&model, &self.worker).map_err(drop)?;
                let said = self.client.publish(subject, message::goodbye().into());
                said.await.map_err(drop)?;
            }
            self.client.flush().await.map_err(drop)
        };
        match timeout(LEAVE_WITHIN, say).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(())) | Err(_) => Err(NotTold),
        }
    }
}

/// The goodbye of a worker could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTold;

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection to NATS to say goodbye on: the registration ends by itself")
    }
}

impl std::error::Error for NotTold {}

/// When a worker announces itself.
#[derive(Debug)]
struct Heartbeat {
    last: Option<Instant>,
    next: Instant,
    /// Somebody may not know its load.
    load_is_wanted: bool,
}

impl Heartbeat {
    fn new(now: Instant) -> Self {
        Self {
            last: None,
            next: now,
            load_is_wanted: true,
        }
    }

    /// It was said; whether the load of all ranks is to follow.
    fn announced(&mut self, ttl: Duration, now: Instant) -> bool {
        self.last = Some(now);
        self.next = now + ttl / 3;
        std::mem::take(&mut self.load_is_wanted)
    }

    /// Somebody wants to know: soon, but not more often than that.
    fn asked(&mut self, now: Instant) {
        let soon = self.last.map_or(now, |last| last + ANSWER_EVERY);
        self.next = self.next.min(soon);
        self.load_is_wanted = true;
    }

    /// Nobody may have heard the last one, or there is something new to say.
    fn at_once(&mut self, now: Instant) {
        self.next = now;
        self.load_is_wanted = true;
    }
}

/// The task that speaks for a worker.
struct Voice {
    client: Client,
    subjects: Subjects,
    worker: String,
    shared: Arc<Shared>,
    /// The log says that this server takes only shorter messages.
    told_of_length: bool,
}

impl Voice {
    async fn run(mut self) {
        let start = Instant::now();
        let mut link = Link::new(
            self.client.clone(),
            format!("worker {}", self.worker),
            start,
        );
        let mut asked = match self.client.subscribe(self.subjects.announce()).await {
            Ok(asked) => Some(asked),
            Err(error) => {
                tracing::warn!(%error, "cannot hear gateways ask, announcing at intervals only");
                None
            }
        };
        let mut heartbeat = Heartbeat::new(start);
        let mut edition = None;
        let mut schedule = ReportSchedule::new(0, MAX_REPORT_INTERVAL, start);
        loop {
            let now = Instant::now();
            if link.look(now) == Some(Change::Up) {
                self.told_of_length = false;
                heartbeat.at_once(now);
            }
            let (registration, loads) = {
                let state = self.shared.state();
                if edition != Some(state.edition) {
                    edition = Some(state.edition);
                    heartbeat.at_once(now);
                    schedule = ReportSchedule::new(state.loads.len(), MAX_REPORT_INTERVAL, now);
                }
                let announce = link.is_up() && now >= heartbeat.next;
                let loads: Vec<_> = state.loads.values().cloned().collect();
                (announce.then(|| state.registration.clone()), loads)
            };
            if let Some(registration) = registration {
                let json = message::registration(&registration);
                if self.say(&registration.models, Subjects::worker, &json)
                    && heartbeat.announced(registration.ttl, now)
                {
                    schedule.forget();
                }
            }
            if link.is_up() {
                let due: Vec<_> = schedule.due(loads, now).map(|(_, load)| load).collect();
                let due: Vec<_> = due.into_iter().filter(says_something).collect();
                if !due.is_empty() {
                    let models = self.shared.state().registration.models.clone();
                    if !self.say(&models, Subjects::load, &message::loads(&due)) {
                        schedule.forget();
                    }
                }
            }

            sleep(MIN_REPORT_INTERVAL).await;
            let mut look = now + LOOK_EVERY;
            if link.is_up() {
                look = look.min(schedule.next_full()).min(heartbeat.next);
            }
            tokio::select! {
                () = self.shared.changed.notified(), if link.is_up() => {}
                _ = heard(&mut asked) => heartbeat.asked(Instant::now()),
                () = sleep_until(look) => {}
            }
        }
    }

    /// Publishes on the subject of each model; false if the client cannot take
    /// it now. What the server would never take counts as said: trying it again
    /// before its time would be in vain.
    fn say(
        &mut self,
        models: &[String],
        subject: impl Fn(&Subjects, &str, &str) -> Result<String, super::InvalidName>,
        json: &[u8],
    ) -> bool {
        let json = Bytes::copy_from_slice(json);
        models.iter().all(|model| {
            let Ok(subject) = subject(&self.subjects, model, &self.worker) else {
                return false;
            };
            let said = self.client.publish(subject, json.clone()).now_or_never();
            match said {
                Some(Ok(())) => true,
                Some(Err(error)) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    if !std::mem::replace(&mut self.told_of_length, true) {
                        let worker = &*self.worker;
                        tracing::warn!(worker, %error, "the server does not take a message");
                    }
                    true
                }
                Some(Err(_)) | None => false,
            }
        })
    }
}

fn says_something(load: &LoadEvent<()>) -> bool {
    load.active_decode_blocks.is_some()
        || load.kv_used_blocks.is_some()
        || load.active_prefill_tokens.is_some()
}

/// The next question; never again once there are none.
async fn heard(asked: &mut Option<Subscriber>) -> Message {
    if let Some(questions) = asked {
        if let Some(question) = questions.next().await {
            return question;
        }
        *asked = None;
    }
    pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_worker_announces_itself_three_times_in_its_ttl() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        assert_eq!(heartbeat.next, start);
        assert!(
            heartbeat.announced(SECOND * 9, start),
            "nobody knows its load"
        );
        assert_eq!(heartbeat.next, start + SECOND * 3);
        assert!(!heartbeat.announced(SECOND * 9, start), "all know its load");
        heartbeat.asked(start);
        assert!(heartbeat.announced(SECOND * 9, start), "somebody is new");
    }

    #[test]
    fn a_worker_that_is_asked_all_the_time_answers_once_a_second() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        heartbeat.announced(SECOND * 300, start);
        heartbeat.asked(start + SECOND / 2);
        assert_eq!(heartbeat.next, start + SECOND);
        heartbeat.asked(start + SECOND * 2 / 3);
        assert_eq!(heartbeat.next, start + SECOND);
        heartbeat.announced(SECOND * 300, start + SECOND);
        heartbeat.asked(start + SECOND * 50);
        assert!(heartbeat.next <= start + SECOND * 50);
    }

    #[test]
    fn the_newest_report_counts_and_an_absent_count_is_as_it_was() {
        let mut state = State::new(Registration::new("http://a", ["m"]).dp_ranks([0, 4]));
        let event = |rank| LoadEvent::new((), rank);
        state
            .report(&event(4).kv_used_blocks(1).active_prefill_tokens(2))
            .unwrap();
        state.report(&event(4).kv_used_blocks(0)).unwrap();
        let expected = event(4).kv_used_blocks(0).active_prefill_tokens(2);
        assert_eq!(state.loads[&4], expected);
        assert_eq!(state.report(&event(1)), Err(DropReason::UndeclaredRank));
        state.update(Registration::new("http://a", ["m"]).dp_ranks([4, 5]));
        assert_eq!(
            state.loads.values().collect::<Vec<_>>(),
            [&expected, &event(5)]
        );
        assert_eq!(state.report(&event(0)), Err(DropReason::UndeclaredRank));
    }
}
