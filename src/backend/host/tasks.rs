use core::task::Waker;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

/// Separate from deferred frees: a stream visits only due ones.
#[derive(Default)]
pub(super) struct Tasks {
    waiting: Mutex<BTreeMap<u64, Vec<Waker>>>,
}

impl Tasks {
    /// The caller must then check for completion.
    pub fn add(&self, number: u64, waker: Waker) {
        self.with(|waiting| waiting.entry(number).or_default().push(waker));
    }

    pub fn over(&self, number: u64) -> Vec<Waker> {
        let mut over = Vec::new();
        self.with(|waiting| {
            while let Some(first) = waiting.first_entry().filter(|first| *first.key() <= number) {
                over.append(&mut first.remove());
            }
        });
        over
    }

    fn with<R>(&self, look: impl FnOnce(&mut BTreeMap<u64, Vec<Waker>>) -> R) -> R {
        look(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
