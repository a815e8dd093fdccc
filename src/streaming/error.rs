use std::boxed::Box;
use std::io;
use std::time::Duration;

use crate::Error;
use crate::attach::Corrupt;
use crate::error::debug_with_causes;

/// A job that stopped before its end.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Progress, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let (mut source, mut sink) = (&[7_u8; 1 << 20][..], Vec::new());
/// let mut stop = |progress: Progress| if progress.chunks == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
/// let interrupted = streamer.run(Job::new(&mut source).to(&mut sink).on_progress(&mut stop), &mut Through).expect_err("stopped");
/// // Another job continues there.
/// streamer.run(Job::new(&mut source).from(interrupted.done).to(&mut sink), &mut Through)?;
/// assert_eq!(sink.len(), 1 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error("the stream stopped after byte {done}")]
pub struct Interrupted {
    /// Bytes of the source that are worked on, and written to any sink: up to a chunk's boundary or the [job](super::Job::from)'s beginning.
    pub done: u64,
    /// Why.
    #[source]
    pub cause: Cause,
}

/// Why a job stopped; sizes and offsets in bytes.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Cause, Job, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let stopped = streamer.run(Job::new(&mut &[7_u8; 1000][..]).expect(0), &mut Through).unwrap_err();
/// assert!(matches!(stopped.cause, Cause::Checksum { expected: 0, .. }));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The source cannot be read.
    #[error("cannot be read at byte {at}")]
    Read {
        /// First unread byte.
        at: u64,
        /// System's error.
        source: io::Error,
    },
    /// The source ended early.
    #[error("ended at byte {at} of {promised}")]
    Truncated {
        /// Its end.
        at: u64,
        /// The end of the job's [range](super::Job::until), or its length at open.
        promised: u64,
    },
    /// The length of the source changed.
    #[error("changed its length from {promised} to {now} bytes while it was read")]
    Changed {
        /// Its length at open.
        promised: u64,
        /// Its length now.
        now: u64,
    },
    /// The source exceeds its length.
    #[error("has more than the {promised} bytes of its reported length: not a regular file")]
    Endless {
        /// Its length at open.
        promised: u64,
    },
    /// Not a whole number of elements.
    #[error("{length} bytes are not a multiple of the element size, {element} bytes")]
    Ragged {
        /// Bytes.
        length: u64,
        /// An element's size.
        element: u64,
    },
    /// The checksum is not the [expected](super::Job::expect) one.
    #[error("checksum mismatch: got {got:08x}, expected {expected:08x}")]
    Checksum {
        /// Expected CRC-32C.
        expected: u32,
        /// CRC-32C of the bytes read.
        got: u32,
    },
    /// The sink cannot be written.
    #[error("cannot be written after byte {written}")]
    Write {
        /// Bytes written.
        written: u64,
        /// System's error.
        source: io::Error,
    },
    /// An answer for another chunk than the next.
    #[error("{}", out_of_order(*got, *expected))]
    Order {
        /// Answer's chunk.
        got: u64,
        /// Next chunk, if any.
        expected: Option<u64>,
    },
    /// A kernel refused a chunk.
    #[error("the kernel refused chunk {chunk}: {length} bytes at offset {place} of the device memory")]
    Refused {
        /// Its number, from 0.
        chunk: u64,
        /// Its offset in device memory.
        place: u64,
        /// Its bytes.
        length: u64,
    },
    /// A ring's index claims too much.
    #[error("{ring} {corrupt}")]
    Ring {
        /// Input or output.
        ring: &'static str,
        /// Its indices.
        corrupt: Corrupt,
    },
    /// No progress until the deadline.
    #[error("no progress for {waited:?}: {read} chunks read, {copying} being copied, {working} with the kernel, {done} done")]
    Stalled {
        /// Streamer's [patience](super::Builder::patience).
        waited: Duration,
        /// Chunks that were read.
        read: u64,
        /// Of those, being copied.
        copying: u64,
        /// Of those, with the kernel.
        working: u64,
        /// Of those, done.
        done: u64,
    },
    /// The [progress callback](super::Job::on_progress) stopped it.
    #[error("was cancelled")]
    Cancelled,
    /// The backend failed.
    #[error(transparent)]
    Device(#[from] Error),
    /// The user's stage failed.
    #[error(transparent)]
    Stage(Box<dyn core::error::Error + Send + Sync>),
}

fn out_of_order(got: u64, expected: Option<u64>) -> std::string::String {
    match expected {
        None => std::format!("unexpected answer for chunk {got}: no chunk is in the kernel"),
        Some(next) => {
            let what = if got < next { "arrived twice" } else { "arrived too early" };
            std::format!("the answer for chunk {got} {what}: expected chunk {next}")
        }
    }
}

debug_with_causes! { Interrupted Cause }
