//! [`Watchdog`]: detects a stuck kernel from its heartbeat.
//!
//! It compares snapshots of the control block at times of any one clock. Any change of the heartbeat counts: it may wrap.

use core::fmt;

use crate::ControlBlock;
use crate::control::State;
use crate::defmt_derive::Format;

/// The result of [`Watchdog::check`].
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::State;
/// use ringmem::watchdog::Verdict;
///
/// fn needs_restart(verdict: Verdict) -> bool {
///     matches!(verdict, Verdict::Stuck { .. } | Verdict::Ended(State::Faulted))
/// }
///
/// assert!(needs_restart(Verdict::Ended(State::Faulted)));
/// assert!(!needs_restart(Verdict::Quiet { for_ns: 40_000_000 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum Verdict {
    /// The heartbeat has changed, or this is the first check.
    Alive,
    /// The heartbeat is unchanged, perhaps in a long batch.
    Quiet {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// The heartbeat is unchanged for longer than the limit.
    Stuck {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// The kernel has exited, in this state.
    Ended(State),
    /// The state is of another launch: the kernel was abandoned, or has not seen the new epoch.
    OtherEpoch,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alive => f.write_str("alive"),
            Self::Quiet { for_ns } => write!(f, "quiet for {} ms", for_ns / 1_000_000),
            Self::Stuck { for_ns } => write!(f, "stuck for {} ms", for_ns / 1_000_000),
            Self::Ended(state) => write!(f, "ended: {state}"),
            Self::OtherEpoch => f.write_str("of another launch"),
        }
    }
}

/// A heartbeat monitor.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::{HostSide, Launch};
/// # use ringmem::{HostWord, control::{Capabilities, Shared}};
/// use ringmem::watchdog::{Verdict, Watchdog};
/// # let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// # let launch = Launch { abi: 0, capabilities: Capabilities::empty(), epoch: 1, input_ring: 0, output_ring: 0, second_headers: [None; 2], telemetry: 0 };
/// # let host = unsafe { HostSide::prepare(&block, &launch) };
/// let mut watchdog = Watchdog::new(1_000_000_000);
/// assert_eq!(watchdog.check(&host.snapshot(), 0), Verdict::Alive);
/// assert_eq!(watchdog.check(&host.snapshot(), 600_000_000), Verdict::Quiet { for_ns: 600_000_000 });
/// assert_eq!(watchdog.check(&host.snapshot(), 1_200_000_000), Verdict::Stuck { for_ns: 1_200_000_000 });
/// ```
#[derive(Clone, Debug, Format)]
pub struct Watchdog {
    stuck_after_ns: u64,
    last: Option<Look>,
}

#[derive(Clone, Copy, Debug, Format)]
struct Look {
    epoch: u64,
    heartbeat: u64,
    since_ns: u64,
}

impl Watchdog {
    /// Creates a watchdog. `stuck_after_ns` must exceed the longest batch, and 2 ms: sixteen short batches share a heartbeat.
    #[must_use]
    pub const fn new(stuck_after_ns: u64) -> Self {
        Self { stuck_after_ns, last: None }
    }

    /// Checks a snapshot at `now_ns`. Time counts from the first check with this heartbeat, or from an earlier `now_ns` if the clock steps back.
    pub fn check(&mut self, block: &ControlBlock<u64>, now_ns: u64) -> Verdict {
        if u64::from(block.kernel_epoch()) != block.epoch {
            return Verdict::OtherEpoch;
        }
        let since_ns = match self.last {
            Some(last) if last.epoch == block.epoch && last.heartbeat == block.heartbeat => Some(last.since_ns.min(now_ns)),
            _ => None,
        };
        self.last = Some(Look { epoch: block.epoch, heartbeat: block.heartbeat, since_ns: since_ns.unwrap_or(now_ns) });
        if let Some(state) = block.kernel_state().filter(|state| state.has_ended()) {
            return Verdict::Ended(state);
        }
        match since_ns.map(|since_ns| now_ns - since_ns) {
            None => Verdict::Alive,
            Some(for_ns) if for_ns > self.stuck_after_ns => Verdict::Stuck { for_ns },
            Some(for_ns) => Verdict::Quiet { for_ns },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn block(epoch: u64, state: State, heartbeat: u64) -> ControlBlock<u64> {
        ControlBlock { epoch, state: epoch << 32 | state as u64, heartbeat, ..ControlBlock::new_zeroed() }
    }

    #[test]
    fn an_unchanged_heartbeat_is_quiet_and_then_stuck() {
        let mut watchdog = Watchdog::new(100);
        let still = block(1, State::Active, 5);
        assert_eq!(watchdog.check(&still, u64::MAX - 200), Verdict::Alive, "the first look never says stuck");
        assert_eq!(watchdog.check(&still, u64::MAX - 100), Verdict::Quiet { for_ns: 100 });
        assert_eq!(watchdog.check(&still, u64::MAX - 99), Verdict::Stuck { for_ns: 101 });
        assert_eq!(watchdog.check(&still, u64::MAX - 9), Verdict::Stuck { for_ns: 191 }, "time counts from the first look at it");
        assert_eq!(watchdog.check(&block(1, State::Active, 6), u64::MAX), Verdict::Alive);
    }

    #[test]
    fn a_wrapped_heartbeat_is_alive() {
        let mut watchdog = Watchdog::new(0);
        watchdog.check(&block(1, State::Active, u64::MAX), 0);
        assert_eq!(watchdog.check(&block(1, State::Active, 0), 1_000), Verdict::Alive);
    }

    #[test]
    fn an_ended_kernel_is_not_stuck() {
        for state in State::ALL {
            let mut watchdog = Watchdog::new(1);
            watchdog.check(&block(1, state, 5), 0);
            let expected = if state.has_ended() { Verdict::Ended(state) } else { Verdict::Stuck { for_ns: 9 } };
            assert_eq!(watchdog.check(&block(1, state, 5), 9), expected);
        }
    }

    #[test]
    fn a_heartbeat_of_another_launch_is_ignored() {
        let mut watchdog = Watchdog::new(1);
        watchdog.check(&block(1, State::Active, 5), 0);
        let abandoned = ControlBlock { epoch: 0, ..block(1, State::Active, 5) };
        assert_eq!(watchdog.check(&abandoned, 9), Verdict::OtherEpoch);
        assert_eq!(watchdog.check(&block(2, State::Active, 5), 10), Verdict::Alive, "a new launch is looked at for the first time");
        assert_eq!(watchdog.check(&block(3, State::Active, 5), 20), Verdict::Alive, "also without a look between");
    }

    #[test]
    fn a_clock_that_runs_backwards_restarts_the_count() {
        let mut watchdog = Watchdog::new(100);
        let still = block(1, State::Active, 5);
        watchdog.check(&still, 1_000);
        assert_eq!(watchdog.check(&still, 400), Verdict::Quiet { for_ns: 0 });
        assert_eq!(watchdog.check(&still, 501), Verdict::Stuck { for_ns: 101 });
    }
}
