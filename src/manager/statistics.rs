use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use super::BufferStatistics;

/// Counters and sizes of a manager. Exact while no other thread uses it.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::with_limit(Device::new(&backend, 0), 1 << 20);
/// let id = manager.create::<f32>("weights", 1000, BufferConfig::new())?;
/// manager.free(id)?;
/// let statistics = manager.statistics();
/// assert_eq!((statistics.created, statistics.freed, statistics.limit_bytes), (1, 1, 1 << 20));
/// assert!(statistics.peak_bytes >= 4000);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Named buffers, ordered by name.
    pub buffers: Vec<BufferStatistics>,
    /// Bytes of blocks not really freed, and of [reservations](super::MemoryManager::reserve).
    pub used_bytes: u64,
    /// The high-water mark of `used_bytes`.
    pub peak_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Buffers created.
    pub created: u64,
    /// Buffers freed, even leased ones.
    pub freed: u64,
    /// Blocks replaced.
    pub resizes: u64,
    /// Bytes copied for that.
    pub resize_bytes: u64,
    /// Queued transfers.
    pub queued: u64,
    /// Failed allocations and transfers that were repeated, by the [policy](super::Builder::error_policy).
    pub retries: u64,
    /// Blocks allocated from the [fallback memory](super::Builder::fallback).
    pub fallbacks: u64,
    /// Times that the policy wanted a reset: the program should drop the manager and open the device again.
    pub resets: u64,
}

impl Statistics {
    /// Returns the bytes of the named buffers.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.iter().map(BufferStatistics::capacity_bytes).sum()
    }

    /// Returns the bytes reserved, or freed but leased or in use.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.buffer_bytes())
    }

    /// Returns the live share of the named buffers' bytes: 0 to 1; 1 without bytes.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let live: u64 = self.buffers.iter().map(BufferStatistics::used_bytes).sum();
        match self.buffer_bytes() {
            0 => 1.0,
            held => live as f64 / held as f64,
        }
    }
}

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
