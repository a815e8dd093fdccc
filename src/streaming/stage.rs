//! [`Stage`]: what happens to a chunk while it is in device memory.

use super::{Cause, Chunk};
use crate::stream::{Pending, Stream};

/// What happens to a chunk in device memory: [`Through`], [`Queued`] or [`Persistent`](super::Persistent).
pub trait Stage: sealed::Stage {}

/// Nothing: the bytes go there and come back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Through;

/// Operations that are queued on a stream for each chunk: called with the chunk, whose bytes will be there when the stream comes to what is
/// queued now, and the stream. What it gives is waited for, and what it failed with stops the job.
///
/// A kernel that is launched so ends by itself, and touches the chunk's bytes and what is its own.
#[derive(Clone, Copy, Debug)]
pub struct Queued<F>(pub F);

impl Stage for Through {}
impl<F: FnMut(&Chunk, &Stream) -> Result<Pending<()>, Cause>> Stage for Queued<F> {}

impl sealed::Stage for Through {
    const ASKS: bool = false;
}

impl<F: FnMut(&Chunk, &Stream) -> Result<Pending<()>, Cause>> sealed::Stage for Queued<F> {
    const ASKS: bool = false;

    fn queue(&mut self, chunk: &Chunk, on: &Stream) -> Result<Option<Pending<()>>, Cause> {
        (self.0)(chunk, on).map(Some)
    }
}

pub(super) mod sealed {
    use super::{Cause, Chunk, Pending, Stream};

    pub trait Stage {
        /// Whether it is told of chunks that have arrived and answers; else it is asked what to queue before.
        const ASKS: bool;

        /// Refuses a job of a streamer whose device memory begins at `home`, where it would go wrong.
        fn begin(&mut self, home: u64) -> Result<(), Cause> {
            let _ = home;
            Ok(())
        }
        /// Queues what is to be done with a chunk, and gives the last of it.
        fn queue(&mut self, chunk: &Chunk, on: &Stream) -> Result<Option<Pending<()>>, Cause> {
            let _ = (chunk, on);
            Ok(None)
        }
        /// Makes up what to say of a chunk that has arrived.
        fn ask(&mut self, chunk: &Chunk) {
            let _ = chunk;
        }
        /// Says it; whether there was room.
        fn tell(&mut self, chunk: &Chunk) -> Result<bool, Cause> {
            let _ = chunk;
            Ok(true)
        }
        /// Whether this chunk, the next whose answer is due, is answered.
        fn is_answered(&mut self, chunk: &Chunk) -> Result<bool, Cause> {
            let _ = chunk;
            Ok(true)
        }
        /// Makes of the answer what is to be made of it.
        fn judge(&mut self, chunk: &Chunk) -> Result<(), Cause> {
            let _ = chunk;
            Ok(())
        }
        /// Whether there is still somebody to answer, when nothing has moved.
        fn check(&mut self) -> Result<(), Cause> {
            Ok(())
        }
    }
}
