use core::fmt;
use core::ops::RangeBounds;
use core::time::Duration;
use std::collections::VecDeque;
use std::vec::Vec;

use super::{Failed, Resident, fitting, transfers};
use crate::memory::{Buffer, HostReadable, Memory, Origin, Pinned, range};
use crate::stream::{Pending, Stream};
use crate::{DeviceBytes, Error, Rejected, Result};

/// Slots that the host fills in turn while others are copied to the device.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// # use core::time::Duration;
/// # use ringmem::double_buffer::Uploads;
/// # use ringmem::memory::{Device, GpuBuffer, Pinned};
/// use ringmem::backend::host::HostBackend;
///
/// let backend = HostBackend::builder().build()?;
/// let mut uploads = Uploads::<u32, _>::new(Pinned::new(&backend, 0), 2, Duration::from_secs(10))?;
/// let target = || GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000);
/// let mut batches = [target()?, target()?];
/// for number in 0..10 {
///     let batch = &mut batches[number as usize % 2];
///     uploads.send(batch, .., |elements| elements.fill(number))?;
///     // batch.ready_on(&compute)?, a launch that reads it, batch.used_by(&compute)?: the next but one send comes after that
/// }
/// uploads.settle()?;
/// assert_eq!(batches[1].to_vec()?, [9; 1000]);
/// # Ok(())
/// # }
/// ```
pub struct Uploads<T, H: Memory = Pinned> {
    memory: H,
    origin: Origin,
    stream: Stream,
    slots: usize,
    wait: Duration,
    sequence: u64,
    free: Vec<Buffer<T, H>>,
    /// By sequence number. Slots neither here nor free have no buffer.
    flying: VecDeque<(u64, Pending<Buffer<T, H>>)>,
}

impl<T: DeviceBytes, H: Memory<Visibility: HostReadable> + Clone> Uploads<T, H> {
    /// Creates an internal stream; allocates slots in `memory` on first use. A call waits for a slot at most `wait`.
    ///
    /// # Errors
    ///
    /// As [`pair`](super::pair).
    #[track_caller]
    pub fn new(memory: H, slots: usize, wait: Duration) -> Result<Self> {
        let stream = transfers(&memory, slots)?;
        Ok(Self { memory, origin: Origin::here(), stream, slots, wait, sequence: 0, free: Vec::new(), flying: VecDeque::new() })
    }

    /// Calls `fill` with a slot of unspecified contents and queues its copy to elements of `target`, after all listed uses of `target`; returns
    /// the frame's number, from 1. The next use of `target` is ordered after it; for launches see [`ready_on`](Buffer::ready_on). If all slots
    /// are in flight, waits for the oldest.
    ///
    /// # Errors
    ///
    /// [`Failed`] of an earlier frame whose copy failed, once; the next use of `target` does not report it. Of this one:
    /// [`Busy`](Error::Busy) after the wait, or as [`Writer::start`](super::Writer::start). Nothing was queued, and the next frame gets this
    /// number.
    pub fn send(
        &mut self,
        target: &mut impl Resident<T>,
        part: impl RangeBounds<usize>,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<u64, Failed> {
        let next = self.sequence + 1;
        let refused = |error| Failed { sequence: next, error };
        target.may_queue().map_err(refused)?;
        let part = range::<T>(part, target.elements().len()).map_err(refused)?;
        let slot = self.slot()?;
        let mut slot = fitting(slot, &self.memory, &self.origin, part.len()).map_err(refused)?;
        fill(slot.as_mut_slice().map_err(refused)?);
        let queued = target.elements().slice(part).and_then(|to| {
            // SAFETY: two buffers, exclusively borrowed; both list the copy below, before any other use.
            unsafe { self.stream.queue_copy(slot.as_view(), to, [None; 2]) }
        });
        // The slot lists the copy first: the rest may panic.
        match self.stream.pending(queued, slot) {
            Ok(pending) => {
                if let Some(ticket) = pending.ticket() {
                    target.used_in_silence(ticket, &self.stream);
                }
                self.sequence = next;
                self.flying.push_back((next, pending));
                Ok(next)
            }
            Err(Rejected { error, value }) => {
                self.free.push(value);
                Err(refused(error))
            }
        }
    }

    /// Waits for all copies, each as long as for a slot.
    ///
    /// # Errors
    ///
    /// [`Failed`] of the first failed copy, once; the next call continues after it. [`Busy`](Error::Busy) inside for one in flight.
    pub fn settle(&mut self) -> Result<(), Failed> {
        while let Some((sequence, pending)) = self.flying.pop_front() {
            let slot = self.landed(sequence, pending, sequence)?;
            self.free.push(slot);
        }
        Ok(())
    }

    fn slot(&mut self) -> Result<Option<Buffer<T, H>>, Failed> {
        if let Some(slot) = self.free.pop() {
            return Ok(Some(slot));
        }
        if self.flying.len() < self.slots {
            return Ok(None);
        }
        let Some((sequence, pending)) = self.flying.pop_front() else { return Ok(None) };
        self.landed(sequence, pending, self.sequence + 1).map(Some)
    }

    fn landed(&mut self, sequence: u64, pending: Pending<Buffer<T, H>>, waits: u64) -> Result<Buffer<T, H>, Failed> {
        match pending.wait_timeout(self.wait) {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(Rejected { error, value })) => {
                self.free.push(value);
                Err(Failed { sequence, error })
            }
            Err(pending) => {
                self.flying.push_front((sequence, pending));
                Err(Failed { sequence: waits, error: Error::Busy { what: "every slot is in flight" } })
            }
        }
    }
}

impl<T, H: Memory> fmt::Debug for Uploads<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").field("sequence", &self.sequence).field("in_flight", &self.flying.len()).finish_non_exhaustive()
    }
}
