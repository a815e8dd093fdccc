//! [`Reader`]: the half that looks at frames.

use core::fmt;
use core::mem;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::Failed;
use super::slots::{Slots, Transfer, Unread};
use crate::memory::{Buffer, HostReadable, Memory, Pinned};
use crate::{DeviceBytes, Rejected};

/// Looks at whole frames, one at a time and never an older one than before. It holds the slot of the last until it is used again.
pub struct Reader<T, H: Memory = Pinned> {
    slots: Arc<Slots<T, H>>,
    /// The last frame, by its number.
    held: Option<(u64, Buffer<T, H>)>,
}

/// A whole frame, in the memory that it was transferred to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame<'a, T> {
    /// What its start said.
    pub sequence: u64,
    /// As they were on the device then.
    pub elements: &'a [T],
}

impl<T: DeviceBytes, H: Memory<Visibility: HostReadable>> Reader<T, H> {
    pub(super) fn new(slots: Arc<Slots<T, H>>) -> Self {
        Self { slots, held: None }
    }

    /// The newest frame that is whole: the same as the last time where there is no newer one, `None` where there never was one, or it was
    /// [released](Self::release). Older ones that were not read are passed over. It does not wait.
    ///
    /// # Errors
    ///
    /// [`Failed`], once for each frame whose transfer failed since the last read, before any later frame. [`Busy`](crate::Error::Busy) inside for managed
    /// memory that the host may not touch now: that frame is still there.
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

    /// The next frame in order, after a wait of no longer than `timeout` for its transfer: `None` if there is none by then. What was held is released.
    ///
    /// # Errors
    ///
    /// [`Failed`] in the place of a frame whose transfer failed; the one after it comes next. As [`latest`](Self::latest) for managed memory, which
    /// has that frame then.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Frame<'_, T>>, Failed> {
        self.release();
        let until = Instant::now().checked_add(timeout);
        let Some(Unread { sequence, transfer }) = self.oldest(until) else { return Ok(None) };
        let out = Out(&self.slots);
        let outcome = match transfer {
            Transfer::Whole(buffer) => Ok(buffer),
            Transfer::Lost(rejected) => Err(rejected),
            Transfer::Flying(pending) => {
                // Without an end there is always time.
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

    /// Takes the oldest frame out, so that nobody else asks for its transfer, once there is one; `None` if there is none by then, or never will be.
    fn oldest(&self, until: Option<Instant>) -> Option<Unread<T, H>> {
        let mut books = self.slots.look();
        loop {
            books = self.slots.whole(books);
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

/// A frame that the reader has taken out and does not hold yet. It holds none after this: also where it panics.
struct Out<'a, T, H: Memory>(&'a Slots<T, H>);

impl<T, H: Memory> Drop for Out<'_, T, H> {
    fn drop(&mut self) {
        self.0.change(|books| books.is_held = false);
    }
}

impl<T, H: Memory> Reader<T, H> {
    /// Is through with the frame that it holds, if it holds one: its slot is free for another.
    pub fn release(&mut self) {
        if let Some((_, buffer)) = self.held.take() {
            self.slots.change(|books| {
                books.free.push(buffer);
                books.is_held = false;
            });
        }
    }

    /// Whether the writer has gone, and everything that it started was read.
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
