//! [`Batch`]: messages taken together.

use core::marker::PhantomData;

use ringmem_layouts::ring::Row;
use ringmem_layouts::{Machine, RingMessage, SlotCell};

use crate::Lanes;

/// Messages taken together, and the slots for their answers, for any kind of ring.
pub struct Batch<'b, 'a, I, O, M: Machine> {
    // INVARIANT: the first `count` cells of each hold initialised memory; those of the input are full, those of the output this kernel's,
    // until the batch has been answered.
    input: Row<'a, M::Cell<I>>,
    output: Row<'a, M::Cell<O>>,
    count: u64,
    _lent: PhantomData<&'b ()>,
}

impl<'a, I: RingMessage, O: RingMessage, M: Machine> Batch<'_, 'a, I, O, M> {
    /// # Safety
    ///
    /// The invariant, for as long as the value lives.
    #[inline(always)]
    pub(super) const unsafe fn new(input: Row<'a, M::Cell<I>>, output: Row<'a, M::Cell<O>>, count: u64) -> Self {
        Self { input, output, count, _lent: PhantomData }
    }

    /// Returns the number of messages, at least one.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Calls `read` with the message at `index`, in place; all lanes may read it at once.
    ///
    /// # Safety
    ///
    /// `index` is below [`len`](Self::len).
    #[inline(always)]
    pub unsafe fn message<R>(&self, index: u64, read: impl FnOnce(&I) -> R) -> R {
        // SAFETY: the slot belongs to this batch by the caller's promise, and holds initialised memory that is valid for any bytes; it is
        // not written before it is released.
        self.input.at(index).with(|message| unsafe { read(&*message) })
    }

    /// Calls `answer` with the message at `index` and the slot of its answer, both in place.
    ///
    /// # Safety
    ///
    /// `index` is below [`len`](Self::len), and no other lane exchanges at this index.
    #[inline(always)]
    pub unsafe fn exchange<R>(&self, index: u64, answer: impl FnOnce(&I, &mut O) -> R) -> R {
        self.input.at(index).with(|message| {
            self.output.at(index).with_mut(|slot| {
                // SAFETY: both slots belong to this batch and hold initialised memory that is valid for any bytes. Only this lane accesses
                // them, by the caller's promise.
                unsafe { answer(&*message, &mut *slot) }
            })
        })
    }
}

/// The unit of one access: the widest that every architecture supports.
#[repr(C, align(16))]
struct Piece(u64, u64);

impl<T: RingMessage, M: Machine> Batch<'_, '_, T, T, M> {
    /// Answers every message with a copy of itself. Neighbouring lanes move neighbouring 16 bytes, so each access of a warp covers whole
    /// lines. Each lane issues four loads before its first store. The size and alignment of a message must be multiples of 16 bytes: others
    /// do not compile.
    ///
    /// # Safety
    ///
    /// Every lane calls it, and no lane calls [`exchange`](Self::exchange) on this batch.
    #[inline(always)]
    pub unsafe fn return_all<L: Lanes>(&self, lanes: &L) {
        const { assert!(size_of::<T>().is_multiple_of(16) && align_of::<T>().is_multiple_of(16)) };
        let (width, all) = (u64::from(L::WIDTH), self.count * pieces::<T>());
        let mut first = u64::from(lanes.lane());
        while first < all {
            let [a, b, c, d] = [first, first + width, first + 2 * width, first + 3 * width];
            let load = |piece| if piece < all { self.load(piece) } else { (0, 0) };
            let (of_a, of_b, of_c, of_d) = (load(a), load(b), load(c), load(d));
            let store = |piece, value| {
                if piece < all {
                    self.store(piece, value);
                }
            };
            store(a, of_a);
            store(b, of_b);
            store(c, of_c);
            store(d, of_d);
            first += 4 * width;
        }
    }

    /// Returns a pair instead of a [`Piece`]: a struct of that alignment would go through local memory.
    #[inline(always)]
    fn load(&self, piece: u64) -> (u64, u64) {
        let (index, within) = (piece / pieces::<T>(), piece % pieces::<T>());
        self.input.at(index).with(|message| {
            // SAFETY: within the message, aligned, initialised and not written: the batch's invariant.
            let Piece(low, high) = unsafe { &*message.cast::<Piece>().add(within as usize) };
            (*low, *high)
        })
    }

    #[inline(always)]
    fn store(&self, piece: u64, (low, high): (u64, u64)) {
        let (index, within) = (piece / pieces::<T>(), piece % pieces::<T>());
        // SAFETY: within the slot and aligned; each piece belongs to one lane.
        self.output.at(index).with_mut(|slot| unsafe { slot.cast::<Piece>().add(within as usize).write(Piece(low, high)) });
    }
}

const fn pieces<T>() -> u64 {
    (size_of::<T>() / size_of::<Piece>()) as u64
}
