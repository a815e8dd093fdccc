use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Vec;

use super::Cause;
use crate::backend::{Backend, DeviceAddress};
use crate::error::LimitOf;
use crate::memory::{Arena, Buffer, Device, Pinned};
use crate::stream::Stream;
use crate::{Error, Result};

/// A chunk in device memory.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::{Module, Stream};
/// use ringmem::streaming::{Chunk, Job, Queued, Streamer};
///
/// let backend = HostBackend::builder().build()?;
/// # let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let mut chunks = Vec::new();
/// let mut stage = Queued(|chunk: &Chunk, stream: &Stream| {
///     chunks.push((chunk.index, chunk.offset, chunk.length));
///     // SAFETY: `increment` uses the chunk's bytes only, and ends.
///     Ok(unsafe { stream.launch(&module, "increment", &[chunk.address.get(), chunk.length]) }?)
/// });
/// Streamer::builder(&backend, 0).chunk(4096).build()?.run(Job::new(&mut &[7_u8; 10_000][..]), &mut stage)?;
/// assert_eq!(chunks, [(0, 0, 4096), (1, 4096, 4096), (2, 8192, 1808)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// Number in its job, from 0.
    pub index: u64,
    /// Offset in the source.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Device address, a multiple of [`Streamer::ALIGN`].
    pub address: DeviceAddress,
    /// Offset in the [streamer's memory](Streamer::address).
    pub place: u64,
}

impl Chunk {
    /// Returns the error for a refused chunk.
    #[must_use]
    pub const fn refused(&self) -> Cause {
        Cause::Refused { chunk: self.index, place: self.place, length: self.length }
    }
}

pub(super) type Staging = Buffer<u8, Arena<Pinned>>;

pub(super) type Slot = Buffer<u8, Arena<Device>>;

/// Moves data through a device in chunks. Owns memory and streams.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).depth(3).build()?;
/// let (mut source, mut sink) = (&[7_u8; 200_000][..], Vec::new());
/// let streamed = streamer.run(Job::new(&mut source).to(&mut sink).checksums(), &mut Through)?;
/// assert_eq!((streamed.chunks, sink.len()), (4, 200_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Streamer {
    backend: Arc<dyn Backend>,
    device: u32,
    chunk: usize,
    element: u64,
    depth: usize,
    staging: usize,
    pub(super) patience: Duration,
    /// One allocation each, so that memory for all chunks is refused before any of it is taken.
    arena: Arena<Device>,
    pinned: Arena<Pinned>,
    stride: usize,
    pub(super) idle: VecDeque<Staging>,
    pub(super) free: Vec<Slot>,
    /// A kernel may still use them.
    pub(super) lost: Vec<Slot>,
    pub(super) upload: Stream,
    pub(super) work: Stream,
    pub(super) download: Stream,
}

/// Settings of a [`Streamer`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::Streamer;
///
/// let backend = HostBackend::builder().build()?;
/// let streamer = Streamer::builder(&backend, 0).chunk(1 << 20).depth(3).element(8).build()?;
/// assert_eq!((streamer.chunk(), streamer.size()), (1 << 20, 3 << 20)); // device memory
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    backend: Arc<dyn Backend>,
    device: u32,
    chunk: u64,
    depth: u32,
    staging: Option<u32>,
    element: u64,
    patience: Duration,
}

impl Streamer {
    /// Alignment of chunks, in bytes.
    pub const ALIGN: usize = 256;

    /// Largest [`depth`](Builder::depth) and number of [staging buffers](Builder::staging). It bounds the bookkeeping, which is below 4 KiB for a
    /// chunk in flight.
    pub const MOST_DEPTH: u32 = 1024;

    /// Returns the defaults: three chunks of 4 MiB, elements of a byte.
    pub fn builder<B: Backend + ?Sized>(backend: &Arc<B>, device: u32) -> Builder {
        let (backend, patience) = (Arc::clone(backend).erased(), Duration::from_secs(30));
        Builder { backend, device, chunk: 4 << 20, depth: 3, staging: None, element: 1, patience }
    }

    /// Returns the first slot's device address; others follow at multiples of [`ALIGN`](Self::ALIGN).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.arena.device_address().map_or(0, DeviceAddress::get)
    }

    /// Returns the bytes of device memory.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.arena.size() as u64
    }

    /// Returns the bytes of each chunk but the last.
    #[must_use]
    pub const fn chunk(&self) -> u64 {
        self.chunk as u64
    }

    /// Returns the numbers of staging buffers and of locked ones.
    #[must_use]
    pub fn pinned(&self) -> (usize, usize) {
        (self.idle.len(), self.idle.iter().filter(|buffer| buffer.is_pinned()).count())
    }

    /// Returns the backend.
    #[must_use]
    pub const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns the device's ordinal.
    #[must_use]
    pub const fn device(&self) -> u32 {
        self.device
    }

    pub(super) fn memory(&self) -> Arena<Device> {
        self.arena.clone()
    }

    pub(super) const fn element(&self) -> u64 {
        self.element
    }

    pub(super) fn length_of(&self, rest: u64) -> usize {
        usize::try_from(rest).map_or(self.chunk, |rest| rest.min(self.chunk))
    }

    pub(super) fn fill_up(&mut self) -> Result<()> {
        while self.idle.len() < self.staging {
            self.idle.push_back(Staging::new(self.pinned.clone(), self.stride)?);
        }
        while self.free.len() + self.lost.len() < self.depth {
            self.free.push(Slot::new(self.arena.clone(), self.stride)?);
        }
        if self.free.is_empty() {
            return Err(Error::Busy { what: "a kernel may still use the chunks of an interrupted run" });
        }
        Ok(())
    }
}

impl Builder {
    /// Sets a chunk's bytes, rounded down to whole elements.
    pub const fn chunk(mut self, bytes: u64) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets the most chunks in flight, up to [`MOST_DEPTH`](Streamer::MOST_DEPTH): of three, one is read, one uploaded and one worked on; a sink
    /// needs two more.
    pub const fn depth(mut self, chunks: u32) -> Self {
        self.depth = chunks;
        self
    }

    /// Sets the number of pinned buffers, up to [`MOST_DEPTH`](Streamer::MOST_DEPTH); default: the depth. Without a sink, fewer suffice and stay in
    /// the CPU caches.
    pub const fn staging(mut self, buffers: u32) -> Self {
        self.staging = Some(buffers);
        self
    }

    /// Sets an element's bytes, within which no chunk ends.
    pub const fn element(mut self, bytes: u64) -> Self {
        self.element = bytes;
        self
    }

    /// Sets how long a [`Persistent`](super::Persistent) kernel may make no progress before [`Stalled`](super::Cause::Stalled); default 30 s.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Allocates memory and streams: `depth` chunks of device memory and `staging` chunks of pinned memory, each rounded up to a multiple of
    /// [`ALIGN`](Streamer::ALIGN) bytes. A job takes no more of either.
    ///
    /// # Errors
    ///
    /// Before any allocation: [`Size`](Error::Size) for a setting of 0 or above its limit, and [`Staging`](Error::Staging) for more pinned memory
    /// than the backend's budget has left. Then no such device, memory or thread.
    pub fn build(self) -> Result<Streamer> {
        let Self { backend, device, chunk, depth, staging, element, patience } = self;
        let staging = staging.unwrap_or(depth);
        let (max_bytes, max_depth) = (isize::MAX as u64, u64::from(Streamer::MOST_DEPTH));
        for (what, asked, most) in [
            ("chunk size in bytes", chunk, max_bytes),
            ("number of chunks in flight", u64::from(depth), max_depth),
            ("number of staging buffers", u64::from(staging), max_depth),
            ("element size in bytes", element, max_bytes),
        ] {
            if !(1..=most).contains(&asked) {
                return Err(Error::Size { what, asked, least: 1, most });
            }
        }
        let chunk = (chunk / element).max(1).saturating_mul(element);
        let stride = chunk.next_multiple_of(Streamer::ALIGN as u64);
        let most = max_bytes / u64::from(depth.max(staging)) / Streamer::ALIGN as u64 * Streamer::ALIGN as u64;
        if stride > most {
            return Err(Error::Size { what: "chunk size in bytes", asked: chunk, least: 1, most });
        }
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let size_of_all = |count: u32| size(stride * u64::from(count));
        let pinned = Arena::new(Pinned::new(&backend, device), size_of_all(staging), Streamer::ALIGN).map_err(|error| match error {
            Error::Limit { of: LimitOf::Pinned, used, limit, .. } => Error::Staging { buffers: staging, bytes: stride, used, limit },
            error => error,
        })?;
        let arena = Arena::new(Device::new(&backend, device), size_of_all(depth), Streamer::ALIGN)?;
        let open = || Stream::new(&backend, device);
        let (upload, work, download) = (open()?, open()?, open()?);
        let mut streamer = Streamer {
            device,
            chunk: size(chunk),
            element,
            depth: depth as usize,
            staging: staging as usize,
            patience,
            arena,
            pinned,
            stride: size(stride),
            idle: VecDeque::new(),
            free: Vec::new(),
            lost: Vec::new(),
            upload,
            work,
            download,
            backend,
        };
        streamer.fill_up()?;
        Ok(streamer)
    }
}

impl fmt::Debug for Streamer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streamer")
            .field("chunk", &self.chunk)
            .field("depth", &self.depth)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
