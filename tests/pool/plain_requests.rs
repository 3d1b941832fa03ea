//! What becomes of a request, as the documentation has it.

use crate::plain::{
    Asking, Connection, Heard, LEASE, MAX_LEASE, MAX_WAIT, MAX_WAITING, Phase, Plain, Reach, Seen,
    Standing, Verdict,
};
use std::{collections::BTreeSet, time::Duration};

impl Plain {
    /// Those of which one has to be chosen, or what is to be said; `None` to
    /// wait.
    fn choice(&self, asked: &BTreeSet<u8>) -> Result<BTreeSet<Connection>, Option<Verdict>> {
        let standing = |id: &u8| self.standing(*id);
        let all: Vec<_> = self.members.keys().copied().collect();
        let open: Vec<_> = all
            .iter()
            .filter(|id| standing(id) == Standing::Open)
            .collect();
        let is_any = |it: Standing| all.iter().any(|id| standing(id) == it);
        if open.is_empty() {
            return Err(if is_any(Standing::Held) {
                None
            } else if is_any(Standing::Shed) {
                Some(Verdict::AllBusy)
            } else if all.is_empty() {
                Some(Verdict::NoWorkers)
            } else {
                Some(Verdict::NoneReachable)
            });
        }
        let unasked: Vec<_> = open
            .iter()
            .filter(|id| !asked.contains(id))
            .copied()
            .collect();
        let among = if unasked.is_empty() { open } else { unasked };
        let load = |id: u8| self.load(id);
        let loads = among.iter().map(|id| load(**id));
        let (least, most) = (
            loads.clone().min().unwrap_or(0),
            loads.clone().max().unwrap_or(0),
        );
        let is_alone = loads.clone().filter(|load| *load == most).count() == 1;
        let may = |id: &u8| match self.of_all {
            true => load(*id) == least,
            // Of two that differ the more loaded one is never chosen.
            false => among.len() == 1 || !is_alone || load(*id) < most,
        };
        let ids = among.iter().map(|id| **id).filter(may);
        Ok(ids.map(|id| (id, self.members[&id].number)).collect())
    }

    /// Whether the worker that a request waits for gets nothing any more.
    fn has_closed(&self, connection: Connection) -> bool {
        !self.has(connection) || self.is_excluded(connection.0)
    }

    /// Whether a request has something to do, so that it has to be woken.
    pub fn is_due(&self, request: usize) -> bool {
        let asking = &self.requests[request];
        let due = self.now >= asking.deadline || !self.unapplied.is_empty();
        match asking.phase {
            Phase::Parked => due || self.choice(&asking.asked) != Err(None),
            Phase::Chosen(it) => {
                due || self.has_closed(it)
                    || self.broken.contains(&it)
                    || !self.unready.contains(&it)
            }
            Phase::Sent(_) | Phase::Answered(_) | Phase::Over => false,
        }
    }

    pub fn came(&mut self, asked: BTreeSet<u8>, since: u64) -> usize {
        self.requests.push(Asking {
            phase: Phase::Parked,
            deadline: since + MAX_WAIT,
            asked,
            has_place: false,
            since: None,
            before: 0,
            has_failed: false,
        });
        self.requests.len() - 1
    }

    /// A request looks for a worker, as `seen`; returns what it was told.
    pub fn look(&mut self, request: usize, seen: &mut Seen) -> Option<Verdict> {
        self.apply();
        loop {
            match self.requests[request].phase {
                Phase::Parked => match self.choice(&self.requests[request].asked) {
                    Ok(admissible) => {
                        let chosen = seen.chosen.pop_front();
                        let chosen = chosen.unwrap_or_else(|| panic!("none of {admissible:?}"));
                        assert!(admissible.contains(&chosen), "{chosen:?} of {admissible:?}");
                        self.joins(request, chosen);
                        continue;
                    }
                    Err(Some(verdict)) => return Some(self.answered(request, verdict)),
                    Err(None) => {}
                },
                Phase::Chosen(it) if self.has_closed(it) => {
                    self.leave(request, Phase::Parked);
                    continue;
                }
                Phase::Chosen(it) if self.broken.contains(&it) => {
                    self.members.remove(&it.0);
                    self.leave(request, Phase::Parked);
                    continue;
                }
                Phase::Chosen(it) if !self.unready.contains(&it) => {
                    assert_eq!(seen.sent.pop_front(), Some(it));
                    let asking = &mut self.requests[request];
                    (asking.phase, asking.has_place) = (Phase::Sent(it), false);
                    return None;
                }
                Phase::Chosen(_) => {}
                phase => panic!("{phase:?} looks for a worker"),
            }
            if self.now >= self.requests[request].deadline {
                return Some(self.answered(request, Verdict::TooLong));
            }
            if !self.requests[request].has_place && self.waiting() >= MAX_WAITING {
                return Some(self.answered(request, Verdict::TooMany));
            }
            self.requests[request].has_place = true;
            return None;
        }
    }

    fn answered(&mut self, request: usize, verdict: Verdict) -> Verdict {
        self.leave(request, Phase::Over);
        verdict
    }

    /// The request leaves its worker, of which it says nothing.
    pub fn leave(&mut self, request: usize, to: Phase) {
        if let Phase::Chosen(it) | Phase::Sent(it) | Phase::Answered(it) =
            self.requests[request].phase
        {
            if self.has(it) {
                let given_up = |reach| match reach {
                    Reach::Probed { cooldown, by, .. } if by == request => {
                        Reach::Suspect { cooldown }
                    }
                    reach => reach,
                };
                let (reach, failing) = (self.reach(it.0), self.failing(it.0));
                let member = self.members.get_mut(&it.0).unwrap();
                (member.reach, member.failing) = (given_up(reach), given_up(failing));
            }
        }
        let asking = &mut self.requests[request];
        asking.has_place &= to != Phase::Over;
        asking.phase = to;
    }

    /// What the answer to a request says of its worker, if that is still there.
    pub fn heard(&mut self, request: usize, heard: Heard) {
        let asking = self.requests[request].clone();
        let (Phase::Sent(it) | Phase::Answered(it)) = asking.phase else {
            panic!("no worker has {request}");
        };
        let (now, since) = (self.now, asking.since);
        if self.has(it) {
            let is_alone = self.in_flight_of(it) == 1;
            let reach = self.reach(it.0);
            let member = self.members.get_mut(&it.0).unwrap();
            match heard {
                Heard::Refused(named) => {
                    member.reach = Reach::Fine;
                    let longest = if is_alone { LEASE } else { MAX_LEASE };
                    let lease = named.map_or(LEASE, |named| named.min(longest));
                    if member.completed == asking.before {
                        member.lease = member.lease.max(Some(now + lease));
                    }
                }
                Heard::Unreachable => member.reach = reach.excluded(now),
                Heard::Lost if is_alone || reach != Reach::Fine => {
                    member.reach = reach.excluded(now);
                }
                Heard::Lost => member.failed(now, since),
                Heard::Failed | Heard::AnsweredBadly => {
                    member.reach = Reach::Fine;
                    member.failed(now, since);
                }
                Heard::Answered => member.reach = Reach::Fine,
                Heard::Completed => {
                    member.lease = None;
                    member.completed += 1;
                    if !asking.has_failed {
                        member.succeeded(now);
                        if let Some(since) = since {
                            let took = Duration::from_millis(now - since);
                            let takes = member.takes.unwrap_or(took);
                            member.takes = Some((takes * 7 + took) / 8);
                        }
                    }
                }
                Heard::Other => {}
            }
        }
        match heard {
            Heard::Answered | Heard::AnsweredBadly => {
                let asking = &mut self.requests[request];
                asking.phase = Phase::Answered(it);
                asking.has_failed = heard == Heard::AnsweredBadly;
            }
            _ => self.leave(request, Phase::Over),
        }
    }
}
