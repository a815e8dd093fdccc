//! Rotating pinned buffers between computation and host: device to host with [`pair`], host to device with [`Uploads`].
//!
//! The host works on one frame while the next is computed and copied. Use a [`mirror`](crate::mirror) for a buffer that both sides
//! change, [`streaming`](crate::streaming) beyond device memory, [`Chunked`](crate::copy::Chunked) for a single copy.
//!
//! 1. A reader sees complete frames only: elements of one [`start`](Writer::start), with increasing sequence numbers.
//! 2. A copy is a use of its source, ordered after all listed uses on any stream. [`used_by`](crate::memory::Buffer::used_by) lists launches.
//! 3. The writer waits for the reader only under [`Policy::Every`]. A frame that the reader holds is never overwritten.
//! 4. The host copies nothing; nothing is allocated once each slot has a buffer of the frame's length.
//! 5. A failed copy loses only its frame: the reader gets [`Failed`] with its number.
//! 6. Either half can be dropped with copies in flight: its memory is freed after its uses. A forgotten half leaks it.
//!
//! Later launches are not ordered after a copy: one that rewrites its source must wait for it, by [`ready_on`](crate::memory::Buffer::ready_on).
//! Alternating between two sources, or copying on the device first, avoids that wait.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use core::time::Duration;
//!
//! use ringmem::backend::host::HostBackend;
//! use ringmem::double_buffer::{self, Policy};
//! use ringmem::memory::{Device, GpuBuffer, Pinned};
//! use ringmem::stream::Stream;
//!
//! let backend = HostBackend::builder().build()?;
//! let compute = Stream::new(&backend, 0)?;
//! let every = Policy::Every { wait: Duration::ZERO };
//! let (mut writer, mut reader) = double_buffer::pair::<f32, _>(Pinned::new(&backend, 0), 2, every)?;
//!
//! let mut positions = GpuBuffer::<f32>::new(Device::new(&backend, 0), 1000)?;
//! for step in 1..=10 {
//!     positions = compute.fill(positions, .., step as f32)?.detach(); // a kernel's work
//!     assert_eq!(writer.start(&mut positions, ..)?, step);
//!     if step > 1 {
//!         // The frame before, while this step and its copy are in flight.
//!         let frame = reader.next(Duration::from_secs(10))?.expect("in time");
//!         assert_eq!((frame.sequence, frame.elements[999]), (step - 1, (step - 1) as f32));
//!         reader.release();
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A frame is borrowed from the reader:
//!
//! ```compile_fail
//! fn two(reader: &mut ringmem::double_buffer::Reader<u8>) -> [u64; 2] {
//!     let (first, second) = (reader.latest().unwrap().unwrap(), reader.latest().unwrap().unwrap());
//!     [first.sequence, second.sequence]
//! }
//! ```

mod failed;
mod reader;
mod resident;
mod slots;
mod uploads;
mod writer;

use core::time::Duration;
use std::sync::Arc;

use crate::memory::{Buffer, HostReadable, Memory, Origin};
use crate::stream::Stream;
use crate::{DeviceBytes, Error, Result};

pub use failed::Failed;
pub use reader::{Frame, Reader};
pub use resident::Resident;
pub(crate) use resident::sealed::Lists;
pub use uploads::Uploads;
pub use writer::Writer;

use slots::Slots;

/// The overflow policy, while all slots are in use.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::double_buffer::{self, Policy};
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
///
/// let backend = HostBackend::builder().build()?;
/// let (mut writer, mut reader) = double_buffer::pair::<u32, _>(Pinned::new(&backend, 0), 3, Policy::Newest)?;
/// let mut source = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1)?;
/// for step in 1..=10 {
///     source.fill(step)?; // waits for the copy of the frame before
///     writer.start(&mut source, ..)?;
/// }
/// source.settle()?;
/// assert_eq!(reader.latest()?.map(|frame| frame.elements[0]), Some(10)); // skips the others
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Overwrites the oldest complete or failed unread frame, never the newest complete one; without such a frame, refuses the new one. No call
    /// waits, except that the reader waits while `start` queues a copy over a frame. With three slots, only frames started faster than copied are
    /// refused. An overwritten frame's error counts as unreported. A slot of another length is allocated before the frame in the old one is
    /// overwritten.
    Newest,
    /// Keeps every frame: `start` waits for a release, then refuses the new frame.
    Every {
        /// The longest wait of `start`; zero if one thread has both halves.
        wait: Duration,
    },
}

/// Creates a writer and a reader with an internal stream; allocates slots in `memory` on first use.
///
/// # Errors
///
/// [`Unsupported`](Error::Unsupported) for no slots, [`Size`](Error::Size) for more than [`MOST_SLOTS`]; as [`Stream::new`].
#[track_caller]
pub fn pair<T, H>(memory: H, slots: usize, policy: Policy) -> Result<(Writer<T, H>, Reader<T, H>)>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
{
    let stream = transfers(&memory, slots)?;
    let slots = Arc::new(Slots::new(slots));
    Ok((Writer::new(memory, Origin::here(), stream, policy, Arc::clone(&slots)), Reader::new(slots)))
}

/// The largest number of slots of [`pair`] and [`Uploads`]. Each slot holds a frame of pinned memory once it is used.
pub const MOST_SLOTS: usize = 1024;

/// Not a shared stream: its synchronize would take the reader's errors.
fn transfers(memory: &impl Memory, slots: usize) -> Result<Stream> {
    if slots == 0 {
        return Err(Error::Unsupported { what: "a double buffer with 0 slots" });
    }
    if slots > MOST_SLOTS {
        return Err(Error::Size { what: "number of slots", asked: slots as u64, least: 1, most: MOST_SLOTS as u64 });
    }
    Stream::new(memory.backend(), memory.device())
}

fn fitting<T: DeviceBytes, H: Memory + Clone>(slot: Option<Buffer<T, H>>, memory: &H, origin: &Origin, len: usize) -> Result<Buffer<T, H>> {
    match slot {
        Some(slot) if slot.len() == len => Ok(slot),
        other => {
            drop(other);
            origin.around(|| Buffer::new(memory.clone(), len))
        }
    }
}
