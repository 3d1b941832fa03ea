//! The machine that measures: how much of it is used, by whom.

use std::fs;

/// CPU time so far, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    all: u64,
    busy: u64,
    own: u64,
}

impl Machine {
    /// Now; `None` where there is no `/proc`.
    pub fn now() -> Option<Self> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&system, &own)
    }

    fn parse(system: &str, own: &str) -> Option<Self> {
        let line = system.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guests are in user.
        let ticks: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .map(|ticks| ticks.parse().ok())
            .collect::<Option<_>>()?;
        let all: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        // The name, in parentheses, may contain anything.
        let (_, own) = own.rsplit_once(')')?;
        let own: Vec<&str> = own.split_whitespace().collect();
        let user: u64 = own.get(11)?.parse().ok()?;
        let kernel: u64 = own.get(12)?.parse().ok()?;
        Some(Self {
            all,
            busy: all - idle,
            own: user + kernel,
        })
    }

    /// What this process and what others have used since, in percent of all
    /// cores.
    pub fn since(self, earlier: Self) -> (f64, f64) {
        let all = self.all.saturating_sub(earlier.all).max(1) as f64;
        let own = self.own.saturating_sub(earlier.own) as f64;
        let busy = self.busy.saturating_sub(earlier.busy) as f64;
        (100.0 * own / all, 100.0 * (busy - own).max(0.0) / all)
    }
}

/// A request takes two connections, both ends of which are in this process.
pub const FILES_PER_REQUEST: u64 = 4;

/// Raises the limit of open files as far as it goes, and says how far that is.
pub fn raise_open_files() -> u64 {
    rlimit::increase_nofile_limit(u64::from(u16::MAX)).unwrap_or(1024)
}
