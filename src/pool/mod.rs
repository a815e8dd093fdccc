//! [`Pool`]: a caching allocator over an upstream memory.
//!
//! It takes memory in large pieces, and serves blocks from them: mapped behind one [address range](crate::backend::AddressRange), which grows in place and
//! whose free memory always joins, or allocated as slabs.
//!
//! Use [`Pool`] for one kind of memory, [`PinnedPool`] for page-locked memory, and [`Pools`] for all memory of a device.
//!
//! 1. A freed block serves the next request of its size class on the same thread, without a mutex or backend call. Surplus blocks serve other
//!    threads.
//! 2. A block is reused only after its last use is complete, or by a request of nearly its size on that use's stream.
//! 3. The bytes of mapped memory, of slabs, and of blocks outside both never exceed the limit.
//! 4. A request fails only after every way to make room has failed: caches, growth, pending frees, moving free memory together, empty slabs, the callback.
//! 5. No lock is held during a backend call. All metadata is outside the pooled memory.
//! 6. Every buffer holds a handle to its pool: slabs outlive their buffers.
//! 7. Alignments are up to 2 MiB. Above that, above the largest class of a pool of slabs, or if a limit has room for the request but not for
//!    whole 256 bytes, the upstream memory serves the block. If that memory [raises alignments](Memory::min_align), the pool does so
//!    for each block.
//! 8. In a forked process, the pool rejects requests; blocks freed there remain the parent's.

mod allocation;
mod any_memory;
mod biased_lock;
mod builder;
mod cache;
mod central;
mod classes;
mod global;
mod handles;
mod heap;
mod pinned;
mod pools;
mod statistics;
mod tag;

use core::alloc::Layout;
use core::fmt;
use core::mem::ManuallyDrop;
use core::panic::Location;
use core::ptr;
use core::time::Duration;
use std::sync::Arc;

use cache::Entry;
use central::Central;

use crate::backend::{Backend, Block, Uses};
use crate::memory::{Memory, Origin};
use crate::stream::Stream;
use crate::{Error, Result};

pub use any_memory::AnyMemory;
pub use builder::{Builder, Hygiene, OutOfMemory};
pub use classes::Classes;
pub use global::{configure, global};
pub use pinned::PinnedPool;
pub use pools::Pools;
pub use statistics::{ClassStatistics, PartState, SlabView, Statistics};

/// A pool over an upstream memory, and itself a [`Memory`]. Clones share the pool.
///
/// While the handle that [`build`](Builder::build) returned lives, cloning and dropping others in a thread that used the pool recently writes to no
/// shared memory. Keep that handle, and pass clones to buffers and threads. It may be dropped before them: they stay valid, but then write to shared memory.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::Pool;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).limit(64 << 20).build()?;
/// for _ in 0..100 {
///     let mut buffer = Buffer::<f32, _>::new(pool.clone(), 10_000)?;
///     buffer.fill(1.0)?;
/// }
/// assert_eq!(backend.counters().device_allocations.count, 1);
/// assert_eq!(pool.statistics().hits, 99);
/// # Ok(())
/// # }
/// ```
///
/// On Linux, blocks in the caches of other threads are reached by the system call `membarrier`. A program that forbids it after it has created a
/// pool loses that reach: a request that needs such a block fails with [`Error::OutOfMemory`], which names
/// [the caches](crate::error::Unavailable::Caches). A trim leaves these blocks in place; snapshots show them as live, and statistics omit
/// the requests of their threads.
#[doc(alias = "GpuMemoryPool")]
pub struct Pool<M: Memory> {
    // INVARIANT: valid while any handle lives. All handles together own one reference count.
    shared: ManuallyDrop<Arc<Central<M>>>,
    handle: Handle,
}

/// Word-sized, because partial-word stores block store forwarding.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Handle {
    First,
    Other,
}

impl<M: Memory> Pool<M> {
    /// Returns a builder over `memory`.
    pub fn builder(memory: M) -> Builder<M> {
        Builder::new(memory)
    }

    fn new(memory: M, options: builder::Options) -> Self {
        Self { shared: ManuallyDrop::new(Arc::new(Central::new(memory, options))), handle: Handle::First }
    }

    /// Returns the counters and sizes.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.here().map_or_else(|_| Statistics::default(), Central::statistics)
    }

    /// Returns the requests of each size class, smallest class first.
    #[must_use]
    pub fn class_statistics(&self) -> std::vec::Vec<ClassStatistics> {
        self.here().map_or_else(|_| std::vec::Vec::new(), Central::classes)
    }

    /// Returns every slab, and every run of mapped memory, with its parts.
    #[must_use]
    pub fn snapshot(&self) -> std::vec::Vec<SlabView> {
        self.here().map_or_else(|_| std::vec::Vec::new(), Central::snapshot)
    }

    /// Reserves memory for all of `count` blocks of `bytes` bytes, or for none.
    ///
    /// # Errors
    ///
    /// As an allocation; [`Unsupported`](crate::Error::Unsupported) if the pool is not [enabled](Builder::enabled).
    #[track_caller]
    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        let shared = self.here()?;
        Origin::current_or(Location::caller(), || shared.prewarm(bytes, count))
    }

    /// Frees empty slabs, then whole free handles, each longest empty first, until at most `bytes` are reserved; returns the freed bytes. First flushes all
    /// thread caches, so that free blocks coalesce; [`MemoryManager::defragment`](crate::manager::MemoryManager::defragment) also moves blocks. Keeps memory
    /// whose free the backend would [defer](crate::backend::Backend::defers_free). Takes time in proportion to the slabs, or to the free parts.
    pub fn trim_to(&self, bytes: u64) -> u64 {
        self.here().map_or(0, |shared| shared.trim(bytes, Duration::ZERO))
    }

    /// Frees empty slabs and whole free handles whose last use was at least `age` ago; returns the freed bytes. First flushes all thread caches. The last use
    /// is the free of a slab's last block; if queued work used it longer, the first call that finds the work complete, unless a flush finds it complete
    /// already.
    ///
    /// A thread's cached blocks of one size class have one time, that of their last free, so a block that others of its class were freed after counts
    /// as used later than it was. A thread that frees blocks of a class less than 100 us apart reads the clock only at every 8th, 64th, and so on, up
    /// to every 512th of these frees: the time is up to 0.05 s too early. If it then pauses, and no call flushes its cache meanwhile, then up to its
    /// next 511 frees have the time before the pause; their slabs may be freed too early.
    ///
    /// In an [exact](Builder::exact) pool that has had more than 16 000 parts, the last eight frees age from this call.
    pub fn trim_older_than(&self, age: Duration) -> u64 {
        self.here().map_or(0, |shared| shared.trim(0, age))
    }

    /// The time since which the longest idle slab is empty. Blocks in thread caches do not count.
    fn idle_since(&self) -> Option<u64> {
        self.here().ok()?.idle_since()
    }

    #[track_caller]
    #[inline(always)]
    fn allocate_block(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<Block> {
        if let Some(stream) = on {
            stream.on(&**self.backend())?;
        }
        // Both paths end in an entry of whole words, from which the block is built once.
        let (entry, layout) = match self.take_newest(layout) {
            Some(idle) => (Entry { idle, used: None }, layout),
            None => self.allocate_slow(layout, on, waits, Location::caller())?,
        };
        Ok(self.shared.block(&entry, layout))
    }

    /// The slow path. A leak report names `caller` for a new slab, unless an [`Origin`] is set.
    #[inline(never)]
    fn allocate_slow(
        &self,
        layout: Layout,
        on: Option<&Stream>,
        waits: bool,
        caller: &'static Location<'static>,
    ) -> Result<(Entry, Layout)> {
        Origin::current_or(caller, || self.allocate(layout, on, waits))
    }

    #[inline(always)]
    fn counts_here(&self, more: u64) -> bool {
        // SAFETY: `recent` passes the calling thread's cache, which `add` does not access.
        cache::recent(self.shared.id, |cache| unsafe { cache.own(|contents| contents.handles.add(more)) }) == Some(true)
    }

    #[cold]
    #[inline(never)]
    fn drop_first(&self) -> bool {
        // Two calls: another thread may drop the state that one method would still borrow.
        self.shared.close_shares().is_some_and(|others| self.shared.handles.first_leaves(others))
    }

    #[cold]
    #[inline(never)]
    fn release(&mut self) {
        // SAFETY: the last handle, not used again.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
    }

    fn here(&self) -> Result<&Central<M>> {
        if self.shared.process.is_this() {
            Ok(&self.shared)
        } else {
            Err(Error::Unsupported { what: "a pool of the parent process after fork" })
        }
    }
}

// SAFETY: the heap allocates a part to one owner at a time, at least as long as the request. Slabs live as long as the pool, which the block's
// buffer holds. A block carries a use that may be incomplete as `ready`.
unsafe impl<M: Memory> Memory for Pool<M> {
    type Visibility = M::Visibility;

    #[inline(always)]
    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        self.allocate_block(layout, on, true)
    }

    #[inline(always)]
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        if cfg!(debug_assertions) {
            self.shared.poison_freed(block, uses);
        }
        if uses.is_empty() && self.cache(block) {
            return Ok(());
        }
        // A copy: only this path needs the caller's block in memory.
        let block = Block { ..*block };
        // SAFETY: the caller gives up a block of this pool, in use by `uses` at most.
        unsafe { self.free_slow(&block, uses) }
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.shared.memory.backend()
    }

    fn device(&self) -> u32 {
        self.shared.memory.device()
    }

    fn min_align(&self) -> usize {
        self.shared.min_align
    }
}

impl<M: Memory> Clone for Pool<M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        if !self.counts_here(1) {
            self.shared.handles.add(1);
        }
        // SAFETY: the new handle was counted above; `self` keeps the shared state alive.
        let shared = unsafe { ptr::read(&raw const self.shared) };
        Self { shared, handle: Handle::Other }
    }
}

impl<M: Memory> Drop for Pool<M> {
    #[inline(always)]
    fn drop(&mut self) {
        let is_last = match self.handle {
            Handle::First => self.drop_first(),
            Handle::Other => !self.counts_here(1_u64.wrapping_neg()) && self.shared.handles.leave(),
        };
        if is_last {
            self.release();
        }
    }
}

impl<M: Memory> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.statistics()).finish()
    }
}
