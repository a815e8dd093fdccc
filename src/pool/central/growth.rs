//! Serves requests that no cache serves: decides when to allocate from the upstream memory, and what to try before and after.
//!
//! [`Central::find`] tries these ways in order, cheapest first. Each costs more, to this thread or to others, than the ones before it:
//!
//! | | way | cost; why not earlier |
//! |---|---|---|
//! | 0 | for a stream: one of the last pending blocks, which it alone uses, at most 1/8 longer than the request, since a block in use cannot be divided | one lock. Before 1: other requests cannot use it yet |
//! | 1 | a free part of the request's [zone](super::extent#two-zones), nearly the smallest that suffices | one lock |
//! | 2 | the same, after complete pending frees return to the heap | polls of the backend |
//! | 3 | over an address range, flush all thread caches and central lists; the same | every thread misses afterwards. Before 4: a growth costs more, and would reserve the caches' bytes again |
//! | 4 | grow: [extend](super::extent) the memory behind an address range, with whole free handles of it if moving them leaves little behind, or a small block would lie among large ones; else a slab within the limit, of the usual length or as short as the request | an upstream allocation. Before 5: what that costs lasts as long as the block |
//! | 5 | a free part shorter than the class that suffices for the requested bytes; one of the other zone | the block serves the class below when freed; it divides the memory of larger blocks, or of smaller ones |
//! | 6 | flush as in 3; any part that fits | every thread misses afterwards |
//! | 7 | move all whole free handles of an address range together | driver calls, and holes for later requests |
//! | 8 | free the slabs that have been empty longest, as many as the limit needs, and all whole free handles if these suffice and only could not move; grow, or any part that fits | upstream frees |
//! | 9 | free all empty slabs; the same | the upstream memory may have refused although the limit did not |
//! | 10 | wait for pending frees, transfers of other threads, and kernels that defer frees, up to the patience | time |
//! | 11 | the out-of-memory callback, then 6, 7, 9 and 10 | the user's code. Before 12: what that costs lasts as long as the block |
//! | 12 | for a stream: a pending block that it alone uses, of any length | the rest of the block is no other's |
//!
//! A caller that must not wait (a cache of another pool, for example) stops after 9. A request above the limit fails after way 1. Each way may find memory
//! that another thread made available meanwhile: it ends with a search of the heap, or, if it was refused, the next one does.
//!
//! After a failure no lock is held, and nothing is reserved: [`Reservation`] takes the bytes back when the upstream memory refuses or panics. Two exceptions:
//! memory that is given back while a kernel defers frees stays reserved until that free; after a failed or panicked wait for a slab that is not ready, the slab
//! is freed, and its bytes stay reserved until its `ready` ticket is complete.

use core::alloc::Layout;
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;

use super::extent::Moves;
use super::reclaim::{Progress, Search};
use super::request::{Refusal, Request};
use super::reservation::Reservation;
use super::{Central, Slab};
use crate::backend::{Block, Uses};
use crate::error::{LimitOf, Unavailable};
use crate::memory::{Memory, Origin};
use crate::pool::cache::{Entry, UNDATED};
use crate::pool::heap::{Base, UNIT, Zone};
use crate::pool::tag::Tag;
use crate::stream::Stream;
use crate::sys::panic::both;
use crate::trace::{event, span};
use crate::{Error, Result};

/// The unit of slab sizes, unless slabs are shorter.
const GRAIN: u64 = 2 << 20;
/// Pending blocks that a request of a stream considers at first: a program that reuses its blocks at once has freed them lately.
const LOOKS: usize = 128;
/// A slab's usual length by default.
const SLAB: u64 = 32 << 20;

thread_local! {
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

impl<M: Memory> Central<M> {
    /// Returns a part of the class, or a shorter one that suffices, and whether it is a hit: a pending block, or a free part of a size without a
    /// class, whose cache is the heap. If `waits`, may wait for frees and call the out-of-memory callback.
    pub fn find(&self, request: &Request, on: Option<&Stream>, waits: bool) -> Result<(Entry, bool)> {
        if let Some(entry) = self.take_pending(request, on, request.class_bytes.max(request.bytes.saturating_add(request.bytes / 8)), LOOKS)
        {
            return Ok((entry, !self.options.is_exact));
        }
        if let Some(entry) = self.take(request.class_bytes, request.align, request.zone()) {
            return Ok((entry, !self.options.is_exact && !self.is_cached(request.bytes)));
        }
        Ok((self.grow_or_reclaim(request, on, waits)?, false))
    }

    /// Ways 2 to 12.
    #[cold]
    fn grow_or_reclaim(&self, request: &Request, on: Option<&Stream>, waits: bool) -> Result<Entry> {
        let Request { class_bytes, bytes, align } = *request;
        let refusal = Cell::new(Refusal::default());
        if bytes > self.options.limit {
            return Err(self.out_of_slabs(request, refusal.get()));
        }
        // Read before the searches below: a transfer that ends later makes `wait` search again.
        let seen = self.progress_by_others(None);
        let grow = || self.grow(request, &refusal);
        let zone = request.zone();
        let in_zone = |zone| self.take(class_bytes, align, zone).or_else(|| self.take(bytes, align, zone));
        let fits = || in_zone(zone).or_else(|| in_zone(zone.other()));
        let grow_or_fit = || grow().map(|found| found.or_else(fits));
        if self.collect()
            && let Some(entry) = self.take(class_bytes, align, zone)
        {
            return Ok(entry);
        }
        if self.granularity.is_some()
            && self.flush_caches() > 0
            && let Some(entry) = self.take(class_bytes, align, zone)
        {
            return Ok(entry);
        }
        if let Some(entry) = grow()? {
            return Ok(entry);
        }
        if let Some(entry) = fits() {
            return Ok(entry);
        }
        self.flush_caches();
        if let Some(entry) = fits() {
            return Ok(entry);
        }
        if let Some(entry) = self.extend(request, Moves::All, &refusal)? {
            return Ok(entry);
        }
        // A trim also returns complete pending frees to the heap, so its result of 0 does not end the search.
        let trim = |keep| match self.granularity {
            None => self.trim_flushed(keep, Duration::ZERO),
            Some(_) => self.trim_empty_slabs(keep) + self.trim_immovable(bytes),
        };
        for keep in [self.options.limit.saturating_sub(class_bytes.next_multiple_of(self.grain())), 0] {
            let found = if trim(keep) > 0 { grow_or_fit()? } else { fits() };
            if let Some(entry) = found {
                return Ok(entry);
            }
        }
        if waits {
            let again = || {
                if let Some(entry) = fits() {
                    return Ok(Some(entry));
                }
                let _transit = self.start_transit();
                self.flush_caches();
                if let Some(entry) = self.extend(request, Moves::All, &refusal)? {
                    return Ok(Some(entry));
                }
                trim(0);
                grow_or_fit()
            };
            // Slabs alone cannot have grown together by ordinary frees, unless these were in caches.
            let look = || {
                if let Some(entry) = fits() {
                    return Ok(Some(entry));
                }
                match self.flush_caches() > 0 || self.granularity.is_some() {
                    true => again(),
                    false => Ok(None),
                }
            };
            if let Some(entry) = self.wait_or_call_back(bytes, seen, &again, &look)? {
                return Ok(entry);
            }
            if let Some(entry) = self.take_pending(request, on, u64::MAX, usize::MAX) {
                return Ok(entry);
            }
        }
        Err(self.out_of_slabs(request, refusal.get()))
    }

    /// Ways 10 and 11: [waits](Self::wait), then calls the callback, searches by `again`, and waits once more.
    fn wait_or_call_back<T>(&self, bytes: u64, seen: Progress, again: Search<'_, T>, look: Search<'_, T>) -> Result<Option<T>> {
        if let Some(found) = self.wait(None, seen, again, look)? {
            return Ok(Some(found));
        }
        if !self.call_back(bytes) {
            return Ok(None);
        }
        // Read anew: the callback may have transferred memory of other pools.
        let seen = self.progress_by_others(None);
        // Its frees are in this thread's cache.
        if self.flush_caches() == 0 {
            self.collect();
        }
        match again()? {
            Some(found) => Ok(Some(found)),
            None => self.wait(None, seen, again, look),
        }
    }

    #[cold]
    fn out_of_slabs(&self, request: &Request, refusal: Refusal) -> Error {
        let (requested, limit) = (request.bytes, self.options.limit);
        let is_forbidden = self.forbids_mapping();
        let (reserved, idle, in_heap, movable) = {
            let state = self.lock_coalesced();
            (state.reserved, state.heap.free(), state.heap.largest_at(request.align), state.movable())
        };
        event!(warn, requested, reserved, limit, "out of memory");
        if requested > limit {
            return Error::Limit { of: LimitOf::Pool, requested, used: reserved, limit };
        }
        let left = limit - reserved;
        // Mapped memory needs not be in one piece.
        let mappable = self.granularity.map_or(0, |step| refusal.free.min(left) / step * step);
        let largest = in_heap.max(refusal.largest.min(left)).max(if is_forbidden { 0 } else { movable + mappable });
        let limit = (requested > left).then(|| [reserved - idle, limit]);
        Error::OutOfMemory { requested, free: idle + refusal.free.min(left), largest, limit, unavailable: self.unavailable() }
    }

    /// Serves a request outside the slabs: one whose size or alignment exceeds theirs, or of a pool that is not enabled. The ways are those of
    /// [`find`](Self::find) without a heap: allocate; free empty slabs, as many as the limit needs, then all; wait; call back.
    #[cold]
    pub fn allocate_direct(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<Entry> {
        let block = self.allocate_or_reclaim(layout, on, waits)?;
        self.with_contents(self.register_direct(block, layout.size() as u64), layout, on)
    }

    fn allocate_or_reclaim(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<Block> {
        let (requested, limit) = (layout.size() as u64, self.options.limit);
        let (refusal, seen) = (Cell::new(Refusal::default()), self.progress_by_others(None));
        let try_now = || Ok(self.upstream(requested, layout.align(), on, &refusal)?.map(|(block, _)| block));
        let after_trim = |keep| {
            self.trim(keep, Duration::ZERO);
            try_now()
        };
        if let Some(block) = try_now()? {
            return Ok(block);
        }
        if requested <= limit {
            for keep in [limit - requested, 0] {
                if let Some(block) = after_trim(keep)? {
                    return Ok(block);
                }
            }
            let look = || if self.flush_caches() > 0 { after_trim(0) } else { Ok(None) };
            if waits && let Some(block) = self.wait_or_call_back(requested, seen, &|| after_trim(0), &look)? {
                return Ok(block);
            }
        }
        let used = self.lock().reserved;
        event!(warn, requested, reserved = used, limit, "out of memory");
        if requested > limit {
            return Err(Error::Limit { of: LimitOf::Pool, requested, used, limit });
        }
        let Refusal { free, largest } = refusal.get();
        let limit = (requested > limit - used).then_some([used, limit]);
        Err(Error::OutOfMemory { requested, free, largest, limit, unavailable: self.unavailable() })
    }

    /// Registers and counts a block that the upstream memory serves outside the slabs.
    fn register_direct(&self, mut block: Block, requested: u64) -> Entry {
        self.lock().direct.insert(block.address(), block.tag);
        block.tag = Tag::direct(&block).0;
        self.counts.misses.fetch_add(1, Relaxed);
        self.counts.requested.fetch_add(requested, Relaxed);
        Entry::of(&block, block.ready)
    }

    /// Returns whether the callback freed memory; false inside one.
    fn call_back(&self, requested: u64) -> bool {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                IS_IN_CALLBACK.set(false);
            }
        }
        let Some(callback) = &self.options.out_of_memory else { return false };
        if IS_IN_CALLBACK.replace(true) {
            return false;
        }
        let _reset = Reset;
        Origin::none(|| callback(requested))
    }

    /// Returns the memory that a failed request could neither reach nor await.
    fn unavailable(&self) -> Option<Box<Unavailable>> {
        let caches = self.unreachable_caches();
        let state = self.lock();
        let found = match state.growing.first() {
            _ if caches > 0 => Unavailable::Caches { bytes: state.heap.total() - state.heap.free(), caches },
            Some(growth) => Unavailable::Allocation { bytes: growth.bytes, age: growth.begun.elapsed() },
            None => {
                let (free, movable) = (state.heap.free(), state.movable());
                if state.extent.is_none() || free == 0 {
                    return None;
                }
                Unavailable::Fragments { movable, held: free - movable }
            }
        };
        Some(Box::new(found))
    }

    /// A slab's usual length.
    fn slab(&self) -> u64 {
        self.options.slab.unwrap_or(SLAB)
    }

    fn grain(&self) -> u64 {
        if self.slab() < GRAIN { UNIT } else { GRAIN }
    }

    /// Allocates a slab and returns a part of it. `None` if the limit or the upstream memory refuses, which sets `refusal`, or if
    /// the heap has no part number left.
    ///
    /// Tries three lengths: the usual slab, which serves later requests too; the block of the class, in whole grains; the requested bytes, in whole
    /// units. Slabs have whole units. If a limit, of this pool or of a memory below, leaves room for the request but not for its last unit whole, the
    /// request gets a direct block of its own length.
    fn grow(&self, request: &Request, refusal: &Cell<Refusal>) -> Result<Option<Entry>> {
        let Request { class_bytes, bytes: requested, align } = *request;
        let is_small = self.lock().zone(request.zone()) == Zone::Small;
        // One handle serves many small blocks, which would divide the memory of the large ones otherwise.
        for moves in [Moves::Clean, Moves::None, Moves::All].into_iter().take(if is_small { 3 } else { 2 }) {
            if let Some(entry) = self.extend(request, moves, refusal)? {
                return Ok(Some(entry));
            }
        }
        let grain = self.grain();
        let usual = self.slab().max(class_bytes).next_multiple_of(grain);
        let mut tried = 0;
        for bytes in [usual, class_bytes.next_multiple_of(grain), requested.max(1).next_multiple_of(UNIT)] {
            if bytes == tried {
                continue;
            }
            tried = bytes;
            let part = if bytes < class_bytes { requested } else { class_bytes };
            let slab = |bytes, align: u64| Origin::unnamed(|| self.upstream(bytes, align as usize, None, refusal));
            // A slab that fits the part at any offset needs no alignment, for which a driver may allocate more.
            let (mut slab_align, mut is_again) = (if bytes - part >= align { UNIT } else { align.max(UNIT) }, false);
            loop {
                let slab = match slab(bytes, slab_align) {
                    Err(Error::Align { .. }) if slab_align > UNIT && !is_again => slab(bytes + slab_align, UNIT),
                    outcome => outcome,
                };
                // The reservation lasts until the slab is in the heap: other threads wait for it meanwhile.
                let Some((block, _reservation)) = slab? else { break };
                let most = Base::of(&block).most_align();
                if align <= most {
                    return self.add_slab(block, part, align, request.zone());
                }
                // Host and device address it differently, so that no part of it has the alignment on both sides.
                let ready = Uses::from(block.ready);
                self.free_removed(block, &ready, Self::note_return);
                if slab_align >= align {
                    return Err(Error::Align { asked: align, most });
                }
                (slab_align, is_again) = (align, true);
            }
        }
        if refusal.get().largest < requested || requested.is_multiple_of(UNIT) {
            return Ok(None);
        }
        match self.upstream(requested, align as usize, None, refusal) {
            Err(Error::Align { .. }) => Ok(None),
            outcome => Ok(outcome?.map(|(block, _reservation)| self.register_direct(block, requested))),
        }
    }

    /// Adds a slab to the heap and takes a part of it under the same lock, before other threads can. Waits until the slab is ready. If that fails, or
    /// the heap has no part number left, frees the slab.
    fn add_slab(&self, block: Block, bytes: u64, align: u64, zone: Zone) -> Result<Option<Entry>> {
        if let Some(ready) = block.ready {
            let mut waited = Ok(true);
            let free = || self.free_slab(Block { ..block }, &Uses::of(ready));
            both(
                || waited = self.memory.backend().wait(ready, None),
                |has_panicked| {
                    if has_panicked {
                        free()
                    }
                },
            );
            if let Err(error) = waited {
                free();
                return Err(error);
            }
        }
        let length = block.layout.size() as u64;
        let base = Base::of(&block);
        let slab = Slab { block, last_use: 0 };
        let mut state = self.lock();
        let number = state.next_slab();
        let zone = state.zone(zone);
        if !state.heap.add(number, length, base, zone) {
            drop(state);
            self.free_slab(slab.block, &Uses::NONE);
            return Ok(None);
        }
        state.push_slab(slab);
        self.note_transfer();
        Ok(self.take_from(&mut state, bytes, align, zone))
    }

    /// Allocates a block, or sets `refusal`. Errors that frees cannot cure are returned. Other threads wait for the memory while the [`Reservation`]
    /// lives.
    fn upstream(
        &self,
        bytes: u64,
        align: usize,
        on: Option<&Stream>,
        refusal: &Cell<Refusal>,
    ) -> Result<Option<(Block, Reservation<'_, M>)>> {
        let Some(mut reservation) = self.reserve(bytes) else {
            // Perhaps more than was asked for, if others have freed some since.
            let left = self.options.limit - self.lock().reserved;
            refusal.set(Refusal { free: left, largest: left });
            return Ok(None);
        };
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, align).ok());
        let layout = layout.ok_or(Error::Size { what: "size in bytes", asked: bytes, least: 1, most: isize::MAX as u64 })?;
        let _span = span!("upstream allocation", bytes = bytes);
        match self.call_upstream(|memory| memory.alloc(layout, on)) {
            Ok(block) => {
                reservation.kept = bytes;
                self.counts.allocations.fetch_add(1, Relaxed);
                Ok(Some((block, reservation)))
            }
            Err(error) => {
                refusal.set(Refusal::of(error)?);
                Ok(None)
            }
        }
    }

    /// Reserves memory for all of `count` blocks, or for none: takes them all, and returns them to the heap. Meanwhile they are live: a request of another
    /// thread that they leave too little for does not wait for them.
    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        if !self.options.is_enabled {
            return Err(Error::Unsupported { what: "blocks in advance from a pool that is not enabled" });
        }
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, 1).ok());
        let class = layout.and_then(|layout| self.class_of(layout)).ok_or(Error::Size {
            what: "size in bytes",
            asked: bytes,
            least: 1,
            most: self.largest(),
        })?;
        // Whole units: each block gets its place in a slab.
        let class_bytes = self.class_bytes(class, bytes).next_multiple_of(UNIT);
        let request = Request { class_bytes, bytes: class_bytes, align: self.min_align as u64 };
        let before = self.lock().reserved;
        let entries = RefCell::new(std::vec::Vec::new());
        let mut outcome = Ok(());
        let take = || {
            outcome = (0..count).try_for_each(|_| {
                let (entry, _) = self.find(&request, None, true)?;
                entries.borrow_mut().push((entry, UNDATED));
                Ok(())
            });
        };
        // Also after a panic of the upstream memory: the blocks so far go back, and their slabs too.
        both(take, |_| {
            let entries = entries.take();
            let is_whole = entries.len() == count;
            self.free(entries);
            if !is_whole {
                self.trim_flushed(before, Duration::ZERO);
            }
        });
        outcome
    }
}
