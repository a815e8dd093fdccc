use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;

use super::storage::{BareSlot, Storage, WordSlot, capacity_of, slots_of};
use crate::host::HostCell;
use crate::ring::chunk::drop_all;
use crate::ring::header::used;
use crate::ring::kind::{Flagged, InPlace, Indexed, Kind, Mpmc, Mpsc, OneConsumer, OneProducer, Turns, claim, take};
use crate::ring::port::Port;
use crate::ring::slots::{first_use, free};
use crate::ring::{Consumer, LayoutError, Producer, RingHeader, Slot, flagged, mpmc, mpsc, spsc};
use crate::{HostWord, Local, SlotCell, Word};

/// A ring of values of any type, with its slots in `S`: inline, borrowed, or boxed.
///
/// Dropping it drops the remaining values, also if one drop panics.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::mem::MaybeUninit;
/// use ringmem::ring::spsc::RingIn;
/// let mut memory = [const { MaybeUninit::uninit() }; 100];
/// let capacity = 64; // known at run time
/// let mut ring = RingIn::<String, _>::over(&mut memory[..capacity])?;
/// let (mut producer, mut consumer) = ring.split();
/// producer.push("hello".to_owned()).unwrap();
/// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[repr(C)]
pub struct RingIn<K: HostKind<T>, T, S: Storage<K::Slot>> {
    pub(in crate::ring) header: RingHeader<HostWord>,
    // INVARIANT: a power of two of them, initialised by the kind; those that hold messages are valid.
    pub(in crate::ring) slots: S,
    _values: PhantomData<(K, T)>,
}

type Inline<K, T, const N: usize> = RingIn<K, T, [MaybeUninit<<K as Kind<T, Local>>::Slot>; N]>;

/// A kind of ring between host threads.
pub trait HostKind<T>: Kind<T, Local> {
    #[doc(hidden)]
    const CLEAR: MaybeUninit<Self::Slot>;

    #[doc(hidden)]
    fn clear(slots: &mut [MaybeUninit<Self::Slot>], start: u64);

    /// # Safety
    ///
    /// As [`Producer::over`], and no end is attached.
    #[doc(hidden)]
    unsafe fn drop_values(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64);

    /// Pops and drops the published values, while producers may push.
    ///
    /// # Safety
    ///
    /// The header is that of a ring with this capacity, a power of two that fits `usize`; at `slots` it has as many valid slots, of which published ones are
    /// initialised. Only the ring's producers use these too. No consumer is attached or will be, and no other thread calls this meanwhile.
    #[doc(hidden)]
    unsafe fn discard(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64);
}

/// # Safety
///
/// As [`Producer::over`], and no other end is attached.
unsafe fn pair<'a, K: OneProducer<T, Local> + OneConsumer<T, Local>, T>(
    header: &'a RingHeader<HostWord>,
    slots: NonNull<K::Slot>,
    capacity: u64,
) -> (Producer<'a, K, T, Local>, Consumer<'a, K, T, Local>) {
    // SAFETY: the caller promises a valid header for `'a`, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
    // initialised. No other end is attached, so only this producer and the consumer below access them.
    let producer = unsafe { Producer::over(header, header, slots, capacity) };
    // SAFETY: the caller promises valid slots and a right capacity, and that no other end is attached, so this is the only consumer.
    let consumer = unsafe { Consumer::over(header, header, slots, capacity) };
    match (producer, consumer) {
        (Ok(producer), Ok(consumer)) => (producer.announce(), consumer.announce()),
        _ => unreachable!("a ring's own indices are within its capacity"),
    }
}

/// Plain loads: for a new ring the compiler then knows both indices.
///
/// # Safety
///
/// As [`pair`], and nothing accesses the header during the call.
#[inline]
unsafe fn indexed_pair<'a, T>(
    header: &'a RingHeader<HostWord>,
    slots: NonNull<BareSlot<T>>,
    capacity: u64,
) -> (spsc::Producer<'a, T, Local>, spsc::Consumer<'a, T, Local>) {
    // SAFETY: the caller promises that nothing accesses the header during the call, so plain reads of its words race with no store.
    let (tail, head) = unsafe { (header.producer.tail.as_ptr().read(), header.consumer.head.as_ptr().read()) };
    assert!(used(head, tail, capacity).is_ok(), "a ring's own indices are within its capacity");
    // SAFETY: the caller promises a valid header for `'a`, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
    // initialised. No other end is attached, so only these two access them. The indices were read from the ring.
    let (producer, consumer) =
        unsafe { spsc::constant::ends(Port::new(header, header), Port::new(header, header), slots, capacity, head, tail) };
    (producer.announce(), consumer.announce())
}

/// # Safety
///
/// As [`pair`].
unsafe fn drop_popped<K: OneProducer<T, Local> + OneConsumer<T, Local> + InPlace, T>(
    header: &RingHeader<HostWord>,
    slots: NonNull<K::Slot>,
    capacity: u64,
) {
    // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
    // initialised. No other end is attached.
    let (_, mut consumer) = unsafe { pair::<K, T>(header, slots, capacity) };
    drop_all(|| consumer.peek(usize::MAX).map(|chunk| chunk.release(usize::MAX)).is_ok());
}

/// # Safety
///
/// As [`HostKind::discard`].
unsafe fn discard_popped<K: OneConsumer<T, Local> + InPlace, T>(header: &RingHeader<HostWord>, slots: NonNull<K::Slot>, capacity: u64) {
    const { assert!(!K::ANNOUNCED, "the consumer below does not open the end again") };
    // SAFETY: the caller promises valid slots, and that no consumer is attached or will be, so this is the only one while it lives. An
    // index that producers write is in range: they are this library's.
    if let Ok(mut consumer) = unsafe { Consumer::<K, T, Local>::over(header, header, slots, capacity) } {
        drop_all(|| consumer.peek(usize::MAX).map(|chunk| chunk.release(usize::MAX)).is_ok());
    }
}

/// As a consumer of an MPMC ring, without a handle: one would open the end again, and a producer could not see that it is closed.
///
/// # Safety
///
/// As [`HostKind::discard`].
unsafe fn discard_claimed<T>(header: &RingHeader<HostWord>, slots: NonNull<WordSlot<T>>, capacity: u64) {
    // SAFETY: the caller promises `capacity` valid slots, shared only by ends of this ring, which all follow this protocol.
    let turns = unsafe { Turns::<T, Local>::new(header, slots, capacity) };
    let mut hint = Word::load(&header.consumer.head);
    drop_all(|| {
        let look = |head| turns.look(head, 1, |index| turns.full(index));
        let Some((index, _)) = claim(&header.consumer.head, &mut hint, look, |index| turns.after_given_up(index)) else { return false };
        // SAFETY: claimed just now.
        drop(unsafe { take::<T, Local>(turns.slot(index), turns.taken(index)) });
        true
    });
}

/// # Safety
///
/// As [`Producer::over`], and no end is attached.
unsafe fn drop_full<T>(header: &RingHeader<HostWord>, slots: NonNull<WordSlot<T>>, capacity: u64) {
    // SAFETY: the caller promises `capacity` valid slots and that no end is attached, so nothing else accesses them.
    let turns = unsafe { Turns::<T, Local>::new(header, slots, capacity) };
    let mut places = 0..capacity;
    drop_all(|| {
        let Some(place) = places.next() else { return false };
        let slot = turns.slot(place);
        let word = Word::load(&slot.word);
        if word & 1 == 1 {
            // The word first: nothing is dropped twice.
            Word::store(&slot.word, word - 1);
            // SAFETY: a full word means a value; no end is left.
            slot.cell.with_mut(|value| unsafe { value.drop_in_place() });
        }
        true
    });
}

fn vacate<T>(slots: &mut [MaybeUninit<WordSlot<T>>], start: u64) {
    let capacity = slots.len() as u64;
    for (place, slot) in (0..capacity).zip(slots) {
        let word = free(first_use(start, place, capacity), capacity);
        slot.write(Slot::new(HostWord::new(word), HostCell::empty()));
    }
}

impl<T> HostKind<T> for Indexed {
    const CLEAR: MaybeUninit<Self::Slot> = MaybeUninit::uninit();

    fn clear(_: &mut [MaybeUninit<Self::Slot>], _: u64) {}

    unsafe fn drop_values(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64) {
        // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
        // initialised. No end is attached.
        unsafe { drop_popped::<Self, T>(header, slots, capacity) };
    }

    unsafe fn discard(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64) {
        // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
        // initialised. No consumer is attached or will be, and no other thread makes this call meanwhile.
        unsafe { discard_popped::<Self, T>(header, slots, capacity) };
    }
}

impl<T> HostKind<T> for Flagged {
    const CLEAR: MaybeUninit<Self::Slot> = MaybeUninit::new(Slot::new(HostWord::new(0), HostCell::empty()));

    fn clear(slots: &mut [MaybeUninit<Self::Slot>], _: u64) {
        slots.fill_with(|| <Self as HostKind<T>>::CLEAR);
    }

    unsafe fn drop_values(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64) {
        // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
        // initialised. No end is attached.
        unsafe { drop_popped::<Self, T>(header, slots, capacity) };
    }

    unsafe fn discard(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64) {
        // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones are
        // initialised. No consumer is attached or will be, and no other thread makes this call meanwhile.
        unsafe { discard_popped::<Self, T>(header, slots, capacity) };
    }
}

macro_rules! many_producers {
    ($($kind:ty)+) => {$(
        impl<T> HostKind<T> for $kind {
            const CLEAR: MaybeUninit<Self::Slot> = MaybeUninit::new(Slot::new(HostWord::new(0), HostCell::empty()));

            fn clear(slots: &mut [MaybeUninit<Self::Slot>], start: u64) {
                vacate(slots, start);
            }

            unsafe fn drop_values(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64) {
                // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones
                // are initialised. No end is attached.
                unsafe { drop_full::<T>(header, slots, capacity) };
            }

            unsafe fn discard(header: &RingHeader<HostWord>, slots: NonNull<Self::Slot>, capacity: u64) {
                // SAFETY: the caller promises a valid header, its capacity, a power of two that fits `usize`, and as many valid slots, of which published ones
                // are initialised. No consumer is attached or will be, and no other thread makes this call meanwhile.
                unsafe { discard_claimed::<T>(header, slots, capacity) };
            }
        }
    )+};
}

many_producers! { Mpsc Mpmc }

// SAFETY: threads reach a `T` through ends only, one per message at a time; `split` takes `&mut` for unique ends.
unsafe impl<K: HostKind<T>, T: Send, S: Storage<K::Slot>> Sync for RingIn<K, T, S> {}

impl<K: HostKind<T>, T, const N: usize> Inline<K, T, N> {
    /// Returns an empty ring.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N.is_power_of_two(), "a ring's capacity must be a power of two") };
        let header = RingHeader::inline(K::FLAGS, N as u64, size_of::<K::Slot>(), offset_of!(Self, slots), 0);
        Self { header, slots: [const { K::CLEAR }; N], _values: PhantomData }
    }

    /// Returns an empty ring that begins at `start`, for tests of the wrap.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        let mut ring = Self::new();
        ring.header.producer.tail = HostWord::new(start);
        ring.header.consumer.head = HostWord::new(start);
        K::clear(&mut ring.slots, start);
        ring
    }
}

impl<K: HostKind<T>, T, const N: usize> Default for Inline<K, T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: HostKind<T>, T, S: Storage<K::Slot>> RingIn<K, T, S> {
    /// Returns an empty ring over these slots.
    ///
    /// # Errors
    ///
    /// [`LayoutError::NotAPowerOfTwo`].
    pub fn over(slots: S) -> Result<Self, LayoutError> {
        Self::over_starting_at(slots, 0)
    }

    /// Like [`over`](Self::over), beginning at `start`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub fn over_starting_at(mut slots: S, start: u64) -> Result<Self, LayoutError> {
        let capacity = capacity_of(&slots)?;
        K::clear(slots.as_mut(), start);
        let header = RingHeader::inline(K::FLAGS, capacity, size_of::<K::Slot>(), 0, start);
        Ok(Self { header, slots, _values: PhantomData })
    }
}

macro_rules! split {
    ($($kind:ident[$slot:ident]: ($($lend:tt)+) -> $module:ident, $ends:path;)+) => {$(
        impl<T, S: Storage<$slot<T>>> RingIn<$kind, T, S> {
            /// Returns both ends. Cloneable ends can be requested at any time, others when both are dropped; remaining values stay.
            pub fn split($($lend)+ self) -> ($module::Producer<'_, T, Local>, $module::Consumer<'_, T, Local>) {
                let Self { header, slots, .. } = &*self;
                let (slots, capacity) = slots_of(slots);
                // SAFETY: the borrow lends the ring to ends of this protocol only, to one pair if it is mutable; the slots fulfil the invariant.
                unsafe { $ends(header, slots, capacity) }
            }
        }
    )+};
}

split! {
    Indexed[BareSlot]: (&mut) -> spsc, indexed_pair;
    Flagged[WordSlot]: (&mut) -> flagged, pair;
    Mpsc[WordSlot]: (&mut) -> mpsc, one_consumer;
    Mpmc[WordSlot]: (&) -> mpmc, handles;
}

/// # Safety
///
/// As [`pair`], but other producers may be attached.
unsafe fn one_consumer<'a, T>(
    header: &'a RingHeader<HostWord>,
    slots: NonNull<WordSlot<T>>,
    capacity: u64,
) -> (mpsc::Producer<'a, T, Local>, mpsc::Consumer<'a, T, Local>) {
    // SAFETY: the caller promises `capacity` valid slots, shared only by ends of this ring, which all follow this protocol.
    let producer = mpsc::Producer::at(unsafe { Turns::new(header, slots, capacity) });
    // SAFETY: the caller promises valid slots and a right capacity, and that at most producers are attached, so this is the only consumer.
    match unsafe { Consumer::over(header, header, slots, capacity) } {
        Ok(consumer) => (producer, consumer),
        Err(_) => unreachable!("a consumer that polls slots reads no index of others"),
    }
}

/// # Safety
///
/// As [`pair`], but other handles may be attached.
unsafe fn handles<'a, T>(
    header: &'a RingHeader<HostWord>,
    slots: NonNull<WordSlot<T>>,
    capacity: u64,
) -> (mpmc::Producer<'a, T, Local>, mpmc::Consumer<'a, T, Local>) {
    // SAFETY: the caller promises `capacity` valid slots, shared only by handles of this ring, which all follow this protocol.
    let turns = unsafe { Turns::new(header, slots, capacity) };
    (mpmc::Producer::at(turns), mpmc::Consumer::at(turns))
}

impl<K: HostKind<T>, T, S: Storage<K::Slot>> Drop for RingIn<K, T, S> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            let (slots, capacity) = slots_of(&self.slots);
            // SAFETY: the slots fulfil the invariant; no end outlives the ring.
            unsafe { K::drop_values(&self.header, slots, capacity) };
        }
    }
}

static_assertions::assert_impl_all!(Producer<'static, Indexed, u64, Local>: Send);
static_assertions::assert_impl_all!(Consumer<'static, Mpsc, u64, Local>: Send);
static_assertions::assert_not_impl_any!(Producer<'static, Flagged, u64, Local>: Sync, Clone);
static_assertions::assert_not_impl_any!(Consumer<'static, Indexed, u64, Local>: Sync, Clone);
