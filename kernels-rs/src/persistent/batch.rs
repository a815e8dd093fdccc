use core::marker::PhantomData;

use ringmem_layouts::ring::Row;
use ringmem_layouts::{Machine, RingMessage, SlotCell};

use crate::Lanes;

/// Messages taken together, and the slots for their answers.
///
/// Each lane holds its own copy of the same batch. A lane reads any message, and exchanges only at indices that no other lane uses: which
/// lane has which index is the handler's decision, so [`exchange`](Self::exchange) is `unsafe`. That one lane cannot hold two slots at once
/// is checked by the compiler: it borrows the batch.
pub struct Batch<'b, 'a, I, O, M: Machine> {
    // INVARIANT: the first `count` cells of the input and `room` of the output are initialised; until the batch is answered, the input's are full and the
    // output's this kernel's. `count` is at most `room`.
    input: Row<'a, M::Cell<I>>,
    output: Row<'a, M::Cell<O>>,
    count: u64,
    room: u64,
    may_initiate: bool,
    /// At most `room`.
    pub(super) sent: u64,
    _lent: PhantomData<&'b ()>,
}

impl<'a, I: RingMessage, O: RingMessage, M: Machine> Batch<'_, 'a, I, O, M> {
    /// # Safety
    ///
    /// The invariant, while the value lives.
    #[inline(always)]
    pub(super) const unsafe fn new(
        input: Row<'a, M::Cell<I>>,
        output: Row<'a, M::Cell<O>>,
        count: u64,
        room: u64,
        may_initiate: bool,
    ) -> Self {
        Self { input, output, count, room, may_initiate, sent: 0, _lent: PhantomData }
    }

    /// Returns the number of messages: at least one, unless the handler [initiates](super::Handler::INITIATES) messages.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns the number of slots: [`len`](Self::len), or more if the handler [initiates](super::Handler::INITIATES) messages.
    #[inline(always)]
    #[must_use]
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Returns whether messages may be sent that no message of the host has caused: not while the kernel is drained, and not if the handler does not
    /// [initiate](super::Handler::INITIATES) messages.
    #[inline(always)]
    #[must_use]
    pub fn may_initiate(&self) -> bool {
        self.may_initiate
    }

    /// Sends the first `count` slots, at most [`room`](Self::room). Without this call, a handler that [initiates](super::Handler::INITIATES) messages
    /// sends none. The last call on lane 0 counts, for all lanes. A slot that no lane has written has unspecified bytes. In other handlers it has no effect.
    #[inline(always)]
    pub fn send(&mut self, count: u64) {
        self.sent = count.min(self.room);
    }

    /// Calls `read` with the message at `index`, in place, on any lanes.
    ///
    /// # Safety
    ///
    /// `index` is below [`len`](Self::len).
    #[inline(always)]
    pub unsafe fn message<R>(&self, index: u64, read: impl FnOnce(&I) -> R) -> R {
        // SAFETY: the caller promises that `index` is below the length, so the cell is full; valid for any bytes, and not written until
        // released.
        self.input.at(index).with(|message| unsafe { read(&*message) })
    }

    /// Calls `answer` with the message at `index` and the slot of its answer.
    ///
    /// # Safety
    ///
    /// `index` is below [`len`](Self::len), and no other lane exchanges at this index, unless every lane has passed a
    /// [`barrier`](crate::Lanes::barrier) since.
    #[inline(always)]
    pub unsafe fn exchange<R>(&mut self, index: u64, answer: impl FnOnce(&I, &mut O) -> R) -> R {
        self.input.at(index).with(|message| {
            self.output.at(index).with_mut(|slot| {
                // SAFETY: the caller promises that `index` is below the length and that no other lane exchanges at it. This lane has no
                // other reference to the slot, because the call borrows the batch mutably. Valid for any bytes.
                unsafe { answer(&*message, &mut *slot) }
            })
        })
    }
}

impl<O: RingMessage, I, M: Machine> Batch<'_, '_, I, O, M> {
    /// Writes a message into the slot at `index`.
    ///
    /// # Safety
    ///
    /// `index` is below [`room`](Self::room), and no other lane accesses this slot, unless every lane has passed a [`barrier`](crate::Lanes::barrier) since.
    #[inline(always)]
    pub unsafe fn write(&mut self, index: u64, message: O) {
        // SAFETY: the caller promises that `index` is below the room, so the slot is this kernel's, and that no other lane accesses it. This lane has no
        // other reference to it, because the call borrows the batch mutably.
        self.output.at(index).with_mut(|slot| unsafe { slot.write(message) });
    }
}

#[repr(C, align(16))]
struct Piece(u64, u64);

/// Loads in flight per lane, in 64 registers: 8 KiB per warp in one round trip of the bus.
const MOST: u64 = 16;

macro_rules! for_each {
    ($function:ident: $($number:literal $value:ident),+) => { $($function($number, $value);)+ };
}

impl<T: RingMessage, M: Machine> Batch<'_, '_, T, T, M> {
    /// Answers every message with a copy of itself. Size and alignment of a message must be multiples of 16 bytes (checked at compile
    /// time).
    ///
    /// # Safety
    ///
    /// Every lane calls it, and none calls [`exchange`](Self::exchange) on this batch.
    #[inline(always)]
    pub unsafe fn return_all<L: Lanes>(&mut self, lanes: &L) {
        const { assert!(size_of::<T>().is_multiple_of(16) && align_of::<T>().is_multiple_of(16)) };
        let (width, all, each) = (u64::from(lanes.width()), self.count * pieces::<T>(), pieces::<T>());
        let (mut first, mut left) = (u64::from(lanes.lane()), all);
        while width.is_multiple_of(each) && left >= MOST * width {
            // A lane moves one piece of all its messages: one division.
            let (index, within) = (first / each, first % each);
            let load = |number| self.load(index + number * (width / each), within);
            // An array would go through local memory.
            let (a, b, c, d) = (load(0), load(1), load(2), load(3));
            let (e, f, g, h) = (load(4), load(5), load(6), load(7));
            let (i, j, k, l) = (load(8), load(9), load(10), load(11));
            let (m, n, o, p) = (load(12), load(13), load(14), load(15));
            let store = |number, value| self.store(index + number * (width / each), within, value);
            for_each!(store: 0 a, 1 b, 2 c, 3 d, 4 e, 5 f, 6 g, 7 h, 8 i, 9 j, 10 k, 11 l, 12 m, 13 n, 14 o, 15 p);
            first += MOST * width;
            left -= MOST * width;
        }
        while first < all {
            let load = |number| {
                let piece = first + number * width;
                if piece < all { self.load(piece / each, piece % each) } else { (0, 0) }
            };
            let (a, b, c, d) = (load(0), load(1), load(2), load(3));
            let store = |number, value| {
                let piece = first + number * width;
                if piece < all {
                    self.store(piece / each, piece % each, value);
                }
            };
            for_each!(store: 0 a, 1 b, 2 c, 3 d);
            first += 4 * width;
        }
    }

    /// A [`Piece`] would go through local memory.
    #[inline(always)]
    fn load(&self, index: u64, within: u64) -> (u64, u64) {
        self.input.at(index).with(|message| {
            // SAFETY: within the message, aligned; by the invariant initialised and not written.
            let Piece(low, high) = unsafe { &*message.cast::<Piece>().add(within as usize) };
            (*low, *high)
        })
    }

    #[inline(always)]
    fn store(&self, index: u64, within: u64, (low, high): (u64, u64)) {
        // SAFETY: within the slot, aligned; each piece is one lane's.
        self.output.at(index).with_mut(|slot| unsafe { slot.cast::<Piece>().add(within as usize).write(Piece(low, high)) });
    }
}

const fn pieces<T>() -> u64 {
    (size_of::<T>() / size_of::<Piece>()) as u64
}
