use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;
use std::time::Instant;

use super::slots::{Overwritten, Slots, Transfer, Unread};
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
    /// error. Nothing was queued, no frame was overwritten, and the next frame gets this number.
    pub fn start(&mut self, source: &mut impl Resident<T>, part: impl RangeBounds<usize>) -> Result<u64> {
        source.may_queue()?;
        let part = range::<T>(part, source.elements().len())?;
        let (len, memory, origin) = (part.len(), &self.memory, &self.origin);
        let Place { slot, replaced, overwritten } = place(&self.slots, self.policy, len, |slot| fitting(slot, memory, origin, len))?;
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
                if let Some(overwritten) = overwritten {
                    overwritten.finish(&self.memory);
                }
                Ok(self.sequence)
            }
            Err(Rejected { error, value }) => {
                match (overwritten, replaced) {
                    (None, _) => self.slots.look().free.push(value),
                    (Some(overwritten), None) => overwritten.put_back(value),
                    (Some(overwritten), Some(older)) => overwritten.put_back(older),
                }
                Err(error)
            }
        }
    }
}

/// The destination of a new frame, and the frame that it overwrites.
struct Place<'a, T, H: Memory> {
    slot: Buffer<T, H>,
    /// The slot of the overwritten frame, if it has another length.
    replaced: Option<Buffer<T, H>>,
    overwritten: Option<Overwritten<'a, T, H>>,
}

/// Returns where a frame of `len` elements goes. A buffer of another length is allocated before a frame is taken: a failed allocation loses none.
fn place<T: DeviceBytes, H: Memory>(
    slots: &Slots<T, H>,
    policy: Policy,
    len: usize,
    fit: impl Fn(Option<Buffer<T, H>>) -> Result<Buffer<T, H>>,
) -> Result<Place<'_, T, H>> {
    let busy = || Error::Busy { what: "every slot is held, unread or in flight" };
    let mut allocated = None;
    let mut books = slots.look();
    let until = match policy {
        Policy::Newest => None,
        Policy::Every { wait } => Instant::now().checked_add(wait),
    };
    loop {
        if !books.has_reader {
            return Err(Error::Closed { what: "reader of these frames" });
        }
        let mut free = books.take_free();
        if free.is_none() && policy == Policy::Newest {
            books = slots.settle(books);
            free = books.take_free();
        }
        if let Some(slot) = free {
            drop(books);
            return Ok(Place { slot: fit(allocated.or(slot))?, replaced: None, overwritten: None });
        }
        if policy == Policy::Newest {
            let older = books.oldest_len().ok_or_else(busy)?;
            if older != len && allocated.is_none() {
                drop(books);
                allocated = Some(fit(None)?);
                books = slots.look();
                continue;
            }
            let (older, overwritten) = slots.overwrite(books).ok_or_else(busy)?;
            let (slot, replaced) = match allocated {
                Some(slot) => (slot, Some(older)),
                None => (older, None),
            };
            return Ok(Place { slot, replaced, overwritten: Some(overwritten) });
        }
        let Some(changed) = slots.wait(books, until) else { return Err(busy()) };
        books = changed;
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
