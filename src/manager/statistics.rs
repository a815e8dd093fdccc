//! A manager in figures.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use super::BufferStatistics;

/// What a manager has done and what it holds. Exact while no other thread uses it; otherwise each figure for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Each buffer that has a name, in order of name.
    pub buffers: Vec<BufferStatistics>,
    /// Bytes that count now: of all blocks that are not really free yet, and of [reservations](super::MemoryManager::reserve).
    pub used_bytes: u64,
    /// The most of them at any instant.
    pub peak_bytes: u64,
    /// The most that there may be.
    pub limit_bytes: u64,
    /// Buffers that were created.
    pub created: u64,
    /// Buffers that were freed, among them those that a lease still keeps.
    pub freed: u64,
    /// Blocks that took another's place.
    pub resizes: u64,
    /// Bytes that were copied for that, on the device.
    pub resize_bytes: u64,
    /// Transfers that were queued.
    pub queued: u64,
}

impl Statistics {
    /// Bytes that the named buffers hold.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.iter().map(BufferStatistics::capacity_bytes).sum()
    }

    /// Bytes of what is reserved, was freed and is still leased, or waits for a queued operation to end.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.buffer_bytes())
    }

    /// The part of the named buffers' bytes that is live, from 0 to 1; 1 where they have none.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let live: u64 = self.buffers.iter().map(BufferStatistics::used_bytes).sum();
        match self.buffer_bytes() {
            0 => 1.0,
            held => live as f64 / held as f64,
        }
    }
}

/// What has been done.
#[derive(Debug, Default)]
pub(super) struct Counts {
    created: AtomicU64,
    freed: AtomicU64,
    resizes: AtomicU64,
    resize_bytes: AtomicU64,
    queued: AtomicU64,
}

impl Counts {
    pub fn created(&self) {
        self.created.fetch_add(1, Relaxed);
    }

    pub fn freed(&self) {
        self.freed.fetch_add(1, Relaxed);
    }

    /// `bytes` were copied into a new block.
    pub fn resized(&self, bytes: u64) {
        self.resizes.fetch_add(1, Relaxed);
        self.resize_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn queued(&self) {
        self.queued.fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> Statistics {
        Statistics {
            created: self.created.load(Relaxed),
            freed: self.freed.load(Relaxed),
            resizes: self.resizes.load(Relaxed),
            resize_bytes: self.resize_bytes.load(Relaxed),
            queued: self.queued.load(Relaxed),
            ..Statistics::default()
        }
    }
}
