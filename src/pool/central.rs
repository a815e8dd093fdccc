//! What all threads share: slabs, the heap over them, blocks whose last use is not over, and every thread's cache.
//!
//! Locks are taken in this order: `caches`, `ended`, a cache's own, `state`. None is held while the backend, the memory, the clock or the callback is
//! called.

pub(crate) mod relocate;
mod report;
mod room;

use core::alloc::Layout;
use core::cell::Cell;
use core::mem;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::builder::{Builder, Hygiene};
use super::cache::{Bin, Cache, Entry};
use super::heap::{Heap, Taken};
use super::local::Home;
use super::process::Process;
use super::seat::System;
use super::{Classes, Tag};
use crate::Result;
use crate::backend::{Block, Fill, Ticket, Uses};
use crate::memory::Memory;
use crate::stream::Stream;

/// What slabs' sizes are multiples of where that fits the limit.
const GRAIN: u64 = 2 << 20;
/// The most bytes that a thread caches of one class, and the most blocks.
const CACHED_BYTES: u64 = 4 << 20;
const CACHED_BLOCKS: u64 = 64;

pub(super) struct Central<M: Memory> {
    /// Of this process; never used twice.
    pub id: u64,
    /// The one that it is of: in a fork it does nothing.
    pub process: Process,
    pub memory: M,
    classes: Classes,
    is_exact: bool,
    is_enabled: bool,
    limit: u64,
    slab: u64,
    hygiene: Hygiene,
    patience: Duration,
    out_of_memory: Option<super::builder::OutOfMemory>,
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    state: Mutex<State>,
    /// Every running thread's.
    caches: Mutex<Vec<Arc<Cache>>>,
    /// What the caches of threads that have ended had counted, and those threads after them; by class.
    ended: Mutex<Vec<Counted>>,
    counts: Counts,
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

/// A class's counts.
#[derive(Clone, Copy, Default)]
pub(super) struct Counted {
    pub requests: u64,
    pub hits: u64,
    pub returns: u64,
    pub requested: u64,
}

impl Counted {
    fn add(&mut self, bin: &Bin) {
        self.requests += bin.requests;
        self.hits += bin.hits;
        self.returns += bin.returns;
        self.requested = self.requested.wrapping_add(bin.requested);
    }
}

struct State {
    heap: Heap,
    /// By number; `None` for a number that is free.
    slabs: Vec<Option<Slab>>,
    /// Given back, and not over.
    pending: Vec<(Uses, Entry)>,
    /// Bytes of direct blocks that the memory frees after their uses.
    leaving: Vec<(Uses, u64)>,
    /// Threads that have memory on its way from or to the memory below, or out of caches, where nobody else sees it.
    moving: u32,
    /// How often they have moved some.
    moves: u64,
    /// Bytes of slabs and of direct blocks, those that are being allocated included: never above the limit.
    reserved: u64,
    peak: u64,
}

impl State {
    /// Takes a part back into the heap.
    fn give(&mut self, entry: &Entry, now: u64) {
        let Some(part) = Tag(entry.tag).part() else { return };
        let given = self.heap.give(part);
        if given.is_empty
            && let Some(Some(slab)) = self.slabs.get_mut(given.slab as usize)
        {
            slab.empty_since = now;
        }
    }
}

struct Slab {
    block: Block,
    /// When the last part of it was given back.
    empty_since: u64,
}

impl<M: Memory> Central<M> {
    pub fn new(builder: Builder<M>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        System::prepare();
        let Builder { memory, limit, slab, classes, is_exact, is_enabled, hygiene, patience, out_of_memory, clock } = builder;
        let state = State {
            heap: Heap::new(),
            slabs: Vec::new(),
            pending: Vec::new(),
            leaving: Vec::new(),
            moving: 0,
            moves: 0,
            reserved: 0,
            peak: 0,
        };
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            process: Process::this(),
            memory,
            classes,
            is_exact,
            is_enabled,
            limit,
            slab,
            hygiene,
            patience,
            out_of_memory,
            clock,
            state: Mutex::new(state),
            caches: Mutex::default(),
            ended: Mutex::new(std::vec![Counted::default(); classes.count()]),
            counts: Counts::default(),
        }
    }

    /// Counts for a thread that has no cache any more, because it is ending; or what no class counts.
    #[cold]
    pub fn count(&self, class: usize, count: impl FnOnce(&mut Counted)) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let class = if class < ended.len() { class } else { 0 };
        if let Some(counted) = ended.get_mut(class) {
            count(counted);
        }
    }

    #[inline(always)]
    pub fn class_of(&self, bytes: u64) -> Option<usize> {
        if self.is_enabled { self.classes.class_of(bytes) } else { None }
    }

    /// How many blocks of a class a thread caches.
    fn most_cached(&self, class: usize) -> usize {
        (CACHED_BYTES / self.classes.size_of(class)).clamp(2, CACHED_BLOCKS) as usize
    }

    /// A block of a cached entry.
    #[inline(always)]
    pub fn reused(&self, entry: Entry, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let block = self.block(&entry, layout);
        if self.hygiene == Hygiene::Leave { Ok(block) } else { self.clean(block, on) }
    }

    #[inline(always)]
    fn block(&self, entry: &Entry, layout: Layout) -> Block {
        Block {
            device_address: entry.device_address,
            host: entry.host,
            layout,
            location: Tag(entry.tag).location(),
            device: self.memory.device(),
            is_pinned: Tag(entry.tag).is_pinned(),
            ready: entry.used,
            tag: entry.tag,
        }
    }

    /// A block when no cached one served.
    #[cold]
    pub fn allocate(&self, layout: Layout, class: usize, on: Option<&Stream>) -> Result<Block> {
        let requested = (layout.size() as u64).max(1);
        let whole = if self.is_exact { requested } else { self.classes.size_of(class) };
        let entry = self.find(whole, requested)?;
        self.reused(entry, layout, on)
    }

    fn take(&self, bytes: u64) -> Option<Entry> {
        self.take_of(&mut self.lock(), bytes)
    }

    fn take_of(&self, state: &mut State, bytes: u64) -> Option<Entry> {
        let State { heap, slabs, .. } = state;
        let taken = heap.take(bytes)?;
        let slab = slabs.get(taken.slab as usize)?.as_ref()?;
        Some(self.entry(&taken, &slab.block))
    }

    /// What was taken of a slab, as an entry.
    fn entry(&self, taken: &Taken, slab: &Block) -> Entry {
        Entry {
            // What is shorter than its class serves the class before, or none.
            tag: Tag::new(taken.part, self.classes.class_within(taken.size), taken.size, slab).0,
            device_address: slab.device_address.and_then(|address| address.offset(taken.offset)),
            // SAFETY: the heap gives offsets within the slab.
            host: slab.host.map(|host| unsafe { host.add(taken.offset as usize) }),
            used: None,
        }
    }

    /// Takes entries back: into the heap what nobody uses any more, the others when they are asked for.
    pub fn give(&self, entries: impl IntoIterator<Item = (Uses, Entry)>) {
        let backend = self.memory.backend();
        let (over, open): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(uses, _)| uses.iter().all(|ticket| backend.reached(ticket)));
        let now = (self.clock)();
        let mut state = self.lock();
        for (_, entry) in over {
            state.give(&entry, now);
        }
        state.pending.extend(open);
    }

    /// Takes back what is pending and over; whether anything was.
    fn collect(&self) -> bool {
        let asked: HashSet<Ticket> = {
            let state = self.lock();
            let uses = state.pending.iter().map(|(uses, _)| uses).chain(state.leaving.iter().map(|(uses, _)| uses));
            uses.flat_map(Uses::iter).collect()
        };
        if asked.is_empty() {
            return false;
        }
        // Asked without the lock, and nothing is taken out of sight meanwhile.
        let backend = self.memory.backend();
        let reached: HashSet<Ticket> = asked.into_iter().filter(|&ticket| backend.reached(ticket)).collect();
        let is_over = |uses: &Uses| uses.iter().all(|ticket| reached.contains(&ticket));
        let now = (self.clock)();
        let mut state = self.lock();
        let (over, open): (Vec<_>, Vec<_>) = mem::take(&mut state.pending).into_iter().partition(|(uses, _)| is_over(uses));
        state.pending = open;
        for (_, entry) in &over {
            state.give(entry, now);
        }
        let (gone, left): (Vec<_>, Vec<_>) = mem::take(&mut state.leaving).into_iter().partition(|(uses, _)| is_over(uses));
        state.leaving = left;
        state.reserved -= gone.iter().map(|&(_, bytes)| bytes).sum::<u64>();
        !over.is_empty() || !gone.is_empty()
    }

    /// Takes every thread's cached blocks back; how many.
    fn empty_caches(&self) -> usize {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut count = 0;
        let _moving = self.moving();
        for cache in caches {
            let entries = cache.ask(take_all).unwrap_or_default();
            count += entries.len();
            self.give(entries.into_iter().map(|entry| (Uses::from(entry.used), entry)));
        }
        count
    }

    /// Does to a block's bytes what was asked for. A block that cannot be cleaned is not handed out.
    #[cold]
    fn clean(&self, block: Block, on: Option<&Stream>) -> Result<Block> {
        let byte = match self.hygiene {
            Hygiene::Leave => return Ok(block),
            Hygiene::Zero => 0,
            Hygiene::Poison(byte) => byte,
        };
        // SAFETY: the beginning is within the block.
        let Some(to) = (unsafe { block.place(0) }) else { return Ok(block) };
        let fill = Fill { to, pattern: byte.into(), size: 1, count: block.layout.size() as u64 };
        let backend = self.memory.backend();
        let cleaned = match on {
            // SAFETY: the block is nobody's yet, and what is queued before on this stream is over by then: it was used last there, or nowhere.
            Some(stream) => unsafe { backend.fill(&fill, stream.id()) }.map(Some),
            // SAFETY: as above, and its last use is over: without a stream no other is taken, and what the memory gave is waited for.
            None => block
                .ready
                .map_or(Ok(true), |ready| backend.wait(ready, None))
                .and_then(|_| unsafe { backend.fill_now(&fill) })
                .map(|()| None),
        };
        match cleaned {
            Ok(ticket) => Ok(Block { ready: ticket.or(block.ready), ..block }),
            Err(error) if block.tag == Tag::DIRECT => {
                let uses = Uses::from(block.ready);
                // SAFETY: nobody's yet, and its only use is the one that makes it ready.
                if let Err(error) = unsafe { self.free_direct(block, &uses) } {
                    backend.unreported(error);
                }
                Err(error)
            }
            Err(error) => {
                let entry = Entry { tag: block.tag, device_address: block.device_address, host: block.host, used: block.ready };
                self.give([(Uses::from(entry.used), entry)]);
                Err(error)
            }
        }
    }

    /// Says that this thread moves memory, until what this gives is dropped.
    fn moving(&self) -> Moving<'_, M> {
        self.lock().moving += 1;
        Moving(self)
    }

    /// A number that stays the same while no other thread moves memory.
    fn moved_by_others(&self) -> u64 {
        self.lock().moves.wrapping_sub(MOVES.get())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Moving<'a, M: Memory>(&'a Central<M>);

impl<M: Memory> Drop for Moving<'_, M> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.moving -= 1;
        state.moves = state.moves.wrapping_add(1);
        MOVES.set(MOVES.get().wrapping_add(1));
    }
}

thread_local! {
    /// How often this thread has moved memory: what others have is the rest.
    static MOVES: Cell<u64> = const { Cell::new(0) };
}

fn take_all(bins: &mut [Bin]) -> Vec<Entry> {
    bins.iter_mut().flat_map(|bin| mem::take(&mut bin.entries)).collect()
}

impl<M: Memory> Home for Central<M> {
    fn admit(&self) -> Arc<Cache> {
        let cache = Arc::new(Cache::new((0..self.classes.count()).map(|class| self.most_cached(class))));
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&cache));
        cache
    }

    unsafe fn retire(&self, cache: &Arc<Cache>) {
        if !self.process.is_this() {
            return;
        }
        let _moving = self.moving();
        // SAFETY: the caller's promise.
        let entries = unsafe { cache.own(take_all) };
        self.give(entries.into_iter().map(|entry| (Uses::from(entry.used), entry)));
        // Counted once, whoever reads meanwhile.
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise.
        unsafe { cache.own(|bins| ended.iter_mut().zip(bins).for_each(|(sum, bin)| sum.add(bin))) };
        caches.retain(|other| !Arc::ptr_eq(other, cache));
    }
}

impl<M: Memory> Drop for Central<M> {
    fn drop(&mut self) {
        // What a fork has is its parent's to free.
        if !self.process.is_this() {
            return;
        }
        // Every block was given back, since each holds the pool; but the last use of some may be open.
        let mut open: Vec<Ticket> = Vec::new();
        for cache in mem::take(&mut *self.caches.lock().unwrap_or_else(PoisonError::into_inner)) {
            // SAFETY: who has the pool may touch its caches, and nobody has it any more.
            unsafe { cache.alone(|bins| open.extend(bins.iter().flat_map(|bin| &bin.entries).filter_map(|entry| entry.used))) };
        }
        let (slabs, pending) = {
            let mut state = self.lock();
            (mem::take(&mut state.slabs), mem::take(&mut state.pending))
        };
        open.extend(pending.iter().flat_map(|(uses, _)| uses.iter()));
        let backend = Arc::clone(self.memory.backend());
        let mut uses = Uses::NONE;
        for ticket in open {
            if backend.reached(ticket) || uses.add_after(ticket, &*backend).is_ok() {
                continue;
            }
            // Neither listed nor stood for by another: waited for here.
            while !backend.reached(ticket) {
                std::thread::yield_now();
            }
        }
        for slab in slabs.into_iter().flatten() {
            self.give_back(slab.block, &uses);
        }
    }
}
