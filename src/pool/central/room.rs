//! Where memory comes from when no cache has any: the heap, the memory below, and everything that makes room, in the order of what it costs.

use core::alloc::Layout;
use core::cell::{Cell, RefCell};
use core::iter;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashSet;
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use super::{Central, GRAIN, Moving, Slab, State, UNDATED, Wanted};
use crate::backend::panic::{both, each};
use crate::backend::{Block, Uses};
use crate::error::LimitOf;
use crate::memory::{Memory, Origin};
use crate::pool::cache::Entry;
use crate::pool::heap::{Base, UNIT};
use crate::pool::tag::Tag;
use crate::stream::Stream;
use crate::{Error, Result};

/// How often whoever waits for frees looks for them.
const GLANCE: Duration = Duration::from_micros(50);

thread_local! {
    /// This thread is in a pool's callback.
    static IS_CALLED_BACK: Cell<bool> = const { Cell::new(false) };
}

struct CalledBack;

impl Drop for CalledBack {
    fn drop(&mut self) {
        IS_CALLED_BACK.set(false);
    }
}

type Way<'a, T> = &'a dyn Fn() -> Result<Option<T>>;

/// Rounds bytes down to whole units, as slabs are.
const fn whole_units(bytes: u64) -> u64 {
    bytes / UNIT * UNIT
}

/// What the first way finds that finds anything.
fn first<T>(ways: &[Way<'_, T>]) -> Result<Option<T>> {
    for way in ways {
        let found = way()?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What is free, and what in one piece, of a memory that refuses because it is short, or that may hold no more: it may do after frees. Any other
/// error comes back.
fn short(error: Error) -> Result<(u64, u64)> {
    match error {
        Error::OutOfMemory { free, largest, .. } => Ok((free, largest)),
        Error::Limit { used, limit, .. } => {
            let left = limit.saturating_sub(used);
            Ok((left, left))
        }
        // The system does not say.
        Error::Map { .. } => Ok((0, 0)),
        error => Err(error),
    }
}

impl<M: Memory> Central<M> {
    /// Returns a part with the bytes of the class, or with at least the requested bytes if no larger part is available. If `waits`, it waits for
    /// frees and calls the out-of-memory callback.
    pub fn find(&self, wanted: &Wanted, waits: bool) -> Result<Entry> {
        self.take(wanted.whole, wanted.align).map_or_else(|| self.make_room(wanted, waits), Ok)
    }

    #[cold]
    fn make_room(&self, wanted: &Wanted, waits: bool) -> Result<Entry> {
        let Wanted { whole, requested, align } = *wanted;
        let (refused, seen) = (Cell::new((0, 0)), self.moved_by_others(None));
        let grow = || self.grow(wanted, &refused);
        let fits = || self.take(whole, align).or_else(|| self.take(requested, align));
        // Trimming takes back what is over by now: it may fit even where the memory has nothing.
        let grow_or_fit = || grow().map(|found| found.or_else(fits));
        // What threads have cached is had by then.
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
            // Shorter than its class, rather than what threads have cached.
            &|| Ok(if requested < whole { self.take(requested, align) } else { None }),
            &|| {
                self.empty_caches();
                Ok(fits())
            },
            // Within the limit the slabs that are empty for the longest make room; for the memory below, any.
            &|| after_trim(self.limit.saturating_sub(whole.next_multiple_of(self.grain()))),
            &|| after_trim(0),
            &|| self.wait(None, seen, &again),
            &|| {
                let seen = self.moved_by_others(None);
                if !self.call_back(requested) {
                    return Ok(None);
                }
                // What it gave back here is in this thread's cache.
                if self.empty_caches() == 0 {
                    self.collect();
                }
                first(&[&again, &|| self.wait(None, seen, &again)])
            },
        ];
        // What is longer than the limit is not had by emptying everything.
        let count = if requested > self.limit { 0 } else { ways.len() - if waits { 0 } else { 2 } };
        let found = first(&ways[..count])?;
        found.ok_or_else(|| {
            let (state, (free, largest)) = (self.settled(), refused.get());
            if requested > self.limit {
                return Error::Limit { of: LimitOf::Memory, requested, used: state.reserved, limit: self.limit };
            }
            let left = whole_units(self.limit - state.reserved);
            let largest = state.heap.largest_at(align).max(whole_units(largest).min(left));
            Error::OutOfMemory { requested, free: state.heap.free() + whole_units(free).min(left), largest }
        })
    }

    /// A block outside the slabs.
    #[cold]
    pub fn allocate_direct(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<Entry> {
        let requested = layout.size() as u64;
        let (refused, seen) = (Cell::new((0, 0)), self.moved_by_others(None));
        let try_now = || {
            let Some(mut reserved) = self.reserve(requested) else {
                refused.set(self.room());
                return Ok(None);
            };
            match self.ask(&mut reserved, layout.align(), on) {
                Ok(block) => Ok(Some(block)),
                Err(error) => {
                    refused.set(short(error)?);
                    Ok(None)
                }
            }
        };
        let after_trim = |bytes| {
            self.trim(bytes, Duration::ZERO);
            try_now()
        };
        let ways: [Way<'_, Block>; 5] = [
            &try_now,
            &|| after_trim(self.limit.saturating_sub(requested)),
            &|| after_trim(0),
            &|| self.wait(None, seen, &|| after_trim(0)),
            &|| {
                let seen = self.moved_by_others(None);
                let again = || after_trim(0);
                if self.call_back(requested) { first(&[&again, &|| self.wait(None, seen, &again)]) } else { Ok(None) }
            },
        ];
        let count = if requested > self.limit { 1 } else { ways.len() - if waits { 0 } else { 2 } };
        let found = first(&ways[..count])?;
        let (free, largest) = refused.get();
        let mut block = found.ok_or_else(|| match requested > self.limit {
            true => Error::Limit { of: LimitOf::Memory, requested, used: self.lock().reserved, limit: self.limit },
            false => Error::OutOfMemory { requested, free, largest },
        })?;
        self.lock().direct.insert(block.address(), block.tag);
        block.tag = Tag::direct(&block).0;
        self.counts.misses.fetch_add(1, Relaxed);
        self.counts.requested.fetch_add(requested, Relaxed);
        self.reused(Entry::of(&block, block.ready), layout, on)
    }

    /// # Safety
    ///
    /// The promise of `Memory::free`.
    #[cold]
    pub unsafe fn free_direct(&self, block: Block, uses: &Uses) -> Result<()> {
        self.counts.returns.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.forget_direct(block, uses) }
    }

    /// The same for one that nobody had.
    ///
    /// # Safety
    ///
    /// The promise of `Memory::free`.
    pub unsafe fn forget_direct(&self, mut block: Block, uses: &Uses) -> Result<()> {
        let bytes = block.layout.size() as u64;
        // Before the memory has it back: then another block may be at this address.
        block.tag = self.lock().direct.remove(&block.address()).unwrap_or(block.tag);
        self.counts.requested.fetch_sub(bytes, Relaxed);
        // SAFETY: the caller's promise, and the block is again as the memory gave it.
        unsafe { self.free_below(block, uses) }
    }

    /// Has the memory take a block back, which it does also where it fails or panics.
    ///
    /// # Safety
    ///
    /// The promise of `Memory::free`.
    unsafe fn free_below(&self, block: Block, uses: &Uses) -> Result<()> {
        let left = Block { ready: None, ..block };
        let mut outcome = Ok(());
        // SAFETY: the caller's promise.
        let free = || outcome = self.below(|memory| unsafe { memory.free(block, uses) });
        both(free, |_| {
            self.counts.frees.fetch_add(1, Relaxed);
            self.left(left, uses);
        });
        outcome
    }

    /// Whether the callback has freed some. One that asks for memory is not called for that.
    fn call_back(&self, requested: u64) -> bool {
        let Some(callback) = &self.out_of_memory else { return false };
        if IS_CALLED_BACK.replace(true) {
            return false;
        }
        let _back = CalledBack;
        callback(requested)
    }

    /// Waits for uses of what was given back, for what other threads move, and for kernels that keep slabs from going, within patience. Looks again when something has come of it:
    /// `seen` is what others had moved before the last look. A pool `beside` this one is looked at as well.
    pub fn wait<T>(&self, beside: Option<&Self>, mut seen: u64, again: Way<'_, T>) -> Result<Option<T>> {
        let begun = Instant::now();
        loop {
            let (mut is_something_left, mut has_come) = (false, false);
            for pool in iter::once(self).chain(beside) {
                // Empty slabs go by looking, or when a kernel has ended.
                let (going, is_put_off) = pool.removable();
                is_something_left |= is_put_off || pool.is_something_left();
                has_come |= !going.is_empty();
                has_come |= pool.collect();
            }
            let moved = self.moved_by_others(beside);
            let is_late = begun.elapsed() >= self.patience;
            if has_come || moved != seen {
                seen = moved;
                if let Some(found) = again()? {
                    return Ok(Some(found));
                }
                if !is_late {
                    continue;
                }
            }
            // Their failure is their waiter's: the stream's synchronize tells it if nobody waits.
            if is_late || !is_something_left {
                return Ok(None);
            }
            thread::sleep(GLANCE);
        }
    }

    fn is_something_left(&self) -> bool {
        let state = self.lock();
        !state.pending.is_empty() || !state.leaving.is_empty() || state.moving > 0
    }

    fn grain(&self) -> u64 {
        if self.slab < GRAIN { UNIT } else { GRAIN }
    }

    /// A part of another slab, as long as usual or as long as is needed; `None` where the limit leaves no room for it, or the memory is short: what
    /// that says is in `refused`.
    fn grow(&self, wanted: &Wanted, refused: &Cell<(u64, u64)>) -> Result<Option<Entry>> {
        let Wanted { whole, requested, align } = *wanted;
        let mut tried = 0;
        let grain = self.grain();
        for bytes in [self.slab.max(whole).next_multiple_of(grain), whole.next_multiple_of(grain), requested.next_multiple_of(UNIT)] {
            if bytes == tried {
                continue;
            }
            let part = if bytes < whole { requested } else { whole };
            // A slab that fits the part at any offset needs no alignment; for an aligned slab a driver may have to allocate more.
            let slab_align = if bytes - part >= align { UNIT } else { align.max(UNIT) };
            let slab = match self.slab(bytes, slab_align, &mut tried, refused) {
                // The memory does not support this alignment, but a longer slab contains an aligned address.
                Err(Error::Align { .. }) if slab_align > UNIT => self.slab(bytes + slab_align, UNIT, &mut tried, refused),
                outcome => outcome,
            };
            if let Some(block) = slab? {
                return self.settle_in(block, part, align);
            }
        }
        Ok(None)
    }

    /// Allocates a block for a slab; `None` if the limit or the memory refuses it for now. Sets `tried` to the bytes requested from the memory.
    fn slab(&self, bytes: u64, align: u64, tried: &mut u64, refused: &Cell<(u64, u64)>) -> Result<Option<Block>> {
        let Some(mut reserved) = self.reserve(bytes) else {
            refused.set(self.room());
            return Ok(None);
        };
        *tried = bytes;
        match Origin::unnamed(|| self.ask(&mut reserved, align as usize, None)) {
            Ok(block) => Ok(Some(block)),
            Err(error) => {
                refused.set(short(error)?);
                Ok(None)
            }
        }
    }

    /// Makes a block a slab, and takes a part of it before anybody else can.
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
        let slab = Slab { block, empty_since: UNDATED };
        let mut state = self.lock();
        let number = state.slabs.iter().position(Option::is_none).unwrap_or(state.slabs.len());
        if !state.heap.add(number as u32, length, base) {
            drop(state);
            self.give_back(slab.block, &Uses::NONE);
            return Ok(None);
        }
        match state.slabs.get_mut(number) {
            Some(place) => *place = Some(slab),
            None => state.slabs.push(Some(slab)),
        }
        self.moved();
        Ok(self.take_of(&mut state, bytes, align))
    }

    /// What the limit leaves, free and in one piece.
    fn room(&self) -> (u64, u64) {
        let left = self.limit - self.lock().reserved;
        (left, left)
    }

    /// Adds to what is reserved, if that stays within the limit.
    fn reserve(&self, bytes: u64) -> Option<Reserved<'_, M>> {
        let mut state = self.lock();
        let Some(sum) = state.reserved.checked_add(bytes).filter(|&sum| sum <= self.limit) else {
            state.refusals += 1;
            return None;
        };
        state.reserved = sum;
        state.moving += 1;
        Some(Reserved { bytes, sum, refusals: state.refusals, is_had: false, moving: Moving(self) })
    }

    /// A block of the memory, as long as was reserved.
    fn ask(&self, reserved: &mut Reserved<'_, M>, align: usize, on: Option<&Stream>) -> Result<Block> {
        let (bytes, most) = (reserved.bytes, isize::MAX as u64);
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, align).ok());
        let layout = layout.ok_or(Error::Size { what: "size in bytes", asked: bytes, least: 1, most })?;
        let block = self.below(|memory| memory.alloc(layout, on))?;
        reserved.is_had = true;
        self.counts.allocations.fetch_add(1, Relaxed);
        Ok(block)
    }

    /// Reserves room for all of the blocks or for none. After a failure or a panic, frees empty slabs down to the previously reserved bytes.
    pub fn prewarm(&self, bytes: u64, count: usize) -> Result<()> {
        let class = if self.is_enabled { self.classes.class_of(bytes) } else { None };
        let class = class.ok_or(Error::Size { what: "size in bytes", asked: bytes, least: 1, most: self.classes.largest() })?;
        let whole = self.whole(class, bytes);
        let wanted = Wanted { whole, requested: whole, align: self.least_align as u64 };
        let before = self.lock().reserved;
        let entries = RefCell::new(Vec::new());
        let mut outcome = Ok(());
        let take = || {
            outcome = (0..count).try_for_each(|_| {
                let entry = self.find(&wanted, true)?;
                entries.borrow_mut().push((Uses::NONE, entry));
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

    /// Gives slabs back that have been empty for `age`, the oldest first, while more than `bytes` are reserved; how many bytes. What the backend would put
    /// off to free stays.
    pub fn trim(&self, bytes: u64, age: Duration) -> u64 {
        let _moving = self.moving();
        self.empty_caches();
        self.trim_idle(bytes, age)
    }

    /// The same of what nobody has cached.
    fn trim_idle(&self, bytes: u64, age: Duration) -> u64 {
        let _moving = self.moving();
        self.collect();
        let now = (self.clock)();
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let (going, _) = self.removable();
        let gone = {
            let mut state = self.settled();
            let mut empty: Vec<(u64, u32)> = state
                .empty_slabs()
                .filter(|(number, slab)| going.contains(number) && now.saturating_sub(slab.empty_since) >= age)
                .map(|(number, slab)| (slab.empty_since, number))
                .collect();
            empty.sort_unstable();
            let State { heap, slabs, reserved, .. } = &mut *state;
            let mut left = *reserved;
            let mut chosen: Vec<u32> = Vec::new();
            for (_, slab) in empty {
                if left <= bytes {
                    break;
                }
                left -= slabs.get(slab as usize).and_then(Option::as_ref).map_or(0, |slab| slab.block.layout.size() as u64);
                chosen.push(slab);
            }
            let wanted: HashSet<u32> = chosen.iter().copied().collect();
            heap.remove_empty(|slab| wanted.contains(&slab));
            chosen.into_iter().filter_map(|slab| slabs.get_mut(slab as usize).and_then(Option::take)).collect::<Vec<_>>()
        };
        let mut bytes = 0;
        each(gone, |slab| {
            bytes += slab.block.layout.size() as u64;
            self.give_back(slab.block, &Uses::NONE);
        });
        bytes
    }

    /// The empty slabs that would go if they were freed now, and whether there are others. Those stay, to be used.
    fn removable(&self) -> (HashSet<u32>, bool) {
        let backend = self.memory.backend();
        let empty = |(number, slab): (u32, &Slab)| (number, Block { ready: None, ..slab.block });
        let empty: Vec<(u32, Block)> = self.settled().empty_slabs().map(empty).collect();
        let count = empty.len();
        let going: HashSet<u32> =
            empty.into_iter().filter(|(_, block)| !backend.extension().defers_free(block)).map(|(number, _)| number).collect();
        let has_others = going.len() < count;
        (going, has_others)
    }

    /// Gives a slab back to the memory.
    fn give_back(&self, block: Block, uses: &Uses) {
        // SAFETY: of this memory, out of the table, and nobody's part of it is in use but by `uses`.
        if let Err(error) = unsafe { self.free_below(block, uses) } {
            self.memory.backend().unreported(error);
        }
    }

    /// What the memory has back is not reserved any more, when its uses are over and it has gone. Nobody does anything with it but ask about it.
    fn left(&self, block: Block, uses: &Uses) {
        let backend = self.memory.backend();
        let has_gone = uses.iter().all(|ticket| backend.reached(ticket)) && !backend.extension().is_deferred(&block);
        let mut state = self.lock();
        if has_gone {
            state.reserved -= block.layout.size() as u64;
            self.moved();
        } else {
            state.leaving.push((*uses, block));
        }
    }
}

/// Bytes that are reserved for a block that may come. Whoever waits for what moves waits until this is dropped.
struct Reserved<'a, M: Memory> {
    bytes: u64,
    /// What was reserved with them.
    sum: u64,
    /// How often the limit had refused some by then.
    refusals: u64,
    /// The block has come.
    is_had: bool,
    moving: Moving<'a, M>,
}

impl<M: Memory> Drop for Reserved<'_, M> {
    fn drop(&mut self) {
        let mut state = self.moving.0.lock();
        if self.is_had {
            state.peak = state.peak.max(self.sum);
            return;
        }
        state.reserved -= self.bytes;
        // Somebody may have been refused for want of these.
        if state.refusals != self.refusals {
            self.moving.0.moved();
        }
    }
}
