use async_nats::{Client, connection::State};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::time::Instant;

/// How often the state of a connection is looked at. The client tells of
/// changes only through a callback, which belongs to the application.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A connection that takes longer than this at the start is worth a word.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sees when a client's connection is lost and when it is there again, and
/// says so in the log, once each time.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    who: String,
    seen: Seen,
}

/// What was seen of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It was never there, since then.
    NotYet(Instant),
    /// As before, and the log says so.
    Missed,
    /// It is the n-th connection of the client.
    Up(u64),
    Lost,
}

/// A change of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is there, or another one is there.
    Up,
    Lost,
    /// There is still none.
    Missed,
}

impl Seen {
    /// `connection` is the number of the connection, if there is one.
    fn look(&mut self, connection: Option<u64>, now: Instant) -> Option<Change> {
        let (next, change) = match (*self, connection) {
            (Self::Up(before), Some(n)) if before == n => return None,
            (_, Some(n)) => (Self::Up(n), Change::Up),
            (Self::Up(_), None) => (Self::Lost, Change::Lost),
            (Self::NotYet(since), None) if now >= since + PATIENCE => {
                (Self::Missed, Change::Missed)
            }
            (_, None) => return None,
        };
        *self = next;
        Some(change)
    }
}

impl Link {
    /// `who` uses the connection, for the log.
    pub(super) fn new(client: Client, who: impl Into<String>, now: Instant) -> Self {
        Self {
            client,
            who: who.into(),
            seen: Seen::NotYet(now),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.seen, Seen::Up(_))
    }

    /// What has changed since the last time. A connection that was lost and
    /// made again in between is one that is up.
    pub(super) fn look(&mut self, now: Instant) -> Option<Change> {
        // In this order: the client counts a connection before it says so.
        let is_up = self.client.connection_state() == State::Connected;
        let n = self.client.statistics().connects.load(Ordering::Acquire);
        let change = self.seen.look(is_up.then_some(n), now)?;
        let who = &self.who;
        match change {
            Change::Up => tracing::info!(who, "connected to NATS"),
            Change::Lost => tracing::warn!(who, "the connection to NATS is lost"),
            Change::Missed => tracing::warn!(who, "no connection to NATS yet, trying on"),
        }
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_seen_once() {
        let start = Instant::now();
        let mut seen = Seen::NotYet(start);
        let early = start + PATIENCE / 2;
        let late = start + PATIENCE;
        for (connection, now, change) in [
            (None, early, None),
            (None, late, Some(Change::Missed)),
            (None, late, None),
            (Some(1), late, Some(Change::Up)),
            (Some(1), late, None),
            (None, late, Some(Change::Lost)),
            (None, late + PATIENCE, None),
            (Some(2), late, Some(Change::Up)),
            (Some(3), late, Some(Change::Up)),
        ] {
            assert_eq!(seen.look(connection, now), change, "{connection:?}");
        }
        let mut seen = Seen::NotYet(start);
        assert_eq!(seen.look(Some(1), early), Some(Change::Up));
    }
}
