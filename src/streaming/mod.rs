//! Data larger than device memory: a [`Source`] in chunks through it, and what comes out into a [`Sink`].
//!
//! 1. Reading, transfer, work and transfer back of different chunks overlap. At most [`depth`](Builder::depth) chunks are under way, and so much
//!    device memory is held, whatever the source's length; who is slow holds up who is quick.
//! 2. Every byte goes through once, and chunks are read, worked on and written in order. The last one may be short. A chunk is a whole number
//!    of [elements](Builder::element), and so is what is streamed, or it is refused.
//! 3. A source that ends early, goes on after its length or changes it is an error.
//! 4. An error says how much is [done](Interrupted::done), a chunk's boundary: another [`Job`] can go on [from](Job::from) there, with the same sink.
//!    What a [`Sequential`] source has read ahead is gone by then.
//! 5. A [`FileSink`] is there under its name when it is committed, whole and on the disk, or not at all.
//!
//! What a stage is: nothing but the way there and back ([`Through`]), operations queued on a stream for each chunk ([`Queued`]), or a message to a kernel
//! that runs all the time ([`Persistent`]).
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::streaming::{Job, Streamer, Through};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = HostBackend::builder().device_memory(1 << 20).build()?;
//! let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).depth(3).build()?;
//! let bytes = vec![7; 5_000_001]; // five times what the device has
//! let (mut source, mut sink) = (&bytes[..], Vec::new());
//! let streamed = streamer.run(Job::new(&mut source).to(&mut sink), &mut Through)?;
//! assert_eq!((streamed.bytes, streamed.chunks, sink == bytes), (5_000_001, 77, true));
//! # Ok(())
//! # }
//! ```

mod backoff;
mod error;
mod flight;
mod in_order;
mod job;
mod persistent;
mod pipeline;
mod sink;
mod source;
mod stage;
mod streamer;

pub use error::{Cause, Interrupted};
pub use in_order::InOrder;
pub use job::{Job, Progress, Streamed};
pub use persistent::{Dialogue, Persistent};
pub use sink::{FileSink, Sink};
#[cfg(unix)]
pub use source::Mapped;
pub use source::{FileSource, Sequential, Source};
pub use stage::{Queued, Stage, Through};
pub use streamer::{Builder, Chunk, Streamer};
