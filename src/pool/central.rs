//! What all threads share: slabs, the heap over them, blocks whose last use is not over, and every thread's cache.
//!
//! Locks are taken in this order: `caches`, `ended`, a cache's own, a free list's or `state`. None is held while the backend, the memory, the clock or the callback is
//! called.

mod back;
pub(crate) mod relocate;
mod remains;
mod report;
mod room;

use core::alloc::Layout;
use core::cell::Cell;
use core::mem::{self, ManuallyDrop};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use remains::Remains;
use ringmem_layouts::HostWord;

use super::Classes;
use super::builder::{Builder, Hygiene};
use super::cache::{Cache, Counted, Entry, Idle, Kept};
use super::free_list::FreeList;
use super::handles::{Handles, Share};
use super::heap::{Given, Heap, LARGEST_ALIGN, Taken, UNIT};
use super::local::{self, Home};
use super::tag::Tag;
use crate::backend::panic::both;
use crate::backend::{Block, Fill, Ticket, Uses};
use crate::barrier::System;
use crate::fork::Process;
use crate::memory::{Memory, raised};
use crate::stream::Stream;
use crate::{CacheLineAligned, Result};

/// What slabs' sizes are multiples of where that fits the limit.
const GRAIN: u64 = 2 << 20;
/// The most bytes that a thread caches of one class, and the most blocks.
const CACHED_BYTES: u64 = 4 << 20;
const CACHED_BLOCKS: u64 = 64;
/// The most blocks of a class, of no more bytes, that its central free list holds: as many as are on their way between a thread that takes them and one that
/// gives them back. What does not fit goes through the heap, one by one.
const LISTED_BLOCKS: u64 = 1024;

pub(super) struct Central<M: Memory> {
    /// Of this process; never used twice.
    pub id: u64,
    /// The one that it is of: in a fork it does nothing.
    pub process: Process,
    // INVARIANT: there until this is dropped.
    pub memory: ManuallyDrop<M>,
    /// The memory's. Not asked again: blocks are put together where nothing of anybody else's may be called.
    device: u32,
    classes: Classes,
    pub is_exact: bool,
    is_enabled: bool,
    /// The minimum alignment of every block: the memory's.
    pub least_align: usize,
    /// Requests of up to so many bytes get any cached block of their class, as it is.
    plain: u64,
    limit: u64,
    slab: u64,
    hygiene: Hygiene,
    patience: Duration,
    out_of_memory: Option<super::builder::OutOfMemory>,
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    state: CacheLineAligned<Mutex<State>>,
    caches: Mutex<Caches>,
    pub handles: CacheLineAligned<Handles<HostWord>>,
    /// What the caches of threads that have ended had counted, and those threads after them; by class.
    ended: Mutex<Vec<Counted>>,
    counts: CacheLineAligned<Counts>,
    /// What threads had too many of and nobody uses, by class.
    free_lists: Vec<FreeList>,
    /// How often threads have moved memory, where others did not see it.
    moves: CacheLineAligned<AtomicU64>,
}

/// A request for a part of a slab.
pub(super) struct Wanted {
    /// The block size of its class.
    pub whole: u64,
    /// The bytes that suffice if no larger part is free.
    pub requested: u64,
    pub align: u64,
}

/// What is counted outside the caches.
#[derive(Default)]
struct Counts {
    misses: AtomicU64,
    returns: AtomicU64,
    requested: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
}

/// Every running thread's.
#[derive(Default)]
struct Caches {
    all: Vec<Arc<Cache>>,
    /// The first handle has gone: no share is opened any more.
    are_closed: bool,
}

struct State {
    heap: Heap,
    /// By number; `None` for a number that is free.
    slabs: Vec<Option<Slab>>,
    /// Given back, and not over.
    pending: Vec<(Uses, Entry)>,
    /// By [`address`](crate::backend::Block::address), the tags that the memory below knows direct blocks by: out there they have ours.
    direct: HashMap<u64, u64>,
    /// What the memory has back and frees after its uses, or has put off to free.
    leaving: Vec<(Uses, Block)>,
    /// Threads that have memory on its way from or to the memory below, or out of caches, where nobody else sees it.
    moving: u32,
    /// How often the limit has refused some.
    refusals: u64,
    /// Bytes of slabs and of direct blocks, those that are being allocated included: never above the limit.
    reserved: u64,
    peak: u64,
}

impl State {
    /// Takes a part back into the heap, which may do so [deferred](Heap::free_deferred); a slab that nothing is taken of any more by now, if there
    /// is one to be [`dated`](Central::date).
    fn give(&mut self, entry: &Entry) -> Option<u32> {
        let given = self.heap.free_deferred(Tag(entry.idle.tag).part()?)?;
        self.emptied(given)
    }

    /// Has the heap take back what is deferred; the slabs that are to be dated.
    fn settle(&mut self) -> Vec<u32> {
        let mut emptied = Vec::new();
        while let Some(given) = self.heap.free_next_deferred() {
            emptied.extend(self.emptied(given));
        }
        emptied
    }

    fn emptied(&mut self, given: Given) -> Option<u32> {
        if !given.is_empty {
            return None;
        }
        self.slabs.get_mut(given.slab as usize)?.as_mut()?.empty_since = UNDATED;
        Some(given.slab)
    }

    /// The slabs that nothing is taken of, each with its number.
    fn empty_slabs(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.heap.empty_slabs().filter_map(|number| Some((number, self.slabs.get(number as usize)?.as_ref()?)))
    }
}

/// Of a slab that was emptied a moment ago: later than every time.
const UNDATED: u64 = u64::MAX;

struct Slab {
    block: Block,
    /// When the last part of it was given back.
    empty_since: u64,
}

impl<M: Memory> Central<M> {
    pub fn new(builder: Builder<M>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(local::FIRST);
        System::prepare();
        let Builder { memory, limit, slab, classes, is_exact, is_enabled, hygiene, patience, out_of_memory, clock } = builder;
        let least_align = memory.least_align();
        // With raised alignments the layout of a block differs from its request.
        let is_plain = is_enabled && !is_exact && matches!(hygiene, Hygiene::Leave) && least_align == 1;
        let state = State {
            heap: Heap::new(),
            slabs: Vec::new(),
            pending: Vec::new(),
            direct: HashMap::new(),
            leaving: Vec::new(),
            moving: 0,
            refusals: 0,
            reserved: 0,
            peak: 0,
        };
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            process: Process::this(),
            device: memory.device(),
            plain: if is_plain { classes.largest() } else { 0 },
            least_align,
            memory: ManuallyDrop::new(memory),
            classes,
            is_exact,
            is_enabled,
            limit,
            slab,
            hygiene,
            patience,
            out_of_memory,
            clock,
            state: CacheLineAligned::new(Mutex::new(state)),
            caches: Mutex::default(),
            handles: CacheLineAligned::new(Handles::new()),
            ended: Mutex::new(std::vec![Counted::default(); classes.count()]),
            counts: CacheLineAligned::default(),
            free_lists: (0..classes.count()).map(|_| FreeList::default()).collect(),
            moves: CacheLineAligned::default(),
        }
    }

    /// Counts for a thread that has no cache any more.
    #[cold]
    pub fn count(&self, class: usize, count: impl FnOnce(&mut Counted)) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = ended.get_mut(class) {
            count(counted);
        }
    }

    /// The class whose cached blocks serve a request as they are; `None` where there is more to look at.
    #[inline(always)]
    pub fn plain_class_of(&self, layout: Layout) -> Option<usize> {
        // One comparison for no bytes and too many.
        let last = (layout.size() as u64).wrapping_sub(1);
        if last < self.plain && layout.align() as u64 <= UNIT { Some(self.classes.class_to(last)) } else { None }
    }

    /// Returns the layout with at least the memory's alignment.
    #[inline(always)]
    pub fn raised(&self, layout: Layout) -> Result<Layout> {
        raised(layout, self.least_align)
    }

    /// The class that serves a request; `None` where slabs do not.
    pub fn class_of(&self, layout: Layout) -> Option<usize> {
        let is_pooled = self.is_enabled && layout.align() as u64 <= LARGEST_ALIGN;
        if is_pooled { self.classes.class_of(layout.size() as u64) } else { None }
    }

    pub fn class_count(&self) -> usize {
        self.classes.count()
    }

    /// The bytes of the block that a request of a class gets.
    pub fn whole(&self, class: usize, requested: u64) -> u64 {
        if self.is_exact { requested.max(1) } else { self.classes.bytes_of(class) }
    }

    /// How many blocks of a class a thread caches.
    fn most_cached(&self, class: usize) -> usize {
        (CACHED_BYTES / self.classes.bytes_of(class)).clamp(2, CACHED_BLOCKS) as usize
    }

    /// An entry that is ready to be a block.
    pub fn reused(&self, entry: Entry, layout: Layout, on: Option<&Stream>) -> Result<Entry> {
        match self.hygiene {
            Hygiene::Leave => Ok(entry),
            Hygiene::Zero => self.clean(entry, layout, 0, on),
            Hygiene::Poison(byte) => self.clean(entry, layout, byte, on),
        }
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

    fn take(&self, bytes: u64, align: u64) -> Option<Entry> {
        let mut state = self.lock();
        let found = self.take_of(&mut state, bytes, align);
        if found.is_some() || !state.heap.has_deferred() {
            return found;
        }
        drop(state);
        self.take_of(&mut self.settled(), bytes, align)
    }

    fn take_of(&self, state: &mut State, bytes: u64, align: u64) -> Option<Entry> {
        let State { heap, slabs, .. } = state;
        let taken = heap.take(bytes, align)?;
        let slab = slabs.get(taken.slab as usize)?.as_ref()?;
        Some(self.entry(&taken, &slab.block))
    }

    /// What was taken of a slab, as an entry.
    fn entry(&self, taken: &Taken, block: &Block) -> Entry {
        // What is shorter than its class serves the class before, or none; what is exact serves none.
        let class = if self.is_exact { None } else { self.classes.class_within(taken.size) };
        let device_address = block.device_address.and_then(|address| address.offset(taken.offset));
        // SAFETY: the heap gives offsets within the slab.
        let host = block.host.map(|host| unsafe { host.add(taken.offset as usize) });
        Entry { idle: Idle::new(Tag::new(taken.part, class, taken.size, block).0, device_address, host), used: None }
    }

    /// Fills a block with a byte, as long as the request. One that cannot be cleaned is not handed out.
    #[cold]
    fn clean(&self, entry: Entry, layout: Layout, byte: u8, on: Option<&Stream>) -> Result<Entry> {
        let block = self.block(&entry, layout);
        // SAFETY: the beginning is within the block.
        let Some(to) = (unsafe { block.place(0) }) else { return Ok(entry) };
        let fill = Fill { to, pattern: byte.into(), size: 1, count: layout.size() as u64 };
        let backend = self.memory.backend();
        let clean = || match on {
            // SAFETY: the block is nobody's yet, and what is queued before on this stream is over by then: it was used last there, or nowhere.
            Some(stream) => unsafe { backend.fill(&fill, stream.id()) }.map(Some),
            // SAFETY: as above, and its last use is over: without a stream no other is taken, and what the memory gave is waited for.
            None => block
                .ready
                .map_or(Ok(true), |ready| backend.wait(ready, None))
                .and_then(|_| unsafe { backend.fill_now(&fill) })
                .map(|()| None),
        };
        let mut cleaned = Ok(None);
        both(
            || cleaned = clean(),
            |has_panicked| {
                if has_panicked {
                    self.refuse(&entry, layout);
                }
            },
        );
        match cleaned {
            Ok(ticket) => Ok(Entry { used: ticket.or(entry.used), ..entry }),
            Err(error) => {
                self.refuse(&entry, layout);
                Err(error)
            }
        }
    }

    /// Takes back what could not be cleaned. Nothing was queued on it.
    fn refuse(&self, entry: &Entry, layout: Layout) {
        if !Tag(entry.idle.tag).is_direct() {
            self.give_one(&Uses::from(entry.used), entry);
            return;
        }
        // It was neither had nor given back, as far as is counted.
        self.counts.misses.fetch_sub(1, Relaxed);
        let block = self.block(entry, layout);
        let uses = Uses::from(block.ready);
        // SAFETY: nobody's yet, and its only use is the one that makes it ready.
        if let Err(error) = unsafe { self.forget_direct(block, &uses) } {
            self.memory.backend().unreported(error);
        }
    }

    /// Closes every thread's share, since the first handle goes: what they had counted. `None` in a fork, or where a thread cannot be asked: the pool
    /// stays.
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
        caches.iter().try_fold(0_u64, |sum, cache| Some(sum.wrapping_add(cache.ask(|kept| kept.handles.close())?)))
    }

    /// Says that this thread may move memory, until what this gives is dropped; what it has [moved](Self::moved) it says by then.
    pub fn moving(&self) -> Moving<'_, M> {
        self.lock().moving += 1;
        Moving(self)
    }

    /// Counts that this thread has moved memory. What makes others see what it moved has them see this.
    fn moved(&self) {
        self.moves.fetch_add(1, Relaxed);
        MOVES.set(MOVES.get().wrapping_add(1));
    }

    /// A number that stays the same while no other thread moves memory, here or in a pool beside this one.
    pub fn moved_by_others(&self, beside: Option<&Self>) -> u64 {
        let moves = |pool: &Self| pool.moves.load(Relaxed);
        moves(self).wrapping_add(beside.map_or(0, moves)).wrapping_sub(MOVES.get())
    }

    /// Calls the memory below. What this thread moves there, in a pool, is not moved here.
    fn below<R>(&self, call: impl FnOnce(&M) -> R) -> R {
        let moves = MOVES.get();
        let result = call(&self.memory);
        MOVES.set(moves);
        result
    }

    /// What there is, with nothing deferred: for who reads the heap.
    fn settled(&self) -> MutexGuard<'_, State> {
        loop {
            let mut state = self.lock();
            let emptied = state.settle();
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

pub(super) struct Moving<'a, M: Memory>(&'a Central<M>);

impl<M: Memory> Moving<'_, M> {
    /// The same as to drop it, for who has the state.
    fn end(self, state: &mut State) {
        state.moving -= 1;
        mem::forget(self);
    }
}

impl<M: Memory> Drop for Moving<'_, M> {
    fn drop(&mut self) {
        self.0.lock().moving -= 1;
    }
}

thread_local! {
    /// How often this thread has moved memory: what others have is the rest.
    static MOVES: Cell<u64> = const { Cell::new(0) };
}

fn take_all(kept: &mut Kept) -> Vec<Entry> {
    kept.bins.iter_mut().flat_map(|bin| mem::take(&mut bin.entries)).collect()
}

impl<M: Memory> Home for Central<M> {
    fn admit(&self) -> Arc<Cache> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let most = (0..self.classes.count()).map(|class| self.most_cached(class));
        let cache = Arc::new(Cache::new(most, Share::new(!caches.are_closed)));
        caches.all.push(Arc::clone(&cache));
        cache
    }

    unsafe fn retire(&self, cache: &Arc<Cache>) {
        if !self.process.is_this() {
            return;
        }
        let _moving = self.moving();
        // SAFETY: the caller's promise.
        let entries = unsafe { cache.own(take_all) };
        let leave = |_| {
            // Counted once, whoever reads meanwhile.
            let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the caller's promise.
            unsafe { cache.own(|kept| ended.iter_mut().zip(&kept.bins).for_each(|(sum, bin)| sum.add(&bin.counted))) };
            // Added before anybody can find it closed.
            // SAFETY: as above.
            unsafe { cache.own(|kept| self.handles.add(kept.handles.close())) };
            caches.all.retain(|other| !Arc::ptr_eq(other, cache));
        };
        both(|| self.put_back(entries), leave);
    }
}

impl<M: Memory> Drop for Central<M> {
    fn drop(&mut self) {
        // SAFETY: once, and nobody comes to it after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // What a fork has is its parent's to free.
        if !self.process.is_this() {
            return;
        }
        // Every block was given back, since each holds the pool; but the last use of some may be open.
        let mut open: Vec<Ticket> = Vec::new();
        for cache in mem::take(&mut *self.caches.lock().unwrap_or_else(PoisonError::into_inner)).all {
            // SAFETY: who has the pool may touch its caches, and nobody has it any more.
            unsafe { cache.alone(|kept| open.extend(kept.bins.iter().flat_map(|bin| &bin.entries).filter_map(|entry| entry.used))) };
        }
        let (slabs, pending) = {
            let mut state = self.lock();
            (mem::take(&mut state.slabs), mem::take(&mut state.pending))
        };
        open.extend(pending.iter().flat_map(|(uses, _)| uses.iter()));
        let slabs = slabs.into_iter().flatten().map(|slab| slab.block).collect();
        Remains { memory, slabs, open }.go();
    }
}
