//! [`Stage`]: the work on a chunk while it is in device memory.

use sealed::Work;

use super::{Cause, Chunk};
use crate::stream::{Pending, Stream};

/// The work on a chunk in device memory: [`Through`], [`Queued`] or [`Persistent`](super::Persistent).
pub trait Stage: sealed::Stage {}

/// No work: the bytes are copied to the device and back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Through;

/// Operations that are queued on a stream for each chunk. The closure is called with the chunk and the stream; the upload of the chunk is ordered before what
/// the closure queues there. The pipeline waits for the operation that the closure returns, and its error stops the job.
///
/// A kernel that is launched so ends by itself, and touches only the chunk's bytes and its own.
#[derive(Clone, Copy, Debug)]
pub struct Queued<F>(pub F);

impl Stage for Through {}
impl<F: FnMut(&Chunk, &Stream) -> Result<Pending<()>, Cause>> Stage for Queued<F> {}

impl sealed::Stage for Through {
    fn work(&mut self) -> Work<'_> {
        Work::None
    }
}

impl<F: FnMut(&Chunk, &Stream) -> Result<Pending<()>, Cause>> sealed::Stage for Queued<F> {
    fn work(&mut self) -> Work<'_> {
        Work::Queued(&mut self.0)
    }
}

pub(super) mod sealed {
    use super::{Cause, Chunk, Pending, Stream};

    pub trait Stage {
        fn work(&mut self) -> Work<'_>;
    }

    /// How the pipeline has the work on a chunk done.
    pub enum Work<'s> {
        None,
        /// Queued behind the upload of a chunk.
        Queued(&'s mut Queue<'s>),
        /// Requested from a running kernel when the chunk has arrived.
        Requested(&'s mut dyn Requests),
    }

    pub type Queue<'s> = dyn FnMut(&Chunk, &Stream) -> Result<Pending<()>, Cause> + 's;

    /// Requests to a running kernel and its answers, both in the order of the chunks.
    pub trait Requests {
        /// Refuses a job if the kernel has other memory than the streamer's, which begins at `home`, or if a late answer could be taken for another chunk's.
        fn begin(&mut self, home: u64) -> Result<(), Cause>;
        /// Sends the request for a chunk. Returns whether there was room.
        fn request(&mut self, chunk: &Chunk) -> Result<bool, Cause>;
        /// Returns whether the answer for the oldest chunk that was requested has come, and handles it.
        fn answered(&mut self, chunk: &Chunk) -> Result<bool, Cause>;
        /// Whether the kernel may use a chunk's memory, even if a call above has failed or panicked.
        fn may_have(&self, chunk: &Chunk) -> bool;
        /// Returns an error if the kernel has left.
        fn check(&mut self) -> Result<(), Cause>;
    }
}
