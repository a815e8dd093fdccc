//! What a bridge has done, counted by one thread and read by any.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// What one direction of a bridge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Messages that have arrived: published at the twin, and their slots given back.
    pub messages: u64,
    /// Flushes that began to move messages.
    pub flushes: u64,
    /// Copies of messages.
    pub copies: u64,
    /// Bytes of messages in these copies.
    pub bytes: u64,
    /// Index words written to the device's side.
    pub publications: u64,
    /// Looks at an index of the device's.
    pub polls: u64,
    /// Flushes that found messages, and no room for them at the other side.
    pub full: u64,
    /// Fences, where both sides share the ring and nothing is moved.
    pub fences: u64,
    /// Flushes that failed. What they had begun is done again.
    pub failures: u64,
}

macro_rules! counts {
    ($($name:ident),*) => {
        /// [`Metrics`] while they are counted, by whoever flushes.
        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub $name: Count),* }

        impl Counts {
            pub fn read(&self) -> Metrics {
                Metrics { $($name: self.$name.0.load(Relaxed)),* }
            }
        }
    };
}
counts!(messages, flushes, copies, bytes, publications, polls, full, fences, failures);

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }
}
