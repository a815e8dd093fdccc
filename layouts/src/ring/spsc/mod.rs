//! One producer, one consumer, loads and stores only.
//!
//! 1. Everything pushed is popped once, in order; a push that does not fit gives its value back.
//! 2. Wait-free: every operation is a bounded number of steps, whatever the other side does.
//! 3. `push` and `pop` publish at once. [`Producer::batch`] and [`Consumer::batch`] publish every so many messages, and their
//!    documentation says when else.
//! 4. A grant ([`Producer::reserve`], [`Consumer::peek`]) works in place. What was written is published, what was not released stays.
//!
//! It does not wait, does not wake, and does not know whether the other side is still there.
//!
//! # Two threads
//!
//! ```
//! use ringmem_layouts::ring::spsc::Ring;
//! let mut ring = Ring::<u64, 8>::new();
//! let (mut producer, mut consumer) = ring.split();
//! producer.push(7).unwrap();
//! assert_eq!(consumer.pop(), Ok(7));
//! ```
//!
//! # Orderings
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | slot published | the store of `tail` | the load of `tail` in [`Consumer::poll`] |
//! | slot released | the store of `head` | the load of `head` in [`Producer::poll`] |

mod consumer;
mod producer;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
mod ring;

use core::marker::PhantomData;
use core::ptr::NonNull;

pub use consumer::{BatchConsumer, Chunk, Consumer, PopError};
pub use producer::{BatchProducer, Grant, Producer, PushError, ReserveError};
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use ring::Ring;

use crate::attach::AttachError;
use crate::{Machine, RingHeader, RingLayout, RingMessage, SliceCell, Word};

/// Where the slots are.
struct Slots<'a, T, M: Machine> {
    // INVARIANT: `capacity` cells from here live for 'a, and capacity is `mask + 1`, a power of two.
    base: NonNull<M::Cell<T>>,
    mask: u64,
    _cells: PhantomData<&'a M::Cell<T>>,
}

impl<'a, T, M: Machine> Slots<'a, T, M> {
    /// # Safety
    ///
    /// `capacity` cells at `base` live for `'a`; `capacity` is a power of two that fits `usize`.
    const unsafe fn new(base: NonNull<M::Cell<T>>, capacity: u64) -> Self {
        Self { base, mask: capacity - 1, _cells: PhantomData }
    }

    #[inline(always)]
    const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// The cell of an index, whatever the index.
    #[inline(always)]
    fn cell(&self, index: u64) -> &'a M::Cell<T> {
        // SAFETY: the masked index is below the capacity, and the invariant says that so many cells live.
        unsafe { self.base.add((index & self.mask) as usize).as_ref() }
    }

    /// Where the values from `index` up to the wrap stand in a row.
    #[inline(always)]
    fn run(&self, index: u64) -> NonNull<T>
    where
        M::Cell<T>: SliceCell<T>,
    {
        // SAFETY: as in `cell`; a `SliceCell` has the bytes of its `T`, at its start.
        unsafe { self.base.add((index & self.mask) as usize) }.cast()
    }

    /// How many of `count` slots from `index` lie before the wrap.
    #[inline(always)]
    const fn before_wrap(&self, index: u64, count: u64) -> u64 {
        let room = self.capacity() - (index & self.mask);
        if count < room { count } else { room }
    }
}

/// The geometry that both headers of a ring have.
fn geometry_of_both<T: RingMessage, W: Word>(own: &RingHeader<W>, peer: &RingHeader<W>) -> Result<RingLayout, AttachError> {
    let layout = own.geometry::<T>()?;
    if !core::ptr::eq(own, peer) {
        let other = peer.geometry::<T>()?;
        if other != layout {
            return Err(AttachError::Capacity { got: other.capacity() });
        }
    }
    Ok(layout)
}

/// A ring in memory that holds its header and slots together: where both are.
type Place<'a, T, M> = (&'a RingHeader<<M as Machine>::Word>, NonNull<<M as Machine>::Cell<T>>);

/// # Safety
///
/// `len` bytes at `base` are valid for reads and writes for `'a`, initialised, and shared only by a ring's protocol.
unsafe fn place<'a, T: RingMessage, M: Machine>(base: NonNull<u8>, len: u64) -> Result<Place<'a, T, M>, AttachError> {
    const { assert!(size_of::<RingHeader<M::Word>>() == 384 && size_of::<M::Cell<T>>() == size_of::<T>()) };
    let address = base.as_ptr() as u64;
    let align = align_of::<RingHeader<M::Word>>().max(align_of::<T>()) as u64;
    if address & (align - 1) != 0 {
        return Err(AttachError::Misaligned { address, align });
    }
    if len < size_of::<RingHeader<M::Word>>() as u64 {
        return Err(AttachError::TooSmall { needed: size_of::<RingHeader<M::Word>>() as u64, got: len });
    }
    // SAFETY: aligned and long enough, checked above; a header is words, valid for any bytes.
    let header = unsafe { base.cast::<RingHeader<M::Word>>().as_ref() };
    let layout: RingLayout = header.geometry::<T>()?;
    if len < layout.size() {
        return Err(AttachError::TooSmall { needed: layout.size(), got: len });
    }
    // SAFETY: slots_offset is within the layout's size, which is within `len`.
    let slots = unsafe { base.add(layout.slots_offset() as usize) };
    Ok((header, slots.cast()))
}
