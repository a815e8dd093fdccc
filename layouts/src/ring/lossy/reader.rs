use core::ptr::NonNull;

use super::error::{LatestError, ReadError};
use super::slots::Cells;
use crate::attach::{AttachError, Corrupt, Corruption};
use crate::ring::header::RingFlags;
use crate::ring::owner;
use crate::ring::slots::place;
use crate::{Machine, RingHeader, RingMessage, Word};

/// Attempts of [`Reader::latest`] before [`LatestError::Busy`].
pub const TRIES: u32 = 128;

/// Reads each message once, or counts it as lost. Any number per ring; a clone starts at the same message.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::{ReadError, Ring};
///
/// let mut ring = Ring::<u32, 2>::new();
/// let (mut writer, mut reader) = ring.split();
/// (1..=5).for_each(|number| writer.push(number));
/// let Err(ReadError::Overrun { lost }) = reader.pop() else { unreachable!("two slots") };
/// let rest = [reader.pop(), reader.pop()];
/// assert_eq!((lost, rest), (3, [Ok(4), Ok(5)]));
/// ```
pub struct Reader<'a, T, M: Machine> {
    header: &'a RingHeader<M::Word>,
    cells: Cells<'a, T, M::Word>,
    start: u64,
    // INVARIANT: tail - head <= capacity, wrapping.
    head: u64,
    tail: u64,
    lost: u64,
}

// SAFETY: it copies `T`s; words have their own operations.
unsafe impl<T: Send, M: Machine> Send for Reader<'_, T, M> {}

impl<T, M: Machine> Clone for Reader<'_, T, M> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<'a, T: RingMessage, M: Machine> Reader<'a, T, M> {
    /// Attaches to a header followed by its slots, at the oldest message.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid for reads and initialised, and written by whole words only.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises that `len` bytes are valid for reads and initialised for `'a`, and written by whole words only;
        // `place` only reads.
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::LOSSY, base, len)? };
        // SAFETY: the caller promises readable slots, written by whole words only; `place` checked that they lie within `len`, and that the
        // capacity is a power of two.
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
    /// As [`from_raw`](Self::from_raw), for as many slots at `slots` as the header says.
    pub unsafe fn new(header: &'a RingHeader<M::Word>, slots: NonNull<M::Word>) -> Result<Self, AttachError> {
        let layout = header.geometry_of::<T>(RingFlags::LOSSY)?;
        // SAFETY: the caller promises as many readable slots for `'a` as the header says; `geometry_of` checked that this is a power of
        // two.
        Ok(unsafe { Self::over(header, slots, layout.capacity()) })
    }

    /// # Safety
    ///
    /// As `new`, for any kind; `capacity` is a power of two, and so many slots fit `usize`.
    pub(in crate::ring) unsafe fn over(header: &'a RingHeader<M::Word>, slots: NonNull<M::Word>, capacity: u64) -> Self {
        let start = header.consumer.head.load();
        // SAFETY: the caller promises `capacity` slots that live for `'a`; `capacity` is a power of two, and so many slots fit `usize`.
        let cells = unsafe { Cells::new(slots, capacity) };
        let mut reader = Self { header, cells, start, head: start, tail: start, lost: 0 };
        reader.tail = reader.poll();
        reader.head = reader.tail.wrapping_sub(capacity.min(reader.tail.wrapping_sub(start)));
        reader
    }

    /// Returns whether the announced writer was dropped; its messages remain.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.header.producer.owner)
    }

    /// Returns the messages waiting for this reader, at most the capacity.
    #[must_use]
    pub fn len(&self) -> usize {
        self.poll().wrapping_sub(self.head).min(self.cells.capacity()) as usize
    }

    /// Returns whether no message waits for this reader.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of messages ever published.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.poll().wrapping_sub(self.start)
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.cells.capacity() as usize
    }

    /// Returns the next message's index.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Returns the messages lost to this reader.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the writer's index in memory.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        // SYNC POINT: message published. Pairs with Writer::publish.
        self.header.producer.tail.load_acquire()
    }

    /// Reads the next message.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, ReadError<M::Corrupt>> {
        let value = self.peek()?;
        self.head = self.head.wrapping_add(1);
        Ok(value)
    }

    /// Returns a copy of the next message, which remains the next.
    ///
    /// # Errors
    ///
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn peek(&mut self) -> Result<T, ReadError<M::Corrupt>> {
        if self.head == self.tail {
            self.look(0)?;
        }
        match self.cells.read(self.head) {
            Some(value) => Ok(value),
            None => self.look(1).and(Err(ReadError::Empty)),
        }
    }

    /// Reads as many messages as fit; returns their number. An overrun after the first ends the call; the next call reports it.
    ///
    /// # Errors
    ///
    /// [`ReadError`]: overrun, or corrupt; nothing is read.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, ReadError<M::Corrupt>> {
        if self.tail.wrapping_sub(self.head) < values.len() as u64 {
            match self.look(0) {
                Err(ReadError::Empty) => return Ok(0),
                looked => looked?,
            }
        }
        let mut count = 0;
        for value in values {
            if self.head == self.tail {
                break;
            }
            match self.cells.read(self.head) {
                Some(read) => *value = read,
                None if count == 0 => return self.look(1).and(Ok(0)),
                None => break,
            }
            self.head = self.head.wrapping_add(1);
            count += 1;
        }
        Ok(count)
    }

    /// Skips all but the newest `keep` messages; returns the number skipped, not counted as lost. Recovers from [`Corrupt`].
    pub fn skip(&mut self, keep: usize) -> u64 {
        self.tail = self.poll();
        let ahead = self.tail.wrapping_sub(self.head);
        let waiting = if is_behind(ahead) { 0 } else { ahead };
        let kept = waiting.min(keep as u64).min(self.cells.capacity());
        self.head = self.tail.wrapping_sub(kept);
        waiting - kept
    }

    /// Returns a copy of the newest message, which stays unread, and its number, from 1. With a capacity of 1 it is `Busy` whenever the writer
    /// writes.
    ///
    /// # Errors
    ///
    /// [`LatestError`].
    pub fn latest(&self) -> Result<(u64, T), LatestError> {
        for _ in 0..TRIES {
            let tail = self.poll();
            if tail == self.start {
                return Err(LatestError::Empty);
            }
            if let Some(value) = self.cells.read(tail.wrapping_sub(1)) {
                return Ok((tail.wrapping_sub(self.start), value));
            }
            core::hint::spin_loop();
        }
        Err(LatestError::Busy)
    }

    pub(in crate::ring) fn pop_latest(&mut self) -> Result<(u64, T, u64), LatestError> {
        if self.poll() == self.head {
            return Err(LatestError::Empty);
        }
        let (number, value) = self.latest()?;
        let tail = self.start.wrapping_add(number);
        let passed = tail.wrapping_sub(self.head).wrapping_sub(1);
        (self.head, self.tail) = (tail, tail);
        Ok((number, value, passed))
    }

    /// `gone` is 1 if the next message is known to be lost.
    fn look(&mut self, gone: u64) -> Result<(), ReadError<M::Corrupt>> {
        let tail = self.poll();
        let ahead = tail.wrapping_sub(self.head);
        if is_behind(ahead) {
            let corrupt = Corrupt { head: self.head, tail, capacity: self.cells.capacity() };
            return Err(M::Corrupt::found(corrupt, ReadError::Empty).unwrap_or_else(ReadError::Corrupt));
        }
        self.tail = tail;
        if ahead == 0 {
            return Err(ReadError::Empty);
        }
        let lost = ahead.saturating_sub(self.cells.capacity()).max(gone);
        if lost > 0 {
            self.head = self.head.wrapping_add(lost);
            self.lost = self.lost.wrapping_add(lost);
            return Err(ReadError::Overrun { lost });
        }
        Ok(())
    }
}

/// No reader is 2^63 messages late.
const fn is_behind(ahead: u64) -> bool {
    ahead > u64::MAX / 2
}
