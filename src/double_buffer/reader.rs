use core::fmt;
use core::mem;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::Failed;
use super::slots::{Slots, Transfer, Unread};
use crate::memory::{Buffer, HostReadable, Memory, Pinned};
use crate::{DeviceBytes, Rejected};

/// Reads complete frames in order; holds the last until its next use.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::double_buffer::{self, Policy};
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
///
/// let backend = HostBackend::builder().build()?;
/// let (mut writer, mut reader) = double_buffer::pair::<u32, _>(Pinned::new(&backend, 0), 2, Policy::Every { wait: Duration::ZERO })?;
/// let mut source = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
/// writer.start(&mut source, ..1)?;
/// writer.start(&mut source, 1..)?;
/// drop(writer);
/// let mut lengths = Vec::new();
/// while let Some(frame) = reader.next(Duration::from_secs(10))? {
///     lengths.push(frame.elements.len());
/// }
/// assert!(lengths == [1, 2] && reader.is_over());
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Reader<T, H: Memory = Pinned> {
    slots: Arc<Slots<T, H>>,
    held: Option<(u64, Buffer<T, H>)>,
}

/// A complete frame, where it was copied to.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::double_buffer::{self, Policy};
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
///
/// let backend = HostBackend::builder().build()?;
/// let (mut writer, mut reader) = double_buffer::pair::<u32, _>(Pinned::new(&backend, 0), 2, Policy::Every { wait: Duration::ZERO })?;
/// let mut source = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2, 3, 4])?;
/// writer.start(&mut source, 1..3)?; // a part of the buffer
/// let frame = reader.next(Duration::from_secs(10))?.expect("in time");
/// assert_eq!((frame.sequence, &frame.elements[..]), (1, &[2, 3][..]));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame<'a, T> {
    /// Its number from [`start`](super::Writer::start).
    pub sequence: u64,
    /// Its elements.
    pub elements: &'a [T],
}

impl<T: DeviceBytes, H: Memory<Visibility: HostReadable>> Reader<T, H> {
    pub(super) fn new(slots: Arc<Slots<T, H>>) -> Self {
        Self { slots, held: None }
    }

    /// Returns the newest complete frame, else the held one; skips older frames; waits at most for a call of the writer that queues a copy.
    ///
    /// # Errors
    ///
    /// [`Failed`] once for each frame whose copy failed since the last read, before any later frame. [`Busy`](crate::Error::Busy) inside
    /// while the host may not access managed memory; the frame is kept.
    pub fn latest(&mut self) -> Result<Option<Frame<'_, T>>, Failed> {
        let held = &mut self.held;
        self.slots.change_settled(|books| {
            if let Some(place) = books.unread.iter().position(|unread| matches!(unread.transfer, Transfer::Lost(_)))
                && let Some(Unread { sequence, transfer: Transfer::Lost(Rejected { error, value }) }) = books.unread.remove(place)
            {
                books.free.push(value);
                return Err(Failed { sequence, error });
            }
            let Some(newest) = books.newest() else { return Ok(()) };
            books.free.extend(books.unread.drain(..newest).map(Unread::into_slot));
            if let Some(Unread { sequence, transfer: Transfer::Whole(buffer) }) = books.unread.pop_front() {
                books.free.extend(held.replace((sequence, buffer)).map(|(_, before)| before));
                books.is_held = true;
            }
            Ok(())
        })?;
        self.frame()
    }

    /// Releases the held frame and returns the next; `None` after `timeout`, or with all read and the writer dropped.
    ///
    /// # Errors
    ///
    /// [`Failed`] in place of a frame whose copy failed. As [`latest`](Self::latest) for managed memory; `latest` returns the frame later.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Frame<'_, T>>, Failed> {
        self.release();
        let until = Instant::now().checked_add(timeout);
        let Some(Unread { sequence, transfer }) = self.oldest(until) else { return Ok(None) };
        let out = Out(&self.slots);
        let outcome = match transfer {
            Transfer::Whole(buffer) => Ok(buffer),
            Transfer::Lost(rejected) => Err(rejected),
            Transfer::Flying(pending) => {
                let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
                match pending.wait_timeout(left) {
                    Ok(outcome) => outcome,
                    Err(pending) => {
                        self.slots.look().unread.push_front(Unread { sequence, transfer: Transfer::Flying(pending) });
                        return Ok(None);
                    }
                }
            }
        };
        match outcome {
            Ok(buffer) => {
                self.held = Some((sequence, buffer));
                mem::forget(out);
            }
            Err(Rejected { error, value }) => {
                self.slots.look().free.push(value);
                return Err(Failed { sequence, error });
            }
        }
        self.frame()
    }

    /// Only this thread waits for its copy.
    fn oldest(&self, until: Option<Instant>) -> Option<Unread<T, H>> {
        let mut books = self.slots.look();
        loop {
            books = self.slots.whole_until(books, until)?;
            if let Some(unread) = books.unread.pop_front() {
                books.is_held = true;
                return Some(unread);
            }
            if !books.has_writer {
                return None;
            }
            books = self.slots.wait(books, until)?;
        }
    }

    fn frame(&self) -> Result<Option<Frame<'_, T>>, Failed> {
        let Some((sequence, buffer)) = &self.held else { return Ok(None) };
        match buffer.as_slice() {
            Ok(elements) => Ok(Some(Frame { sequence: *sequence, elements })),
            Err(error) => Err(Failed { sequence: *sequence, error }),
        }
    }
}

/// The reader then holds no frame, even after a panic.
struct Out<'a, T, H: Memory>(&'a Slots<T, H>);

impl<T, H: Memory> Drop for Out<'_, T, H> {
    fn drop(&mut self) {
        self.0.change(|books| books.is_held = false);
    }
}

impl<T, H: Memory> Reader<T, H> {
    /// Releases the held frame's slot.
    pub fn release(&mut self) {
        if let Some((_, buffer)) = self.held.take() {
            self.slots.change(|books| {
                books.free.push(buffer);
                books.is_held = false;
            });
        }
    }

    /// Returns whether the writer was dropped and all was read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let books = self.slots.look();
        !books.has_writer && books.unread.is_empty()
    }
}

impl<T, H: Memory> Drop for Reader<T, H> {
    fn drop(&mut self) {
        self.release();
        self.slots.change(|books| books.has_reader = false);
    }
}

impl<T, H: Memory> fmt::Debug for Reader<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("holds", &self.held.as_ref().map(|(sequence, _)| *sequence)).finish_non_exhaustive()
    }
}
