//! [`Peers`]: copies from device to device, past the host where one of them reaches the other and over it where none does.
//!
//! 1. What device reaches which is a [`Matrix`] of the backend's own words, each direction for itself. Nothing is assumed, and a device reaches itself.
//! 2. A direction is [enabled](Peers::enable) by one call of the backend however often it is asked for, and [disabled](Peers::disable) and enabled again.
//! 3. A copy between two devices of which one is enabled to reach the other touches no memory of the host. Any other goes over pinned memory, both ways
//!    at once: while one chunk leaves it, the next arrives.
//! 4. How it goes follows from its size and the link ([`Strategy::choose`]), or is said. Pinned memory and streams are taken for a copy, not for a
//!    chunk, and the bytes in flight have a bound.
//! 5. Whatever call fails, nothing is lost but the copy: both ends come back, or are borrowed no more.
//!
//! What is enabled is known of this value alone: where another enables or disables behind its back, a copy may take the longer way, and never a wrong
//! one. On a backend with a driver nothing of this has met two GPUs yet.
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

mod matrix;
mod spread;
mod strategy;
mod verify;

use core::fmt;
use std::boxed::Box;
use std::sync::Arc;

use crate::backend::{Backend, same_backend};
use crate::copy::{Chunked, Chunks, Ended, Lent, Plan, Progress, Way};
use crate::memory::{Both, Budget, Buffer, DeviceOnly, Memory, Origin, Slice, SliceMut, same_size};
use crate::stream::{Source, Stream, Target};
use crate::{DeviceBytes, Error, Rejected, Result};

pub use matrix::Matrix;
pub use strategy::Strategy;

/// The most copies of one [`Peers`] that are under way at once.
pub const MOST_COPIES: u64 = 16;

/// A backend's devices, and what copies from one to another take. It is shared by reference; what is enabled is changed by whoever has it alone.
pub struct Peers {
    backend: Arc<dyn Backend>,
    matrix: Matrix,
    enabled: Matrix,
    /// Of each device: for what leaves it, and for what arrives.
    streams: Box<[[Stream; 2]]>,
    staging: Arc<dyn Memory<Visibility = Both>>,
    /// The line that created this.
    origin: Origin,
    rate: Option<f64>,
    /// One for each copy under way.
    places: Budget,
}

/// How a copy is to be done, where it does not go without saying.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How the bytes go; `None` for what [`Peers::strategy`] says.
    pub strategy: Option<Strategy>,
    /// Whether both ends are [read back and compared](Peers::verify) when the copy is done.
    pub verify: bool,
}

impl Peers {
    /// Opens two streams on each device of the memory's backend. Copies through the host allocate from `staging`. Enables no peer access.
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

    /// The same over links of a rate, in bytes per ns: chunks are as long as suits it.
    #[must_use]
    pub const fn rated(mut self, rate: f64) -> Self {
        self.rate = Some(rate);
        self
    }

    /// What can be enabled.
    #[must_use]
    pub const fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Whether `from` can reach the memory of `to`, enabled or not.
    #[must_use]
    pub fn can_reach(&self, from: u32, to: u32) -> bool {
        self.matrix.can_reach(from, to)
    }

    /// Whether `from` reaches the memory of `to` now.
    #[must_use]
    pub fn is_enabled(&self, from: u32, to: u32) -> bool {
        self.enabled.can_reach(from, to)
    }

    /// Lets `from` reach the memory of `to`. The backend is called where it was not so.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), [`Unsupported`](Error::Unsupported) where it cannot; what the driver said. Then all is as it was.
    pub fn enable(&mut self, from: u32, to: u32) -> Result<()> {
        self.set(from, to, true)
    }

    /// Lets every device reach whatever it can.
    ///
    /// # Errors
    ///
    /// What the driver said of the first that it refused; those before are enabled.
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

    /// Takes back that `from` reaches the memory of `to`. Wait for kernels that rely on it first. The backend is called where it was so.
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
        self.backend.extension().set_peer(from, to, enabled)?;
        self.enabled.set(from, to, enabled);
        Ok(())
    }

    /// How a copy of so many bytes goes from one device to another now.
    #[must_use]
    pub fn strategy(&self, from: u32, to: u32, bytes: u64) -> Strategy {
        // Whichever device reaches the other does the copy.
        Strategy::choose(bytes, self.is_enabled(from, to) || self.is_enabled(to, from), self.rate)
    }

    /// Copies all elements of a device's buffer to another's, and returns when that is done.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size), [`OtherBackend`](Error::OtherBackend), [`Busy`](Error::Busy) with [`MOST_COPIES`] under way, what the
    /// staging memory refuses, all before anything is done; what an operation on either buffer that is not over failed with, or the copy.
    pub fn copy<T, A, B>(&self, from: &Buffer<T, A>, to: &mut Buffer<T, B>) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        self.copy_with(from, to, Options::default(), |_| {})
    }

    /// The same as `options` say, and `progress` is told of each chunk that has arrived, in order.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy); [`Size`](Error::Size) for a chunk shorter than an element, [`Unsupported`](Error::Unsupported) for a depth of 0 or more than
    /// 8; as [`verify`](Self::verify).
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

    /// Queues a copy of all elements of `from` to `to`: buffers of devices, or leases on registered ones. It owns both until it is over.
    ///
    /// What was not queued at once is queued by whoever waits for it or polls it: whoever has several under way polls each. One that is forgotten counts as
    /// under way for ever.
    ///
    /// # Errors
    ///
    /// Both, as [`copy_with`](Self::copy_with); nothing was queued.
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
        // SAFETY: it is only read; `Ended` waits for all that is queued with it, also when `progress` panics.
        let source = unsafe { Lent::new(from) };
        // SAFETY: as above, and nobody else has what is behind a `SliceMut`.
        let target = unsafe { Lent::new(to) };
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
        same_size::<T>(to.len(), from.len())?;
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
        let way = match strategy {
            Strategy::Staged { .. } => {
                // No more than the copy needs: one that is short is one chunk.
                let longest = chunks.step().checked_div(size).unwrap_or(0).min(elements);
                self.origin.around(|| Way::staged(out, into, &self.staging, longest as usize, depth.min(chunks.size_hint().0)))?
            }
            _ => Way::Direct(out.clone()),
        };
        Ok(Plan { way, chunks, depth, place: Some(place) })
    }

    fn streams_of(&self, device: u32) -> Result<&[Stream; 2]> {
        self.matrix.check(device)?;
        self.streams.get(device as usize).ok_or(Error::NoDevice { asked: device, devices: self.matrix.devices() })
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
