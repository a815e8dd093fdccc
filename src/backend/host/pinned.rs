use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::config::Config;
use crate::error::LimitOf;
use crate::{Error, Result};

/// Returns the default [budget](crate::config::Pinning::budget) of page-locked memory for this much memory: 2 GiB, at most a quarter; 2 GiB if
/// the memory is unknown.
#[must_use]
pub const fn pinned_budget(host_memory: Option<u64>) -> u64 {
    Config::host().pinning.budget(match host_memory {
        Some(bytes) => bytes,
        None => u64::MAX,
    })
}

pub(crate) struct Budget {
    bytes: u64,
    used: AtomicU64,
}

impl Budget {
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, used: AtomicU64::new(0) }
    }

    pub fn take(&self, asked: u64) -> Result<()> {
        let take = |used: u64| used.checked_add(asked).filter(|&sum| sum <= self.bytes);
        match self.used.fetch_update(Relaxed, Relaxed, take) {
            Ok(_) => Ok(()),
            Err(used) => Err(Error::Limit { of: LimitOf::Pinned, requested: asked, used, limit: self.bytes }),
        }
    }

    pub fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

/// Returns the machine's memory in bytes, if the system reports it.
#[must_use]
pub fn host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_quarter_and_at_most_2_gib() {
        for (memory, budget) in [
            (Some(0), 0),
            (Some(4 << 30), 1 << 30),
            (Some((8 << 30) - 4), (2 << 30) - 1),
            (Some(8 << 30), 2 << 30),
            (Some(u64::MAX), 2 << 30),
            (None, 2 << 30),
        ] {
            assert_eq!(pinned_budget(memory), budget, "{memory:?}");
        }
    }

    #[test]
    fn the_budget_never_overflows() {
        let budget = Budget::new(u64::MAX);
        assert!(budget.take(10).is_ok());
        assert!(matches!(budget.take(u64::MAX), Err(Error::Limit { of: LimitOf::Pinned, requested: u64::MAX, used: 10, limit: u64::MAX })));
        budget.give(10);
        assert!(budget.take(u64::MAX).is_ok());
    }
}
