use super::{connect::RECONNECTS_WITHIN, message::Registration};
use crate::WorkerId;
use std::collections::HashMap;
use tokio::time::Instant;

/// Which workers are there: those whose registration was renewed within its
/// time to live.
///
/// Silence says something only while it could have been broken: after a time
/// without a connection every registration is good for its whole time to live
/// again, and at least for as long as a worker may take to connect again too.
#[derive(Debug)]
pub(super) struct Registrations<K> {
    known: HashMap<K, Known>,
    most: usize,
    /// The connection is up since then.
    up_since: Option<Instant>,
}

#[derive(Debug)]
struct Known {
    registration: Registration,
    heard: Instant,
}

impl Known {
    /// When it ends, if nothing is heard.
    fn end(&self, up_since: Instant) -> Instant {
        let ttl = self.registration.ttl;
        if self.heard < up_since {
            up_since + ttl.max(RECONNECTS_WITHIN)
        } else {
            self.heard + ttl
        }
    }
}

/// What a registration changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The worker is new, or says something else than before.
    Changed,
    /// The worker is still there.
    Renewed,
    /// There are too many workers already.
    NoRoom,
}

impl<K: WorkerId> Registrations<K> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            known: HashMap::new(),
            most,
            up_since: None,
        }
    }

    pub(super) fn hear(&mut self, id: &K, registration: &Registration, now: Instant) -> Heard {
        if let Some(known) = self.known.get_mut(id) {
            known.heard = known.heard.max(now);
            if known.registration == *registration {
                return Heard::Renewed;
            }
            known.registration = registration.clone();
            return Heard::Changed;
        }
        if self.known.len() >= self.most {
            return Heard::NoRoom;
        }
        let registration = registration.clone();
        let heard = now;
        self.known.insert(
            id.clone(),
            Known {
                registration,
                heard,
            },
        );
        Heard::Changed
    }

    /// Whether it was there.
    pub(super) fn leave(&mut self, id: &K) -> bool {
        self.known.remove(id).is_some()
    }

    /// The connection is up, or up again, since `since`; `None`: it is down.
    pub(super) fn connection(&mut self, since: Option<Instant>) {
        self.up_since = since;
    }

    /// The next time that a registration ends, unless it is renewed; `None`
    /// while none can.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let up_since = self.up_since?;
        self.known.values().map(|known| known.end(up_since)).min()
    }

    /// Removes the workers whose registration has ended.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<K> {
        let Some(up_since) = self.up_since else {
            return Vec::new();
        };
        let ended = self
            .known
            .iter()
            .filter(|(_, known)| known.end(up_since) <= now);
        let gone: Vec<K> = ended.map(|(id, _)| id.clone()).collect();
        for id in &gone {
            self.known.remove(id);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn registration(seconds: u32) -> Registration {
        Registration::new("http://a", ["m"]).ttl(SECOND * seconds)
    }

    fn up(most: usize) -> (Registrations<&'static str>, Instant) {
        let now = Instant::now();
        let mut workers = Registrations::new(most);
        workers.connection(Some(now));
        (workers, now)
    }

    #[test]
    fn a_worker_is_there_for_its_ttl_after_it_was_heard() {
        let (mut workers, start) = up(9);
        assert_eq!(workers.next_end(), None);
        assert_eq!(workers.hear(&"a", &registration(10), start), Heard::Changed);
        assert_eq!(
            workers.hear(&"b", &registration(5), start + SECOND),
            Heard::Changed
        );
        assert_eq!(workers.next_end(), Some(start + SECOND * 6));
        assert_eq!(
            workers.hear(&"b", &registration(5), start + SECOND * 3),
            Heard::Renewed
        );
        assert_eq!(workers.expire(start + SECOND * 7), [""; 0]);
        assert_eq!(workers.expire(start + SECOND * 8), ["b"]);
        assert_eq!(workers.expire(start + SECOND * 10), ["a"]);
        assert_eq!(workers.next_end(), None);
    }

    #[test]
    fn a_worker_that_says_something_else_is_told_of_again() {
        let (mut workers, now) = up(9);
        workers.hear(&"a", &registration(10), now);
        assert_eq!(
            workers.hear(&"a", &registration(10).draining(true), now),
            Heard::Changed
        );
        assert_eq!(
            workers.hear(&"a", &registration(10).draining(true), now),
            Heard::Renewed
        );
        assert!(workers.leave(&"a"));
        assert!(!workers.leave(&"a"));
        assert_eq!(workers.hear(&"a", &registration(10), now), Heard::Changed);
    }

    #[test]
    fn nobody_is_gone_for_silence_that_could_not_be_broken() {
        let (mut workers, start) = up(9);
        workers.hear(&"a", &registration(10), start);
        workers.connection(None);
        assert_eq!(workers.next_end(), None);
        assert_eq!(workers.expire(start + SECOND * 1000), [""; 0]);
        workers.connection(Some(start + SECOND * 1000));
        assert_eq!(workers.expire(start + SECOND * 1009), [""; 0]);
        assert_eq!(workers.expire(start + SECOND * 1010), ["a"]);
    }

    #[test]
    fn a_worker_has_time_to_connect_again_however_short_its_ttl() {
        let (mut workers, start) = up(9);
        workers.hear(&"a", &registration(1), start);
        workers.hear(&"b", &registration(1), start);
        let again = start + SECOND * 60;
        workers.connection(None);
        workers.connection(Some(again));
        assert_eq!(workers.next_end(), Some(again + RECONNECTS_WITHIN));
        workers.hear(&"b", &registration(1), again + SECOND);
        assert_eq!(workers.expire(again + SECOND * 2), ["b"]);
        assert_eq!(workers.expire(again + RECONNECTS_WITHIN), ["a"]);
    }

    #[test]
    fn a_worker_too_many_is_not_kept_and_the_others_are() {
        let (mut workers, now) = up(2);
        workers.hear(&"a", &registration(10), now);
        workers.hear(&"b", &registration(10), now);
        assert_eq!(workers.hear(&"c", &registration(10), now), Heard::NoRoom);
        assert_eq!(workers.hear(&"b", &registration(10), now), Heard::Renewed);
        workers.leave(&"a");
        assert_eq!(workers.hear(&"c", &registration(10), now), Heard::Changed);
    }

    #[test]
    fn a_message_that_was_late_to_be_read_does_not_make_a_worker_older() {
        let (mut workers, start) = up(2);
        workers.hear(&"a", &registration(10), start + SECOND * 5);
        workers.hear(&"a", &registration(10), start);
        assert_eq!(workers.next_end(), Some(start + SECOND * 15));
    }
}
