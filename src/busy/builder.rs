use super::{marks::Times, shared::Shared};
use crate::metrics::Prefix;
use std::{error::Error, fmt, time::Duration};

/// Configures a [`BusySet`](super::BusySet).
#[derive(Clone, Debug)]
#[must_use]
pub struct BusySetBuilder {
    times: Times,
    model: Box<str>,
    prefix: Prefix,
}

/// No duration of a set may be longer than a day.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for BusySetBuilder {
    fn default() -> Self {
        Self {
            times: Times {
                lease: Duration::from_secs(1),
                max_lease: Duration::from_secs(30),
                cooldown: Duration::from_secs(1),
                max_cooldown: Duration::from_secs(30),
                probe_timeout: Duration::from_secs(1),
                probe_after: Some(Duration::from_secs(10)),
            },
            model: "".into(),
            prefix: Prefix::default(),
        }
    }
}

impl BusySetBuilder {
    /// How long a worker is leased after a refusal that names no time
    /// (default: 1 s, what the reference was measured to do).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.times.lease = lease;
        self
    }

    /// The longest lease that a worker's `Retry-After` can bring (default: 30 s).
    pub fn max_lease(mut self, max_lease: Duration) -> Self {
        self.times.max_lease = max_lease;
        self
    }

    /// How long a worker is unreachable after a failed connection (default: 1 s).
    pub fn cooldown(mut self, cooldown: Duration) -> Self {
        self.times.cooldown = cooldown;
        self
    }

    /// Where the doubling of the cooldown stops (default: 30 s).
    pub fn max_cooldown(mut self, max_cooldown: Duration) -> Self {
        self.times.max_cooldown = max_cooldown;
        self
    }

    /// How long a request that probes a worker on probation holds the others
    /// back (default: 1 s). That it takes longer is no failure: the next
    /// request probes too.
    pub fn probe_timeout(mut self, probe_timeout: Duration) -> Self {
        self.times.probe_timeout = probe_timeout;
        self
    }

    /// How long a worker is busy by the same counts before it gets one request,
    /// and one more each time that passes (default: 10 s, up to a quarter
    /// longer at random; `None`: never).
    ///
    /// A gauge may be stuck: an engine that is not asked reports the same for
    /// ever. A worker that has requests of this side, or got one meanwhile, is
    /// not asked, and neither is one whose counts change.
    pub fn probe_after(mut self, probe_after: Option<Duration>) -> Self {
        self.times.probe_after = probe_after;
        self
    }

    /// The model whose workers these are; the label of metrics and logs
    /// (default: empty).
    pub fn model(mut self, model: impl Into<Box<str>>) -> Self {
        self.model = model.into();
        self
    }

    /// What the names of the metrics start with (default: `dynamo`).
    pub fn metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// What the workers of the set share.
    pub(super) fn shared(self) -> Result<Shared, BusySetError> {
        let Times {
            lease,
            max_lease,
            cooldown,
            max_cooldown,
            probe_timeout,
            probe_after,
        } = self.times;
        for (name, value) in [("max_lease", max_lease), ("max_cooldown", max_cooldown)] {
            if value > MAX_TIME {
                return Err(BusySetError {
                    name,
                    value,
                    allowed: "at most 24 hours",
                });
            }
        }
        if lease > max_lease {
            return Err(BusySetError {
                name: "lease",
                value: lease,
                allowed: "at most max_lease",
            });
        }
        if cooldown.is_zero() || cooldown > max_cooldown {
            return Err(BusySetError {
                name: "cooldown",
                value: cooldown,
                allowed: "above 0 and at most max_cooldown",
            });
        }
        if probe_timeout.is_zero() || probe_timeout > MAX_TIME {
            return Err(BusySetError {
                name: "probe_timeout",
                value: probe_timeout,
                allowed: "above 0 and at most 24 hours",
            });
        }
        if probe_after.is_some_and(|after| after.is_zero() || after > MAX_TIME) {
            return Err(BusySetError {
                name: "probe_after",
                value: probe_after.unwrap_or_default(),
                allowed: "above 0 and at most 24 hours, or none",
            });
        }
        Ok(Shared::new(self.times, self.model, self.prefix))
    }
}

/// A duration that a [`BusySet`](super::BusySet) cannot work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusySetError {
    name: &'static str,
    value: Duration,
    allowed: &'static str,
}

impl fmt::Display for BusySetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            allowed,
        } = self;
        write!(f, "{name} is {value:?}; allowed: {allowed}")
    }
}

impl Error for BusySetError {}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_durations_are_refused_by_name() {
        let build = |builder: BusySetBuilder| match builder.shared() {
            Err(error) => error.to_string(),
            Ok(_) => panic!("accepted"),
        };
        let day = Duration::from_secs(25 * 60 * 60);
        assert!(build(BusySetBuilder::default().lease(day)).contains("lease"));
        assert!(build(BusySetBuilder::default().cooldown(Duration::ZERO)).contains("cooldown"));
        let short = BusySetBuilder::default().max_cooldown(Duration::from_millis(1));
        assert!(build(short).contains("cooldown"));
        let never = BusySetBuilder::default().probe_timeout(Duration::ZERO);
        assert!(build(never).contains("probe_timeout"));
    }
}
