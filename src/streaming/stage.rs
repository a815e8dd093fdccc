use sealed::Work;

use super::{Cause, Chunk};
use crate::stream::{Pending, Stream};

/// The work on a chunk: [`Through`], [`Queued`] or [`Persistent`](super::Persistent).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Interrupted, Job, Stage, Streamer, Through};
///
/// /// Streams memory through any stage.
/// fn run(streamer: &mut Streamer, bytes: &[u8], stage: &mut impl Stage) -> Result<Vec<u8>, Interrupted> {
///     let (mut source, mut sink) = (bytes, Vec::new());
///     streamer.run(Job::new(&mut source).to(&mut sink), stage)?;
///     Ok(sink)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// assert_eq!(run(&mut streamer, &[7; 1000], &mut Through)?, [7; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Stage: sealed::Stage {}

/// No work: copies to the device and back.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let mut sink = Vec::new();
/// streamer.run(Job::new(&mut &[7_u8; 1000][..]).to(&mut sink), &mut Through)?;
/// assert_eq!(sink, [7; 1000]); // was on the device
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Through;

/// Operations queued for each chunk. The closure gets chunk and stream, after the upload; its operation's error stops the job. Kernels end
/// by themselves and access only the chunk and their own bytes. A job that stops waits for the operations of its own streams, and for the operation that the
/// closure has returned. So a closure that queues operations on another stream returns the last of them, or waits for them before it returns an error.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::{Module, Stream};
/// use ringmem::streaming::{Chunk, Job, Queued, Streamer};
///
/// let backend = HostBackend::builder().build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let mut stage = Queued(|chunk: &Chunk, stream: &Stream| {
///     // SAFETY: `increment` uses the chunk's bytes only, and ends.
///     Ok(unsafe { stream.launch(&module, "increment", &[chunk.address.get(), chunk.length]) }?)
/// });
/// let mut sink = Vec::new();
/// Streamer::builder(&backend, 0).chunk(4096).build()?.run(Job::new(&mut &[7_u8; 10_000][..]).to(&mut sink), &mut stage)?;
/// assert_eq!(sink, [8; 10_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    pub enum Work<'s> {
        None,
        Queued(&'s mut Queue<'s>),
        Requested(&'s mut dyn Requests),
    }

    pub type Queue<'s> = dyn FnMut(&Chunk, &Stream) -> Result<Pending<()>, Cause> + 's;

    pub trait Requests {
        /// Fails for other memory than `home`, or if a late answer could be mistaken.
        fn begin(&mut self, home: u64) -> Result<(), Cause>;
        /// False without room.
        fn request(&mut self, chunk: &Chunk) -> Result<bool, Cause>;
        /// For the oldest requested chunk.
        fn answered(&mut self, chunk: &Chunk) -> Result<bool, Cause>;
        /// Even after a failed or panicked call.
        fn may_have(&self, chunk: &Chunk) -> bool;
        fn check(&mut self) -> Result<(), Cause>;
    }
}
