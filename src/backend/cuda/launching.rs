//! [`Launching`]: who may queue kernels, and what those who may not are spared.
//!
//! Nearly every launch has nobody to mind: it looks at one word under the lock of its queue, which it needs anyway. Who would have launches look further
//! says so in that word and then takes each queue's lock once: what was launched without a look has been launched by then.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Shared;
use super::queue::{Queue, State};

#[derive(Default)]
pub(super) struct Launching {
    /// Held for reading by who queues a kernel with care, for writing by who calls what would wait for one.
    lock: RwLock<()>,
    /// Reasons for care: kernels that stay or are about to, and who is alone.
    reasons: AtomicUsize,
}

/// A reason for care, until it goes.
pub(super) struct Reason<'a>(&'a Launching);

/// Nobody queues a kernel meanwhile: what a look for kernels found stays true.
pub(super) struct Alone<'a> {
    _reason: Reason<'a>,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Launching {
    /// The state of a queue on which a kernel may be queued with no look at anything else.
    pub fn without_care<'a>(&self, queue: &'a Queue) -> Option<MutexGuard<'a, State>> {
        let state = queue.state();
        // Under the lock: pairs with the lock that `Shared::reason` takes after it has said so.
        (self.reasons.load(Relaxed) == 0).then_some(state)
    }

    /// For who queues a kernel with care.
    pub fn with_care(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many kernels that stayed have left.
    pub fn have_left(&self, kernels: usize) {
        self.reasons.fetch_sub(kernels, Release);
    }
}

impl Reason<'_> {
    /// It stays until [`have_left`](Launching::have_left) is told.
    pub fn stays(self) {
        core::mem::forget(self);
    }
}

impl Drop for Reason<'_> {
    fn drop(&mut self) {
        self.0.have_left(1);
    }
}

impl Shared {
    /// From here on every launch is with care, and those that were not have been queued.
    pub(super) fn reason(&self) -> Reason<'_> {
        self.launching.reasons.fetch_add(1, Relaxed);
        // A stream that is listed after this look was listed by who has seen the reason.
        self.queues().iter().for_each(|queue| drop(queue.state()));
        Reason(&self.launching)
    }

    pub(super) fn alone(&self) -> Alone<'_> {
        let lock = self.launching.lock.write().unwrap_or_else(PoisonError::into_inner);
        Alone { _reason: self.reason(), _lock: lock }
    }
}
