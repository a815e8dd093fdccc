use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;
use std::time::Instant;

use super::slots::{Slots, Transfer, Unread};
use super::{Policy, Resident, fitting};
use crate::memory::{Buffer, HostReadable, Memory, Origin, Pinned, range};
use crate::stream::Stream;
use crate::{DeviceBytes, Error, Rejected, Result};

/// Starts the copies of frames.
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
/// let number = writer.start(&mut source, ..)?; // queues the copy
/// let frame = reader.next(Duration::from_secs(10))?.expect("in time");
/// assert_eq!((frame.sequence, &frame.elements[..]), (number, &[1, 2, 3][..]));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Writer<T, H: Memory = Pinned> {
    memory: H,
    origin: Origin,
    stream: Stream,
    policy: Policy,
    sequence: u64,
    slots: Arc<Slots<T, H>>,
}

impl<T: DeviceBytes, H: Memory<Visibility: HostReadable> + Clone> Writer<T, H> {
    pub(super) fn new(memory: H, origin: Origin, stream: Stream, policy: Policy, slots: Arc<Slots<T, H>>) -> Self {
        Self { memory, origin, stream, policy, sequence: 0, slots }
    }

    /// Queues a copy of elements of `source` to a slot; returns the frame's number, from 1. For launches see [`ready_on`](Buffer::ready_on).
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) by the [policy](Policy), [`Closed`](Error::Closed) without a reader, [`Unsupported`](Error::Unsupported) for a
    /// named buffer not configured for queued transfers, [`Range`](Error::Range), [`OtherBackend`](Error::OtherBackend), or an allocation's
    /// error. Nothing was queued, and the next frame gets this number.
    pub fn start(&mut self, source: &mut impl Resident<T>, part: impl RangeBounds<usize>) -> Result<u64> {
        source.may_queue()?;
        let part = range::<T>(part, source.elements().len())?;
        let slot = fitting(self.slot()?, &self.memory, &self.origin, part.len())?;
        let queued = source.elements().slice(part).and_then(|from| {
            // SAFETY: two buffers, exclusively borrowed; both list the copy below before any other use.
            unsafe { self.stream.queue_copy(from, slot.as_view(), [None; 2]) }
        });
        // The slot lists the copy first: the rest may panic.
        match self.stream.pending(queued, slot) {
            Ok(pending) => {
                if let Some(ticket) = pending.ticket() {
                    source.used_in_silence(ticket, &self.stream);
                }
                self.sequence += 1;
                let unread = Unread { sequence: self.sequence, transfer: Transfer::Flying(pending) };
                self.slots.change(|books| books.unread.push_back(unread));
                Ok(self.sequence)
            }
            Err(Rejected { error, value }) => {
                self.slots.look().free.push(value);
                Err(error)
            }
        }
    }

    fn slot(&self) -> Result<Option<Buffer<T, H>>> {
        let busy = Error::Busy { what: "every slot is held, unread or in flight" };
        let mut books = self.slots.look();
        let until = match self.policy {
            Policy::Newest => None,
            Policy::Every { wait } => Instant::now().checked_add(wait),
        };
        loop {
            if !books.has_reader {
                return Err(Error::Closed { what: "reader of these frames" });
            }
            if let Some(slot) = books.take_free() {
                return Ok(slot);
            }
            if self.policy == Policy::Newest {
                books = self.slots.settle(books);
                if let Some(slot) = books.take_free() {
                    return Ok(slot);
                }
                let older = books.take_older();
                drop(books);
                return older.map(|older| Some(older.into_slot())).ok_or(busy);
            }
            let Some(changed) = self.slots.wait(books, until) else { return Err(busy) };
            books = changed;
        }
    }
}

impl<T, H: Memory> Writer<T, H> {
    /// Returns whether the reader still exists.
    #[must_use]
    pub fn has_reader(&self) -> bool {
        self.slots.look().has_reader
    }
}

impl<T, H: Memory> Drop for Writer<T, H> {
    fn drop(&mut self) {
        self.slots.change(|books| books.has_writer = false);
    }
}

impl<T, H: Memory> fmt::Debug for Writer<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("policy", &self.policy).field("sequence", &self.sequence).finish_non_exhaustive()
    }
}
