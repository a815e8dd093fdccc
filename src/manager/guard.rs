//! Reacts to the failures of all calls of a manager, as an [`ErrorGuard`] does to those of one caller.
//!
//! The failures in a row are those of one call, so that calls of other threads neither repeat nor end its attempts. The failures until a reset are those
//! of all calls. No lock is held during an attempt.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::Statistics;
use crate::Result;
use crate::stream::{Action, ErrorGuard, ErrorPolicy, Guarded, Kind};

#[derive(Debug)]
pub(super) struct Guard {
    /// `None`: each error is returned at once.
    policy: Option<ErrorPolicy>,
    since_reset: AtomicU32,
    retries: AtomicU64,
    fallbacks: AtomicU64,
    resets: AtomicU64,
}

impl Guard {
    pub fn new(policy: Option<ErrorPolicy>) -> Self {
        let [retries, fallbacks, resets] = [const { AtomicU64::new(0) }; 3];
        Self { policy, since_reset: AtomicU32::new(0), retries, fallbacks, resets }
    }

    /// Runs an operation, which has no effect where it fails, with the policy's retries.
    pub fn retry<T>(&self, operation: impl FnMut() -> Result<T>) -> Result<T> {
        match self.run(operation) {
            Guarded::Done(value) => Ok(value),
            Guarded::Failed(error, _) => Err(error),
        }
    }

    /// As [`retry`](Self::retry). If the policy then wants the host to do the work, or a reset, runs the fallback; returns the operation's error if there
    /// is none.
    pub fn retry_or<T>(&self, operation: impl FnMut() -> Result<T>, fallback: Option<impl FnOnce() -> Result<T>>) -> Result<T> {
        match (self.run(operation), fallback) {
            (Guarded::Done(value), _) => Ok(value),
            (Guarded::Failed(_, Action::Fallback | Action::Reset), Some(fallback)) => {
                fallback().inspect(|_| _ = self.fallbacks.fetch_add(1, Relaxed))
            }
            (Guarded::Failed(error, _), _) => Err(error),
        }
    }

    fn run<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Guarded<T> {
        let mut in_a_row = self.policy.map(|policy| ErrorGuard::new(ErrorPolicy { reset: u32::MAX, ..policy }));
        loop {
            let error = match (operation(), &self.policy) {
                (Ok(value), _) => return Guarded::Done(value),
                (Err(error), None) => return Guarded::Failed(error, Action::Abort),
                (Err(error), Some(_)) => error,
            };
            let kind = Kind::of(&error);
            let action = in_a_row.as_mut().map_or(Action::Abort, |guard| guard.failed(kind));
            if kind != Kind::Misuse && self.is_reset_due() {
                self.resets.fetch_add(1, Relaxed);
                return Guarded::Failed(error, Action::Reset);
            }
            if action != Action::Retry {
                return Guarded::Failed(error, action);
            }
            self.retries.fetch_add(1, Relaxed);
        }
    }

    /// Counts a failure. The count begins anew at a reset in the same step: no other call sees the threshold, or loses its failure.
    fn is_reset_due(&self) -> bool {
        let Some(policy) = self.policy else { return false };
        let is_due = |failures: u32| failures >= policy.reset;
        let counted = |before: u32| before.saturating_add(1);
        let next = |before| if is_due(counted(before)) { 0 } else { counted(before) };
        let (Ok(before) | Err(before)) = self.since_reset.fetch_update(Relaxed, Relaxed, |before| Some(next(before)));
        is_due(counted(before))
    }

    pub fn read(&self, statistics: Statistics) -> Statistics {
        Statistics {
            retries: self.retries.load(Relaxed),
            fallbacks: self.fallbacks.load(Relaxed),
            resets: self.resets.load(Relaxed),
            ..statistics
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn concurrent_failures_reset_once_per_threshold() {
        const FAILURES: u32 = 200_000;
        let guard = Guard::new(Some(ErrorPolicy { reset: 2, ..ErrorPolicy::DEFAULT }));
        let fail = || (0..FAILURES).filter(|_| guard.is_reset_due()).count();
        let resets = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(fail));
            threads.map(|thread| thread.join().expect("no panic")).iter().sum::<usize>()
        });
        assert_eq!((resets, guard.since_reset.load(Relaxed)), (4 * FAILURES as usize / 2, 0));
    }
}
