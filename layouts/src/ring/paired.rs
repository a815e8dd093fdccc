//! An SPSC queue whose words carry their own flags: across a bus, the load that finds a message brings its payload.
//!
//! 1. Every message is popped once, in order.
//! 2. Each word of a slot holds four bytes of the message and a flag of 32 bits: the lap. A word is one access, so neither push nor pop needs a
//!    fence.
//! 3. A slot takes twice the bytes of its message. A GPU lane moves a [`Pair`] of words with one access; the other side may see its halves at
//!    different times.
//! 4. A producer that dies before the last store of a push leaves no message: the next producer takes the slot. Only a pop that began before the
//!    death and ends after the next push could see words of both.
//!
//! Use it for the latency of small messages across a bus, [`spsc`](crate::ring::spsc) for their rate. There are no slices in place.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use core::ptr::NonNull;
//! use ringmem::ring::{RingFlags, paired};
//! use ringmem::{Host, HostWord, RingHeader, RingLayout, Word};
//!
//! let layout = RingLayout::of_kind::<[u32; 3]>(RingFlags::PAIRED, 2)?;
//! assert_eq!(layout.slot_size(), 32); // twelve bytes in two pairs
//! let header = RingHeader::<HostWord>::new::<[u32; 3]>(&layout, 0);
//! let pairs: [paired::Pair<HostWord>; 4] = core::array::from_fn(|_| paired::Pair([HostWord::new(0), HostWord::new(0)]));
//! // SAFETY: two slots of two pairs, zeroed; only these ends access them.
//! let mut producer = unsafe { paired::Producer::<[u32; 3], Host>::new(&header, &header, NonNull::from(&pairs).cast())? };
//! // SAFETY: two slots of two pairs, zeroed; only these ends access them.
//! let mut consumer = unsafe { paired::Consumer::<[u32; 3], Host>::new(&header, &header, NonNull::from(&pairs).cast())? };
//! producer.push([1, 2, 3])?;
//! assert_eq!(consumer.pop(), Ok([1, 2, 3]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use super::RingFlags;
pub use super::error::{PopError, PushError};
use super::header::used;
use super::layout::PAIR;
pub use super::layout::pairs_of;
use super::port::Port;
use super::slots::{geometry_of_both, place};
use crate::attach::{AttachError, Corrupt};
use crate::{Machine, RingHeader, RingMessage, Word};

/// Two words: eight bytes of a message.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::paired::Pair;
///
/// assert_eq!((size_of::<Pair<u64>>(), align_of::<Pair<u64>>()), (16, 16));
/// ```
#[repr(C, align(16))]
pub struct Pair<W>(pub [W; 2]);

const _: () = assert!(size_of::<Pair<u64>>() as u64 == PAIR && align_of::<Pair<u64>>() as u64 == PAIR && PAIR == 4 * PART as u64);

const PART: usize = size_of::<u32>();

const FLAG: u64 = !0 << 32;

/// Twice the lap, plus 1: not 0, as in zeroed memory, and not that of the lap before.
#[inline(always)]
const fn flag(index: u64, mask: u64) -> u64 {
    (index >> mask.trailing_ones()) << 33 | 1 << 32
}

struct Slots<'a, T, W> {
    // INVARIANT: `mask + 1` slots of `pairs_of::<T>()` pairs live here for 'a, a power of two.
    base: NonNull<Pair<W>>,
    mask: u64,
    _slots: PhantomData<(&'a W, T)>,
}

impl<'a, T, W: Word> Slots<'a, T, W> {
    #[inline(always)]
    const fn pair(&self, index: u64, within: u64) -> &'a [W; 2] {
        let number = (index & self.mask) * pairs_of::<T>() + within;
        // SAFETY: below the capacity; within the slot by the callers; valid by the invariant.
        unsafe { &self.base.add(number as usize).as_ref().0 }
    }

    #[inline(always)]
    fn word(&self, index: u64, number: u64) -> &'a W {
        &self.pair(index, number / 2)[(number % 2) as usize]
    }

    /// The messages from `head` on: slots of which each word has its flag. Words of the slots behind them that look like words of a message
    /// become 0: an earlier use of the memory left them, or a push that ended early.
    fn waiting(&self, head: u64) -> u64 {
        let words = 2 * pairs_of::<T>();
        let has_flag = |offset: u64, number: u64| {
            let index = head.wrapping_add(offset);
            self.word(index, number).load() & FLAG == flag(index, self.mask)
        };
        // A device would store an iterator in local memory.
        let (mut waiting, mut number) = (0, 0);
        while waiting <= self.mask && has_flag(waiting, number) {
            number += 1;
            if number == words {
                (waiting, number) = (waiting + 1, 0);
            }
        }
        let mut offset = waiting;
        while offset <= self.mask {
            let mut number = 0;
            while number < words {
                if has_flag(offset, number) {
                    self.word(head.wrapping_add(offset), number).store(0);
                }
                number += 1;
            }
            offset += 1;
        }
        waiting
    }
}

/// One end of a ring: see [`Producer`] and [`Consumer`].
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::{RingFlags, paired::Producer};
/// # use ringmem::{CacheLineAligned, HostWord, RingHeader, RingLayout};
/// use ringmem::Host;
/// use ringmem::ring::paired::End;
///
/// /// How often the end has wrapped.
/// fn laps<const FILLS: bool>(end: &End<'_, u64, Host, FILLS>) -> u64 {
///     end.next_index() / end.capacity() as u64
/// }
///
/// # let layout = RingLayout::of_kind::<u64>(RingFlags::PAIRED, 4)?;
/// # let mut memory = CacheLineAligned::new([0_u64; 64]);
/// # let (base, len) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64);
/// # unsafe { base.cast::<RingHeader<HostWord>>().as_ref().format::<u64>(&layout, 0) };
/// # let mut producer = unsafe { Producer::<u64, Host>::from_raw(base, len)? };
/// (0..4).try_for_each(|number| producer.push(number))?;
/// assert_eq!(laps(&producer), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct End<'a, T, M: Machine, const FILLS: bool> {
    port: Port<'a, M::Word, FILLS>,
    slots: Slots<'a, T, M::Word>,
    next: u64,
    /// INVARIANT: of a producer, the consumer's index as last polled, plus the capacity: at most the capacity after `next`.
    end: u64,
}

impl<T, M: Machine, const FILLS: bool> fmt::Debug for End<'_, T, M, FILLS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(if FILLS { "Producer" } else { "Consumer" }).field("next", &self.next).finish_non_exhaustive()
    }
}

/// Fills slots. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::RingFlags;
/// # use ringmem::{CacheLineAligned, HostWord, RingHeader, RingLayout};
/// use ringmem::Host;
/// use ringmem::ring::paired::{Producer, PushError};
///
/// # let layout = RingLayout::of_kind::<u64>(RingFlags::PAIRED, 2)?;
/// # let mut memory = CacheLineAligned::new([0_u64; 64]);
/// # let (base, len) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64);
/// # unsafe { base.cast::<RingHeader<HostWord>>().as_ref().format::<u64>(&layout, 0) };
/// // SAFETY: an empty ring of two slots, within `len` bytes at `base`; this is its only producer.
/// let mut producer = unsafe { Producer::<u64, Host>::from_raw(base, len)? };
/// producer.push(7)?;
/// producer.push(8)?;
/// assert_eq!(producer.push(9), Err(PushError::Full(9)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Producer<'a, T, M> = End<'a, T, M, true>;

/// Empties slots. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::{RingFlags, paired::Producer};
/// # use ringmem::{CacheLineAligned, HostWord, RingHeader, RingLayout};
/// use ringmem::Host;
/// use ringmem::ring::paired::{Consumer, PopError};
///
/// # let layout = RingLayout::of_kind::<u64>(RingFlags::PAIRED, 2)?;
/// # let mut memory = CacheLineAligned::new([0_u64; 64]);
/// # let (base, len) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64);
/// # unsafe { base.cast::<RingHeader<HostWord>>().as_ref().format::<u64>(&layout, 0) };
/// // SAFETY: a ring within `len` bytes at `base`; this is its only consumer.
/// let mut consumer = unsafe { Consumer::<u64, Host>::from_raw(base, len)? };
/// assert_eq!(consumer.pop(), Err(PopError::Empty));
/// # let mut producer = unsafe { Producer::<u64, Host>::from_raw(base, len)? };
/// producer.push(7)?; // usually on a device
/// assert_eq!((consumer.pop(), consumer.next_index()), (Ok(7), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Consumer<'a, T, M> = End<'a, T, M, false>;

// SAFETY: it copies `T`s; words have their own operations.
unsafe impl<T: Send, M: Machine, const FILLS: bool> Send for End<'_, T, M, FILLS> {}

impl<'a, T: RingMessage, M: Machine, const FILLS: bool> End<'a, T, M, FILLS> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), for `len` bytes at `base`.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only ends of the ring access them, so
        // the header only as words.
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::PAIRED, base, len)? };
        // SAFETY: the caller promises the ring's only producer or consumer; `place` checked that its slots lie within `len`, and that the
        // capacity is a power of two.
        unsafe { Self::over(header, header, slots.cast(), layout.capacity()) }.map_err(AttachError::Corrupt)
    }

    /// Attaches to two headers: `own` is polled, `peer` is written. A producer reads every word of the slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`], for either header.
    ///
    /// # Safety
    ///
    /// For `'a`, as many slots at `slots` as `own` says are valid and initialised, and only one producer and one consumer access them or
    /// the headers.
    pub unsafe fn new(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<Pair<M::Word>>,
    ) -> Result<Self, AttachError> {
        let layout = geometry_of_both::<T, _>(RingFlags::PAIRED, own, peer)?;
        // SAFETY: the caller promises the ring's only producer or consumer, and as many valid slots as `own` says; the geometry was
        // checked, so `capacity` is the ring's.
        unsafe { Self::over(own, peer, slots, layout.capacity()) }.map_err(AttachError::Corrupt)
    }

    /// Attaches without checking the geometry.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new); `capacity` is the ring's, a power of two that fits `usize`.
    pub unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<Pair<M::Word>>,
        capacity: u64,
    ) -> Result<Self, Corrupt> {
        let slots = Slots { base: slots, mask: capacity - 1, _slots: PhantomData };
        // SYNC POINT: slot released. Pairs with the store in Consumer::pop.
        let head = if FILLS { own.consumer.head.load_acquire() } else { peer.consumer.head.load() };
        let next = if FILLS { head.wrapping_add(slots.waiting(head)) } else { head };
        used(head, next, capacity)?;
        Ok(Self { port: Port::new(own, peer), slots, next, end: head.wrapping_add(capacity) })
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        (self.slots.mask + 1) as usize
    }

    /// Returns the next index to fill or empty.
    #[must_use]
    pub const fn next_index(&self) -> u64 {
        self.next
    }
}

#[doc(hidden)]
impl<'a, T: RingMessage, M: Machine, const FILLS: bool> End<'a, T, M, FILLS> {
    /// Returns the pair `within` the slot `offset` after the next, and the flag of its words. For lanes with equal copies of one end.
    ///
    /// # Safety
    ///
    /// `within` is below [`pairs_of`] the message.
    #[inline(always)]
    #[must_use]
    pub unsafe fn pair(&self, offset: u64, within: u64) -> (&'a [M::Word; 2], u64) {
        let index = self.next.wrapping_add(offset);
        (self.slots.pair(index, within), flag(index, self.slots.mask))
    }

    /// Counts `count` slots as filled or emptied.
    ///
    /// # Safety
    ///
    /// All lanes have stored or loaded them; a producer had them [free](Self::free).
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        self.next = self.next.wrapping_add(count);
    }
}

impl<T: RingMessage, M: Machine> Producer<'_, T, M> {
    /// Returns the slots known to be free; [`refresh`](Self::refresh) polls.
    #[must_use]
    #[inline(always)]
    pub const fn free(&self) -> usize {
        self.end.wrapping_sub(self.next) as usize
    }

    /// Returns the consumer's index in memory.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        // SYNC POINT: slot released. Pairs with the store in Consumer::pop.
        self.port.own.consumer.head.load_acquire()
    }

    /// As [`ring::Producer::assume_full`](crate::ring::Producer::assume_full).
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(hidden)]
    #[inline(always)]
    pub fn assume_full(&mut self) -> Result<usize, Corrupt> {
        // SAFETY: no slot becomes free.
        unsafe { self.accept(self.next.wrapping_sub(self.slots.mask + 1)) }
    }

    /// As [`spsc::Producer::unread`](crate::ring::Producer::unread).
    #[must_use]
    #[inline(always)]
    pub fn unread(&self) -> usize {
        self.next_index().wrapping_sub(self.port.own.consumer.head.load()).min(self.capacity() as u64) as usize
    }

    /// Accepts a polled index; returns the number of free slots.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing changes.
    ///
    /// # Safety
    ///
    /// As [`ring::Producer::accept`](crate::ring::Producer::accept).
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn accept(&mut self, head: u64) -> Result<usize, Corrupt> {
        let used = used(head, self.next, self.slots.mask + 1)?;
        self.end = head.wrapping_add(self.slots.mask + 1);
        Ok((self.slots.mask + 1 - used) as usize)
    }

    /// Polls the consumer's index; returns the number of free slots.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; this end keeps its last index.
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        let head = self.poll();
        // SAFETY: just polled, on this lane.
        unsafe { self.accept(head) }
    }

    /// Pushes one value; each word is visible on its own.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    pub fn push(&mut self, value: T) -> Result<(), PushError<T, Corrupt>> {
        if self.free() == 0 {
            match self.refresh() {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(corrupt) => return Err(PushError::Corrupt(value, corrupt)),
            }
        }
        let flag = flag(self.next, self.slots.mask);
        let parts = value.as_bytes().chunks(PART);
        // The first word, which a consumer polls, is the last: a push that ends early shows it nothing.
        for number in (0..2 * pairs_of::<T>()).rev() {
            let mut part = [0; PART];
            if let Some(bytes) = parts.clone().nth(number as usize) {
                part[..bytes.len()].copy_from_slice(bytes);
            }
            self.slots.word(self.next, number).store(flag | u64::from(u32::from_le_bytes(part)));
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}

impl<'a, T: RingMessage, M: Machine> Consumer<'a, T, M> {
    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also while words of the message are missing.
    pub fn pop(&mut self) -> Result<T, PopError<Corrupt>> {
        let flag = flag(self.next, self.slots.mask);
        let mut value = T::zeroed();
        for (number, bytes) in (0..).zip(value.as_bytes_mut().chunks_mut(PART)) {
            let word = self.slots.word(self.next, number).load();
            if word & FLAG != flag {
                return Err(PopError::Empty);
            }
            bytes.copy_from_slice(&(word as u32).to_le_bytes()[..bytes.len()]);
        }
        self.next = self.next.wrapping_add(1);
        let (head, next) = self.release();
        // SYNC POINT: slot released. Pairs with Producer::poll.
        head.store_release(next);
        Ok(value)
    }

    /// Returns the word that releases the emptied slots, and its value. A relaxed store suffices if it depends on the flags of all their words: a
    /// load that returned this lap's flag did not return a later store of the producer.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub const fn release(&self) -> (&'a M::Word, u64) {
        (&self.port.peer.consumer.head, self.next)
    }
}
