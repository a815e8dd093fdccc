//! Why a stream stops, and where it can go on.

use std::boxed::Box;
use std::io;
use std::time::Duration;

use crate::Error;
use crate::attach::Corrupt;

/// A stream that has stopped before its end.
#[derive(Debug, thiserror::Error)]
#[error("the stream stopped after byte {done}")]
pub struct Interrupted {
    /// Bytes of the source from its beginning that are done: worked on, and written where there is a sink. A chunk's boundary, or where the
    /// [job](super::Job::from) began.
    pub done: u64,
    /// Why.
    #[source]
    pub cause: Cause,
}

/// Why a stream stops. Sizes and places are bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The source cannot be read.
    #[error("cannot be read from byte {at} on")]
    Read {
        /// From where on.
        at: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The source has ended early.
    #[error("ended at byte {at}, but was {promised} bytes long when it was opened")]
    Truncated {
        /// Where.
        at: u64,
        /// What it promised.
        promised: u64,
    },
    /// The source has another length than it had.
    #[error("was {promised} bytes long when it was opened and {now} after it was read")]
    Changed {
        /// What it promised.
        promised: u64,
        /// What it says now.
        now: u64,
    },
    /// The source still says that it has this length, and goes on.
    #[error("says that it is {promised} bytes long, but goes on after them: not a file on a disk")]
    Endless {
        /// What it promised.
        promised: u64,
    },
    /// What is to be streamed is no whole number of elements.
    #[error("{length} bytes are no elements of {element} bytes")]
    Ragged {
        /// What there is.
        length: u64,
        /// An element's size.
        element: u64,
    },
    /// What was read is not what was [expected](super::Job::expect).
    #[error("the checksum is {got:08x}, and {expected:08x} was expected")]
    Checksum {
        /// The CRC-32C that was expected.
        expected: u32,
        /// That of what was read.
        got: u32,
    },
    /// The sink takes no more.
    #[error("cannot be written after byte {written}")]
    Write {
        /// What it has taken, of the stream's bytes from the source's beginning.
        written: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// An answer for another chunk than the next.
    #[error("{}", out_of_order(*got, *expected))]
    Order {
        /// The chunk that it names.
        got: u64,
        /// The chunk whose answer is next; `None` if there is none.
        expected: Option<u64>,
    },
    /// A kernel does not take a chunk.
    #[error("the kernel refused chunk {chunk}: {length} bytes at offset {place} of the device memory")]
    Refused {
        /// Which, from 0.
        chunk: u64,
        /// Where it is in the streamer's device memory.
        place: u64,
        /// Its bytes.
        length: u64,
    },
    /// A ring whose index claims what cannot be.
    #[error("{ring} {corrupt}")]
    Ring {
        /// Input or output, seen from the kernel.
        ring: &'static str,
        /// What it claims.
        corrupt: Corrupt,
    },
    /// Nothing has moved for too long.
    #[error("nothing moved for {waited:?}: {read} chunks read, {copying} being copied, {working} with the kernel, {done} done")]
    Stalled {
        /// How long: the streamer's [patience](super::Builder::patience).
        waited: Duration,
        /// Chunks that were read.
        read: u64,
        /// Of those, chunks on their way to the device or back.
        copying: u64,
        /// Of those, chunks that the kernel has.
        working: u64,
        /// Of those, chunks that are done.
        done: u64,
    },
    /// The [progress callback](super::Job::on_progress) said so.
    #[error("was told to stop")]
    Cancelled,
    /// The backend, or what is below it.
    #[error(transparent)]
    Device(#[from] Error),
    /// What a stage of the user's own failed with.
    #[error(transparent)]
    Stage(Box<dyn core::error::Error + Send + Sync>),
}

fn out_of_order(got: u64, expected: Option<u64>) -> std::string::String {
    match expected {
        None => std::format!("an answer for chunk {got} that nobody waits for"),
        Some(next) => {
            let what = if got < next { "came twice" } else { "came too early" };
            std::format!("the answer for chunk {got} {what}: chunk {next}'s was next")
        }
    }
}
