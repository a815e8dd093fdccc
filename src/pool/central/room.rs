use core::alloc::Layout;
use core::cell::{Cell, RefCell};
use core::iter;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use super::state::Slab;
use super::upstream::is_growing;
use super::{Central, GRAIN, Wanted};
use crate::backend::panic::both;
use crate::backend::{Block, Uses};
use crate::error::{LimitOf, Unavailable};
use crate::memory::{Memory, Origin};
use crate::pool::cache::{Entry, UNDATED};
use crate::pool::heap::{Base, UNIT};
use crate::pool::tag::Tag;
use crate::stream::Stream;
use crate::trace::event;
use crate::{Error, Result};

const GLANCE: Duration = Duration::from_micros(50);

thread_local! {
    static IS_CALLED_BACK: Cell<bool> = const { Cell::new(false) };
}

struct CalledBack;

impl Drop for CalledBack {
    fn drop(&mut self) {
        IS_CALLED_BACK.set(false);
    }
}

type Way<'a, T> = &'a dyn Fn() -> Result<Option<T>>;

fn first<T>(ways: &[Way<'_, T>]) -> Result<Option<T>> {
    for way in ways {
        let found = way()?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl<M: Memory> Central<M> {
    /// Returns a part of the class, or a shorter one that suffices. If `waits`, may wait for frees and call the out-of-memory callback.
    pub fn find(&self, wanted: &Wanted, waits: bool) -> Result<Entry> {
        self.take(wanted.whole, wanted.align).map_or_else(|| self.make_room(wanted, waits), Ok)
    }

    #[cold]
    fn make_room(&self, wanted: &Wanted, waits: bool) -> Result<Entry> {
        let Wanted { whole, requested, align } = *wanted;
        let (refused, seen) = (Cell::new((0, 0)), self.moved_by_others(None));
        let grow = || self.grow(wanted, &refused);
        let fits = || self.take(whole, align).or_else(|| self.take(requested, align));
        // A trim also frees completed pending entries.
        let grow_or_fit = || grow().map(|found| found.or_else(fits));
        let after_trim = |bytes| if self.trim_idle(bytes, Duration::ZERO) > 0 { grow_or_fit() } else { Ok(fits()) };
        let again = || match fits() {
            None => {
                self.trim(0, Duration::ZERO);
                grow_or_fit()
            }
            found => Ok(found),
        };
        let ways: [Way<'_, Entry>; 8] = [
            &|| Ok(if self.collect() { self.take(whole, align) } else { None }),
            &grow,
            &|| Ok(if requested < whole { self.take(requested, align) } else { None }),
            &|| {
                self.empty_caches();
                Ok(fits())
            },
            // For the limit: the slabs empty for longest; for the upstream memory: any.
            &|| after_trim(self.options.limit.saturating_sub(whole.next_multiple_of(self.grain()))),
            &|| after_trim(0),
            &|| self.wait(None, seen, &again),
            &|| {
                let seen = self.moved_by_others(None);
                if !self.call_back(requested) {
                    return Ok(None);
                }
                // The callback's frees are in this thread's cache.
                if self.empty_caches() == 0 {
                    self.collect();
                }
                first(&[&again, &|| self.wait(None, seen, &again)])
            },
        ];
        let count = if requested > self.options.limit { 0 } else { ways.len() - if waits { 0 } else { 2 } };
        let found = first(&ways[..count])?;
        found.ok_or_else(|| {
            let ((free, largest), limit) = (refused.get(), self.options.limit);
            let (reserved, idle, in_heap) = {
                let state = self.settled();
                (state.reserved, state.heap.free(), state.heap.largest_at(align))
            };
            event!(warn, requested, reserved, limit, "out of memory");
            if requested > limit {
                return Error::Limit { of: LimitOf::Memory, requested, used: reserved, limit };
            }
            let left = limit - reserved;
            let largest = in_heap.max(largest.min(left));
            let limit = (requested > left).then(|| [reserved - idle, limit]);
            Error::OutOfMemory { requested, free: idle + free.min(left), largest, limit, unavailable: self.unavailable() }
        })
    }

    #[cold]
    pub fn allocate_direct(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<Entry> {
        let requested = layout.size() as u64;
        let (refused, seen) = (Cell::new((0, 0)), self.moved_by_others(None));
        let try_now = || Ok(self.upstream(requested, layout.align(), on, &refused)?.map(|(block, _)| block));
        let after_trim = |bytes| {
            self.trim(bytes, Duration::ZERO);
            try_now()
        };
        let ways: [Way<'_, Block>; 5] = [
            &try_now,
            &|| after_trim(self.options.limit.saturating_sub(requested)),
            &|| after_trim(0),
            &|| self.wait(None, seen, &|| after_trim(0)),
            &|| {
                let seen = self.moved_by_others(None);
                let again = || after_trim(0);
                if self.call_back(requested) { first(&[&again, &|| self.wait(None, seen, &again)]) } else { Ok(None) }
            },
        ];
        let count = if requested > self.options.limit { 1 } else { ways.len() - if waits { 0 } else { 2 } };
        let found = first(&ways[..count])?;
        let (free, largest) = refused.get();
        let block = found.ok_or_else(|| {
            let (used, limit) = (self.lock().reserved, self.options.limit);
            event!(warn, requested, reserved = used, limit, "out of memory");
            match requested > limit {
                true => Error::Limit { of: LimitOf::Memory, requested, used, limit },
                false => {
                    let limit = (requested > limit - used).then_some([used, limit]);
                    Error::OutOfMemory { requested, free, largest, limit, unavailable: self.unavailable() }
                }
            }
        })?;
        self.reused(self.enter_direct(block, requested), layout, on)
    }

    /// Enters and counts a block that the upstream memory serves outside the slabs.
    fn enter_direct(&self, mut block: Block, requested: u64) -> Entry {
        self.lock().direct.insert(block.address(), block.tag);
        block.tag = Tag::direct(&block).0;
        self.counts.misses.fetch_add(1, Relaxed);
        self.counts.requested.fetch_add(requested, Relaxed);
        Entry::of(&block, block.ready)
    }

    /// Returns whether the callback freed memory; false inside one.
    fn call_back(&self, requested: u64) -> bool {
        let Some(callback) = &self.options.out_of_memory else { return false };
        if IS_CALLED_BACK.replace(true) {
            return false;
        }
        let _back = CalledBack;
        callback(requested)
    }

    /// Waits, up to `patience`, for pending frees, other threads' moves, and kernels that defer the free of empty slabs; calls `again` after each
    /// progress. `seen` is the move count before the last search. Other threads' growths that began within the patience are awaited beyond it, up to
    /// the growth patience, except within a growth: others may wait for this thread.
    ///
    /// The bound is needed because the upstream memory's `alloc` may itself wait for this thread, which no pool can detect.
    pub fn wait<T>(&self, other: Option<&Self>, mut seen: u64, again: Way<'_, T>) -> Result<Option<T>> {
        let (begun, is_awaited) = (Instant::now(), is_growing());
        let mut last_growths = [None; 2];
        loop {
            let elapsed = begun.elapsed();
            let is_late = elapsed >= self.options.patience;
            let is_too_late = elapsed >= self.options.patience.saturating_add(self.options.growth_patience);
            let (mut is_something_left, mut has_come) = (false, false);
            for (pool, last) in iter::once(self).chain(other).zip(&mut last_growths) {
                let (going, is_put_off) = pool.removable();
                is_something_left |= match is_late {
                    true => !is_awaited && !is_too_late && pool.is_growing_before(*last.get_or_insert_with(|| pool.lock().growths)),
                    false => is_put_off || pool.is_something_left(),
                };
                has_come |= !going.is_empty();
                has_come |= pool.collect();
            }
            let moved = self.moved_by_others(other);
            if has_come || moved != seen {
                seen = moved;
                if let Some(found) = again()? {
                    return Ok(Some(found));
                }
                if !is_late {
                    continue;
                }
            }
            // A failed use is reported elsewhere.
            if !is_something_left {
                return Ok(None);
            }
            thread::sleep(GLANCE);
        }
    }

    fn is_something_left(&self) -> bool {
        let state = self.lock();
        !state.pending.is_empty() || !state.leaving.is_empty() || state.moving > 0
    }

    fn is_growing_before(&self, growth: u64) -> bool {
        self.lock().growing.iter().any(|other| other.number < growth)
    }

    /// Returns the memory that a failed request could neither reach nor await.
    fn unavailable(&self) -> Option<Box<Unavailable>> {
        let caches = self.unreachable_caches();
        let state = self.lock();
        let found = match state.growing.first() {
            _ if caches > 0 => Unavailable::Caches { bytes: state.heap.total() - state.heap.free(), caches },
            Some(growth) => Unavailable::Allocation { bytes: growth.bytes, age: growth.begun.elapsed() },
            None => return None,
        };
        Some(Box::new(found))
    }

    fn grain(&self) -> u64 {
        if self.options.slab < GRAIN { UNIT } else { GRAIN }
    }

    /// Allocates a slab of the usual length, or as short as needed, and returns a part of it; or sets `refused` to the free bytes.
    ///
    /// Slabs have whole units. If a limit, of this pool or of a memory below, leaves room for the request but not for its last unit whole, the
    /// request gets a block outside the slabs, of its own length.
    fn grow(&self, wanted: &Wanted, refused: &Cell<(u64, u64)>) -> Result<Option<Entry>> {
        let Wanted { whole, requested, align } = *wanted;
        let mut tried = 0;
        let grain = self.grain();
        for bytes in
            [self.options.slab.max(whole).next_multiple_of(grain), whole.next_multiple_of(grain), requested.max(1).next_multiple_of(UNIT)]
        {
            if bytes == tried {
                continue;
            }
            tried = bytes;
            let part = if bytes < whole { requested } else { whole };
            // A slab that fits the part at any offset needs no alignment, for which a driver may allocate more.
            let slab_align = if bytes - part >= align { UNIT } else { align.max(UNIT) };
            let slab = |bytes, align: u64| Origin::unnamed(|| self.upstream(bytes, align as usize, None, refused));
            let slab = match slab(bytes, slab_align) {
                Err(Error::Align { .. }) if slab_align > UNIT => slab(bytes + slab_align, UNIT),
                outcome => outcome,
            };
            if let Some((block, _reserved)) = slab? {
                return self.settle_in(block, part, align);
            }
        }
        let (_, largest) = refused.get();
        if largest < requested || requested.is_multiple_of(UNIT) {
            return Ok(None);
        }
        match self.upstream(requested, align as usize, None, refused) {
            Err(Error::Align { .. }) => Ok(None),
            outcome => Ok(outcome?.map(|(block, _reserved)| self.enter_direct(block, requested))),
        }
    }

    /// Adds a slab and takes a part of it before other threads can.
    fn settle_in(&self, block: Block, bytes: u64, align: u64) -> Result<Option<Entry>> {
        if let Some(ready) = block.ready {
            let mut waited = Ok(true);
            let give_back = || self.give_back(Block { ..block }, &Uses::of(ready));
            both(
                || waited = self.memory.backend().wait(ready, None),
                |has_panicked| {
                    if has_panicked {
                        give_back()
                    }
                },
            );
            if let Err(error) = waited {
                give_back();
                return Err(error);
            }
        }
        let length = block.layout.size() as u64;
        let base = Base::of(&block);
        let slab = Slab { block, last_use: 0 };
        let mut state = self.lock();
        let number = state.vacant.first().map_or(state.slabs.len(), |&number| number as usize);
        if !state.heap.add(number as u32, length, base) {
            drop(state);
            self.give_back(slab.block, &Uses::NONE);
            return Ok(None);
        }
        match state.slabs.get_mut(number) {
            Some(place) => *place = Some(slab),
            None => state.slabs.push(Some(slab)),
        }
        state.vacant.pop_first();
        self.moved();
        Ok(self.take_of(&mut state, bytes, align))
    }

    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        let class = if self.options.is_enabled { self.options.classes.class_of(bytes) } else { None };
        let class = class.ok_or(Error::Size { what: "size in bytes", asked: bytes, least: 1, most: self.options.classes.largest() })?;
        // Whole units: each block gets its place in a slab.
        let whole = self.whole(class, bytes).next_multiple_of(UNIT);
        let wanted = Wanted { whole, requested: whole, align: self.min_align as u64 };
        let before = self.lock().reserved;
        let entries = RefCell::new(Vec::new());
        let mut outcome = Ok(());
        let take = || {
            outcome = (0..count).try_for_each(|_| {
                let entry = self.find(&wanted, true)?;
                entries.borrow_mut().push((entry, UNDATED));
                Ok(())
            });
        };
        let give = || {
            let entries = entries.take();
            let is_whole = entries.len() == count;
            self.give(entries);
            is_whole
        };
        both(take, |_| {
            if !give() {
                self.trim_idle(before, Duration::ZERO);
            }
        });
        outcome
    }
}
