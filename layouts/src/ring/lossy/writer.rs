use core::ptr::NonNull;

use super::slots::Cells;
use crate::attach::AttachError;
use crate::ring::header::RingFlags;
use crate::ring::port::Port;
use crate::ring::slots::place;
use crate::{Machine, RingHeader, RingMessage, Word};

/// Overwrites the oldest messages. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::Ring;
///
/// let mut ring = Ring::<u32, 4>::new();
/// let (mut writer, reader) = ring.split();
/// let (mut one, mut two) = (reader.clone(), reader);
/// writer.push(7); // never fails
/// assert_eq!((one.pop(), two.pop()), (Ok(7), Ok(7)));
/// ```
pub struct Writer<'a, T, M: Machine> {
    port: Port<'a, M::Word, true>,
    cells: Cells<'a, T, M::Word>,
    tail: u64,
    // INVARIANT: at most the capacity behind `tail`, except within `push_slice`.
    published: u64,
}

// SAFETY: it copies `T`s; words have their own operations.
unsafe impl<T: Send, M: Machine> Send for Writer<'_, T, M> {}

impl<'a, T: RingMessage, M: Machine> Writer<'a, T, M> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only this writer writes them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only this writer writes them, which it
        // does by words.
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::LOSSY, base, len)? };
        // SAFETY: the caller promises the only writer; `place` checked that the slots lie within `len`, and that the capacity is a power of
        // two.
        Ok(unsafe { Self::over(header, slots.cast(), layout.capacity()) })
    }

    /// Like [`from_raw`](Self::from_raw), with separate slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), for the header and as many slots at `slots` as it says.
    pub unsafe fn new(header: &'a RingHeader<M::Word>, slots: NonNull<M::Word>) -> Result<Self, AttachError> {
        let layout = header.geometry_of::<T>(RingFlags::LOSSY)?;
        // SAFETY: the caller promises as many valid slots for `'a` as the header says, and the only writer; `geometry_of` checked that
        // their number is a power of two.
        Ok(unsafe { Self::over(header, slots, layout.capacity()) })
    }

    /// # Safety
    ///
    /// As `new`, for any kind; `capacity` is a power of two, and so many slots fit `usize`.
    pub(in crate::ring) unsafe fn over(header: &'a RingHeader<M::Word>, slots: NonNull<M::Word>, capacity: u64) -> Self {
        let tail = header.producer.tail.load();
        // SAFETY: the caller promises `capacity` slots that live for `'a`; `capacity` is a power of two, and so many slots fit `usize`.
        let cells = unsafe { Cells::new(slots, capacity) };
        Self { port: Port::new(header, header), cells, tail, published: tail }
    }

    /// Marks this end as open, until it is dropped.
    #[must_use]
    pub fn announce(mut self) -> Self {
        self.port.announce();
        self
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.cells.capacity() as usize
    }

    /// Returns the next message's index.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the number of messages written, including an unfinished batch.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.tail.wrapping_sub(self.port.own.consumer.head.load())
    }

    /// Returns the number of messages in the ring, including an unfinished batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.written().min(self.cells.capacity()) as usize
    }

    /// Returns whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written() == 0
    }

    /// Overwrites the oldest message and publishes.
    #[inline]
    pub fn push(&mut self, value: T) {
        self.fill(&value);
        self.publish();
    }

    /// Writes `values` and publishes them together. Beyond the capacity only the newest are written; all count.
    pub fn push_slice(&mut self, values: &[T]) {
        let passed = values.len().saturating_sub(self.capacity());
        self.tail = self.tail.wrapping_add(passed as u64);
        for value in &values[passed..] {
            self.fill(value);
        }
        self.publish();
    }

    /// Publishes every `every` messages, at least 1 and at most the capacity: readers have as many slots less.
    pub fn batch(&mut self, every: usize) -> BatchWriter<'_, 'a, T, M> {
        self.publish();
        let every = every.clamp(1, self.capacity()) as u64;
        BatchWriter { writer: self, every }
    }

    #[inline(always)]
    fn fill(&mut self, value: &T) {
        self.cells.write(self.tail, value);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(&mut self) {
        // A redundant store would take the line from the readers.
        if self.published != self.tail {
            self.published = self.tail;
            // SYNC POINT: message published. Pairs with Reader::poll.
            M::Word::publish_all([(&self.port.own.producer.tail, self.tail)]);
        }
    }
}

/// Publishes every `every` messages, on [`flush`](Self::flush) and on drop, even if readers have run dry: flush before you wait.
///
/// If it is forgotten, the writer's next publish publishes the rest.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::Ring;
///
/// let mut ring = Ring::<u32, 8>::new();
/// let (mut writer, reader) = ring.split();
/// let mut batch = writer.batch(4);
/// (1..=6).for_each(|number| batch.push(number));
/// assert_eq!(reader.len(), 4); // two are pending
/// batch.flush();
/// assert_eq!(reader.len(), 6);
/// ```
pub struct BatchWriter<'w, 'a, T: RingMessage, M: Machine> {
    writer: &'w mut Writer<'a, T, M>,
    every: u64,
}

impl<T: RingMessage, M: Machine> BatchWriter<'_, '_, T, M> {
    /// Overwrites the oldest message; publishes with its batch.
    #[inline]
    pub fn push(&mut self, value: T) {
        self.writer.fill(&value);
        if self.writer.tail.wrapping_sub(self.writer.published) >= self.every {
            self.writer.publish();
        }
    }

    /// Publishes pending messages.
    #[inline]
    pub fn flush(&mut self) {
        self.writer.publish();
    }
}

impl<T: RingMessage, M: Machine> Drop for BatchWriter<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
