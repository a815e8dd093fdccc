//! Data larger than device memory: copies a [`Source`] in chunks to a device, and the results into a [`Sink`].
//!
//! Also use it for data that is read and written while the device works. Use [`Chunked`](crate::copy::Chunked) to copy one buffer,
//! [`double_buffer`](crate::double_buffer) for frames, a [`Channel`](crate::channel::Channel) for messages.
//!
//! 1. Reading, upload, work, download and writing overlap, with at most [`depth`](Builder::depth) chunks in flight. Memory is bounded by the
//!    settings, not by the source: all of it is allocated, or refused, by [`build`](Builder::build).
//! 2. Every byte is processed once, in order. Chunks and jobs are whole [elements](Builder::element).
//! 3. A source that ends early or changes its length is an error.
//! 4. An error says how much is [done](Interrupted::done); another [`Job`] can continue [there](Job::from). A [`Sequential`] source's
//!    read-ahead is lost.
//! 5. The file of a [`FileSink`] appears complete and on disk, or not at all.
//!
//! A [`Stage`] does nothing ([`Through`]), queues operations ([`Queued`]) or asks a persistent kernel ([`Persistent`]). The output has the
//! input's length and offset.
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

mod error;
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
