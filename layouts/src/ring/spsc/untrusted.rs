//! The same ring where the other end is not trusted: a process that may write anything, anywhere, at any time.
//!
//! 1. Constants are read once, checked and kept. An end's own index is kept too: what stands in memory for it is read when the end
//!    attaches and never again.
//! 2. The other end's index is read once per operation; one that claims more than the capacity is [`Corrupt`]. One that lies within it, forwards
//!    or backwards, is believed: then messages are any bytes, which a [`RingMessage`] may be.
//! 3. Payload moves in relaxed atomic accesses, words where they fit and bytes for the rest, through a copy. So there are no grants and no
//!    peeks: a reference into memory that somebody else writes is undefined behaviour, whatever the value.
//!
//! It is the ring of [`spsc`](super), byte by byte: one end may be of this kind and the other of that one.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::attach::{AttachError, Corrupt};
use crate::ring::header::{RingFlags, used};
use crate::ring::slots::place;
use crate::ring::{Bells, End, Pop, PopError, Push, PushError, end, owner};
use crate::{Host, HostWord, ReadOnly, RingHeader, RingMessage, Word};

/// Fills slots and publishes them. One per ring.
pub struct Producer<'a, T> {
    header: &'a RingHeader<HostWord>,
    slots: Slots<'a, T>,
    // INVARIANT: tail - head <= capacity, wrapping.
    /// The next slot to fill.
    tail: u64,
    /// The consumer's index, as last seen.
    head: u64,
    announced: bool,
}

/// Empties slots and releases them. One per ring.
pub struct Consumer<'a, T> {
    header: &'a RingHeader<HostWord>,
    slots: Slots<'a, T>,
    // INVARIANT: tail - head <= capacity, wrapping.
    /// The next slot to empty.
    head: u64,
    /// The producer's index, as last seen.
    tail: u64,
    announced: bool,
}

// SAFETY: a producer takes `T`s, and reaches memory by atomic accesses alone.
unsafe impl<T: Send> Send for Producer<'_, T> {}
// SAFETY: likewise; it hands them out.
unsafe impl<T: Send> Send for Consumer<'_, T> {}

impl<'a, T: RingMessage> Producer<'a, T> {
    /// Attaches to a ring in one piece of memory: header, then slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are mapped for reading and writing and initialised, and this program reaches them by atomic accesses only.
    /// Nothing is asked about what they hold, or what other processes write there.
    pub unsafe fn attach(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller's promise.
        let (header, slots, capacity) = unsafe { attach::<T>(base, len)? };
        let tail = Word::load(&header.producer.tail);
        // SYNC POINT: slot released. Pairs with Consumer::publish.
        let head = header.consumer.head.load_acquire();
        used(head, tail, capacity).map_err(AttachError::Corrupt)?;
        Ok(Self { header, slots, tail, head, announced: false })
    }

    /// Says in the header that this end is open, and on drop that it is closed: the other end's `is_disconnected` sees it.
    #[must_use]
    pub fn announce(mut self) -> Self {
        owner::open(&self.header.producer.owner);
        self.announced = true;
        self
    }

    /// Pushes one value and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.free() == 0 {
            match self.refresh() {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(_) => return Err(PushError::Corrupt(value)),
            }
        }
        self.slots.store(self.tail, &value);
        self.tail = self.tail.wrapping_add(1);
        self.publish();
        Ok(())
    }

    /// Pushes as many of `values` as fit, from the first, and publishes them together; how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the consumer's index claims what cannot be; nothing was taken.
    pub fn push_slice(&mut self, values: &[T]) -> Result<usize, Corrupt> {
        let wanted = values.len() as u64;
        if self.free() < wanted {
            self.refresh()?;
        }
        let count = wanted.min(self.free()) as usize;
        for value in &values[..count] {
            self.slots.store(self.tail, value);
            self.tail = self.tail.wrapping_add(1);
        }
        if count > 0 {
            self.publish();
        }
        Ok(count)
    }

    /// Looks how far the consumer is: slots that are free now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be; this end goes on with what it knew.
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        let head = self.poll();
        let used = used(head, self.tail, self.capacity())?;
        self.head = head;
        Ok(self.capacity() - used)
    }

    #[inline(always)]
    fn publish(&self) {
        // SYNC POINT: slot published. Pairs with Consumer::poll.
        self.header.producer.tail.store_release(self.tail);
    }
}

impl<'a, T> Producer<'a, T> {
    /// Messages in the ring now; at most the capacity, whatever the other side claims.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.tail.wrapping_sub(self.poll()).min(self.capacity())
    }

    /// Whether nothing is in the ring now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no slot is free now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Slots in all.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.slots.mask + 1
    }

    /// Index of the next slot to fill.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Slots that are free as far as this end has looked; [`refresh`](Self::refresh) looks.
    #[must_use]
    #[inline(always)]
    pub const fn free(&self) -> u64 {
        self.capacity() - self.tail.wrapping_sub(self.head)
    }

    /// Whether the consumer says that it was there and has left.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.header.consumer.owner)
    }

    /// Returns the words of the ring, for loads only. Their values remain untrusted.
    ///
    /// ```compile_fail,E0277
    /// # use ringmem_layouts::{HostWord, Word, ring::spsc::untrusted};
    /// fn spoils(end: &untrusted::Producer<'_, u64>) {
    ///     Word::store(&end.header().producer.tail, 7); // the other end may trust this value
    /// }
    /// ```
    #[must_use]
    pub const fn header(&self) -> &'a RingHeader<ReadOnly<HostWord>> {
        read_only(self.header)
    }

    #[inline(always)]
    fn poll(&self) -> u64 {
        // SYNC POINT: slot released. Pairs with Consumer::publish.
        self.header.consumer.head.load_acquire()
    }
}

impl<'a, T: RingMessage> Consumer<'a, T> {
    /// Attaches to a ring in one piece of memory: header, then slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// As [`Producer::attach`].
    pub unsafe fn attach(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller's promise.
        let (header, slots, capacity) = unsafe { attach::<T>(base, len)? };
        let head = Word::load(&header.consumer.head);
        // SYNC POINT: slot published. Pairs with Producer::publish.
        let tail = header.producer.tail.load_acquire();
        used(head, tail, capacity).map_err(AttachError::Corrupt)?;
        Ok(Self { header, slots, head, tail, announced: false })
    }

    /// Says in the header that this end is open, and on drop that it is closed: the other end's `is_disconnected` sees it.
    #[must_use]
    pub fn announce(mut self) -> Self {
        owner::open(&self.header.consumer.owner);
        self.announced = true;
        self
    }

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if self.available() == 0 && self.refresh().map_err(PopError::Corrupt)? == 0 {
            return Err(PopError::Empty);
        }
        let value = self.slots.load(self.head);
        self.head = self.head.wrapping_add(1);
        self.publish();
        Ok(value)
    }

    /// Pops as many values as wait and fit, and releases their slots together; how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index claims what cannot be; nothing was popped.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, Corrupt> {
        let wanted = values.len() as u64;
        if self.available() < wanted {
            self.refresh()?;
        }
        let count = wanted.min(self.available()) as usize;
        for value in &mut values[..count] {
            *value = self.slots.load(self.head);
            self.head = self.head.wrapping_add(1);
        }
        if count > 0 {
            self.publish();
        }
        Ok(count)
    }

    /// Looks how far the producer is: messages that wait now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be; this end goes on with what it knew.
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        let tail = self.poll();
        let used = used(self.head, tail, self.capacity())?;
        self.tail = tail;
        Ok(used)
    }

    #[inline(always)]
    fn publish(&self) {
        // SYNC POINT: slot released. Pairs with Producer::poll.
        self.header.consumer.head.store_release(self.head);
    }
}

impl<'a, T> Consumer<'a, T> {
    /// Messages in the ring now; at most the capacity, whatever the other side claims.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.poll().wrapping_sub(self.head).min(self.capacity())
    }

    /// Whether nothing is in the ring now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots that are free now.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity() - self.len()
    }

    /// Whether no slot is free now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Slots in all.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.slots.mask + 1
    }

    /// Index of the next slot to empty.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Messages that wait as far as this end has looked; [`refresh`](Self::refresh) looks.
    #[must_use]
    #[inline(always)]
    pub const fn available(&self) -> u64 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether the producer says that it was there and has left; what it published before can still be popped.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.header.producer.owner)
    }

    /// Returns the words of the ring, for loads only. Their values remain untrusted.
    ///
    /// ```compile_fail,E0277
    /// # use ringmem_layouts::{HostWord, Word, ring::spsc::untrusted};
    /// fn spoils(end: &untrusted::Consumer<'_, u64>) {
    ///     Word::store(&end.header().producer.tail, 7); // the other end may trust this value
    /// }
    /// ```
    #[must_use]
    pub const fn header(&self) -> &'a RingHeader<ReadOnly<HostWord>> {
        read_only(self.header)
    }

    #[inline(always)]
    fn poll(&self) -> u64 {
        // SYNC POINT: slot published. Pairs with Producer::publish.
        self.header.producer.tail.load_acquire()
    }
}

impl<T> Drop for Producer<'_, T> {
    fn drop(&mut self) {
        if self.announced {
            owner::close(&self.header.producer.owner);
        }
    }
}

impl<T> Drop for Consumer<'_, T> {
    fn drop(&mut self) {
        if self.announced {
            owner::close(&self.header.consumer.owner);
        }
    }
}

impl<T> End for Producer<'_, T> {
    type Word = HostWord;
    fn bells(&self) -> Bells<'_, HostWord> {
        end::of_producer(self.header, self.header)
    }
    fn is_disconnected(&self) -> bool {
        Producer::is_disconnected(self)
    }
    fn leave(self, after: impl FnOnce(&HostWord)) {
        // The ring outlives the end.
        let theirs = end::of_producer(self.header, self.header).theirs;
        drop(self);
        after(theirs);
    }
}

impl<T> End for Consumer<'_, T> {
    type Word = HostWord;
    fn bells(&self) -> Bells<'_, HostWord> {
        end::of_consumer(self.header, self.header)
    }
    fn is_disconnected(&self) -> bool {
        Consumer::is_disconnected(self)
    }
    fn leave(self, after: impl FnOnce(&HostWord)) {
        // The ring outlives the end.
        let theirs = end::of_consumer(self.header, self.header).theirs;
        drop(self);
        after(theirs);
    }
}

impl<T: RingMessage> Push for Producer<'_, T> {
    type Item = T;
    #[inline]
    fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        Producer::push(self, value)
    }
}

impl<T: RingMessage> Pop for Consumer<'_, T> {
    type Item = T;
    #[inline]
    fn pop(&mut self) -> Result<T, PopError> {
        Consumer::pop(self)
    }
}

/// Returns the same header without stores. Safe code must not store to it: the other end may trust this program.
const fn read_only(header: &RingHeader<HostWord>) -> &RingHeader<ReadOnly<HostWord>> {
    // SAFETY: `ReadOnly` is transparent, and a header is `repr(C)` and generic in its words alone, so both types have one layout. The result
    // allows only loads of the same words, for the same lifetime.
    unsafe { &*core::ptr::from_ref(header).cast() }
}

/// What an end keeps of its ring: the words, the slots, the capacity.
type Parts<'a, T> = (&'a RingHeader<HostWord>, Slots<'a, T>, u64);

/// # Safety
///
/// As [`Producer::attach`].
unsafe fn attach<'a, T: RingMessage>(base: NonNull<u8>, len: u64) -> Result<Parts<'a, T>, AttachError> {
    // SAFETY: the caller's promise. `place` reads words of the header, each once, and no payload.
    let (header, layout, slots) = unsafe { place::<T, Host>(RingFlags::SPSC, base, len)? };
    Ok((header, Slots { base: slots, mask: layout.capacity() - 1, _slots: PhantomData }, layout.capacity()))
}

/// Slots that somebody else may be writing.
struct Slots<'a, T> {
    // INVARIANT: `mask + 1` slots of a `T`, a power of two, are mapped from here for 'a; `base` is a multiple of 128.
    base: NonNull<u8>,
    mask: u64,
    _slots: PhantomData<(&'a [AtomicU8], T)>,
}

impl<T: RingMessage> Slots<'_, T> {
    /// The slot of an index, whatever the index.
    #[inline(always)]
    fn at(&self, index: u64) -> *mut u8 {
        // SAFETY: the masked index is below the capacity, and the invariant says that so many slots are mapped.
        unsafe { self.base.as_ptr().add((index & self.mask) as usize * size_of::<T>()) }
    }

    /// How many bytes of a slot stand before its first whole word. The same at both ends, whose rings begin at a multiple of 128.
    #[inline(always)]
    fn before_words(slot: *mut u8) -> usize {
        if size_of::<T>().is_multiple_of(8) { 0 } else { (slot.addr().wrapping_neg() & 7).min(size_of::<T>()) }
    }

    #[inline(always)]
    fn store(&self, index: u64, value: &T) {
        let slot = self.at(index);
        let (first, rest) = value.as_bytes().split_at(Self::before_words(slot));
        let (words, last) = rest.as_chunks::<8>();
        let after = first.len() + size_of_val(words);
        for (place, byte) in first.iter().enumerate().chain(last.iter().enumerate().map(|(place, byte)| (after + place, byte))) {
            // SAFETY: `place` is below the size of a `T`, so within the slot.
            let place = unsafe { AtomicU8::from_ptr(slot.add(place)) };
            place.store(*byte, Relaxed);
        }
        for (place, word) in words.iter().enumerate() {
            // SAFETY: within the slot, and aligned: `first` ends where a word begins.
            let place = unsafe { word_at(slot.add(first.len() + 8 * place)) };
            place.store(u64::from_ne_bytes(*word), Relaxed);
        }
    }

    #[inline(always)]
    fn load(&self, index: u64) -> T {
        let slot = self.at(index);
        let mut value = T::new_zeroed();
        let (first, rest) = value.as_mut_bytes().split_at_mut(Self::before_words(slot));
        let before = first.len();
        let (words, last) = rest.as_chunks_mut::<8>();
        let after = before + size_of_val(words);
        for (place, byte) in first.iter_mut().enumerate().chain(last.iter_mut().enumerate().map(|(place, byte)| (after + place, byte))) {
            // SAFETY: `place` is below the size of a `T`, so within the slot.
            let place = unsafe { AtomicU8::from_ptr(slot.add(place)) };
            *byte = place.load(Relaxed);
        }
        for (place, word) in words.iter_mut().enumerate() {
            // SAFETY: within the slot, and aligned: `first` ends where a word begins.
            let place = unsafe { word_at(slot.add(before + 8 * place)) };
            *word = place.load(Relaxed).to_ne_bytes();
        }
        value
    }
}

/// # Safety
///
/// Eight bytes at `place` are mapped for `'a`; `place` is a multiple of 8.
#[inline(always)]
unsafe fn word_at<'a>(place: *mut u8) -> &'a AtomicU64 {
    // No machine that tests run on would show it otherwise.
    debug_assert!(place.cast::<AtomicU64>().is_aligned());
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(place.cast()) }
}
