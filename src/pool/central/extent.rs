//! [`Extent`]: the memory of a pool whose upstream memory can be mapped at chosen addresses.
//!
//! A slab ends where its allocation ends, so free parts of two slabs never join: a pool of slabs runs out of memory although a third of it is free. An extent
//! is one [`AddressRange`], far longer than the device's memory, and memory is mapped and unmapped behind it in *handles*:
//!
//! ```text
//! addresses  |####....####|        |..######..|                                        |
//! handles    [  2 ][  2 ][ 2 ]      [  4     ]
//!                   ^^^^^ free parts, `.`; this handle is free as a whole
//!                            ^^^^^^ absent: addresses without memory
//! ```
//!
//! To the heap, the extent is one slab whose parts are free, taken or absent. So free memory joins across handles, and a block may lie on many of them.
//!
//! 1. *Grow*: of the zone's absent parts, the one with the least need of memory for the request, together with the free parts on its two sides. Nearly always
//!    this is the last, whose left neighbour is the free end of the memory in use. Memory is mapped from its beginning on.
//! 2. *Move*: a handle without a taken byte takes its memory along to other addresses, of either zone. If that place does not suffice, the last absent part
//!    does: there all whole free handles become one part. So a request fails only if they, with the rest of the limit and of the device, do not suffice. (For
//!    each byte that can be reserved there are [`SPARE`] addresses, up to 1 TiB.)
//! 3. *Trim*: a handle without a taken byte is freed, and its addresses are absent.
//!
//! # Two zones
//!
//! A quarter of the addresses is the zone of small blocks, up to 1 MiB. One that lay between larger blocks would divide the memory that they leave, and keep
//! a whole handle from moving, for a thousandth of its bytes. With sizes from 512 bytes to 64 MiB at random, the memory reserved beyond what is live is half
//! as much with two zones as with one. A block lies in the other zone only if its own has no addresses left, or where the limit or the device refuses more
//! memory: a small one then only if no whole handle is free. A pool of less than 64 granules has one zone: each of two would have a granule with little in
//! it.
//!
//! # Map or move
//!
//! A move takes as many calls of the driver as mapping new memory, and reserves nothing. But of the free part from which handles move, the ends stay behind,
//! each shorter than a handle: they serve small requests only, while the part as a whole would have served one like that which left it. On recorded and
//! generated allocations, moving always and moving only when nothing else is left both reserve more than this rule: before mapping, handles move from those
//! free parts of which at most a [third](BEHIND) would stay behind if all their handles moved; from others, when the limit or the device refuses more. If the
//! place with the least need is too short for them, they move to the last absent part, without new memory or not at all. (Only as many move as the request
//! needs, so each growth leaves at most one part with a few handles less.)
//!
//! # The size of a handle
//!
//! Handles are moved and freed as a whole, so smaller ones waste less; each costs some calls of the driver. A growth maps the bytes that the request lacks, and
//! if it may not move handles, at least 1/2048 of its zone's mapped memory, in handles of about 1/16384 of it, in whole granules. So rounding wastes less than
//! a granule and 1/2048, and with granules of 2 MiB, handles are longer only beyond 64 GiB. With sizes at random and 110 GiB live, handles four times as long
//! reserve 4.0 % more than is live instead of 2.9 %: few free parts between two blocks have a whole one. A growth in 16 longer handles takes fewer calls, and
//! then one small block keeps a 16th of a large one.
//!
//! # What a failure or panic leaves
//!
//! While its memory is mapped or moved, an absent part and its free neighbours are claimed: no other thread finds them. [`Extending`] ends the claim in
//! any case. If the device refuses, new memory is freed again, and moved memory stays free at its new place. Beside a kernel, and after a panic of foreign
//! code, both stay.

use core::cell::{Cell, RefCell};
use core::cmp::Reverse;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::BTreeMap;
use std::vec::Vec;

use ringmem_layouts::ring::prefetch;

use super::request::{Refusal, Request};
use super::reservation::Reservation;
use super::{Central, InTransit, Slab, State};
use crate::backend::{AddressRange, Block, MemoryLocation, Uses};
use crate::memory::{Memory, Origin};
use crate::pool::cache::{Entry, UNDATED};
use crate::pool::heap::{Base, Claim, LONGEST, PartId, Zone};
use crate::pool::tag::Tag;
use crate::sys::clock::nanoseconds;
use crate::sys::panic::{at_most_one, both, each};
use crate::trace::span;
use crate::{Error, Result};

/// Addresses for each byte that the pool may reserve.
const SPARE: u64 = 16;
/// One in so many of them is of the zone of small blocks.
const SMALL: u64 = 4;
/// Granules from which on there are two zones.
const ZONED: u64 = 64;
/// A growth that may not move maps at least this part of its zone's mapped memory.
const STEP: u64 = 2048;
/// A handle is about this part of its zone's mapped memory.
const HANDLES: u64 = 16_384;
/// Before memory is mapped, handles move from a free part if at most this part of it would stay behind, should all its handles move.
const BEHIND: u64 = 3;

pub(super) struct Extent {
    /// Its number in the heap.
    slab: u32,
    range: AddressRange,
    /// By offset. INVARIANT: the heap's parts with memory are exactly on these, but for memory on its way.
    handles: BTreeMap<u64, Block>,
    /// The bytes of the longest handle so far.
    longest: u64,
    /// It is long enough for a zone of small blocks.
    pub has_zones: bool,
    /// By granule: the latest time of a use of a freed part there. [`UNDATED`] if one is unknown: then it ages from the next trim.
    last_use: Vec<u64>,
}

/// Which whole free handles move before memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moves {
    None,
    /// As many as the request needs, from free parts of which at most a [third](BEHIND) has no whole handle, if there are any.
    Clean,
    /// As many as the request needs.
    All,
}

/// The block that a request needs.
#[derive(Clone, Copy)]
struct Need {
    bytes: u64,
    align: u64,
    zone: Zone,
}

/// A whole free handle.
struct FreeHandle {
    last_use: u64,
    offset: u64,
    block: Block,
}

impl Extent {
    pub fn is_of(&self, slab: u32) -> bool {
        self.slab == slab
    }

    pub const fn slab(&self) -> u32 {
        self.slab
    }

    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    pub fn into_blocks(self) -> impl Iterator<Item = Block> {
        self.handles.into_values()
    }

    pub fn note_use(&mut self, offset: u64, size: u64, since: u64) {
        for time in self.dates(offset, size) {
            *time = (*time).max(since);
        }
    }

    /// Prefetches the date of a block whose free may be [deferred](crate::pool::heap::Heap::free_deferred).
    pub fn fetch_date(&self, entry: &Entry) {
        let offset = entry.idle.device_address().map_or(0, |address| address.get().wrapping_sub(self.range.address().get()));
        if let Some(date) = self.last_use.get((offset / self.range.granularity()) as usize) {
            prefetch::<false>(core::ptr::from_ref(date).cast());
        }
    }

    fn dates(&mut self, offset: u64, size: u64) -> &mut [u64] {
        let step = self.range.granularity();
        let (from, to) = ((offset / step) as usize, (offset + size).div_ceil(step) as usize);
        if self.last_use.len() < to {
            self.last_use.resize(to, 0);
        }
        self.last_use.get_mut(from..to).unwrap_or_default()
    }

    fn last_use(&self, offset: u64, size: u64) -> u64 {
        let step = self.range.granularity();
        let dates = self.last_use.iter().skip((offset / step) as usize).take((size / step) as usize);
        dates.copied().max().unwrap_or(0)
    }

    /// The handles within a range of bytes.
    fn within(&self, offset: u64, size: u64) -> impl DoubleEndedIterator<Item = (u64, &Block)> {
        let handles = self.handles.range(offset..offset + size).map(|(&at, block)| (at, block));
        handles.filter(move |(at, block)| at + block.layout.size() as u64 <= offset + size)
    }

    /// Their bytes.
    fn whole(&self, offset: u64, size: u64) -> u64 {
        self.within(offset, size).map(|(_, block)| block.layout.size() as u64).sum()
    }
}

impl State {
    fn range(&self) -> Option<AddressRange> {
        self.extent.as_ref().map(|extent| extent.range.clone())
    }

    /// The backend has refused to reserve addresses: then there are slabs, since another attempt would cost each request a call. Unless another thread has
    /// reserved some. (If the heap refuses addresses, for want of numbers for slabs, each request tries again.)
    fn refuse_range(&mut self) -> Option<AddressRange> {
        self.has_no_range = true;
        self.range()
    }

    /// The whole free handles that may move, smallest free part first, in each the last first.
    fn free_handles(&self, moves: Moves) -> Vec<FreeHandle> {
        let Some(extent) = self.extent.as_ref().filter(|_| moves != Moves::None) else { return Vec::new() };
        let may_move = |&(_, offset, size): &(PartId, u64, u64)| moves == Moves::All || size - extent.whole(offset, size) <= size / BEHIND;
        let mut parts: Vec<_> = self.heap.free_from(extent.slab, extent.range.granularity()).filter(may_move).collect();
        parts.sort_unstable_by_key(|&(_, offset, size)| (size, offset));
        let within = |&(_, offset, size): &(PartId, u64, u64)| {
            extent.within(offset, size).rev().map(|(offset, block)| FreeHandle {
                last_use: extent.last_use(offset, block.layout.size() as u64),
                offset,
                block: Block { ready: None, ..*block },
            })
        };
        parts.iter().flat_map(within).collect()
    }

    /// The bytes of whole free handles.
    pub fn movable(&self) -> u64 {
        let Some(extent) = &self.extent else { return 0 };
        let parts = self.heap.free_from(extent.slab, extent.range.granularity());
        parts.map(|(_, offset, size)| extent.whole(offset, size)).sum()
    }

    /// A whole free handle, if there is one.
    fn free_handle(&self) -> Option<Block> {
        let extent = self.extent.as_ref()?;
        let mut parts = self.heap.free_from(extent.slab, extent.range.granularity());
        let block = parts.find_map(|(_, offset, size)| extent.within(offset, size).next())?.1;
        Some(Block { ready: None, ..*block })
    }

    fn any_handle(&self) -> Option<Block> {
        let block = self.extent.as_ref()?.handles.values().next()?;
        Some(Block { ready: None, ..*block })
    }

    /// A handle [taken out](Self::take_out) is free again, where it was.
    fn put_back(&mut self, handle: TakenOut) {
        if let Some(extent) = &mut self.extent {
            extent.handles.insert(handle.offset, handle.block);
        }
        self.heap.put_back(handle.part);
    }

    /// Takes those handles out of the heap that are still free as a whole.
    ///
    /// From the last handle to the first. So of a part that loses several, the front keeps the part's number: after each step, the part that `parts` has at an
    /// offset `from` is still free from there to `last`, where the step before has cut it off.
    fn take_out(&mut self, mut chosen: Vec<FreeHandle>) -> Vec<TakenOut> {
        let Self { heap, extent: Some(extent), .. } = self else { return Vec::new() };
        let parts: BTreeMap<u64, (PartId, u64)> =
            heap.free_from(extent.slab, extent.range.granularity()).map(|(part, offset, size)| (offset, (part, size))).collect();
        chosen.sort_unstable_by_key(|handle| Reverse(handle.offset));
        let mut last = u64::MAX;
        let mut taken = Vec::new();
        for FreeHandle { last_use, offset, block } in chosen {
            let size = block.layout.size() as u64;
            let Some((&from, &(part, bytes))) = parts.range(..=offset).next_back() else { continue };
            // Chosen under an earlier lock, perhaps: another handle may be here now, or none.
            let is_here = extent.handles.get(&offset).is_some_and(|there| there.layout == block.layout);
            if !is_here || offset + size > (from + bytes).min(last) {
                continue;
            }
            let Some(part) = heap.take_out(part, offset, size) else { break };
            last = offset;
            extent.handles.remove(&offset);
            taken.push(TakenOut { part, offset, block, last_use });
        }
        taken
    }
}

/// A handle that is out of the heap, to be moved or freed. It is [put back](State::put_back) otherwise.
struct TakenOut {
    part: PartId,
    offset: u64,
    block: Block,
    last_use: u64,
}

/// Memory that has come to a claim.
struct Come {
    offset: u64,
    block: Block,
    last_use: u64,
}

/// What became of an attempt to extend the heap.
enum Outcome {
    Served(Entry),
    /// The limit or the device refuses more, or no part number is left.
    Refused,
    /// A kernel runs, or an earlier free of this place is not complete.
    Busy,
}

/// A claim whose memory is on its way. Its drop ends the claim, with the memory that came. A handle that was taken out is in `left` until it moves, then in
/// `gone`, and with its new place in `come`; a lost one is in `gone` alone. During the move, [`move_handle`](Central::move_handle) has it.
struct Extending<'a, M: Memory> {
    central: &'a Central<M>,
    claim: Option<Claim>,
    /// Bytes with memory, from the claim's beginning on: those of `come`.
    filled: u64,
    come: Vec<Come>,
    /// Handles that have not moved.
    left: Vec<TakenOut>,
    /// Their memory has moved, or is lost.
    gone: Vec<PartId>,
    /// The limit or the device refused the rest.
    is_refused: bool,
    _transit: InTransit<'a, M>,
}

impl<M: Memory> Extending<'_, M> {
    fn offset(&self) -> u64 {
        self.claim.as_ref().map_or(0, |claim| claim.offset) + self.filled
    }

    fn came(&mut self, block: Block, last_use: u64) {
        let (offset, bytes) = (self.offset(), block.layout.size() as u64);
        self.come.push(Come { offset, block, last_use });
        self.filled += bytes;
    }

    fn end(&mut self, state: &mut State) {
        // Without more memory than before, moved handles are no reason for others to search at once.
        let is_transfer = !self.is_refused && (!self.come.is_empty() || !self.gone.is_empty());
        if let Some(extent) = &mut state.extent {
            for Come { offset, block, last_use } in self.come.drain(..) {
                let bytes = block.layout.size() as u64;
                extent.longest = extent.longest.max(bytes);
                extent.dates(offset, bytes).fill(last_use);
                extent.handles.insert(offset, block);
            }
        }
        self.left.drain(..).for_each(|handle| state.put_back(handle));
        self.gone.drain(..).for_each(|part| state.heap.abandon(part));
        if let Some(claim) = self.claim.take() {
            state.heap.fill(claim, self.filled);
        }
        // Without a transfer, the claim's place, the free parts beside it, and those of handles that did not move are back.
        if is_transfer { self.central.note_transfer() } else { self.central.note_return() }
    }
}

impl<M: Memory> Drop for Extending<'_, M> {
    fn drop(&mut self) {
        if self.claim.is_some() || !self.left.is_empty() || !self.gone.is_empty() {
            self.end(&mut self.central.lock());
        }
    }
}

impl<M: Memory> Central<M> {
    /// Extends the heap for a request, and takes the block of its class, else one of the requested bytes: moves whole free handles, and maps the rest.
    /// `None` without an address range, without room within the limit or on the device, which sets `refusal`, while a kernel forbids it, and for
    /// [`Moves::Clean`] without such a handle.
    pub(super) fn extend(&self, request: &Request, moves: Moves, refusal: &Cell<Refusal>) -> Result<Option<Entry>> {
        let Some(step) = self.granularity else { return Ok(None) };
        let Some(range) = self.range(step) else { return Ok(None) };
        let whole = Need { bytes: request.class_bytes, align: request.align, zone: request.zone() };
        let short = Need { bytes: request.bytes.max(1), ..whole };
        for need in [whole, short].into_iter().take(1 + usize::from(short.bytes < whole.bytes)) {
            // Where the least memory is lacking; if handles cannot move there, in the last absent part, where all can. If the device has refused new memory,
            // not: way 8 then frees the handles.
            for is_last in [false, true] {
                let Some(extending) = self.claim(need, step, moves, is_last, refusal) else { continue };
                match self.fill(extending, &range, need, refusal)? {
                    Outcome::Served(entry) => return Ok(Some(entry)),
                    Outcome::Refused => break,
                    Outcome::Busy => {}
                }
            }
        }
        Ok(None)
    }

    /// The reserved addresses. `None` if the backend has none after all.
    fn range(&self, step: u64) -> Option<AddressRange> {
        {
            let state = self.lock();
            if state.extent.is_some() || state.has_no_range {
                return state.range();
            }
        }
        let backend = self.memory.backend();
        let total = backend.memory_info(self.device).ok().flatten().map_or(u64::MAX, |info| info.total);
        let most = LONGEST / step * step;
        let bytes = self.options.limit.min(total).max(step).checked_next_multiple_of(step).and_then(|bytes| bytes.checked_mul(SPARE));
        let bytes = bytes.unwrap_or(most).min(most);
        let Ok(range) = backend.reserve(self.device, bytes) else { return self.lock().refuse_range() };
        // The first thread's range serves all.
        let mut state = self.lock();
        if state.extent.is_some() {
            return state.range();
        }
        let block = Block { device_address: Some(range.address()), device: self.device, ..Block::empty(MemoryLocation::Device, 1) };
        let slab = state.next_slab();
        let has_zones = range.bytes() / SPARE / step >= ZONED;
        let small = if has_zones { range.bytes() / SMALL / step * step } else { 0 };
        if !state.heap.add_range(slab, [range.bytes() - small, small], step, Base::of(&block)) {
            return None;
        }
        state.push_slab(Slab { block, last_use: 0 });
        state.extent = Some(Extent { slab, range: range.clone(), handles: BTreeMap::new(), longest: 0, last_use: Vec::new(), has_zones });
        Some(range)
    }

    /// Claims a place, and with `moves` the handles to be moved there. `None` without one, if handles and the rest of the limit do not fill it, or for
    /// [`Moves::Clean`] without such a handle: then the heap is as before.
    ///
    /// Three budgets: `lacking` bytes that the request still needs, `room` for whole handles in the claim, and what the limit has `left` for new memory.
    fn claim(&self, need: Need, step: u64, moves: Moves, is_last: bool, refusal: &Cell<Refusal>) -> Option<Extending<'_, M>> {
        let transit = self.start_transit();
        let mut state = self.lock_coalesced();
        let (left, zone) = (self.options.limit - state.reserved, state.zone(need.zone));
        let has_moves = moves != Moves::None;
        let slack = match &state.extent {
            // New memory for later requests, too.
            _ if !has_moves => (state.heap.total_of(zone) / STEP).min(left),
            // The last handle may be longer than the lacking bytes.
            Some(extent) => extent.longest,
            None => 0,
        };
        let wanted = |least| if has_moves { least + slack } else { slack };
        let claim = state.heap.claim(need.bytes, need.align, step, zone, wanted, is_last)?;
        let (mut room, mut lacking) = (claim.size, claim.least);
        let mut chosen = Vec::new();
        // Not those of the claim's own sides.
        for handle in state.free_handles(moves) {
            let bytes = handle.block.layout.size() as u64;
            if lacking > 0 && bytes <= room {
                room -= bytes;
                lacking = lacking.saturating_sub(bytes);
                chosen.push(handle);
            }
        }
        // At the last place all of the bytes come from elsewhere. With new memory among them, plain mapping in a gap may take less of it.
        if moves == Moves::Clean && (chosen.is_empty() || is_last && lacking > 0) {
            state.heap.fill(claim, 0);
            return None;
        }
        if lacking > left {
            state.heap.fill(claim, 0);
            refusal.set(Refusal { free: left, largest: left });
            return None;
        }
        let left = state.take_out(chosen);
        drop(state);
        Some(Extending {
            central: self,
            claim: Some(claim),
            filled: 0,
            come: Vec::new(),
            left,
            gone: Vec::new(),
            is_refused: false,
            _transit: transit,
        })
    }

    /// Moves and maps memory into a claim, ends it, and takes the request's block. Errors that frees cannot cure are returned.
    fn fill(&self, mut extending: Extending<'_, M>, range: &AddressRange, need: Need, refusal: &Cell<Refusal>) -> Result<Outcome> {
        let (least, size, zone) = extending.claim.as_ref().map_or((0, 0, need.zone), |claim| (claim.least, claim.size, claim.zone));
        let mut is_busy = false;
        while extending.filled < least
            && !is_busy
            && let Some(handle) = extending.left.pop()
        {
            is_busy = !self.move_handle(&mut extending, handle);
        }
        let (moved, already) = (extending.come.len(), extending.filled);
        let mut outcome = Ok(());
        // Until the memory is in the heap, other threads wait for it.
        let mut reservation = None;
        if already < least
            && !is_busy
            && let Some(short) = self.shortage(least - already, range.granularity())
        {
            refusal.set(short);
        } else if already < least && !is_busy {
            // More than the request lacks only if nothing moved: beside free memory, none is mapped in advance.
            let wanted = if moved > 0 { least } else { size };
            reservation = [wanted, least].into_iter().find_map(|bytes| self.reserve(bytes - already));
            match &mut reservation {
                Some(reservation) => {
                    let mapped = self.map_handles(&mut extending, range, reservation, least, refusal);
                    outcome = mapped.map(|has_waited| is_busy = has_waited);
                }
                None => {
                    let left = self.options.limit - self.lock().reserved;
                    refusal.set(Refusal { free: left, largest: left });
                }
            }
        }
        let is_filled = extending.filled >= least;
        if !is_filled && !is_busy {
            // The device has too little. Its memory is given back: this request gets nothing from it. A kernel would defer that.
            let new = extending.come.split_off(moved);
            extending.filled = already;
            extending.is_refused = true;
            each(new, |come| self.give_back(come.block));
        }
        let entry = {
            let mut state = self.lock();
            extending.end(&mut state);
            if is_filled { self.take_from(&mut state, need.bytes, need.align, zone) } else { None }
        };
        drop(reservation);
        outcome.map(|()| match entry {
            Some(entry) => Outcome::Served(entry),
            None if is_busy => Outcome::Busy,
            None => Outcome::Refused,
        })
    }

    /// The memory of the upstream, if it is surely less than a request lacks. For one granule, to try costs as much as to ask.
    fn shortage(&self, lacking: u64, step: u64) -> Option<Refusal> {
        let free = if lacking > step { self.memory.mappable()? } else { return None };
        (free < lacking).then_some(Refusal { free, largest: free })
    }

    /// Moves a handle to the end of a claim's memory; returns false if it stays where it is. After the call, also after a panic, the block tells what happened:
    ///
    /// | the block | its memory |
    /// |---|---|
    /// | is as before | did not move: the system or a kernel refuses |
    /// | has another address | is there |
    /// | is empty | is lost: the system refused the old place, too, and freed it |
    fn move_handle(&self, extending: &mut Extending<'_, M>, handle: TakenOut) -> bool {
        let TakenOut { part, offset, block, last_use } = handle;
        let (to, from, bytes) = (extending.offset(), block.device_address, block.layout.size() as u64);
        let block = RefCell::new(block);
        let remap = || {
            // SAFETY: a handle without a taken byte, out of others' reach: the uses of free parts are complete.
            drop(unsafe { self.memory.remap(&mut block.borrow_mut(), to) });
        };
        both(remap, |_| {
            let block = Block { ready: None, ..*block.borrow() };
            if block.layout.size() == 0 {
                extending.gone.push(part);
                self.counts.frees.fetch_add(1, Relaxed);
                self.lock().reserved -= bytes;
                return true;
            }
            if block.device_address == from {
                extending.left.push(TakenOut { part, offset, block, last_use });
                return false;
            }
            extending.gone.push(part);
            extending.came(block, last_use);
            self.counts.moves.fetch_add(1, Relaxed);
            true
        })
    }

    /// Maps new handles of all reserved bytes, or until the claim has the `least` bytes and the device refuses more. Returns true if a kernel forbids it.
    fn map_handles(
        &self,
        extending: &mut Extending<'_, M>,
        range: &AddressRange,
        reservation: &mut Reservation<'_, M>,
        least: u64,
        refusal: &Cell<Refusal>,
    ) -> Result<bool> {
        let (step, wanted) = (range.granularity(), reservation.bytes);
        let zone = extending.claim.as_ref().map_or(Zone::Large, |claim| claim.zone);
        let handle = ((self.lock().heap.total_of(zone) + wanted) / HANDLES / step * step).max(step);
        // Memory in advance ages from here, not from the first use.
        let now = at_most_one(|| (self.options.clocks.coarse)()).unwrap_or(UNDATED);
        while reservation.kept < wanted {
            let (offset, bytes) = (extending.offset(), handle.min(wanted - reservation.kept));
            let _span = span!("upstream allocation", bytes = bytes);
            match Origin::unnamed(|| self.call_upstream(|memory| memory.map(range, offset, bytes))) {
                Ok(block) => {
                    reservation.kept += bytes;
                    self.counts.allocations.fetch_add(1, Relaxed);
                    extending.came(block, now);
                }
                Err(_) if extending.filled >= least => break,
                Err(Error::Busy { .. }) => return Ok(true),
                Err(error) => {
                    let refused = Refusal::of(error)?;
                    // With the memory that is given back below.
                    refusal.set(Refusal { free: refused.free + reservation.kept, ..refused });
                    break;
                }
            }
        }
        Ok(false)
    }

    /// The bytes of slabs, handles and direct blocks.
    pub fn reserved(&self) -> u64 {
        self.lock().reserved
    }

    /// The bytes that the extent can give one request if the device has so many free: whole free handles, moved together, and new memory within the limit.
    /// 0 without an address range, and while a kernel [forbids](Self::forbids_mapping) both. Flushes all caches.
    pub(in crate::pool) fn obtainable(&self, on_device: u64) -> u64 {
        let Some(step) = self.granularity else { return 0 };
        if self.range(step).is_none() {
            return 0;
        }
        self.flush_caches();
        self.collect();
        if self.forbids_mapping() {
            return 0;
        }
        let state = self.lock_coalesced();
        let new = on_device.min(self.options.limit - state.reserved) / step * step;
        (state.movable() + new).min(Tag::LARGEST)
    }

    /// Frees whole free handles last used at least `age` ago, longest ago first, while more than `keep` bytes are reserved; returns their bytes.
    pub fn trim_handles(&self, keep: u64, age: Duration, now: u64) -> u64 {
        let _transit = self.start_transit();
        let backend = self.memory.backend();
        if self.granularity.is_none() || self.defers_handles() {
            return 0;
        }
        let taken = {
            let mut state = self.lock_coalesced();
            let mut free = state.free_handles(Moves::All);
            free.sort_unstable_by_key(|handle| (handle.last_use, Reverse(handle.offset)));
            let mut left = state.reserved;
            free.retain(|handle| {
                let is_chosen = left > keep && now.saturating_sub(handle.last_use) >= nanoseconds(age);
                left -= if is_chosen { handle.block.layout.size() as u64 } else { 0 };
                is_chosen
            });
            if let Some(extent) = &mut state.extent {
                extent.last_use.iter_mut().filter(|time| **time == UNDATED).for_each(|time| *time = now);
            }
            state.take_out(free)
        };
        let mut bytes = 0;
        each(taken, |handle| {
            // A kernel that another thread has launched meanwhile.
            if backend.defers_free(&handle.block) {
                self.lock().put_back(handle);
                self.note_transfer();
                return;
            }
            let TakenOut { part, block, .. } = handle;
            bytes += block.layout.size() as u64;
            both(|| self.free_slab(block, &Uses::NONE), |_| self.lock().heap.abandon(part));
        });
        bytes
    }

    /// Whether there is a whole free handle, and a kernel defers its free, as it forbids moves.
    pub fn defers_handles(&self) -> bool {
        self.defers(State::free_handle)
    }

    /// Whether a kernel forbids to map and move memory, as it defers frees of handles. Unknown, and false, without a handle.
    pub fn forbids_mapping(&self) -> bool {
        self.defers(State::any_handle)
    }

    fn defers(&self, handle: impl FnOnce(&State) -> Option<Block>) -> bool {
        if self.granularity.is_none() {
            return false;
        }
        // Not in the condition: the lock is not held during the backend's call.
        let handle = handle(&self.lock_coalesced());
        handle.is_some_and(|block| self.memory.backend().defers_free(&block))
    }

    /// Frees all whole free handles if they and the rest of the limit suffice for a request: then their moves have failed, or the device has refused the rest
    /// of the limit.
    pub fn trim_immovable(&self, bytes: u64) -> u64 {
        let Some(step) = self.granularity else { return 0 };
        let suffices = {
            let state = self.lock();
            state.movable() + (self.options.limit - state.reserved) / step * step >= bytes
        };
        if suffices { self.trim_handles(0, Duration::ZERO, (self.options.clocks.exact)()) } else { 0 }
    }

    /// The time since which the longest unused whole free handle is unused.
    pub fn handles_idle_since(&self) -> Option<u64> {
        self.lock_coalesced().free_handles(Moves::All).iter().map(|handle| handle.last_use).min()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::backend::host::HostBackend;
    use crate::memory::{Buffer, Device};
    use crate::pool::Pool;

    const MIB: u64 = 1 << 20;

    #[test]
    fn addresses_of_another_thread_serve_one_whose_reservation_fails() {
        let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        assert!(pool.shared.lock().refuse_range().is_none());
        assert!(pool.shared.range(2 * MIB).is_none(), "no other attempt");
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        assert!(pool.shared.range(2 * MIB).is_some());
        assert!(pool.shared.lock().refuse_range().is_some());
        assert!(pool.shared.range(2 * MIB).is_some());
    }

    #[test]
    fn a_failed_extension_returns_what_it_hid() {
        let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        drop(Buffer::<u8, _>::new(pool.clone(), 10 << 20).expect("room"));
        let (central, need) = (&*pool.shared, Need { bytes: 12 * MIB, align: 1, zone: Zone::Large });
        let take = || central.take(10 * MIB, 1, Zone::Large);
        let extending = central.claim(need, 2 * MIB, Moves::None, false, &Cell::default()).expect("the free part and 2 MiB more");
        assert!(take().is_none(), "the claim hides the free part");
        let before = central.progress.read();
        drop(extending);
        let after = central.progress.read();
        assert_eq!((after.transfers - before.transfers, after.returns - before.returns), (0, 1));
        central.free_one(&Uses::NONE, &take().expect("the free part is back"));
    }

    #[test]
    fn memory_that_did_not_suffice_returns() {
        // With its free memory known, nothing would be mapped.
        let backend = HostBackend::builder().device_memory(6 << 20).unknown_memory_info(true).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        let central = &*pool.shared;
        let request = Request { class_bytes: 12 * MIB, bytes: 12 * MIB, align: 1 };
        let before = central.progress.read();
        assert!(central.extend(&request, Moves::None, &Cell::default()).expect("no error").is_none());
        let after = central.progress.read();
        assert_eq!((after.transfers, central.reserved(), backend.counters().device_live.bytes), (before.transfers, 0, 0));
        assert!(central.counts.allocations.load(Relaxed) > 0 && after.returns > before.returns);
    }

    #[test]
    fn a_request_is_served_by_handles_that_several_extensions_hid_during_its_search() {
        let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).limit(8 * MIB).build().expect("a pool");
        let mut buffers: Vec<_> =
            (0..4).map(|_| Some(Buffer::<u8, _>::new(pool.clone(), 2 * MIB as usize).expect("within the limit"))).collect();
        (buffers[0], buffers[2]) = (None, None);
        let (central, request) = (&*pool.shared, Request { class_bytes: 4 * MIB, bytes: 4 * MIB, align: 1 });
        let extend = || central.extend(&request, Moves::All, &Cell::default());
        let (hidden, searched) = (Barrier::new(2), Barrier::new(2));
        let hide = || {
            let need = Need { bytes: 2 * MIB, align: 1, zone: Zone::Large };
            let extensions = [(); 2].map(|()| central.claim(need, 2 * MIB, Moves::All, false, &Cell::default()).expect("a handle"));
            hidden.wait();
            searched.wait();
            drop(extensions);
        };
        let first_search = || {
            thread::scope(|scope| {
                let other = scope.spawn(hide);
                hidden.wait();
                let found = extend();
                assert!(matches!(found, Ok(None)), "both handles are on their way");
                searched.wait();
                other.join().expect("no panic");
                found
            })
        };
        let is_first = Cell::new(true);
        let search = || if is_first.replace(false) { first_search() } else { extend() };
        let seen = central.progress_by_others(None);
        let found = central.wait(None, seen, &search, &search).expect("no error").expect("both handles together");
        assert_eq!(central.reserved(), 8 * MIB);
        central.free_one(&Uses::NONE, &found);
    }
}
