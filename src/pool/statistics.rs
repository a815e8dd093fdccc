//! A pool in figures.

use std::vec::Vec;

use crate::backend::DeviceAddress;

/// What a pool has done and what it holds. Exact while no other thread uses it.
///
/// During concurrent use, counts of different threads are read at different instants: `hits`, `misses`, `returns`, `live`, `requested_bytes`,
/// `held_bytes` and `cached_bytes` are approximate. Their values are still possible: `requested_bytes <= held_bytes`, and `held_bytes`,
/// `cached_bytes` and `free_bytes` together are at most `reserved_bytes`. The other figures are those of one instant.
///
/// For a pool that only uses slabs, `held_bytes + cached_bytes + free_bytes == reserved_bytes` if slabs are multiples of 256 bytes and no slab is
/// being returned to the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that a cached block served.
    pub hits: u64,
    /// Requests that went to the slabs or the memory.
    pub misses: u64,
    /// Blocks given back.
    pub returns: u64,
    /// Blocks handed out and not given back.
    pub live: u64,
    /// Bytes asked for by the live ones.
    pub requested_bytes: u64,
    /// Bytes that the live ones have.
    pub held_bytes: u64,
    /// Bytes of slabs, and of blocks outside them.
    pub reserved_bytes: u64,
    /// The most of them at any instant.
    pub reserved_peak: u64,
    /// Slabs.
    pub slabs: u64,
    /// Bytes of slabs that belong to no block. Those of [cached](Self::cached_bytes) blocks are not included.
    pub free_bytes: u64,
    /// Pieces that they are in: no two of them are neighbours.
    pub free_blocks: u64,
    /// The most of them in one piece.
    pub largest_free: u64,
    /// Bytes of blocks that were returned and have not coalesced: in thread caches, in transit between threads, or pending.
    pub cached_bytes: u64,
    /// The largest of these blocks, in bytes.
    pub largest_cached: u64,
    /// Blocks given back whose last use is not over.
    pub pending: u64,
    /// Allocations asked of the memory.
    pub memory_allocations: u64,
    /// Blocks given back to the memory.
    pub memory_frees: u64,
}

impl Statistics {
    /// Requests.
    #[must_use]
    pub const fn acquires(&self) -> u64 {
        self.hits + self.misses
    }

    /// The part of the requests that a cached block served; 0 before the first.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.acquires())
    }

    /// The part of the reserved bytes that live blocks have; 0 where none is reserved.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        ratio(self.held_bytes, self.reserved_bytes)
    }

    /// Returns how scattered the bytes without a live block are: 0 in one piece, towards 1 in many; 0 if there are none. Each cached block is a piece:
    /// coalescing by a later flush of the caches, as in [`defragment`](super::Pool::defragment), is not anticipated.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes + self.cached_bytes {
            0 => 0.0,
            idle => 1.0 - ratio(self.largest_free.max(self.largest_cached), idle),
        }
    }

    /// The part of the live blocks' bytes that nobody asked for; 0 where none lives.
    #[must_use]
    pub fn internal_waste(&self) -> f64 {
        if self.held_bytes == 0 { 0.0 } else { 1.0 - ratio(self.requested_bytes, self.held_bytes) }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What was asked of a class, on all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Its blocks' bytes.
    pub bytes: u64,
    /// Requests that it serves.
    pub requests: u64,
    /// Those that a cached block served.
    pub hits: u64,
}

/// What a part of a slab is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartState {
    /// Nobody's.
    Free,
    /// A thread has it cached, or its last use is not over.
    Cached,
    /// Handed out.
    Live,
}

/// A slab and its parts, in order of offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabView {
    /// Its number in the pool.
    pub number: u32,
    /// Where it begins for kernels.
    pub device_address: Option<DeviceAddress>,
    /// Bytes.
    pub bytes: u64,
    /// Offset, bytes and state of each part.
    pub parts: Vec<(u64, u64, PartState)>,
}
