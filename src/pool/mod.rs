//! [`Pool`]: memory that is taken from its driver in slabs and handed out in blocks, over and over.
//!
//! 1. A block that was given back serves the next request of its class, on the thread that gave it back, without a lock and without a call of
//!    the backend. What a thread does not need goes back to all.
//! 2. A block is not used before its last use is over: on the stream of that use it may be taken at once, elsewhere after its ticket.
//! 3. The slabs' bytes never exceed the limit, at any instant.
//! 4. A request fails only when a driver and every way of making room have failed: this thread's cache, all threads' caches, empty slabs,
//!    pending frees, the callback. The error says how much is free, and how much in one piece.
//! 5. No lock is held while a backend is called. All bookkeeping is outside the pooled memory.
//! 6. What was handed out holds the pool: slabs go when the last block of them has.
//! 7. In a process that was forked from its own a pool refuses requests, and what is given back or dropped there is left to the parent.

mod builder;
mod cache;
mod central;
mod classes;
mod global;
mod heap;
mod local;
mod pinned;
mod placed;
mod pools;
pub(crate) mod process;
mod seat;
mod statistics;

use core::alloc::Layout;
use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Weak};

use cache::{Cache, Entry};
use central::Central;
use heap::{PartId, UNIT};
use local::Home;

use crate::backend::{Backend, Block, MemoryLocation, Uses};
use crate::memory::Memory;
use crate::stream::Stream;
use crate::{Error, Result};

pub use builder::{Builder, Hygiene, OutOfMemory};
pub use classes::Classes;
pub use global::{Chosen, configure, global};
pub use pinned::PinnedPool;
pub use placed::Placed;
pub use pools::{Pools, PoolsBuilder};
pub use statistics::{ClassStatistics, PartState, SlabView, Statistics};

/// A pool over a memory. Clones are the same pool; each is a [`Memory`], so buffers are made of it.
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
    shared: Arc<Central<M>>,
}

/// What a pool knows a block by: its part in the low 24 bits, the class that it serves above, then its units, where it is, and whether its
/// pages are locked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag(u64);

impl Tag {
    /// A block outside the slabs: no part has the number 0.
    const DIRECT: u64 = 0;
    const CLASS_SHIFT: u32 = 24;
    const UNITS_SHIFT: u32 = 32;
    const LOCATION_SHIFT: u32 = 61;
    const UNITS: u64 = (1 << (Self::LOCATION_SHIFT - Self::UNITS_SHIFT)) - 1;
    const PINNED: u64 = 1 << 63;

    /// A class that no block has: those that are shorter than the first are not cached.
    const NO_CLASS: u64 = 0xff;

    const fn new(part: PartId, class: Option<usize>, bytes: u64, slab: &Block) -> Self {
        let location = match slab.location {
            MemoryLocation::Host => 0,
            MemoryLocation::Device => 1,
            MemoryLocation::Pinned => 2,
            MemoryLocation::Unified => 3,
        };
        let pinned = if slab.is_pinned { Self::PINNED } else { 0 };
        let class = match class {
            Some(class) => class as u64,
            None => Self::NO_CLASS,
        };
        // Classes are fewer than 255, and end at 64 GiB.
        let (class, units) = (class << Self::CLASS_SHIFT, ((bytes / UNIT) & Self::UNITS) << Self::UNITS_SHIFT);
        Self(part.index() as u64 | class | units | location << Self::LOCATION_SHIFT | pinned)
    }
    /// The part's bytes.
    const fn bytes(self) -> u64 {
        (self.0 >> Self::UNITS_SHIFT & Self::UNITS) * UNIT
    }
    const fn class(self) -> usize {
        (self.0 >> Self::CLASS_SHIFT & 0xff) as usize
    }
    const fn part(self) -> Option<PartId> {
        PartId::from_index((self.0 & ((1 << Self::CLASS_SHIFT) - 1)) as u32)
    }
    const fn location(self) -> MemoryLocation {
        match self.0 >> Self::LOCATION_SHIFT & 3 {
            0 => MemoryLocation::Host,
            1 => MemoryLocation::Device,
            2 => MemoryLocation::Pinned,
            _ => MemoryLocation::Unified,
        }
    }
    const fn is_pinned(self) -> bool {
        self.0 & Self::PINNED != 0
    }
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

    /// Makes room for `count` blocks of `bytes` bytes in slabs.
    ///
    /// # Errors
    ///
    /// As an allocation.
    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        self.here()?.prewarm(bytes, count)
    }

    /// Gives empty slabs back to the memory, those first that are empty for the longest, until no more than `bytes` are held; how many bytes
    /// that gave back. Blocks that threads have cached go back to their slabs before.
    pub fn trim_to(&self, bytes: u64) -> u64 {
        self.here().map_or(0, |shared| shared.trim(bytes, Duration::ZERO))
    }

    /// Gives slabs back to the memory that have been empty for at least `age`; how many bytes that gave back.
    pub fn trim_older_than(&self, age: Duration) -> u64 {
        self.here().map_or(0, |shared| shared.trim(0, age))
    }

    /// Joins what is free and gives every empty slab back; how many bytes that gave back.
    pub fn defragment(&self) -> u64 {
        self.trim_to(0)
    }

    /// What its threads share, in its own process.
    #[inline(always)]
    fn here(&self) -> Result<&Central<M>> {
        if self.shared.process.is_this() {
            Ok(&self.shared)
        } else {
            Err(Error::Unsupported { what: "a pool of the process that this one was forked from" })
        }
    }

    #[inline(always)]
    fn home(&self) -> impl FnOnce() -> Weak<dyn Home> + '_ {
        || {
            let home: Weak<Central<M>> = Arc::downgrade(&self.shared);
            home
        }
    }

    /// An entry of this thread's cache. Its request is counted, also where there is none.
    #[inline(always)]
    fn take_cached(&self, requested: u64, class: usize, on: Option<&Stream>) -> Option<Entry> {
        let take = |cache: &Cache| {
            // SAFETY: `local::with` gives this thread's.
            unsafe {
                cache.own(|bins| {
                    let bin = bins.get_mut(class)?;
                    bin.requests += 1;
                    bin.requested = bin.requested.wrapping_add(requested);
                    let entry = pop(&mut bin.entries, on)?;
                    bin.hits += 1;
                    Some(entry)
                })
            }
        };
        match local::with(self.shared.id, self.home(), take) {
            Some(Some(entry)) => Some(entry),
            Some(None) => self.take_over(class),
            None => {
                self.shared.count(class, |counted| {
                    counted.requests += 1;
                    counted.requested = counted.requested.wrapping_add(requested);
                });
                None
            }
        }
    }

    /// The oldest entry, if its last use is over by now. The backend is asked while nobody is kept away.
    #[cold]
    fn take_over(&self, class: usize) -> Option<Entry> {
        // SAFETY: `local::with` gives this thread's.
        let first = |cache: &Cache| unsafe { cache.own(|bins| bins.get(class)?.entries.first().copied()) };
        let oldest = local::with(self.shared.id, self.home(), first).flatten()?;
        if oldest.used.is_some_and(|ticket| !self.shared.memory.backend().reached(ticket)) {
            return None;
        }
        let take = |cache: &Cache| {
            // SAFETY: as above.
            unsafe {
                cache.own(|bins| {
                    let bin = bins.get_mut(class)?;
                    // Others may have taken it meanwhile.
                    let index = bin.entries.iter().position(|entry| (entry.tag, entry.used) == (oldest.tag, oldest.used))?;
                    bin.hits += 1;
                    Some(bin.entries.remove(index))
                })
            }
        };
        let entry = local::with(self.shared.id, self.home(), take).flatten()?;
        Some(Entry { used: None, ..entry })
    }

    /// Takes a request back that was not served.
    #[cold]
    fn uncount(&self, requested: u64, class: usize, is_hit: bool) {
        let uncount = |cache: &Cache| {
            // SAFETY: `local::with` gives this thread's.
            unsafe {
                cache.own(|bins| {
                    if let Some(bin) = bins.get_mut(class) {
                        bin.requests -= 1;
                        bin.hits -= u64::from(is_hit);
                        bin.requested = bin.requested.wrapping_sub(requested);
                    }
                })
            }
        };
        if local::with(self.shared.id, self.home(), uncount).is_none() {
            self.shared.count(class, |counted| {
                counted.requests -= 1;
                counted.requested = counted.requested.wrapping_sub(requested);
            });
        }
    }

    /// Puts a block into this thread's cache, or gives it and the older half of a full bin back to all.
    #[inline(always)]
    fn put(&self, entry: Entry, requested: u64, uses: &Uses, is_shared: bool) {
        let shared = &*self.shared;
        let class = Tag(entry.tag).class();
        let put = |cache: &Cache| {
            // SAFETY: `local::with` gives this thread's.
            unsafe {
                cache.own(|bins| {
                    let bin = bins.get_mut(class)?;
                    bin.returns += 1;
                    bin.requested = bin.requested.wrapping_sub(requested);
                    let is_full = is_shared || bin.entries.len() >= bin.most;
                    if !is_full {
                        bin.entries.push(entry);
                    }
                    Some(!is_full)
                })
            }
        };
        let is_put = local::with(shared.id, self.home(), put).flatten();
        if is_put.is_none() {
            shared.count(class, |counted| {
                counted.returns += 1;
                counted.requested = counted.requested.wrapping_sub(requested);
            });
        }
        if is_put != Some(true) {
            self.spill(entry, class, uses);
        }
    }

    #[cold]
    fn spill(&self, entry: Entry, class: usize, uses: &Uses) {
        let older = |cache: &Cache| {
            // SAFETY: `local::with` gives this thread's.
            unsafe {
                cache.own(|bins| match bins.get_mut(class) {
                    Some(bin) if bin.entries.len() >= bin.most => bin.entries.drain(..bin.most.div_ceil(2)).collect(),
                    _ => std::vec::Vec::new(),
                })
            }
        };
        let older = local::with(self.shared.id, self.home(), older).unwrap_or_default();
        let older = older.into_iter().map(|entry| (Uses::from(entry.used), entry));
        self.shared.give(older.chain([(*uses, entry)]));
    }
}

/// The newest entry that may be used on a stream now.
#[inline(always)]
fn pop(entries: &mut std::vec::Vec<Entry>, on: Option<&Stream>) -> Option<Entry> {
    if entries.last()?.used.is_none() {
        return entries.pop();
    }
    let on = on.map(Stream::id);
    let index = entries.iter().rposition(|entry| entry.used.is_none_or(|used| Some(used.stream) == on))?;
    Some(entries.swap_remove(index))
}

// SAFETY: a block is a part of a slab that the heap gives to nobody else before it comes back, as long as its class or what was asked for; slabs
// live as long as the pool, which a block's buffer holds. Blocks whose last use may be open are handed out with it as `ready`.
unsafe impl<M: Memory> Memory for Pool<M> {
    type Visibility = M::Visibility;

    #[inline]
    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let shared = self.here()?;
        let requested = layout.size() as u64;
        if let Some(stream) = on {
            stream.on(&**self.backend())?;
        }
        let class = if layout.align() as u64 <= UNIT { shared.class_of(requested) } else { None };
        let Some(class) = class else { return shared.allocate_direct(layout, on) };
        match self.take_cached(requested, class, on) {
            Some(entry) => shared.reused(entry, layout, on).inspect_err(|_| self.uncount(requested, class, true)),
            None => shared.allocate(layout, class, on).inspect_err(|_| self.uncount(requested, class, false)),
        }
    }

    #[inline]
    unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()> {
        if !self.shared.process.is_this() {
            return Ok(());
        }
        if block.tag == Tag::DIRECT {
            // SAFETY: the caller's promise; such blocks are the memory's own.
            return unsafe { self.shared.free_direct(block, uses) };
        }
        let mut open = uses.iter();
        let entry = Entry { tag: block.tag, device_address: block.device_address, host: block.host, used: open.next() };
        self.put(entry, block.layout.size() as u64, uses, open.next().is_some());
        Ok(())
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.shared.memory.backend()
    }

    fn device(&self) -> u32 {
        self.shared.memory.device()
    }
}

impl<M: Memory> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: Memory> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.statistics()).finish()
    }
}
