use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;
use std::vec::Vec;

/// Counters and sizes of a manager. Exact while no other thread uses it.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Device::new(&backend, 0);
/// let manager = MemoryManager::with_limit(memory.clone(), 1 << 20);
/// let created = manager.create::<f32>("weights", 1000, BufferConfig::new())?;
/// let registered = manager.register(GpuBuffer::<u8>::new(memory, 100)?)?;
/// let lease = manager.lease(registered)?;
/// manager.free(created)?;
/// manager.free(registered)?;
/// let statistics = manager.statistics();
/// assert_eq!((statistics.created, statistics.registered, statistics.live()), (1, 1, 0));
/// assert_eq!((statistics.freed, statistics.kept(), statistics.used_bytes), (1, 1, 100)); // freed with the lease
/// assert!(statistics.peak_bytes >= 4100);
/// # drop(lease);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Created buffers, ordered by name.
    pub buffers: Vec<BufferStatistics>,
    /// Bytes of all buffers that are not really freed, and of [reservations](super::MemoryManager::reserve).
    pub used_bytes: u64,
    /// The high-water mark of `used_bytes`.
    pub peak_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Buffers created.
    pub created: u64,
    /// Buffers and mirrors registered.
    pub registered: u64,
    /// Buffers and mirrors that the manager no longer has: freed by a call, taken, or handed over, even if leased.
    pub released: u64,
    /// Of these, the ones without a lease: their memory is freed, or freed after its queued work.
    pub freed: u64,
    /// Live leases.
    pub leases: u64,
    /// Numbers whose generations are used up.
    pub retired: u64,
    /// Blocks replaced.
    pub resizes: u64,
    /// Bytes copied for that.
    pub resize_bytes: u64,
    /// Queued transfers of created buffers.
    pub queued: u64,
    /// Failed allocations and transfers that were repeated, by the [policy](super::Builder::error_policy).
    pub retries: u64,
    /// Blocks allocated from the [fallback memory](super::Builder::fallback).
    pub fallbacks: u64,
    /// Times that the policy wanted a reset: the program should drop the manager and open the device again.
    pub resets: u64,
}

impl Statistics {
    /// Returns the number of buffers and mirrors that can be leased.
    #[must_use]
    pub const fn live(&self) -> u64 {
        (self.created + self.registered).saturating_sub(self.released)
    }

    /// Returns the number of released buffers and mirrors that a lease still keeps.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.released.saturating_sub(self.freed)
    }

    /// Returns the bytes of the created buffers.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.iter().map(BufferStatistics::capacity_bytes).sum()
    }

    /// Returns the bytes that are registered, reserved, or freed but leased or in use.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.buffer_bytes())
    }

    /// Returns the live share of the created buffers' bytes: 0 to 1; 1 without bytes.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let live: u64 = self.buffers.iter().map(BufferStatistics::used_bytes).sum();
        match self.buffer_bytes() {
            0 => 1.0,
            held => live as f64 / held as f64,
        }
    }
}

/// A created buffer's figures.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// manager.create::<f32>("weights", 100, BufferConfig::new())?;
/// let figures = &manager.statistics().buffers[0];
/// assert_eq!((figures.name.as_ref(), figures.element, figures.used_bytes()), ("weights", "f32", 400));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "BufferStats")]
pub struct BufferStatistics {
    /// Name.
    pub name: Box<str>,
    /// Element type's name.
    pub element: &'static str,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Live elements.
    pub len: u64,
    /// Capacity in elements.
    pub capacity: u64,
    /// Replaced blocks.
    pub resizes: u64,
    /// The block is of the [fallback memory](super::Builder::fallback).
    pub is_fallback: bool,
    /// Time since creation.
    pub age: Duration,
    /// Time since the last use, as a lower bound: a read counts at the next poll or [`tick`](super::MemoryManager::tick).
    pub idle: Duration,
}

impl BufferStatistics {
    /// Returns the live elements' bytes.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.len * self.element_bytes
    }

    /// Returns the capacity's bytes.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity * self.element_bytes
    }

    /// Returns the live share of the capacity: 0 to 1; 1 without capacity.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        if self.capacity == 0 { 1.0 } else { self.len as f64 / self.capacity as f64 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    created: AtomicU64,
    resizes: AtomicU64,
    resize_bytes: AtomicU64,
    queued: AtomicU64,
}

impl Counts {
    pub fn created(&self) {
        self.created.fetch_add(1, Relaxed);
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
            resizes: self.resizes.load(Relaxed),
            resize_bytes: self.resize_bytes.load(Relaxed),
            queued: self.queued.load(Relaxed),
            ..Statistics::default()
        }
    }
}
