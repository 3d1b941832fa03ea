//! What becomes of a request, as the documentation has it.

use crate::plain::{
    Asking, COOLDOWN, Connection, Heard, LEASE, MAX_COOLDOWN, MAX_LEASE, MAX_WAIT, MAX_WAITING,
    PROBE_TIMEOUT, Phase, Plain, Reach, Seen, Standing, Verdict,
};
use std::collections::BTreeSet;

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
        let load = |id: u8| self.in_flight_of((id, self.members[&id].number));
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
    fn is_excluded(&self, connection: Connection) -> bool {
        let id = connection.0;
        !self.has(connection)
            || self.is_draining(id)
            || self.is_marked(id)
            || matches!(self.reach(id), Reach::Down { .. })
    }

    /// Whether a request has something to do, so that it has to be woken.
    pub fn is_due(&self, request: usize) -> bool {
        let asking = &self.requests[request];
        let due = self.now >= asking.deadline || !self.unapplied.is_empty();
        match asking.phase {
            Phase::Parked => due || self.choice(&asking.asked) != Err(None),
            Phase::Chosen(it) => {
                due || self.is_excluded(it)
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
                        if let Reach::Suspect { cooldown } = self.reach(chosen.0) {
                            let until = self.now + PROBE_TIMEOUT;
                            self.reached(
                                chosen.0,
                                Reach::Probed {
                                    until,
                                    cooldown,
                                    by: request,
                                },
                            );
                        }
                        self.requests[request].phase = Phase::Chosen(chosen);
                        continue;
                    }
                    Err(Some(verdict)) => return Some(self.answered(request, verdict)),
                    Err(None) => {}
                },
                Phase::Chosen(it) if self.is_excluded(it) => {
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

    fn reached(&mut self, id: u8, reach: Reach) {
        if let Some(member) = self.members.get_mut(&id) {
            member.reach = reach;
        }
    }

    /// The request leaves its worker, of which it says nothing.
    pub fn leave(&mut self, request: usize, to: Phase) {
        if let Phase::Chosen(it) | Phase::Sent(it) = self.requests[request].phase {
            match self.has(it).then(|| self.reach(it.0)) {
                Some(Reach::Probed { cooldown, by, .. }) if by == request => {
                    self.reached(it.0, Reach::Suspect { cooldown });
                }
                _ => {}
            }
        }
        let asking = &mut self.requests[request];
        asking.has_place &= to != Phase::Over;
        asking.phase = to;
    }

    /// What the answer to a request says of its worker, if that is still there.
    pub fn heard(&mut self, request: usize, heard: Heard) {
        let (Phase::Sent(it) | Phase::Answered(it)) = self.requests[request].phase else {
            panic!("no worker has {request}");
        };
        let now = self.now;
        if self.has(it) {
            let reach = self.reach(it.0);
            let (id, member) = (it.0, self.members.get_mut(&it.0).unwrap());
            match (heard, reach) {
                (Heard::Refused(named), _) => {
                    let (end, until) = match named {
                        Some(named) => (&mut member.named, now + named.min(MAX_LEASE)),
                        None => (&mut member.lease, now + LEASE),
                    };
                    *end = (*end).max(Some(until));
                    self.reached(id, Reach::Fine);
                }
                (Heard::Answered, _) => self.reached(id, Reach::Fine),
                (Heard::Completed, _) => member.lease = None,
                (Heard::Failed, Reach::Down { .. }) | (Heard::Other, _) => {}
                (Heard::Failed, reach) => {
                    let cooldown = match reach {
                        Reach::Suspect { cooldown } | Reach::Probed { cooldown, .. } => {
                            (cooldown * 2).min(MAX_COOLDOWN)
                        }
                        _ => COOLDOWN,
                    };
                    self.reached(
                        id,
                        Reach::Down {
                            until: now + cooldown,
                            cooldown,
                        },
                    );
                }
            }
        }
        match heard {
            Heard::Answered => self.requests[request].phase = Phase::Answered(it),
            _ => self.leave(request, Phase::Over),
        }
    }
}
