//! The state that all threads share.
//!
//! Lock order: `caches`, `ended`, a cache's own lock, a free list's lock or `state`. None is held during a call of foreign code.

mod back;
mod hygiene;
mod moves;
pub(crate) mod relocate;
mod remains;
mod report;
mod room;
mod state;
mod trim;
mod upstream;

use core::alloc::Layout;
use core::mem::{self, ManuallyDrop};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

pub(super) use moves::Moving;
use remains::Remains;
use ringmem_layouts::HostWord;
use state::State;

use super::builder::{Hygiene, Options};
use super::cache::{Bin, Cache, Counted, Entry, Idle, Kept};
use super::free_list::FreeList;
use super::handles::{Handles, Share};
use super::heap::{LARGEST_ALIGN, Taken, UNIT};
use super::local::{self, Home};
use super::tag::Tag;
use crate::backend::panic::both;
use crate::backend::{Block, Ticket};
use crate::barrier::System;
use crate::fork::Process;
use crate::memory::{Memory, raised};
use crate::{CacheLineAligned, Result};

/// Of slab sizes, if the limit allows.
const GRAIN: u64 = 2 << 20;
/// Limits per class and thread.
const CACHED_BYTES: u64 = 4 << 20;
const CACHED_BLOCKS: u64 = 64;
/// For blocks in transit between two threads; others pass through the heap.
const LISTED_BLOCKS: u64 = 1024;

pub(super) struct Central<M: Memory> {
    pub id: u64,
    pub process: Process,
    // INVARIANT: valid until `self` is dropped.
    pub memory: ManuallyDrop<M>,
    /// Cached: building a block calls no foreign code.
    device: u32,
    pub options: Options,
    pub min_align: usize,
    /// Up to this size, any cached block of the class serves; 0 disables this.
    plain: u64,
    state: CacheLineAligned<Mutex<State>>,
    caches: Mutex<Caches>,
    pub handles: CacheLineAligned<Handles<HostWord>>,
    /// By class: of ended threads and operations without a cache.
    ended: Mutex<Vec<Counted>>,
    counts: CacheLineAligned<Counts>,
    /// By class: surplus blocks without open uses.
    free_lists: Vec<FreeList>,
    moves: CacheLineAligned<AtomicU64>,
}

pub(super) struct Wanted {
    pub whole: u64,
    /// Suffices if no larger part is free.
    pub requested: u64,
    pub align: u64,
}

/// Counts outside the thread caches.
#[derive(Default)]
struct Counts {
    misses: AtomicU64,
    returns: AtomicU64,
    requested: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
}

#[derive(Default)]
struct Caches {
    all: Vec<Arc<Cache>>,
    are_closed: bool,
}

impl<M: Memory> Central<M> {
    pub fn new(memory: M, options: Options) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(local::FIRST);
        System::prepare();
        let (min_align, classes) = (memory.min_align(), options.classes);
        // With raised alignments, a block's layout differs from its request.
        let is_plain =
            options.is_enabled && !options.is_exact && matches!(options.hygiene, Hygiene::DebugPoison | Hygiene::Leave) && min_align == 1;
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            process: Process::this(),
            device: memory.device(),
            plain: if is_plain { classes.largest() } else { 0 },
            min_align,
            memory: ManuallyDrop::new(memory),
            options,
            state: CacheLineAligned::default(),
            caches: Mutex::default(),
            handles: CacheLineAligned::new(Handles::new()),
            ended: Mutex::new(std::vec![Counted::default(); classes.count()]),
            counts: CacheLineAligned::default(),
            free_lists: (0..classes.count()).map(|_| FreeList::default()).collect(),
            moves: CacheLineAligned::default(),
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

    /// For requests that slabs serve.
    pub fn class_of(&self, layout: Layout) -> Option<usize> {
        let is_pooled = self.options.is_enabled && layout.align() as u64 <= LARGEST_ALIGN;
        if is_pooled { self.options.classes.class_of(layout.size() as u64) } else { None }
    }

    pub fn class_count(&self) -> usize {
        self.options.classes.count()
    }

    pub fn whole(&self, class: usize, requested: u64) -> u64 {
        if self.options.is_exact { requested.max(1) } else { self.options.classes.bytes_of(class) }
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

    fn entry(&self, taken: &Taken, block: &Block) -> Entry {
        // A part shorter than its class serves the class below, if any. Exact parts have no class.
        let class = if self.options.is_exact { None } else { self.options.classes.class_within(taken.size) };
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
        caches.iter().try_fold(0_u64, |sum, cache| Some(sum.wrapping_add(cache.ask(|kept| kept.handles.close())?)))
    }

    /// With no deferred frees left.
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

/// Returns the entries of a cache with the times of their last uses.
fn take_all(kept: &mut Kept) -> Vec<(Entry, u64)> {
    kept.bins.iter_mut().flat_map(Bin::empty).collect()
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
        let _moving = self.moving();
        // SAFETY: the caller's promise.
        let entries = unsafe { cache.own(take_all) };
        let leave = |_| {
            // Under both locks: a concurrent reader counts this thread once.
            let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the caller's promise.
            unsafe { cache.own(|kept| ended.iter_mut().zip(&kept.bins).for_each(|(sum, bin)| sum.add(&bin.counted()))) };
            // Added before another thread finds the share closed.
            // SAFETY: the caller's promise.
            unsafe { cache.own(|kept| self.handles.add(kept.handles.close())) };
            caches.all.retain(|other| !Arc::ptr_eq(other, cache));
        };
        both(|| self.put_back(entries), leave);
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
            // SAFETY: only the pool's holders access its caches; none are left.
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
