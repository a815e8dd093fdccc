//! [`Pool`]: memory that is taken from its driver in slabs and handed out in blocks, over and over.
//!
//! 1. A block that was given back serves the next request of its class, on the thread that gave it back, without a lock and without a call of
//!    the backend. What a thread has too many of serves the others.
//! 2. A block is not used before its last use is over: on the stream of that use it may be taken at once, elsewhere after its ticket.
//! 3. The slabs' bytes never exceed the limit, at any instant.
//! 4. A request fails only when a driver and every way of making room have failed: this thread's cache, a shorter free part, all threads'
//!    caches, empty slabs, pending frees, the callback. The error says how much is free, and how much in one piece.
//! 5. No lock is held while a backend is called. All bookkeeping is outside the pooled memory.
//! 6. What was handed out holds the pool: slabs go when the last block of them has.
//! 7. A request may specify any alignment. Slabs serve alignments up to 2 MiB. Above that, and above the largest class, the memory serves the block
//!    or refuses the alignment. A pool over a memory that [raises alignments](Memory::least_align) raises them for each block.
//! 8. In a forked process a pool refuses requests, and leaves blocks that are returned or dropped there to the parent.

mod biased_lock;
mod builder;
mod cache;
mod central;
mod classes;
mod deferred;
mod free_list;
mod global;
mod handles;
mod heap;
mod local;
mod pinned;
mod placed;
mod pools;
mod statistics;
mod tag;
mod thread;

use core::alloc::Layout;
use core::fmt;
use core::mem::ManuallyDrop;
use core::panic::Location;
use core::ptr;
use core::time::Duration;
use std::sync::Arc;

use central::Central;

use crate::backend::{Backend, Block, Uses};
use crate::memory::{Memory, Origin};
use crate::stream::Stream;
use crate::{Error, Result};

pub use builder::{Builder, Hygiene, OutOfMemory};
pub use classes::Classes;
pub use global::{configure, global};
pub use pinned::PinnedPool;
pub use placed::{Placed, PlacedSlice, PlacedSliceMut};
pub use pools::{Pools, PoolsBuilder};
pub use statistics::{ClassStatistics, PartState, SlabView, Statistics};

/// A pool over a memory. Clones are the same pool; each is a [`Memory`], so buffers are made of it.
///
/// As long as the one that was [built](Builder::build) lives, a clone is made and dropped without a locked instruction, and without writing to
/// what another thread writes to: so keep that one, and give its clones to buffers and threads. It may go before them; from then on they
/// count themselves in one place.
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
pub struct Pool<M: Memory> {
    // INVARIANT: there as long as any handle is; one count of it is of all of them.
    shared: ManuallyDrop<Arc<Central<M>>>,
    handle: Handle,
}

/// Which handle it is. As long as a word: one that is written in part is not quick to be copied.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Handle {
    First,
    Other,
}

impl<M: Memory> Pool<M> {
    /// A pool over `memory` to be.
    pub fn builder(memory: M) -> Builder<M> {
        Builder::new(memory)
    }

    /// What it has done and what it holds.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.here().map_or_else(|_| Statistics::default(), Central::statistics)
    }

    /// What was asked of each class, the smallest first.
    #[must_use]
    pub fn class_statistics(&self) -> std::vec::Vec<ClassStatistics> {
        self.here().map_or_else(|_| std::vec::Vec::new(), Central::classes)
    }

    /// Every slab and every part of it.
    #[must_use]
    pub fn snapshot(&self) -> std::vec::Vec<SlabView> {
        self.here().map_or_else(|_| std::vec::Vec::new(), Central::snapshot)
    }

    /// Reserves room for `count` blocks of `bytes` bytes in slabs, for all of them or for none. A failed call frees the slabs that it allocated.
    ///
    /// # Errors
    ///
    /// As an allocation.
    #[track_caller]
    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        let shared = self.here()?;
        Origin::current_or(Location::caller(), || shared.prewarm(bytes, count))
    }

    /// Gives empty slabs back to the memory, those first that are empty for the longest, until no more than `bytes` are held; how many bytes
    /// that gave back. Blocks that threads have cached go back to their slabs before. A slab stays as long as its backend would
    /// [deferred its free](crate::backend::Extension::defers_free).
    pub fn trim_to(&self, bytes: u64) -> u64 {
        self.here().map_or(0, |shared| shared.trim(bytes, Duration::ZERO))
    }

    /// Gives slabs back to the memory that have been empty for at least `age`; how many bytes that gave back. Blocks that threads have cached go
    /// back to their slabs before, and a slab that this empties is empty from now on: what is idle in caches counts from the first look. So do
    /// the last eight blocks that came back to slabs that have had more than 16 000 at once.
    pub fn trim_older_than(&self, age: Duration) -> u64 {
        self.here().map_or(0, |shared| shared.trim(0, age))
    }

    /// Joins what is free and gives every empty slab back; how many bytes that gave back. No block is moved: a
    /// [`Registry`](crate::registry::Registry::defragment) moves those that it has.
    pub fn defragment(&self) -> u64 {
        self.trim_to(0)
    }

    /// A block; where it `waits`, also for frees and by the callback.
    #[track_caller]
    #[inline(always)]
    fn take_or_make(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<Block> {
        if let Some(stream) = on {
            stream.on(&**self.backend())?;
        }
        match self.take_newest(layout) {
            Some(block) => Ok(block),
            None => self.make(layout, on, waits, Location::caller()),
        }
    }

    /// A leak report of a [`Tracked`](crate::memory::Tracked) below names `caller` for the slab, unless an [`Origin`] is set.
    #[inline(never)]
    fn make(&self, layout: Layout, on: Option<&Stream>, waits: bool, caller: &'static Location<'static>) -> Result<Block> {
        Origin::current_or(caller, || self.allocate(layout, on, waits)).map(|(entry, layout)| self.shared.block(&entry, layout))
    }

    /// Counts a handle more, or wraps for one less, where this thread does so: whether it does.
    #[inline(always)]
    fn counts_here(&self, more: u64) -> bool {
        // SAFETY: `local::lately` gives this thread's.
        local::lately(self.shared.id, |cache| unsafe { cache.own(|kept| kept.handles.add(more)) }) == Some(true)
    }

    #[cold]
    fn let_go(&mut self) {
        // SAFETY: no other handle is left, and this one is not used again.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
    }

    /// What its threads share, in its own process.
    fn here(&self) -> Result<&Central<M>> {
        if self.shared.process.is_this() {
            Ok(&self.shared)
        } else {
            Err(Error::Unsupported { what: "a pool of the process that this one was forked from" })
        }
    }
}

// SAFETY: a block is a part of a slab that the heap gives to nobody else before it comes back, as long as its class or what was asked for; slabs
// live as long as the pool, which a block's buffer holds. Blocks whose last use may be open are handed out with it as `ready`.
unsafe impl<M: Memory> Memory for Pool<M> {
    type Visibility = M::Visibility;

    #[inline(always)]
    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        self.take_or_make(layout, on, true)
    }

    #[inline(always)]
    unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()> {
        if uses.is_empty() && self.put(&block) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.give(block, uses) }
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.shared.memory.backend()
    }

    fn device(&self) -> u32 {
        self.shared.memory.device()
    }

    fn least_align(&self) -> usize {
        self.shared.least_align
    }
}

impl<M: Memory> Clone for Pool<M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        if !self.counts_here(1) {
            self.shared.handles.add(1);
        }
        // SAFETY: another handle, which was counted just now, of what is there since this one is.
        let shared = unsafe { ptr::read(&raw const self.shared) };
        Self { shared, handle: Handle::Other }
    }
}

impl<M: Memory> Drop for Pool<M> {
    #[inline(always)]
    fn drop(&mut self) {
        let is_last = match self.handle {
            // In two calls: once it has left, another thread may let go of what a method of the pool would still refer to.
            Handle::First => self.shared.close_shares().is_some_and(|others| self.shared.handles.first_leaves(others)),
            Handle::Other => !self.counts_here(1_u64.wrapping_neg()) && self.shared.handles.leave(),
        };
        if is_last {
            self.let_go();
        }
    }
}

impl<M: Memory> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.statistics()).finish()
    }
}
