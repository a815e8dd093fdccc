use std::vec::Vec;

use crate::backend::DeviceAddress;

/// A pool's counters and sizes. Exact while no other thread uses it.
///
/// Otherwise, `hits`, `misses`, `returns`, `live`, `requested_bytes`, `held_bytes` and `cached_bytes` are approximate but possible:
/// `requested_bytes <= held_bytes`, and `held_bytes`, `cached_bytes` and `free_bytes` together are at most `reserved_bytes`.
///
/// In a pool without blocks outside its slabs and mapped memory, these three add up to `reserved_bytes`.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::Pool;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// drop(Buffer::<u8, _>::new(pool.clone(), 5000)?);
/// let live = Buffer::<u8, _>::new(pool.clone(), 5000)?;
/// let statistics = pool.statistics();
/// assert_eq!((statistics.hits, statistics.misses, statistics.live), (1, 1, 1));
/// assert_eq!((statistics.hit_rate(), statistics.requested_bytes), (0.5, 5000));
/// # drop(live);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that a cached block served, or a block of nearly their size that their stream alone still uses. Above 1 MiB over an address range, where
    /// blocks have no size class and so no cache, also those that free memory served at once. 0 in an [exact](crate::pool::Builder::exact) pool.
    pub hits: u64,
    /// All other requests.
    pub misses: u64,
    /// Freed blocks.
    pub returns: u64,
    /// Live blocks.
    pub live: u64,
    /// Requested bytes of live blocks.
    pub requested_bytes: u64,
    /// Allocated bytes of live blocks.
    pub held_bytes: u64,
    /// Bytes of slabs, of memory behind the pool's addresses, and of blocks outside both.
    pub reserved_bytes: u64,
    /// High-water mark of `reserved_bytes`.
    pub reserved_peak: u64,
    /// Number of slabs; over an address range, of mapped blocks.
    pub slabs: u64,
    /// Free bytes of slabs and mapped memory, without [cached](Self::cached_bytes) blocks.
    pub free_bytes: u64,
    /// Bytes of mapped blocks that are free as a whole: they serve a request together, wherever they are.
    pub movable_bytes: u64,
    /// Contiguous free pieces; no two are adjacent.
    pub free_blocks: u64,
    /// Bytes of the largest free piece.
    pub largest_free: u64,
    /// Bytes of returned blocks not yet coalesced: in caches, in transit or pending.
    pub cached_bytes: u64,
    /// Bytes of the largest of these.
    pub largest_cached: u64,
    /// Freed blocks whose last use is not complete.
    pub pending: u64,
    /// Allocations from the upstream memory.
    pub memory_allocations: u64,
    /// Frees to the upstream memory.
    pub memory_frees: u64,
    /// Mapped blocks that moved to other addresses.
    pub memory_moves: u64,
}

impl Statistics {
    /// Returns the number of requests.
    #[must_use]
    pub const fn acquires(&self) -> u64 {
        self.hits + self.misses
    }

    /// Returns the share of [`hits`](Self::hits) in the requests; 0 before the first.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.acquires())
    }

    /// Returns the live blocks' share of the reserved bytes; 0 if none are reserved.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        ratio(self.held_bytes, self.reserved_bytes)
    }

    /// Returns the fragmentation outside live blocks: 0 for one piece or none, towards 1 for many. Each cached block counts as a piece.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes + self.cached_bytes {
            0 => 0.0,
            idle => 1.0 - ratio(self.largest_free.max(self.largest_cached), idle),
        }
    }

    /// Returns the share of live blocks' bytes that was not requested; 0 without live blocks.
    #[must_use]
    pub fn internal_waste(&self) -> f64 {
        if self.held_bytes == 0 { 0.0 } else { 1.0 - ratio(self.requested_bytes, self.held_bytes) }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A size class's requests, on all threads.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::Pool;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// let _live = Buffer::<u8, _>::new(pool.clone(), 5000)?;
/// for class in pool.class_statistics() {
///     println!("{class:?}");
/// }
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Block size in bytes.
    pub bytes: u64,
    /// Requests of this class.
    pub requests: u64,
    /// As [`Statistics::hits`].
    pub hits: u64,
}

/// A slab part's state.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::{PartState, Pool};
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// let live = Buffer::<u8, _>::new(pool.clone(), 5000)?;
/// let has = |state| pool.snapshot()[0].parts.iter().any(|part| part.2 == state);
/// assert!(has(PartState::Live) && has(PartState::Free));
/// drop(live);
/// assert!(!has(PartState::Live) && has(PartState::Cached)); // for the next request of this size
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartState {
    /// Free.
    Free,
    /// In a cache.
    Cached,
    /// Freed, with an incomplete last use.
    Pending,
    /// In a live block.
    Live,
}

/// A slab, or a run of mapped memory, and its parts, by offset.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::Pool;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// let _live = Buffer::<u8, _>::new(pool.clone(), 5000)?;
/// let slabs = pool.snapshot();
/// assert_eq!(slabs[0].bytes, slabs[0].parts.iter().map(|(_, bytes, _)| bytes).sum::<u64>());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabView {
    /// Number in the pool; of a run after the first, in this snapshot.
    pub number: u32,
    /// Device address.
    pub device_address: Option<DeviceAddress>,
    /// Size in bytes.
    pub bytes: u64,
    /// Offset, size in bytes and state of each part.
    pub parts: Vec<(u64, u64, PartState)>,
}
