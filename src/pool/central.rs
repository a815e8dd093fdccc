//! What all threads share: slabs, the heap over them, and what to do when there is no room.

use core::alloc::Layout;
use core::mem;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::builder::{Builder, Hygiene};
use super::cache::{Bin, Cache, Entry};
use super::heap::{Heap, UNIT};
use super::local::Home;
use super::seat::System;
use super::statistics::{PartState, SlabView, Statistics};
use super::{Classes, Tag};
use crate::backend::{Block, Fill, Ticket, Uses};
use crate::memory::Memory;
use crate::stream::Stream;
use crate::{Error, Result};

/// What slabs' sizes are multiples of where that fits the limit.
const GRAIN: u64 = 2 << 20;
/// The most bytes that a thread caches of one class, and the most blocks.
const CACHED_BYTES: u64 = 4 << 20;
const CACHED_BLOCKS: u64 = 64;

pub(super) struct Central<M: Memory> {
    /// Of this process; never used twice.
    pub id: u64,
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
    /// What the caches of threads that have ended had counted.
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
struct Counted {
    requests: u64,
    hits: u64,
    returns: u64,
    requested: u64,
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
    /// Bytes of slabs and of direct blocks, those that are being allocated included: never above the limit.
    reserved: u64,
    peak: u64,
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
        let state = State { heap: Heap::new(), slabs: Vec::new(), pending: Vec::new(), reserved: 0, peak: 0 };
        Self {
            id: NEXT.fetch_add(1, Relaxed),
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
            ended: Mutex::default(),
            counts: Counts::default(),
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

    /// A part of `whole` bytes, or of at least `requested` where that is all there is.
    fn find(&self, whole: u64, requested: u64) -> Result<Entry> {
        if let Some(entry) = self.take(whole) {
            return Ok(entry);
        }
        self.collect();
        // In the order of what each costs. A shorter block that is there comes before a driver that is asked.
        let ways: [&dyn Fn() -> Result<bool>; 5] = [
            &|| self.grow(whole, requested),
            &|| Ok(self.empty_caches() > 0),
            &|| Ok(self.trim(0, Duration::ZERO) > 0 && self.grow(whole, requested)?),
            &|| Ok(self.wait()),
            &|| {
                Ok(self.out_of_memory.as_ref().is_some_and(|callback| callback(requested))
                    && (self.collect() || self.grow(whole, requested)?))
            },
        ];
        let mut refused = None;
        for way in ways {
            match way() {
                Ok(_) => {}
                Err(error @ Error::OutOfMemory { .. }) => refused = Some(error),
                Err(error) => return Err(error),
            }
            if let Some(entry) = self.take(whole).or_else(|| self.take(requested)) {
                return Ok(entry);
            }
        }
        let (state, theirs) = (self.lock(), refused.map_or(0, |error| if let Error::OutOfMemory { free, .. } = error { free } else { 0 }));
        Err(Error::OutOfMemory {
            requested,
            free: state.heap.free() + (self.limit - state.reserved).min(theirs),
            largest: state.heap.largest(),
        })
    }

    fn take(&self, bytes: u64) -> Option<Entry> {
        let mut state = self.lock();
        let State { heap, slabs, .. } = &mut *state;
        let taken = heap.take(bytes)?;
        let slab = slabs.get(taken.slab as usize)?.as_ref()?;
        let block = &slab.block;
        Some(Entry {
            // What is shorter than its class serves the class before.
            tag: Tag::new(taken.part, self.classes.class_within(taken.size).unwrap_or(0), taken.size, block).0,
            device_address: block.device_address.and_then(|address| address.offset(taken.offset)),
            // SAFETY: the heap gives offsets within the slab.
            host: block.host.map(|host| unsafe { host.add(taken.offset as usize) }),
            used: None,
        })
    }

    /// Takes entries back: into the heap what nobody uses any more, the others when they are asked for.
    pub fn give(&self, entries: impl IntoIterator<Item = (Uses, Entry)>) {
        let backend = self.memory.backend();
        let (over, open): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(uses, _)| uses.iter().all(|ticket| backend.reached(ticket)));
        let mut state = self.lock();
        for (_, entry) in over {
            self.return_to(&mut state, &entry);
        }
        state.pending.extend(open);
    }

    fn return_to(&self, state: &mut State, entry: &Entry) {
        let Some(part) = Tag(entry.tag).part() else { return };
        let given = state.heap.give(part);
        if given.is_empty
            && let Some(Some(slab)) = state.slabs.get_mut(given.slab as usize)
        {
            slab.empty_since = (self.clock)();
        }
    }

    /// Takes back what is pending and over; whether anything was.
    fn collect(&self) -> bool {
        let pending = mem::take(&mut self.lock().pending);
        let before = pending.len();
        // Asked without the lock.
        self.give(pending);
        self.lock().pending.len() < before
    }

    /// Takes every thread's cached blocks back; how many.
    fn empty_caches(&self) -> usize {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut count = 0;
        for cache in caches {
            let entries = cache.ask(take_all).unwrap_or_default();
            count += entries.len();
            self.give(entries.into_iter().map(|entry| (Uses::from(entry.used), entry)));
        }
        count
    }

    /// Waits for pending uses, within patience; whether one is over.
    fn wait(&self) -> bool {
        let begun = std::time::Instant::now();
        loop {
            let Some(ticket) = self.lock().pending.iter().flat_map(|(uses, _)| uses.iter()).next() else { return false };
            let left = self.patience.saturating_sub(begun.elapsed());
            // Its failure is its waiter's: it is told by the stream's synchronize if nobody waits.
            if left.is_zero() {
                return false;
            }
            while !self.memory.backend().reached(ticket) && begun.elapsed() < self.patience {
                std::thread::sleep(Duration::from_micros(50));
            }
            if self.collect() {
                return true;
            }
        }
    }

    /// Asks the memory for another slab, as long as usual or as long as is needed; whether there is one more.
    fn grow(&self, whole: u64, requested: u64) -> Result<bool> {
        let mut refused = None;
        let mut tried = 0;
        for bytes in [self.slab.max(whole).next_multiple_of(GRAIN), whole.next_multiple_of(GRAIN), requested.next_multiple_of(UNIT)] {
            if bytes == tried || !self.reserve(bytes) {
                continue;
            }
            tried = bytes;
            match self.ask(bytes, UNIT as usize, None) {
                Ok(block) => {
                    let mut state = self.lock();
                    let slab = Slab { block, empty_since: 0 };
                    let number = match state.slabs.iter().position(Option::is_none) {
                        Some(free) => {
                            state.slabs[free] = Some(slab);
                            free
                        }
                        None => {
                            state.slabs.push(Some(slab));
                            state.slabs.len() - 1
                        }
                    };
                    state.heap.add(number as u32, bytes);
                    return Ok(true);
                }
                Err(error @ Error::OutOfMemory { .. }) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(false), Err)
    }

    /// Adds to what is reserved, if that stays within the limit.
    fn reserve(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        match state.reserved.checked_add(bytes) {
            Some(sum) if sum <= self.limit => {
                state.reserved = sum;
                state.peak = state.peak.max(sum);
                true
            }
            _ => false,
        }
    }

    /// A block of the memory, already reserved.
    fn ask(&self, bytes: u64, align: usize, on: Option<&Stream>) -> Result<Block> {
        let most = isize::MAX as u64;
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, align).ok());
        let asked = layout.ok_or(Error::Size { asked: bytes, least: 1, most }).and_then(|layout| self.memory.alloc(layout, on));
        match asked {
            Ok(block) => {
                self.counts.allocations.fetch_add(1, Relaxed);
                Ok(block)
            }
            Err(error) => {
                self.lock().reserved -= bytes;
                Err(error)
            }
        }
    }

    #[cold]
    pub fn allocate_direct(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let requested = layout.size() as u64;
        let try_now = || {
            if !self.reserve(requested) {
                let state = self.lock();
                let free = self.limit - state.reserved;
                return Err(Error::OutOfMemory { requested, free, largest: free });
            }
            self.ask(requested, layout.align(), on)
        };
        let mut outcome = try_now();
        for way in [&|| self.empty_caches() > 0 || self.collect(), &|| self.wait()] as [&dyn Fn() -> bool; 2] {
            if !matches!(outcome, Err(Error::OutOfMemory { .. })) {
                break;
            }
            way();
            self.trim(0, Duration::ZERO);
            outcome = try_now();
        }
        if matches!(outcome, Err(Error::OutOfMemory { .. })) && self.out_of_memory.as_ref().is_some_and(|callback| callback(requested)) {
            outcome = try_now();
        }
        let mut block = outcome?;
        block.tag = Tag::DIRECT;
        self.counts.misses.fetch_add(1, Relaxed);
        self.counts.requested.fetch_add(requested, Relaxed);
        Ok(block)
    }

    /// # Safety
    ///
    /// The promise of `Memory::free`.
    #[cold]
    pub unsafe fn free_direct(&self, block: Block, uses: &Uses) -> Result<()> {
        let bytes = block.layout.size() as u64;
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.memory.free(block, uses) };
        self.counts.frees.fetch_add(1, Relaxed);
        self.counts.returns.fetch_add(1, Relaxed);
        self.counts.requested.fetch_sub(bytes, Relaxed);
        self.lock().reserved -= bytes;
        outcome
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
            // SAFETY: as above, and its last use is over: without a stream no other is taken.
            None => unsafe { backend.fill_now(&fill) }.map(|()| None),
        };
        match cleaned {
            Ok(ticket) => Ok(Block { ready: ticket.or(block.ready), ..block }),
            Err(error) => {
                let entry = Entry { tag: block.tag, device_address: block.device_address, host: block.host, used: block.ready };
                self.give([(Uses::from(entry.used), entry)]);
                Err(error)
            }
        }
    }

    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        let class = self.class_of(bytes).ok_or(Error::Size { asked: bytes, least: 1, most: self.classes.largest() })?;
        let whole = if self.is_exact { bytes.max(1) } else { self.classes.size_of(class) };
        let mut entries = Vec::new();
        let mut outcome = Ok(());
        for _ in 0..count {
            match self.find(whole, whole) {
                Ok(entry) => entries.push((Uses::NONE, entry)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.give(entries);
        outcome
    }

    /// Gives slabs back that have been empty for `age`, the oldest first, while more than `bytes` are reserved; how many bytes.
    pub fn trim(&self, bytes: u64, age: Duration) -> u64 {
        self.empty_caches();
        self.collect();
        let now = (self.clock)();
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let gone = {
            let mut state = self.lock();
            let State { heap, slabs, reserved, .. } = &mut *state;
            let mut empty: Vec<(u64, u32)> = heap
                .empty_slabs()
                .filter_map(|slab| Some((slabs.get(slab as usize)?.as_ref()?.empty_since, slab)))
                .filter(|&(since, _)| now.saturating_sub(since) >= age)
                .collect();
            empty.sort_unstable();
            let mut left = *reserved;
            let mut chosen = HashSet::new();
            for (_, slab) in empty {
                if left <= bytes {
                    break;
                }
                left -= slabs.get(slab as usize).and_then(Option::as_ref).map_or(0, |slab| slab.block.layout.size() as u64);
                chosen.insert(slab);
            }
            let removed = heap.remove_empty(|slab| chosen.contains(&slab));
            removed.into_iter().filter_map(|slab| slabs.get_mut(slab as usize).and_then(Option::take)).collect::<Vec<_>>()
        };
        gone.into_iter().map(|slab| self.give_back(slab.block, &Uses::NONE)).sum()
    }

    /// Gives a slab back to the memory; its bytes.
    fn give_back(&self, block: Block, uses: &Uses) -> u64 {
        let bytes = block.layout.size() as u64;
        // SAFETY: of this memory, out of the table, and nobody's part of it is in use but by `uses`.
        if let Err(error) = unsafe { self.memory.free(block, uses) } {
            self.memory.backend().unreported(error);
        }
        self.counts.frees.fetch_add(1, Relaxed);
        self.lock().reserved -= bytes;
        bytes
    }

    pub fn statistics(&self) -> Statistics {
        // Held, so that no thread that ends is counted twice or not at all.
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut classes = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        classes.resize(self.classes.count(), Counted::default());
        let mut cached = 0;
        for cache in caches.iter() {
            cache.ask(|bins| {
                for (sum, bin) in classes.iter_mut().zip(bins) {
                    sum.add(bin);
                    cached += bin.entries.iter().map(|entry| Tag(entry.tag).bytes()).sum::<u64>();
                }
            });
        }
        let direct = self.counts.requested.load(Relaxed);
        let (requests, outside) = (classes.iter().map(|class| class.requests).sum::<u64>(), self.counts.misses.load(Relaxed));
        let returns = classes.iter().map(|class| class.returns).sum::<u64>() + self.counts.returns.load(Relaxed);
        let hits = classes.iter().map(|class| class.hits).sum::<u64>();
        let requested = classes.iter().fold(direct, |sum, class| sum.wrapping_add(class.requested));
        let state = self.lock();
        cached += state.pending.iter().map(|(_, entry)| Tag(entry.tag).bytes()).sum::<u64>();
        Statistics {
            hits,
            misses: requests - hits + outside,
            returns,
            live: (requests + outside).saturating_sub(returns),
            requested_bytes: requested,
            held_bytes: (state.heap.total() - state.heap.free()).saturating_sub(cached) + direct,
            reserved_bytes: state.reserved,
            reserved_peak: state.peak,
            slabs: state.slabs.iter().flatten().count() as u64,
            free_bytes: state.heap.free(),
            largest_free: state.heap.largest(),
            pending: state.pending.len() as u64,
            memory_allocations: self.counts.allocations.load(Relaxed),
            memory_frees: self.counts.frees.load(Relaxed),
        }
    }

    pub fn snapshot(&self) -> Vec<SlabView> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut cached: HashSet<u64> = HashSet::new();
        for cache in caches {
            cache.ask(|bins| {
                cached.extend(
                    bins.iter().flat_map(|bin| &bin.entries).filter_map(|entry| Tag(entry.tag).part()).map(|part| part.index() as u64),
                )
            });
        }
        let state = self.lock();
        cached.extend(state.pending.iter().filter_map(|(_, entry)| Tag(entry.tag).part()).map(|part| part.index() as u64));
        let mut views: Vec<Option<SlabView>> = state
            .slabs
            .iter()
            .zip(0..)
            .map(|(slab, number)| {
                let block = &slab.as_ref()?.block;
                let (device_address, bytes) = (block.device_address, block.layout.size() as u64);
                Some(SlabView { number, device_address, bytes, parts: Vec::new() })
            })
            .collect();
        for (part, slab, offset, bytes, is_free) in state.heap.parts() {
            let part_state = match (is_free, cached.contains(&(part.index() as u64))) {
                (true, _) => PartState::Free,
                (false, true) => PartState::Cached,
                (false, false) => PartState::Live,
            };
            if let Some(Some(view)) = views.get_mut(slab as usize) {
                view.parts.push((offset, bytes, part_state));
            }
        }
        let mut views: Vec<SlabView> = views.into_iter().flatten().collect();
        for view in &mut views {
            view.parts.sort_unstable_by_key(|&(offset, ..)| offset);
        }
        views
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    fn retire(&self, cache: &Arc<Cache>) {
        let entries = cache.ask(take_all).unwrap_or_default();
        self.give(entries.into_iter().map(|entry| (Uses::from(entry.used), entry)));
        // Counted once, whoever reads meanwhile.
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.resize(self.classes.count(), Counted::default());
        cache.ask(|bins| ended.iter_mut().zip(bins).for_each(|(sum, bin)| sum.add(bin)));
        caches.retain(|other| !Arc::ptr_eq(other, cache));
    }
}

impl<M: Memory> Drop for Central<M> {
    fn drop(&mut self) {
        // Every block was given back, since each holds the pool; but the last use of some may be open.
        let mut open: Vec<Ticket> = Vec::new();
        let caches = mem::take(&mut *self.caches.lock().unwrap_or_else(PoisonError::into_inner));
        for cache in caches {
            cache.ask(|bins| open.extend(bins.iter().flat_map(|bin| &bin.entries).filter_map(|entry| entry.used)));
        }
        let (slabs, pending) = {
            let mut state = self.lock();
            (mem::take(&mut state.slabs), mem::take(&mut state.pending))
        };
        open.extend(pending.iter().flat_map(|(uses, _)| uses.iter()));
        let backend = Arc::clone(self.memory.backend());
        open.retain(|&ticket| !backend.reached(ticket));
        let mut uses = Uses::NONE;
        for ticket in open {
            if uses.add(ticket).is_err() {
                // More streams than one list holds: waited for here.
                while !backend.reached(ticket) {
                    std::thread::yield_now();
                }
            }
        }
        for slab in slabs.into_iter().flatten() {
            self.give_back(slab.block, &uses);
        }
    }
}
