//! [`Peers`]: copies between devices, directly with peer access, otherwise through pinned host memory.
//!
//! Use [`Stream::copy`](crate::stream::Stream::copy) within one device.
//!
//! 1. Access in a direction of the [`Matrix`] can be [enabled](Peers::enable) and [disabled](Peers::disable).
//! 2. A copy between devices with access in either direction uses no host memory. Others are staged in pinned memory, with overlapping
//!    upload and download.
//! 3. Size and link determine the strategy ([`Strategy::choose`]), unless the caller sets it. Streams and pinned memory are allocated per
//!    copy; bytes in flight are bounded.
//! 4. A failed call returns both buffers, or no longer borrows them.
//!
//! Access that other code changes is not seen: a copy may take the longer path. Not yet tested with two GPUs.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Device, GpuBuffer, Pinned};
//! use ringmem::peer::Peers;
//!
//! let backend = HostBackend::builder().devices(2).peer(0, 1).build()?;
//! let mut peers = Peers::new(Pinned::new(&backend, 0))?;
//! let from = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[7; 1000])?;
//! let mut to = GpuBuffer::<u32>::new(Device::new(&backend, 1), 1000)?;
//!
//! peers.copy(&from, &mut to)?; // over the host
//! assert_eq!(backend.counters().peer_copies.count, 0);
//!
//! peers.enable(0, 1)?;
//! let (from, to) = peers.queue(from, to, None)?.wait()?;
//! assert_eq!((backend.counters().peer_copies.count, backend.counters().downloads.bytes), (1, 4000));
//! peers.verify(&from, &to)?;
//! # Ok(())
//! # }
//! ```
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

mod copy_path;
mod matrix;
mod spread;
mod verify;

use core::fmt;
use std::boxed::Box;
use std::sync::Arc;

use crate::backend::{Backend, same_backend};
use crate::copy::{BorrowedEnd, ChunkPath, Chunked, Chunks, Ended, Plan, Progress};
use crate::memory::{Both, Budget, Buffer, DeviceOnly, Memory, Origin, Slice, SliceMut, same_len};
use crate::stream::{Source, Stream, Target};
use crate::{DeviceBytes, Error, Rejected, Result};

pub use copy_path::Strategy;
pub use matrix::Matrix;

/// The most copies of one [`Peers`] in flight.
pub const MOST_COPIES: u64 = 16;

/// A backend's devices, and resources for copies between them.
///
/// ```
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
/// use ringmem::peer::Peers;
///
/// # use ringmem::backend::host::HostBackend;
/// let backend = HostBackend::builder().devices(2).build()?; // without access to each other
/// let peers = Peers::new(Pinned::new(&backend, 0))?;
/// let from = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[7; 1000])?;
/// let mut to = GpuBuffer::<u32>::new(Device::new(&backend, 1), 1000)?;
/// peers.copy(&from, &mut to)?; // over the host
/// assert_eq!((to.to_vec()?, backend.counters().peer_copies.count), (vec![7; 1000], 0));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Peers {
    backend: Arc<dyn Backend>,
    matrix: Matrix,
    enabled: Matrix,
    streams: Box<[[Stream; 2]]>,
    staging: Arc<dyn Memory<Visibility = Both>>,
    origin: Origin,
    rate: Option<f64>,
    /// One unit per copy in flight.
    places: Budget,
}

/// Options of a copy.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
/// use ringmem::peer::{Options, Peers, Strategy};
///
/// let backend = HostBackend::builder().devices(2).build()?;
/// let peers = Peers::new(Pinned::new(&backend, 0))?;
/// let from = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[7; 1000])?;
/// let mut to = GpuBuffer::<u32>::new(Device::new(&backend, 1), 1000)?;
/// let options = Options { strategy: Some(Strategy::Staged { chunk: 1500, depth: 2 }), verify: true };
/// let mut done = Vec::new();
/// peers.copy_with(&from, &mut to, options, |progress| done.push(progress.done))?;
/// assert_eq!(done, [1500, 3000, 4000]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `None` for [`Peers::strategy`].
    pub strategy: Option<Strategy>,
    /// Whether to [compare](Peers::verify) both ends afterwards.
    pub verify: bool,
}

impl Peers {
    /// Opens two streams on each device; copies through the host allocate from `staging`.
    ///
    /// # Errors
    ///
    /// As [`Backend::capabilities`] and [`Stream::new`].
    #[track_caller]
    pub fn new(staging: impl Memory<Visibility = Both>) -> Result<Self> {
        let backend = Arc::clone(staging.backend());
        let matrix = Matrix::of(&*backend)?;
        let stream = |device| Stream::new(&backend, device);
        let streams = (0..matrix.devices()).map(|device| Ok([stream(device)?, stream(device)?])).collect::<Result<_>>()?;
        let enabled = Matrix::none(matrix.devices());
        Ok(Self {
            backend,
            matrix,
            enabled,
            streams,
            staging: Arc::new(staging),
            origin: Origin::here(),
            rate: None,
            places: Budget::new(MOST_COPIES),
        })
    }

    /// Sets the link's rate in bytes per ns, for the chunk size.
    #[must_use]
    pub const fn rated(mut self, rate: f64) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Returns the access that can be enabled.
    #[must_use]
    pub const fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// As [`Matrix::can_reach`].
    #[must_use]
    pub fn can_reach(&self, from: u32, to: u32) -> bool {
        self.matrix.can_reach(from, to)
    }

    /// Returns whether `from` can access the memory of `to` now.
    #[must_use]
    pub fn is_enabled(&self, from: u32, to: u32) -> bool {
        self.enabled.can_reach(from, to)
    }

    /// Enables access from `from` to the memory of `to`.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), [`Unsupported`](Error::Unsupported), or the driver's error; nothing changes.
    pub fn enable(&mut self, from: u32, to: u32) -> Result<()> {
        self.set(from, to, true)
    }

    /// Enables all possible access.
    ///
    /// # Errors
    ///
    /// The first error; earlier pairs stay enabled.
    pub fn enable_all(&mut self) -> Result<()> {
        for from in 0..self.matrix.devices() {
            for to in 0..self.matrix.devices() {
                if self.can_reach(from, to) {
                    self.enable(from, to)?;
                }
            }
        }
        Ok(())
    }

    /// Disables access from `from` to the memory of `to`. Kernels that use it must have ended.
    ///
    /// # Errors
    ///
    /// As [`enable`](Self::enable).
    pub fn disable(&mut self, from: u32, to: u32) -> Result<()> {
        self.set(from, to, false)
    }

    fn set(&mut self, from: u32, to: u32, enabled: bool) -> Result<()> {
        self.matrix.check(from)?;
        self.matrix.check(to)?;
        if !self.can_reach(from, to) {
            return Err(Error::Unsupported { what: "peer access between these devices" });
        }
        if from == to || self.is_enabled(from, to) == enabled {
            return Ok(());
        }
        self.backend.set_peer(from, to, enabled)?;
        self.enabled.set(from, to, enabled);
        Ok(())
    }

    /// Returns the strategy of a copy of `bytes` bytes now.
    #[must_use]
    pub fn strategy(&self, from: u32, to: u32, bytes: u64) -> Strategy {
        Strategy::choose(bytes, self.is_enabled(from, to) || self.is_enabled(to, from), self.rate)
    }

    /// Copies all elements between buffers of two devices, and waits.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size), [`OtherBackend`](Error::OtherBackend), [`Busy`](Error::Busy) with [`MOST_COPIES`] in flight, or the staging
    /// memory's error, before any copy; then an earlier use's or the copy's.
    pub fn copy<T, A, B>(&self, from: &Buffer<T, A>, to: &mut Buffer<T, B>) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        self.copy_with(from, to, Options::default(), |_| {})
    }

    /// As [`copy`](Self::copy), with `options`; calls `progress` for each arrived chunk, in order.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy) and [`verify`](Self::verify); [`Size`](Error::Size) for a chunk below an element,
    /// [`Unsupported`](Error::Unsupported) for a depth of 0 or above 8.
    pub fn copy_with<T, A, B>(
        &self,
        from: &Buffer<T, A>,
        to: &mut Buffer<T, B>,
        options: Options,
        progress: impl FnMut(Progress),
    ) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        self.copy_view(from.as_view(), to.as_view_mut(), options.strategy, progress)?;
        if options.verify { self.verify(from, to) } else { Ok(()) }
    }

    /// Queues a copy of all elements between device buffers or leases; owns both until complete.
    ///
    /// Waiting or polling queues the remaining chunks: with several copies in flight, poll each.
    ///
    /// # Errors
    ///
    /// Both, as [`copy_with`](Self::copy_with); nothing is queued.
    pub fn queue<A, B>(&self, from: A, to: B, strategy: Option<Strategy>) -> Result<Chunked<A, B>, Rejected<(A, B)>>
    where
        A: Source<Memory: Memory<Visibility = DeviceOnly>>,
        B: Target<Element = A::Element, Memory: Memory<Visibility = DeviceOnly>>,
    {
        let planned = self.plan(from.elements(), to.elements(), strategy);
        Chunked::planned(from, to, planned)
    }

    fn copy_view<T: DeviceBytes, A: Memory, B: Memory>(
        &self,
        from: Slice<'_, T, A>,
        to: SliceMut<'_, T, B>,
        strategy: Option<Strategy>,
        progress: impl FnMut(Progress),
    ) -> Result<()> {
        let to = to.as_view();
        let plan = self.plan(from, to, strategy)?;
        from.settle()?;
        to.settle()?;
        // SAFETY: only read; `Ended` waits for all work queued with it, even if `progress` panics.
        let source = unsafe { BorrowedEnd::new(from) };
        // SAFETY: a `SliceMut` is exclusive; `Ended` waits for all work queued with it, even if `progress` panics.
        let target = unsafe { BorrowedEnd::new(to) };
        let mut copy = Ended(Chunked::idle(source, target, plan));
        copy.0.drive(None, progress);
        copy.0.failure().map_or(Ok(()), Err)
    }

    fn plan<T: DeviceBytes, A: Memory, B: Memory>(
        &self,
        from: Slice<'_, T, A>,
        to: Slice<'_, T, B>,
        strategy: Option<Strategy>,
    ) -> Result<Plan<T>> {
        same_len(to.len(), from.len())?;
        same_backend(&*self.backend, &**from.memory().backend())?;
        same_backend(&*self.backend, &**to.memory().backend())?;
        let [source, target] = [from.memory().device(), to.memory().device()];
        let (elements, size) = (from.len() as u64, size_of::<T>() as u64);
        let strategy = strategy.unwrap_or_else(|| self.strategy(source, target, elements * size));
        let (chunk, depth) = strategy.parts(elements * size, size)?;
        let chunks = Chunks::new(elements, size, chunk)?;
        let ([out, _], [_, into]) = (self.streams_of(source)?, self.streams_of(target)?);
        let busy = |_| Error::Busy { what: "too many copies between devices are in flight" };
        let place = self.places.reserve(1).map_err(busy)?;
        let path = match strategy {
            Strategy::Staged { .. } => {
                let longest = chunks.step().checked_div(size).unwrap_or(0).min(elements);
                self.origin.around(|| ChunkPath::staged(out, into, &self.staging, longest as usize, depth.min(chunks.size_hint().0)))?
            }
            _ => ChunkPath::Direct(out.clone()),
        };
        Ok(Plan { path, chunks, depth, place: Some(place) })
    }

    fn streams_of(&self, device: u32) -> Result<&[Stream; 2]> {
        self.matrix.check(device)?;
        self.streams.get(device as usize).ok_or_else(|| Error::NoDevice { asked: device, devices: self.matrix.devices() })
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers")
            .field("matrix", &self.matrix)
            .field("enabled", &self.enabled)
            .field("rate", &self.rate)
            .field("under_way", &self.places.used())
            .finish_non_exhaustive()
    }
}
