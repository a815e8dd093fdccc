//! The slot protocol of MPSC and MPMC rings.
//!
//! The word of a slot is `lap << 1 | full`, where a lap is its first index. For index `i`:
//!
//! | word | the slot is |
//! |---|---|
//! | `lap(i) << 1` | free for the producer that claims `i`; with the tail past `i`, claimed and not yet published: from there on, consumers find the ring empty, and for ever if that producer died or forgot its grant; the others then find it full |
//! | `lap(i) << 1 \| 1` | full: for the consumer of `i`; in MPMC with the head past `i`, claimed and not yet released: a lap later, producers find the ring full, and for ever if that consumer died or forgot its claim |
//! | `lap(i + capacity) << 1`, or later | past `i`: the message was taken, or the slot given up |

use core::mem::offset_of;
use core::ptr::NonNull;

use super::sealed::Sealed;
use super::{InPlace, Kind, OneConsumer};
use crate::align::is_aligned;
use crate::attach::{AttachError, Corrupt};
use crate::ring::error::PopError;
use crate::ring::pace::pause;
use crate::ring::slots::{Slot, Slots, first_use, free, place};
use crate::ring::{Consumer, RingFlags, RingHeader, RingLayout, value};
use crate::{Machine, RingMessage, RmwWord, SlotCell, Word};

/// The kind of [`mpsc`](crate::ring::mpsc) rings.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::{Consumer, Mpsc, RingFlags, mpsc};
///
/// let mut ring = mpsc::Ring::<u32, 4>::new();
/// let (_, consumer): (_, Consumer<'_, Mpsc, u32, Local>) = ring.split(); // `mpsc::Consumer<'_, u32, Local>`
/// assert_eq!(consumer.kind(), RingFlags::MPSC);
/// ```
pub struct Mpsc(());
/// The kind of [`mpmc`](crate::ring::mpmc) rings.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Mpmc, RingIn, Storage, WordSlot, mpmc};
///
/// fn send(ring: &RingIn<Mpmc, u32, impl Storage<WordSlot<u32>>>) -> bool {
///     ring.split().0.push(7).is_ok()
/// }
///
/// assert!(send(&mpmc::Ring::<u32, 4>::new()));
/// ```
pub struct Mpmc(());

impl Sealed for Mpsc {}
impl Sealed for Mpmc {}
impl InPlace for Mpsc {}

impl<T, M: Machine> Kind<T, M> for Mpsc {
    const FLAGS: RingFlags = RingFlags::MPSC;
    type Slot = TurnSlot<T, M>;
    const CELL: usize = offset_of!(TurnSlot<T, M>, cell);

    #[inline(always)]
    fn cell(slot: &Self::Slot) -> &M::Cell<T> {
        &slot.cell
    }
}

impl<T, M: Machine> Kind<T, M> for Mpmc {
    const FLAGS: RingFlags = RingFlags::MPMC;
    type Slot = TurnSlot<T, M>;
    const CELL: usize = offset_of!(TurnSlot<T, M>, cell);

    #[inline(always)]
    fn cell(slot: &Self::Slot) -> &M::Cell<T> {
        &slot.cell
    }
}

pub(in crate::ring) struct Turns<'a, T, M: Machine> {
    pub(in crate::ring) header: &'a RingHeader<M::Word>,
    pub(in crate::ring) slots: Slots<'a, Slot<M::Word, M::Cell<T>>>,
}

impl<T, M: Machine> Clone for Turns<'_, T, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, M: Machine> Copy for Turns<'_, T, M> {}

impl<'a, T, M: Machine> Turns<'a, T, M> {
    /// # Safety
    ///
    /// For `'a`, only this protocol shares `capacity` valid slots at `slots`, a power of two that fits `usize`.
    pub(in crate::ring) const unsafe fn new(
        header: &'a RingHeader<M::Word>,
        slots: NonNull<Slot<M::Word, M::Cell<T>>>,
        capacity: u64,
    ) -> Self {
        // SAFETY: the caller promises `capacity` valid slots for `'a`, a power of two that fits `usize`.
        Self { header, slots: unsafe { Slots::new(slots, capacity) } }
    }

    /// # Safety
    ///
    /// For `'a`, only this protocol shares `len` valid, initialised bytes at `base`.
    pub(in crate::ring) unsafe fn from_raw(kind: RingFlags, base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and shared by this protocol only, so the header
        // is accessed only as words.
        let (header, layout, slots) = unsafe { place::<T, M>(kind, base, len)? };
        // SAFETY: the slots of the layout lie within `len`.
        unsafe { Self::new(header, slots.cast(), layout.capacity()) }.checked()
    }

    /// Rejects words of wrong laps, which a handle would skip one by one. Handles may be active.
    pub(in crate::ring) fn checked(self) -> Result<Self, AttachError> {
        // No head is so many indices behind its tail, or ahead of it.
        const NEVER: u64 = 1 << 61;
        let Self { header, slots } = &self;
        let capacity = slots.capacity();
        // Acquire: shows each slot as the tail passed it, or later.
        let (head, tail) = (header.consumer.head.load(), header.producer.tail.load_acquire());
        let corrupt = Err(AttachError::Corrupt(Corrupt { head, tail, capacity }));
        if tail.wrapping_sub(head).wrapping_add(NEVER) > 2 * NEVER {
            return corrupt;
        }
        for place in 0..capacity {
            // Acquire: the tail read next has passed the word's lap.
            let word = slots.at(place).word.load_acquire();
            let now = header.producer.tail.load();
            let [next, latest] = [tail, now].map(|tail| self.free(first_use(tail, place, capacity)));
            // The word is of the lap before the next claim, or free for it.
            if self.is_before(word, next.wrapping_sub(2 * capacity)) || self.is_before(latest, word) {
                return corrupt;
            }
        }
        Ok(self)
    }

    /// # Safety
    ///
    /// The caller claimed them when they were full, and has not taken them.
    #[inline(always)]
    pub(in crate::ring) unsafe fn take_run(&self, index: u64, mut values: &mut [T]) {
        for (index, slots) in self.runs(index, values.len()) {
            let taken = self.taken(index);
            let (now, later) = values.split_at_mut(slots.len());
            values = later;
            for (slot, value) in slots.iter().zip(now) {
                // SAFETY: the caller promises that it claimed these slots when they were full and has not taken them; this loop takes each
                // once.
                *value = unsafe { take::<T, M>(slot, taken) };
            }
        }
    }

    #[inline(always)]
    pub(in crate::ring) const fn capacity(&self) -> u64 {
        self.slots.capacity()
    }

    #[inline(always)]
    pub(in crate::ring) const fn slot(&self, index: u64) -> &'a Slot<M::Word, M::Cell<T>> {
        self.slots.at(index)
    }

    #[inline(always)]
    pub(in crate::ring) const fn free(&self, index: u64) -> u64 {
        free(index, self.slots.capacity())
    }

    #[inline(always)]
    pub(in crate::ring) const fn full(&self, index: u64) -> u64 {
        self.free(index) | 1
    }

    #[inline(always)]
    pub(in crate::ring) const fn taken(&self, index: u64) -> u64 {
        self.free(index.wrapping_add(self.slots.capacity()))
    }

    #[inline(always)]
    pub(in crate::ring) const fn is_before(&self, word: u64, other: u64) -> bool {
        (word.wrapping_sub(other) as i64) < 0
    }

    /// Looks at a slot, and counts it and those after it that are as wanted, up to `most`, which is at least 1.
    #[inline(always)]
    pub(in crate::ring) fn look(&self, index: u64, most: usize, wanted: impl Fn(u64) -> u64) -> Look {
        // SYNC POINT: slot published, slot released. Pairs with the store of that word.
        let word = self.slot(index).word.load_acquire();
        if word == wanted(index) {
            // This order shows the compiler the constant 1.
            let rest = (most - 1).min(self.slots.mask() as usize);
            Look::Claim(1 + if rest == 0 { 0 } else { self.run(index.wrapping_add(1), rest, wanted) })
        } else if self.is_before(word, wanted(index)) {
            Look::NotYet
        } else {
            Look::Passed
        }
    }

    /// Continues after the slot of `index` was given up: no message is more than a capacity before the tail.
    #[cold]
    pub(in crate::ring) fn after_given_up(&self, index: u64) -> u64 {
        let next = index.wrapping_add(1);
        let oldest = self.header.producer.tail.load().wrapping_sub(self.capacity());
        if (oldest.wrapping_sub(next) as i64) > 0 { oldest } else { next }
    }

    pub(in crate::ring) fn len(&self) -> usize {
        let head = self.header.consumer.head.load();
        let tail = self.header.producer.tail.load();
        // Both indices may move meanwhile, and slots that were given up may put the tail more than a capacity ahead.
        let used = tail.wrapping_sub(head);
        if (used as i64) < 0 { 0 } else { used.min(self.capacity()) as usize }
    }

    #[inline]
    pub(in crate::ring) fn run(&self, index: u64, most: usize, word: impl Fn(u64) -> u64) -> usize {
        let mut found = 0;
        for (index, slots) in self.runs(index, most) {
            let wanted = word(index);
            // SYNC POINT: slot published, slot released. Pairs with the store of that word.
            let here = slots.iter().position(|slot| slot.word.load_acquire() != wanted);
            found += here.unwrap_or(slots.len());
            if here.is_some() {
                break;
            }
        }
        found
    }

    /// A run is within one lap, so all its slots have one wanted word.
    #[inline(always)]
    pub(in crate::ring) fn runs(&self, index: u64, count: usize) -> [(u64, TurnSlots<'a, T, M>); 2] {
        let [here, rest] = self.slots.runs(index, count);
        [(index, here), (index.wrapping_add(here.len() as u64), rest)]
    }
}

type TurnSlots<'a, T, M> = &'a [TurnSlot<T, M>];

pub(in crate::ring) type TurnSlot<T, M> = Slot<<M as Machine>::Word, <M as Machine>::Cell<T>>;

/// # Safety
///
/// The caller claimed the slot for the index of that word and has not written it.
#[inline(always)]
pub(in crate::ring) unsafe fn fill<T, M: Machine>(slot: &TurnSlot<T, M>, full: u64, value: T) {
    // SAFETY: claimed: no other handle accesses it until its word is full.
    slot.cell.with_mut(|place| unsafe { value::write(place, value) });
    // SYNC POINT: slot published. Pairs with Turns::look and run, Mpsc::next and seen, and ManyProducer::evict.
    slot.word.store_release(full);
}

/// # Safety
///
/// The caller claimed the full slot, for the index of that word, and has not taken its message.
#[inline(always)]
pub(in crate::ring) unsafe fn take<T, M: Machine>(slot: &TurnSlot<T, M>, taken: u64) -> T {
    // SAFETY: claimed, full and acquired; no other handle accesses it until its word is free.
    let value = slot.cell.with(|place| unsafe { value::read(place) });
    // SYNC POINT: slot released. Pairs with Turns::look and run.
    slot.word.store_release(taken);
    value
}

/// # Safety
///
/// As [`mpmc::format`](crate::ring::mpmc::format).
pub(in crate::ring) unsafe fn format<T: RingMessage, M: Machine>(
    base: NonNull<u8>,
    len: u64,
    layout: &RingLayout,
    start: u64,
) -> Result<(), AttachError> {
    let address = base.as_ptr() as u64;
    if !is_aligned(address, layout.align()) {
        return Err(AttachError::Misaligned { address, align: layout.align() });
    }
    if len < layout.size() {
        return Err(AttachError::TooSmall { needed: layout.size(), got: len });
    }
    for place in 0..layout.capacity() {
        let offset = layout.slots_offset() + place * layout.slot_size();
        // SAFETY: within the layout's size and so `len`; a slot begins with its aligned word.
        let word = unsafe { base.add(offset as usize).cast::<M::Word>().as_ref() };
        word.store(free(first_use(start, place, layout.capacity()), layout.capacity()));
    }
    // SAFETY: aligned and long enough; nothing is attached. Its last store publishes the slots too.
    unsafe { base.cast::<RingHeader<M::Word>>().as_ref().format::<T>(layout, start) };
    Ok(())
}

/// The first loss does not wait: an idle handle's hint is stale.
pub(in crate::ring) struct Backoff(u32);

impl Backoff {
    pub(in crate::ring) const fn new() -> Self {
        Self(0)
    }
    #[inline]
    pub(in crate::ring) fn wait(&mut self) {
        pause((1 << self.0) - 1);
        self.0 = (self.0 + 1).min(7);
    }
}

/// `hint` is a current or past value of `word`. Past an index that was given up, `word` advances to `after`.
#[inline(always)]
pub(in crate::ring) fn claim<W: RmwWord>(
    word: &W,
    hint: &mut u64,
    mut look: impl FnMut(u64) -> Look,
    after: impl Fn(u64) -> u64,
) -> Option<(u64, usize)> {
    let mut backoff = Backoff::new();
    loop {
        let index = *hint;
        match look(index) {
            // The counted slots are still as wanted if this succeeds: only the claimer of their indices may change them, and the claims are still at `index`.
            Look::Claim(count) => match word.compare_exchange(index, index.wrapping_add(count as u64)) {
                Ok(_) => {
                    *hint = index.wrapping_add(count as u64);
                    return Some((index, count));
                }
                Err(found) => *hint = found,
            },
            Look::NotYet => return None,
            Look::Passed => {
                let now = word.load();
                if now == index {
                    // A slot that was given up never gets a message. Nobody has claimed `index`: the acquire load of its later word would also have shown
                    // that claim. At the tail only a corrupt ring is so, since there a later word follows a claim.
                    let next = after(index);
                    *hint = match word.compare_exchange(index, next) {
                        Ok(_) => next,
                        Err(found) => found,
                    };
                    continue;
                }
                *hint = now;
            }
        }
        backoff.wait();
    }
}

pub(in crate::ring) enum Look {
    Claim(usize),
    NotYet,
    /// Others claimed the slot, or gave it up.
    Passed,
}

pub struct Emptying {
    // INVARIANT: messages before the head are taken, and no other consumer takes any; slots from here to the head are taken, and their words still say full,
    // except within `pop_slice`, which releases them first. A successor of a consumer that died there passes those as slots that were given up. Where it died
    // before it released messages, a successor takes these again.
    released: u64,
}

impl<T, M: Machine<Word: RmwWord>> OneConsumer<T, M> for Mpsc {
    type Emptying = Emptying;
    const ANNOUNCED: bool = true;

    #[inline(always)]
    fn indices_to_empty(_: &RingHeader<M::Word>, peer: &RingHeader<M::Word>) -> (u64, u64) {
        let head = peer.consumer.head.load();
        // Not the tail: it may be more than a capacity ahead, since a slot that was given up is free for the next lap before the head has passed it.
        (head, head)
    }

    #[inline(always)]
    fn emptying(head: u64, _: u64) -> Emptying {
        Emptying { released: head }
    }

    fn verify(header: &RingHeader<M::Word>, slots: &Slots<'_, Self::Slot>) -> Result<(), AttachError> {
        Turns::<T, M> { header, slots: *slots }.checked().map(drop)
    }

    fn waiting(consumer: &Consumer<'_, Self, T, M>, most: usize) -> usize {
        consumer.turns().len().min(most)
    }

    /// Skips slots that were given up. Releases none: it cannot advance `released`, so the next release would store the same words again.
    fn seen(consumer: &Consumer<'_, Self, T, M>, most: usize) -> Result<(u64, usize), M::Corrupt> {
        let turns = consumer.turns();
        let mut index = consumer.head;
        loop {
            // SYNC POINT: slot published. Pairs with the producers' stores of it.
            let word = turns.slot(index).word.load_acquire();
            if word == turns.full(index) {
                return Ok((index, turns.run(index, most, |index| turns.full(index))));
            }
            if turns.is_before(word, turns.full(index)) {
                return Ok((index, 0));
            }
            index = turns.after_given_up(index);
        }
    }

    #[inline(always)]
    fn next(consumer: &mut Consumer<'_, Self, T, M>) -> Result<(), PopError<M::Corrupt>> {
        let turns = consumer.turns();
        loop {
            // SYNC POINT: slot published. Pairs with the producers' stores of it.
            let word = turns.slot(consumer.head).word.load_acquire();
            if word == turns.full(consumer.head) {
                return Ok(());
            }
            if turns.is_before(word, turns.full(consumer.head)) {
                return Err(PopError::Empty);
            }
            // Free for the next lap: first release the taken slots, in order.
            Self::release(consumer);
            consumer.head = turns.after_given_up(consumer.head);
            consumer.state.released = consumer.head;
            consumer.tell();
        }
    }

    #[inline(always)]
    fn ready(consumer: &mut Consumer<'_, Self, T, M>, most: usize) -> Result<usize, M::Corrupt> {
        if most == 0 || Self::next(consumer).is_err() {
            return Ok(0);
        }
        let turns = consumer.turns();
        Ok(turns.run(consumer.head, most, |index| turns.full(index)))
    }

    #[inline(always)]
    fn release(consumer: &mut Consumer<'_, Self, T, M>) {
        if consumer.state.released.wrapping_add(1) == consumer.head {
            consumer.release_one();
        } else {
            while consumer.state.released != consumer.head {
                consumer.release_one();
            }
        }
        consumer.tell();
    }

    // `released` is always known: the rest of a forgotten batch is released with the next release, when the ring is found empty, or on drop.
    #[inline(always)]
    fn defer_release(_: &mut Consumer<'_, Self, T, M>) {}

    #[inline(always)]
    fn release_pending(consumer: &mut Consumer<'_, Self, T, M>) {
        if consumer.state.released != consumer.head {
            Self::release(consumer);
        }
    }

    #[inline(always)]
    fn released(consumer: &Consumer<'_, Self, T, M>) -> u64 {
        consumer.state.released
    }
}

impl<'a, T, M: Machine<Word: RmwWord>> Consumer<'a, Mpsc, T, M> {
    #[inline(always)]
    const fn turns(&self) -> Turns<'a, T, M> {
        Turns { header: self.port.own, slots: self.slots }
    }

    #[inline(always)]
    fn release_one(&mut self) {
        let index = self.state.released;
        let turns = self.turns();
        // SYNC POINT: slot released. Pairs with Turns::look and run.
        turns.slot(index).word.store_release(turns.taken(index));
        self.state.released = index.wrapping_add(1);
    }

    /// For `len`, for hints, and for the next consumer, which begins there. Relaxed: producers learn of room from the slots' words.
    #[inline(always)]
    fn tell(&self) {
        self.port.peer.consumer.head.store(self.head);
    }

    /// Like [`from_raw`](Self::from_raw), between CPU and GPU.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), but producers may be in every domain that the proof covers.
    pub unsafe fn from_raw_across(base: NonNull<u8>, len: u64, _proof: SystemAtomics) -> Result<Self, AttachError>
    where
        T: RingMessage,
        M: Machine<Corrupt = Corrupt>,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only this consumer and the ring's producers access them.
        // Producers may be in domains that the proof covers; native atomics make these one domain.
        unsafe { Self::from_raw(base, len) }
    }

    /// Pops consecutive values that fit and releases their slots; returns their number.
    pub fn pop_slice(&mut self, values: &mut [T]) -> usize
    where
        T: Copy,
    {
        if values.is_empty() {
            return 0;
        }
        if Mpsc::next(self).is_err() {
            Mpsc::release_pending(self);
            return 0;
        }
        let turns = self.turns();
        let count = turns.run(self.head, values.len(), |index| turns.full(index));
        Mpsc::release_pending(self);
        // SAFETY: `run` acquired their full words; this is the only consumer.
        unsafe { turns.take_run(self.head, &mut values[..count]) };
        self.head = self.head.wrapping_add(count as u64);
        self.state.released = self.head;
        self.tell();
        count
    }
}

/// Proof that compare-exchange on a ring's words is atomic between a CPU and a GPU: not over PCIe, unless the device reports
/// `hostNativeAtomicSupported`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::RingFlags;
/// # use ringmem::{CacheLineAligned, Host, RingLayout};
/// use ringmem::ring::mpmc::{self, SystemAtomics};
///
/// let layout = RingLayout::of_kind::<u64>(RingFlags::MPMC, 4)?;
/// let mut memory = CacheLineAligned::new([0_u64; 64]);
/// let (base, len) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64);
/// // SAFETY: only these two handles access the memory, and both are on this CPU.
/// unsafe {
///     mpmc::format::<u64, Host>(base, len, &layout, 0)?;
///     let proof = SystemAtomics::assume();
///     let mut producer = mpmc::Producer::<u64, Host>::from_raw_across(base, len, proof)?;
///     let mut consumer = mpmc::Consumer::<u64, Host>::from_raw_across(base, len, proof)?;
///     producer.push(7)?;
///     assert_eq!(consumer.pop(), Ok(7));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemAtomics(());

impl SystemAtomics {
    /// Asserts that they are atomic.
    ///
    /// # Safety
    ///
    /// Every agent that attaches with this proof reaches the memory with native atomics: a CPU and a GPU joined by NVLink-C2C, or one device alone.
    #[must_use]
    pub const unsafe fn assume() -> Self {
        Self(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;

    #[test]
    fn sequence_numbers_compare_across_index_wrap() {
        for capacity in [1, 2, 4, 1 << 20] {
            for index in [0, 1, capacity, u64::MAX, u64::MAX - capacity, 1 << 63, (1 << 63) - 1] {
                let header = RingHeader::<crate::HostWord>::new::<u64>(&RingLayout::of::<u64>(1).unwrap(), 0);
                let slots = NonNull::dangling();
                // SAFETY: no slot is accessed.
                let turns = unsafe { Turns::<u64, Host>::new(&header, slots, capacity) };
                for laps in 0..4 {
                    let later = index.wrapping_add(laps * capacity);
                    assert!(turns.is_before(turns.free(index), turns.full(later)));
                    assert!(!turns.is_before(turns.full(later), turns.full(index)), "capacity {capacity}, index {index}, {laps} laps");
                    assert!(!turns.is_before(turns.taken(later), turns.full(index)));
                    assert_eq!(turns.is_before(turns.full(index), turns.full(later)), laps > 0);
                }
                assert_eq!(turns.taken(index), free(index.wrapping_add(capacity), capacity));
            }
        }
    }
}
