//! [`RingIn`] and [`Ring`]: header and slots in one value, for threads or a `static`.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};

use super::{Consumer, Producer};
use crate::host::HostCell;
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
use crate::ring::Owned;
use crate::ring::drain::drop_all;
use crate::ring::storage::{capacity_of, slots_of};
use crate::ring::turns::{Turns, first_use, free};
use crate::ring::{LayoutError, RingFlags, RingHeader, Slot, Storage, WordSlot};
use crate::{Host, HostWord, SlotCell, Word};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::mpmc::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
pub type Ring<T, const N: usize> = RingIn<T, [MaybeUninit<WordSlot<T>>; N]>;

/// A ring whose capacity is known at run time, on the heap.
#[cfg(feature = "alloc")]
pub type Boxed<T> = RingIn<T, alloc::boxed::Box<[MaybeUninit<WordSlot<T>>]>>;

/// A ring of values of any type, whose slots lie in `S`: in the ring itself ([`Ring`]), in memory that the caller lends, in a box.
///
/// Dropping the ring drops the values left in it. If one drop panics, the other values are still dropped.
///
/// ```
/// use core::mem::MaybeUninit;
/// use ringmem_layouts::ring::mpmc::RingIn;
/// let mut memory = [const { MaybeUninit::uninit() }; 100];
/// let capacity = 64; // known at run time
/// let ring = RingIn::<String, _>::over(&mut memory[..capacity])?;
/// let (mut producer, mut consumer) = ring.split();
/// producer.push("hello".to_owned()).unwrap();
/// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
/// # Ok::<(), ringmem_layouts::ring::LayoutError>(())
/// ```
#[repr(C)]
pub struct RingIn<T, S: Storage<WordSlot<T>>> {
    header: RingHeader<HostWord>,
    // INVARIANT: a power of two of them, their words initialised; those that are full have values.
    slots: S,
    _values: PhantomData<T>,
}

/// A producer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedProducer<T> = Owned<Producer<'static, T, Host>>;

/// A consumer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedConsumer<T> = Owned<Consumer<'static, T, Host>>;

// SAFETY: threads reach a `T` through handles only, of which each message has one at a time; the storage can be asked by all of them.
unsafe impl<T: Send, S: Storage<WordSlot<T>>> Sync for RingIn<T, S> {}

/// A slot that is free for its first index from `start` on.
const fn vacant<T>(place: u64, capacity: u64, start: u64) -> MaybeUninit<WordSlot<T>> {
    let word = free(first_use(start, place, capacity), capacity);
    MaybeUninit::new(Slot::new(HostWord::new(word), HostCell::empty()))
}

impl<T, const N: usize> Ring<T, N> {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty ring whose indices begin at `start`: near `u64::MAX` a test sees them wrap.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        Self::of_kind(RingFlags::MPMC, start)
    }

    pub(in crate::ring) const fn of_kind(kind: RingFlags, start: u64) -> Self {
        const { assert!(N.is_power_of_two(), "a ring's capacity must be a power of two") };
        let mut slots = [const { MaybeUninit::uninit() }; N];
        let mut place = 0;
        while place < N {
            slots[place] = vacant(place as u64, N as u64, start);
            place += 1;
        }
        let header = RingHeader::inline(kind, N as u64, size_of::<WordSlot<T>>(), offset_of!(Self, slots), start);
        Self { header, slots, _values: PhantomData }
    }
}

impl<T, S: Storage<WordSlot<T>>> RingIn<T, S> {
    /// An empty ring over all of these slots.
    ///
    /// # Errors
    ///
    /// [`LayoutError::NotAPowerOfTwo`] for another number of slots.
    pub fn over(slots: S) -> Result<Self, LayoutError> {
        Self::over_starting_at(slots, 0)
    }

    /// As [`over`](Self::over), with indices that begin at `start`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub fn over_starting_at(slots: S, start: u64) -> Result<Self, LayoutError> {
        Self::of_kind_over(RingFlags::MPMC, slots, start)
    }

    pub(in crate::ring) fn of_kind_over(kind: RingFlags, mut slots: S, start: u64) -> Result<Self, LayoutError> {
        let capacity = capacity_of(&slots)?;
        for (place, slot) in (0..capacity).zip(slots.as_mut()) {
            *slot = vacant(place, capacity, start);
        }
        // Nobody asks this header where its slots are.
        let header = RingHeader::inline(kind, capacity, size_of::<WordSlot<T>>(), 0, start);
        Ok(Self { header, slots, _values: PhantomData })
    }

    /// A handle for each end; both can be cloned, and asked for again.
    pub fn split(&self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        (Producer::at(self.turns()), Consumer::at(self.turns()))
    }

    /// As `split`, with handles that hold the ring: they go to any thread or task, and the last of them drops what is left.
    #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
    #[must_use]
    pub fn into_ends(self) -> (OwnedProducer<T>, OwnedConsumer<T>)
    where
        T: Send + 'static,
        S: Send + 'static,
    {
        crate::ring::owned::own(self, |ring| ring.split())
    }

    pub(in crate::ring) fn turns(&self) -> Turns<'_, T, Host> {
        let (slots, capacity) = slots_of(&self.slots);
        // SAFETY: so many slots live as long as the borrow and are reached by this protocol only; a power of two of them.
        unsafe { Turns::new(&self.header, slots, capacity) }
    }
}

impl<T, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, S: Storage<WordSlot<T>>> Drop for RingIn<T, S> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            let turns = self.turns();
            let mut places = 0..turns.capacity();
            drop_all(|| {
                let Some(place) = places.next() else { return false };
                let slot = turns.slot(place);
                let word = Word::load(&slot.word);
                if word & 1 == 1 {
                    // The word first, so that nothing is dropped twice.
                    Word::store(&slot.word, word - 1);
                    // SAFETY: full says that there is a value; no handle is left to reach it.
                    slot.cell.with_mut(|value| unsafe { value.drop_in_place() });
                }
                true
            });
        }
    }
}
