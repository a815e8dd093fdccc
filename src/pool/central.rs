//! [`Central`]: what all threads of a pool share: the heap of slabs, the thread caches, the central free lists, and the accounts.
//!
//! A block of a slab is in exactly one of these places:
//!
//! | place | held in | leaves it by |
//! |---|---|---|
//! | the caller's | a buffer | its free |
//! | a thread's cache | [`Bin`] | a request of that thread, or of a stream that used it; a flush; a spill of the full bin's older half |
//! | its class's central free list | [`CentralList`] | a request of any thread; a flush |
//! | the pending frees | [`State::pending`] | the completion of its uses, when [`collect`](Central::collect) polls them; a request of the one stream that uses it |
//! | the heap | [`Heap`] | a request; with its whole slab, a trim |
//! | in transit | a thread's stack | the end of the transfer between two of the places above |
//!
//! The heap's memory is an [`Extent`], mapped behind one address range, if the upstream memory permits it, and slabs otherwise; while a kernel forbids mapping,
//! both. "Slab" in this module is either, unless a text tells them apart.
//!
//! A *direct* block is outside the slabs: the upstream memory serves it, and [`State::direct`] has its upstream tag.
//!
//! The parts of this module each hold one decision: [`growth`] serves a request that no cache serves, and so decides when to allocate a slab;
//! [`extent`] maps and moves memory; [`reclaim`] makes memory available that is free but out of reach; [`free`] takes blocks back; [`hygiene`] sets a
//! block's contents; [`relocate`] moves blocks together; [`report`] reads the figures.
//!
//! 1. Lock order: `caches`, `ended`, a cache's own lock, then a central list's lock or `state`. No lock is held during a call of foreign code: the
//!    upstream memory, the backend, the clock, the callback. Each of them may use this pool, and may panic, except for the backend's queries.
//! 2. A waiting request must not miss memory. So a thread that holds free memory on its stack counts in [`State::in_transit`], and every transfer counts
//!    in `progress` before it ends; see [`reclaim`].
//! 3. Reservations are made before the upstream allocation, so that [`State::reserved`] never exceeds the limit, and are released after the free.

mod extent;
mod free;
mod growth;
mod hygiene;
mod reclaim;
pub(crate) mod relocate;
mod report;
mod request;
mod reservation;

use core::alloc::Layout;
use core::mem::{self, ManuallyDrop};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::vec::Vec;

use extent::Extent;
use free::CentralList;
use reclaim::AtomicProgress;
pub(super) use reclaim::InTransit;
pub(super) use request::Request;
use ringmem_layouts::HostWord;

use super::builder::{Hygiene, Options};
use super::cache::{self, Bin, Cache, Contents, Counted, Entry, Home, Idle, UNDATED};
use super::handles::{Handles, Share};
use super::heap::{Freed, Heap, LARGEST_ALIGN, Taken, UNIT, Zone};
use super::tag::Tag;
use crate::backend::{Block, Ticket, Uses};
use crate::memory::{Memory, raised};
use crate::stream::Stream;
use crate::sys::barrier::System;
use crate::sys::fork::Process;
use crate::sys::panic::{both, each};
use crate::{CacheLineAligned, Result};

/// In bytes: over an address range, larger blocks have their exact size and no class, and lie in a [zone](Zone) of their own.
const CLASSED: u64 = 1 << 20;

/// Limits of the blocks that a thread caches, per class.
const CACHED_BYTES: u64 = 4 << 20;
const CACHED_BLOCKS: u64 = 64;

pub(super) struct Central<M: Memory> {
    /// Unique in the process, from [`cache::FIRST`].
    pub id: u64,
    pub process: Process,
    // INVARIANT: valid until `self` is dropped.
    pub memory: ManuallyDrop<M>,
    /// Cached: building a block calls no foreign code.
    device: u32,
    pub options: Options,
    pub min_align: usize,
    /// Up to this size, any cached block of the class serves a request as it is; 0 if requests need checks or preparation.
    plain: u64,
    /// Up to this size, blocks have classes.
    classed: u64,
    /// The granule of an [`Extent`], if the pool may use one.
    granularity: Option<u64>,
    state: CacheLineAligned<Mutex<State>>,
    caches: Mutex<Caches>,
    pub handles: CacheLineAligned<Handles<HostWord>>,
    /// By class: the counts of ended threads, and of operations without a cache.
    ended: Mutex<Vec<Counted>>,
    counts: CacheLineAligned<Counts>,
    /// By class: surplus blocks without open uses.
    central_lists: Vec<CentralList>,
    /// See [`reclaim`].
    progress: CacheLineAligned<AtomicProgress>,
}

/// Counts outside the thread caches.
#[derive(Default)]
struct Counts {
    /// Requests that direct blocks served.
    misses: AtomicU64,
    /// Frees of direct blocks.
    returns: AtomicU64,
    /// Bytes of live direct blocks.
    requested: AtomicU64,
    /// Calls of the upstream memory that succeeded.
    allocations: AtomicU64,
    frees: AtomicU64,
    /// Handles of the extent that moved.
    moves: AtomicU64,
}

#[derive(Default)]
struct Caches {
    all: Vec<Arc<Cache>>,
    /// The pool's first handle was dropped: caches no longer count handles.
    are_closed: bool,
}

struct Slab {
    block: Block,
    /// The latest time of a use of a freed part. [`UNDATED`] if one is unknown; dated when the slab is empty.
    last_use: u64,
}

/// An upstream allocation whose memory is neither available nor given up.
struct Growth {
    number: u64,
    bytes: u64,
    begun: Instant,
}

/// INVARIANT: the heap's slabs are those that are `Some` in `slabs`, with the same numbers.
#[derive(Default)]
struct State {
    heap: Heap,
    slabs: Vec<Option<Slab>>,
    /// Its slab has addresses only.
    extent: Option<Extent>,
    /// The backend refused to reserve addresses.
    has_no_range: bool,
    // INVARIANT: the numbers of the slabs that are `None`.
    vacant: BTreeSet<u32>,
    /// Freed blocks with uses that were incomplete when they were last polled. In the heap they count as taken.
    pending: Vec<(Uses, Entry)>,
    /// By address: direct blocks' upstream tags; while live, they carry the pool's.
    direct: HashMap<u64, u64>,
    /// Blocks freed upstream whose bytes are still reserved: their uses are incomplete, or the backend deferred the free.
    freed_upstream: Vec<(Uses, Block)>,
    /// Threads that hold memory out of reach of others; see [`InTransit`].
    in_transit: u32,
    /// Oldest first.
    growing: Vec<Growth>,
    /// All growths so far: the number of the next.
    growths: u64,
    /// Bytes of slabs, handles and direct blocks, also during their allocation; at most the limit.
    reserved: u64,
    peak: u64,
}

impl State {
    /// Only a long address range has two zones.
    fn zone(&self, zone: Zone) -> Zone {
        if self.extent.as_ref().is_some_and(|extent| extent.has_zones) { zone } else { Zone::Large }
    }

    /// Frees an entry into the heap, last used at `since`. May [defer](Heap::free_deferred). Returns the slab that it emptied, if the caller must date
    /// it.
    fn free(&mut self, entry: &Entry, since: u64) -> Option<u32> {
        if let Some(extent) = &self.extent {
            extent.fetch_date(entry);
        }
        let freed = self.heap.free_deferred(Tag(entry.idle.tag).part()?, since)?;
        self.note_use(freed)
    }

    /// Frees entries with the times of their last uses, and coalesces all. Returns the emptied slabs, for the caller to date.
    fn free_all<'a>(&mut self, entries: impl IntoIterator<Item = (&'a Entry, u64)>) -> Vec<u32> {
        let mut emptied: Vec<u32> = entries.into_iter().filter_map(|(entry, since)| self.free(entry, since)).collect();
        emptied.extend(self.coalesce_deferred());
        emptied
    }

    /// Performs all deferred frees; returns the emptied slabs, for the caller to date.
    fn coalesce_deferred(&mut self) -> Vec<u32> {
        let mut emptied = Vec::new();
        while let Some(freed) = self.heap.free_next_deferred() {
            emptied.extend(self.note_use(freed));
        }
        emptied
    }

    fn note_use(&mut self, freed: Freed) -> Option<u32> {
        if let Some(extent) = self.extent.as_mut().filter(|extent| extent.is_of(freed.slab)) {
            extent.note_use(freed.offset, freed.size, freed.since);
            return None;
        }
        let slab = self.slabs.get_mut(freed.slab as usize)?.as_mut()?;
        slab.last_use = slab.last_use.max(freed.since);
        (freed.is_empty && slab.last_use == UNDATED).then_some(freed.slab)
    }

    /// The number of the next slab.
    fn next_slab(&self) -> u32 {
        self.vacant.first().copied().unwrap_or(self.slabs.len() as u32)
    }

    /// Adds the [next](Self::next_slab) slab to the table; the heap has it already.
    fn push_slab(&mut self, slab: Slab) {
        match self.vacant.pop_first().and_then(|number| self.slabs.get_mut(number as usize)) {
            Some(place) => *place = Some(slab),
            None => self.slabs.push(Some(slab)),
        }
    }

    /// Slabs, and handles of the extent.
    fn upstream_blocks(&self) -> usize {
        self.slabs.iter().flatten().count() - usize::from(self.extent.is_some()) + self.extent.as_ref().map_or(0, Extent::handles)
    }

    fn empty_slabs(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.heap.empty_slabs().filter_map(|number| Some((number, self.slabs.get(number as usize)?.as_ref()?)))
    }
}

impl<M: Memory> Central<M> {
    pub fn new(memory: M, options: Options) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(cache::FIRST);
        System::prepare();
        let (min_align, classes) = (memory.min_align(), options.classes);
        let granularity = if options.slab.is_none() && options.is_enabled { memory.mapping_granularity() } else { None };
        let classed = if granularity.is_some() { classes.largest().min(CLASSED.max(classes.bytes_of(0))) } else { classes.largest() };
        // With raised alignments, a block's layout differs from its request.
        let is_plain =
            options.is_enabled && !options.is_exact && matches!(options.hygiene, Hygiene::DebugPoison | Hygiene::Leave) && min_align == 1;
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            process: Process::this(),
            device: memory.device(),
            plain: if is_plain { classed } else { 0 },
            classed,
            granularity,
            min_align,
            memory: ManuallyDrop::new(memory),
            options,
            state: CacheLineAligned::default(),
            caches: Mutex::default(),
            handles: CacheLineAligned::new(Handles::new()),
            ended: Mutex::new(std::vec![Counted::default(); classes.count()]),
            counts: CacheLineAligned::default(),
            central_lists: (0..classes.count()).map(|_| CentralList::default()).collect(),
            progress: CacheLineAligned::default(),
        }
    }

    #[cold]
    pub fn count(&self, class: usize, count: impl FnOnce(&mut Counted)) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = ended.get_mut(class) {
            count(counted);
        }
    }

    /// The class whose cached blocks serve a request without further checks.
    #[inline(always)]
    pub fn plain_class_of(&self, layout: Layout) -> Option<usize> {
        // An empty request wraps and so is too large.
        let last = (layout.size() as u64).wrapping_sub(1);
        if last < self.plain && layout.align() as u64 <= UNIT { Some(self.options.classes.class_to(last)) } else { None }
    }

    #[inline(always)]
    pub fn raised(&self, layout: Layout) -> Result<Layout> {
        raised(layout, self.min_align)
    }

    /// For requests that the heap serves. Those that exceed all classes count for the largest.
    pub fn class_of(&self, layout: Layout) -> Option<usize> {
        let (bytes, is_pooled) = (layout.size() as u64, self.options.is_enabled && layout.align() as u64 <= LARGEST_ALIGN);
        let class = if is_pooled { self.options.classes.class_of(bytes) } else { None };
        let is_large = is_pooled && self.granularity.is_some() && bytes <= Tag::LARGEST;
        class.or_else(|| is_large.then(|| self.class_count() - 1))
    }

    /// Whether blocks of this size are cached.
    pub const fn is_cached(&self, bytes: u64) -> bool {
        !self.options.is_exact && bytes <= self.classed
    }

    /// The largest block of the heap in bytes.
    pub const fn largest(&self) -> u64 {
        if self.granularity.is_some() { Tag::LARGEST } else { self.options.classes.largest() }
    }

    pub fn class_count(&self) -> usize {
        self.options.classes.count()
    }

    /// The bytes of the block that a request of this class gets.
    pub fn class_bytes(&self, class: usize, requested: u64) -> u64 {
        if self.is_cached(requested) { self.options.classes.bytes_of(class) } else { requested.max(1) }
    }

    fn max_cached(&self, class: usize) -> usize {
        (CACHED_BYTES / self.options.classes.bytes_of(class)).clamp(2, CACHED_BLOCKS) as usize
    }

    #[inline(always)]
    pub fn block(&self, entry: &Entry, layout: Layout) -> Block {
        Block {
            device_address: entry.idle.device_address(),
            host: entry.idle.host,
            layout,
            location: Tag(entry.idle.tag).location(),
            device: self.device,
            is_pinned: Tag(entry.idle.tag).is_pinned(),
            ready: entry.used,
            tag: entry.idle.tag,
        }
    }

    /// Takes the smallest of the last `looks` pending blocks that suffices, of at most `most` bytes, and that `on` alone uses: the stream orders both uses.
    fn take_pending(&self, request: &Request, on: Option<&Stream>, most: u64, looks: usize) -> Option<Entry> {
        let on = on?.id();
        let mut state = self.lock();
        let fits = |(index, (uses, entry)): (usize, &(Uses, Entry))| {
            let (bytes, used) = (Tag(entry.idle.tag).bytes(), uses.only()?);
            let is_it = used.stream == on && (request.bytes..=most).contains(&bytes) && entry.idle.is_aligned(request.align);
            is_it.then_some((bytes, index, used))
        };
        let (_, index, used) = state.pending.iter().enumerate().rev().take(looks).filter_map(fits).min_by_key(|&(bytes, ..)| bytes)?;
        let (_, entry) = state.pending.remove(index);
        Some(Entry { used: Some(used), ..entry })
    }

    /// Takes a part of the zone; first without the deferred frees, which cost a cache miss each.
    fn take(&self, bytes: u64, align: u64, zone: Zone) -> Option<Entry> {
        let mut state = self.lock();
        let mut found = self.take_from(&mut state, bytes, align, zone);
        if found.is_none() && state.heap.has_deferred() {
            drop(state);
            state = self.lock_coalesced();
            found = self.take_from(&mut state, bytes, align, zone);
        }
        found
    }

    fn take_from(&self, state: &mut State, bytes: u64, align: u64, zone: Zone) -> Option<Entry> {
        let zone = state.zone(zone);
        let taken = state.heap.take(bytes, align, zone)?;
        let slab = state.slabs.get(taken.slab as usize)?.as_ref()?;
        Some(self.entry(&taken, &slab.block))
    }

    fn entry(&self, taken: &Taken, block: &Block) -> Entry {
        // A part shorter than its class serves the class below, if any. Exact parts have no class.
        let class = if self.is_cached(taken.size) { self.options.classes.class_within(taken.size) } else { None };
        let device_address = block.device_address.and_then(|address| address.offset(taken.offset));
        // SAFETY: the heap returns offsets within the slab.
        let host = block.host.map(|host| unsafe { host.add(taken.offset as usize) });
        Entry { idle: Idle::new(Tag::new(taken.part, class, taken.size, block).0, device_address, host), used: None }
    }

    /// Closes every thread's share; returns their sum. `None` in a fork, or if a cache cannot be accessed: then the pool leaks.
    #[cold]
    pub fn close_shares(&self) -> Option<u64> {
        if !self.process.is_this() {
            return None;
        }
        let caches = {
            let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            caches.are_closed = true;
            caches.all.clone()
        };
        caches.iter().try_fold(0_u64, |sum, cache| Some(sum.wrapping_add(cache.ask(|contents| contents.handles.close())?)))
    }

    /// Locks the state without deferred frees. Emptied slabs are dated without the lock, because the clock is foreign code; meanwhile another thread
    /// may free, so the search for deferred frees repeats.
    fn lock_coalesced(&self) -> MutexGuard<'_, State> {
        loop {
            let mut state = self.lock();
            let emptied = state.coalesce_deferred();
            if emptied.is_empty() {
                return state;
            }
            drop(state);
            self.date(&emptied);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the entries of a cache with the times of their last uses.
fn take_all(contents: &mut Contents) -> Vec<(Entry, u64)> {
    contents.bins.iter_mut().flat_map(Bin::empty).collect()
}

impl<M: Memory> Home for Central<M> {
    fn admit(&self) -> Arc<Cache> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let most = (0..self.options.classes.count()).map(|class| self.max_cached(class));
        let cache = Arc::new(Cache::new(most, Share::new(!caches.are_closed)));
        caches.all.push(Arc::clone(&cache));
        cache
    }

    unsafe fn retire(&self, cache: &Arc<Cache>) {
        if !self.process.is_this() {
            return;
        }
        let _transit = self.start_transit();
        // SAFETY: the caller promises that its thread owns the cache, as `own` requires.
        let entries = unsafe { cache.own(take_all) };
        let leave = |_| {
            // Under both locks: a concurrent reader counts this thread once.
            let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the calling thread owns the cache, and `add` calls nothing that accesses it.
            unsafe { cache.own(|contents| ended.iter_mut().zip(&contents.bins).for_each(|(sum, bin)| sum.add(&bin.counted()))) };
            // Added before another thread finds the share closed.
            // SAFETY: the calling thread owns the cache; the handle count is another object.
            unsafe { cache.own(|contents| self.handles.add(contents.handles.close())) };
            caches.all.retain(|other| !Arc::ptr_eq(other, cache));
        };
        both(|| self.free_counted(entries), leave);
    }
}

impl<M: Memory> Drop for Central<M> {
    fn drop(&mut self) {
        // SAFETY: called once; no other access follows.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if !self.process.is_this() {
            return;
        }
        let mut open: Vec<Ticket> = Vec::new();
        for cache in mem::take(&mut *self.caches.lock().unwrap_or_else(PoisonError::into_inner)).all {
            let mut collect =
                |contents: &mut Contents| open.extend(contents.bins.iter().flat_map(|bin| &bin.entries).filter_map(|entry| entry.used));
            // SAFETY: only holders of the pool access its caches, and none is left; the last handle's drop happened after all others.
            unsafe { cache.alone(&mut collect) };
        }
        let State { slabs, extent, pending, .. } = mem::take(&mut *self.lock());
        open.extend(pending.iter().flat_map(|(uses, _)| uses.iter()));
        let is_slab = |number: &u32| extent.as_ref().is_none_or(|extent| !extent.is_of(*number));
        let slabs = slabs.into_iter().zip(0..).filter(|(_, number)| is_slab(number)).filter_map(|(slab, _)| Some(slab?.block));
        let slabs: Vec<Block> = slabs.collect();
        let slabs = slabs.into_iter().chain(extent.into_iter().flat_map(Extent::into_blocks)).collect();
        DrainingSlabs { memory, slabs, open }.free_or_wait();
    }
}

/// A dropped pool's slabs, until the last uses of their blocks complete. No thread waits for them.
struct DrainingSlabs<M: Memory> {
    memory: M,
    slabs: Vec<Block>,
    open: Vec<Ticket>,
}

impl<M: Memory> DrainingSlabs<M> {
    /// Frees the slabs after the uses. [`Uses`] lists a few streams only: if more have open uses, the backend keeps `self` until the listed uses
    /// complete, and drops it then, which calls this function again with fewer open uses.
    fn free_or_wait(mut self) {
        let backend = Arc::clone(self.memory.backend());
        let mut uses = Uses::NONE;
        self.open.retain(|&ticket| !backend.is_complete(ticket) && uses.add(ticket).is_err());
        if !self.open.is_empty() {
            backend.keep(Box::new(OnDrop(Some(self), Process::this())), &uses, None);
            return;
        }
        each(self.slabs, |slab| {
            // SAFETY: a slab of this memory, freed only here, and in use by `uses` at most: other uses are complete.
            if let Err(error) = unsafe { self.memory.free(&slab, &uses) } {
                backend.unreported(error);
            }
        });
    }
}

/// Continues on drop, except in a fork, where the slabs are the parent's.
struct OnDrop<M: Memory>(Option<DrainingSlabs<M>>, Process);

impl<M: Memory> Drop for OnDrop<M> {
    fn drop(&mut self) {
        if let Some(draining) = self.0.take().filter(|_| self.1.is_this()) {
            draining.free_or_wait();
        }
    }
}
