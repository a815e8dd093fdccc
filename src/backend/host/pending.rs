//! What a queued operation gives back when it is done.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::{Error, Result};

/// An operation that was queued, and the `T` that comes back from it.
///
/// The stream owns what the operation needs until it is done, so dropping or forgetting this is harmless. Dropped, the operation is done
/// all the same, and its `T` is dropped after it.
pub struct Pending<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Pending<T> {
    /// A pair: one to wait with, one to complete it with.
    pub(super) fn new() -> (Self, Completer<T>) {
        let slot = Arc::new(Slot { outcome: Mutex::new(None), done: Condvar::new() });
        (Self { slot: Arc::clone(&slot) }, Completer { slot: Some(slot) })
    }

    /// Whether it has been executed, or never will be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.slot.lock().is_some()
    }

    /// Waits as long as it takes: for a kernel that nobody tells to end, for ever.
    ///
    /// # Errors
    ///
    /// What the operation failed with: [`KernelPanicked`](Error::KernelPanicked), [`StreamClosed`](Error::StreamClosed).
    pub fn wait(self) -> Result<T> {
        let mut outcome = self.slot.lock();
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            outcome = self.slot.done.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// `self` when the time is up. Inside, as [`wait`](Self::wait).
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T>, Self> {
        let begun = Instant::now();
        let mut outcome = self.slot.lock();
        loop {
            if let Some(outcome) = outcome.take() {
                return Ok(outcome);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                drop(outcome);
                return Err(self);
            }
            outcome = self.slot.done.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Does not wait.
    ///
    /// # Errors
    ///
    /// `self` when it is not done. Inside, as [`wait`](Self::wait).
    pub fn try_take(self) -> Result<Result<T>, Self> {
        self.wait_timeout(Duration::ZERO)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// The stream's half. Dropped without an outcome, it says that there will be none.
pub(super) struct Completer<T> {
    /// Taken when completed.
    slot: Option<Arc<Slot<T>>>,
}

impl<T> Completer<T> {
    pub fn complete(mut self, outcome: Result<T>) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Result<T>) {
        if let Some(slot) = self.slot.take() {
            *slot.lock() = Some(outcome);
            slot.done.notify_all();
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.put(Err(Error::StreamClosed));
    }
}

struct Slot<T> {
    outcome: Mutex<Option<Result<T>>>,
    done: Condvar,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, Option<Result<T>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
