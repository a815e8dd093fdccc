//! Frames of device memory for a host that looks on: n buffers in turn, read while the next ones are computed and transferred.
//!
//! 1. A reader sees whole frames only: the elements of one [`start`](Writer::start), with its sequence number, which goes up from read to read.
//! 2. A transfer comes after everything that its source lists, on whatever stream: copies and fills by themselves, launches by
//!    [`used_by`](crate::memory::Buffer::used_by). The source lists the transfer in turn: who resizes, writes or frees it next comes after that.
//! 3. The writer waits for no reader unless it was told to: see [`Policy`]. What a reader holds is never overwritten.
//! 4. Nothing is copied on the host, and nothing allocated once each slot has a buffer of the frame's length.
//! 5. A transfer that fails costs its frame and no other: the reader is told [which](Failed), nobody else is, and its slot is free again.
//! 6. Either half may be dropped or forgotten at any moment, with transfers in flight: memory is freed after its uses, or not at all.
//!
//! It does not order kernels: a launch that writes to a source again must come after the transfer of it, by
//! [`ready_on`](crate::memory::Buffer::ready_on). So a simulation that works in place takes turns with two buffers, or queues a copy on the
//! device, which takes little of the time of one to the host, and starts that.
//!
//! [`Uploads`] is the other direction: the host fills one buffer while the last is on its way and the one before that is worked on.
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
//!     positions = compute.fill(positions, .., step as f32)?.ordered(); // a kernel's work
//!     assert_eq!(writer.start(&mut positions, ..)?, step);
//!     if step > 1 {
//!         // The frame before, while this step and its transfer are under way.
//!         let frame = reader.next(Duration::from_secs(10))?.expect("in time");
//!         assert_eq!((frame.sequence, frame.elements[999]), (step - 1, (step - 1) as f32));
//!         reader.release();
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A frame is lent until the reader is next used:
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

/// What becomes of a new frame where every slot is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The oldest whole frame that nobody has read gives way, but for the newest one: a reader always finds that. Where none can, since all others are
    /// held or still in flight, the new frame is refused. Nobody waits. With three slots that happens only to frames that are started faster than they
    /// are transferred. A failed frame gives way like any other, and is then counted as unreported.
    Newest,
    /// Each is read: `start` waits so long for the reader to be through with one, and then refuses the new frame.
    Every {
        /// How long; nothing where one thread has both halves.
        wait: Duration,
    },
}

/// The two halves of so many slots, whose buffers are of `memory` and allocated when they are first needed, and whose transfers have a stream of their own.
///
/// # Errors
///
/// [`Unsupported`](Error::Unsupported) for no slots; as [`Stream::new`].
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

/// A stream for the transfers of so many slots. Nobody else has it: who synchronized it would be told of failures in the reader's place.
fn transfers(memory: &impl Memory, slots: usize) -> Result<Stream> {
    if slots == 0 {
        return Err(Error::Unsupported { what: "a frame without a slot" });
    }
    Stream::new(memory.backend(), memory.device())
}

/// A slot's buffer if it has as many elements, or else another: what is too long or too short goes first.
fn fitting<T: DeviceBytes, H: Memory + Clone>(slot: Option<Buffer<T, H>>, memory: &H, origin: &Origin, len: usize) -> Result<Buffer<T, H>> {
    match slot {
        Some(slot) if slot.len() == len => Ok(slot),
        other => {
            drop(other);
            origin.around(|| Buffer::new(memory.clone(), len))
        }
    }
}
