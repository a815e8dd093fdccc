//! [`Launching`]: serialises launches with operations that must know whether a kernel runs.
//!
//! A fast launch reads one counter under its queue's lock. A thread that needs slow launches increments it, then takes each queue's lock
//! once: every fast launch is then queued.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Inner;
use super::queue::{Queue, State};

#[derive(Default)]
pub(super) struct Launching {
    /// Read by slow launches, written by calls that would wait for a kernel.
    lock: RwLock<()>,
    /// Persistent kernels, launched or about to be, and holders of [`Alone`].
    reasons: AtomicUsize,
}

pub(super) struct Reason<'a>(&'a Launching);

/// No other thread queues a kernel.
pub(super) struct Alone<'a> {
    _reason: Reason<'a>,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Launching {
    pub fn without_care<'a>(&self, queue: &'a Queue) -> Option<MutexGuard<'a, State>> {
        let state = queue.state();
        // Pairs with the lock that `Inner::reason` takes after its increment.
        (self.reasons.load(Relaxed) == 0).then_some(state)
    }

    pub fn with_care(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn have_left(&self, kernels: usize) {
        self.reasons.fetch_sub(kernels, Release);
    }
}

impl Reason<'_> {
    pub fn stays(self) {
        core::mem::forget(self);
    }
}

impl Drop for Reason<'_> {
    fn drop(&mut self) {
        self.0.have_left(1);
    }
}

impl Inner {
    pub(super) fn reason(&self) -> Reason<'_> {
        self.launching.reasons.fetch_add(1, Relaxed);
        self.queues().iter().for_each(|queue| drop(queue.state()));
        Reason(&self.launching)
    }

    pub(super) fn alone(&self) -> Alone<'_> {
        let lock = self.launching.lock.write().unwrap_or_else(PoisonError::into_inner);
        Alone { _reason: self.reason(), _lock: lock }
    }
}
