//! CUDA: a backend over NVIDIA's driver.
//!
//! **It has not run on a GPU yet**: tests use a double of the driver (`tests/driver-double`), and nothing is measured.
//!
//! 1. No call panics without a driver: [`Driver::load`] reports what is missing.
//! 2. No free, load or copy synchronises with a running kernel; such a free is deferred. Pinned and managed memory, streams beyond 26 per
//!    device, and device memory without a pool are allocated on demand, which may block under a kernel, as may page-locking.
//!    Other processes' and libraries' kernels are unknown here.
//! 3. No call reaches the driver in a fork or in a process that is ending.
//!
//! Streams share a device's hardware queues, 8 by default: an operation behind a kernel can block another stream. With a persistent kernel
//! and more streams, set `CUDA_DEVICE_MAX_CONNECTIONS=32` first.
//!
//! [`cudarc`] is re-exported; its contexts, streams and memory can be [adopted](CudaBackend::adopt_stream).
//!
//! ```no_run
//! use ringmem::backend::cuda::CudaBackend;
//! use ringmem::memory::{Device, GpuBuffer};
//!
//! # fn main() -> ringmem::Result<()> {
//! let backend = CudaBackend::open()?;
//! let buffer = GpuBuffer::<f32>::new(Device::new(&backend, 0), 1 << 20)?;
//! # drop(buffer);
//! # Ok(()) }
//! ```

mod backend;
mod call;
mod code;
mod completion_count;
mod copy;
mod deferred;
mod device;
mod driver;
mod driver_pool;
mod event;
mod facts;
mod fill;
mod interop;
mod launching;
mod memory;
mod module;
mod occupancy;
mod peers;
mod pinned_chunks;
mod prefetch;
mod preload;
mod process;
mod publish;
mod queue;
mod ranges;
mod recent;
mod staged;
mod watch;

use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::vec::Vec;

use cudarc::driver::CudaStream;

pub use cudarc;

use self::call::Calls;
use self::deferred::Deferred;
use self::device::Device;
use self::event::TimingEvents;
use self::launching::Launching;
use self::memory::Owner;
use self::module::Loaded;
use self::queue::Queue;
use self::ranges::Ranges;
use self::recent::Numbered;
use self::watch::Watch;
use crate::backend::counters::Counts;
use crate::backend::failures::Ended;
use crate::backend::host::{self, pinned::Budget};
use crate::backend::{ModuleId, StreamId, Ticket, Uses};
use crate::{Error, Result};

pub use self::call::check;
pub use self::driver::{Driver, Gpu};
pub use self::interop::Registered;
pub use self::prefetch::Advice;
pub use crate::backend::counters::{Counters, Live, Tally};

/// The GPUs of this machine. Each primary context is retained from first use until the backend is dropped.
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::cuda::CudaBackend;
///
/// match CudaBackend::open() {
///     Ok(backend) => assert!(backend.devices() > 0 && !backend.is_simulated()),
///     Err(error) => println!("{error}"), // no driver, or no GPU
/// }
/// ```
pub struct CudaBackend {
    inner: Arc<Inner>,
}

/// The state of a backend, shared with its watch thread.
struct Inner {
    id: u64,
    driver: Driver,
    settings: Settings,
    devices: Vec<OnceLock<Arc<Device>>>,
    opening: Mutex<()>,
    ranges: Ranges<Owner>,
    streams: Numbered<StreamId, Queue>,
    ended: Ended<Queue>,
    closing: AtomicUsize,
    images: Mutex<Vec<Arc<Loaded>>>,
    modules: Numbered<ModuleId, Loaded>,
    timing_events: TimingEvents,
    deferred: Deferred,
    launching: Launching,
    watch: Watch,
    budget: Budget,
    counts: Arc<Counts>,
    /// One stream of each context that cudarc has; dropped with the backend, but not while a kernel runs.
    cudarc: Mutex<BTreeMap<u32, ManuallyDrop<Arc<CudaStream>>>>,
}

/// How long a drop waits for kernels, before it leaks memory and modules.
const LEAVING: Duration = Duration::from_secs(2);

/// Settings of a backend.
///
/// ```
/// use ringmem::backend::cuda::{CudaBackend, Settings};
///
/// let settings = Settings { threshold: 1 << 30, pinned_budget: 512 << 20, ..Settings::default() };
/// assert!(settings.stream_ordered);
/// match CudaBackend::with(settings) {
///     Ok(backend) => println!("{backend:?}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Use a stream-ordered pool if possible: allocate and free then wait for no kernel. Otherwise each block is a `cuMemAlloc`.
    pub stream_ordered: bool,
    /// Freed bytes that a device's pool keeps at a synchronisation.
    pub threshold: u64,
    /// Bytes that may be pinned at once, deferred frees included, the backend's own excluded.
    pub pinned_budget: u64,
}

impl Default for Settings {
    /// Returns a pool that keeps everything, and the [budget](host::pinned_budget) for this machine.
    fn default() -> Self {
        Self { stream_ordered: true, threshold: u64::MAX, pinned_budget: host::pinned_budget(host::host_memory()) }
    }
}

impl CudaBackend {
    /// Opens the GPUs with the default settings.
    ///
    /// # Errors
    ///
    /// [`NoDriver`](Error::NoDriver), [`NoDevice`](Error::NoDevice), [`Driver`](Error::Driver).
    pub fn open() -> Result<Arc<Self>> {
        Self::with(Settings::default())
    }

    /// Opens the GPUs.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn with(settings: Settings) -> Result<Arc<Self>> {
        let driver = Driver::load()?;
        let count = driver.count()?;
        if count == 0 {
            return Err(Error::NoDevice { asked: 0, devices: 0 });
        }
        let inner = Inner {
            id: crate::backend::next_id(),
            driver,
            settings,
            devices: (0..count).map(|_| OnceLock::new()).collect(),
            opening: Mutex::default(),
            ranges: Ranges::default(),
            streams: Numbered::default(),
            ended: Ended::default(),
            closing: AtomicUsize::new(0),
            images: Mutex::default(),
            modules: Numbered::default(),
            timing_events: TimingEvents::default(),
            deferred: Deferred::default(),
            launching: Launching::default(),
            watch: Watch::default(),
            budget: Budget::new(settings.pinned_budget),
            counts: Arc::default(),
            cudarc: Mutex::default(),
        };
        Ok(Arc::new(Self { inner: Arc::new(inner) }))
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Returns the counters; an operation counts once the backend sees it complete.
    #[must_use]
    pub fn counters(&self) -> Counters {
        if !process::is_home() {
            return self.inner.counts.read();
        }
        for queue in self.inner.queues() {
            let _ = queue.is_complete(queue.last());
        }
        self.inner.tidy();
        let counters = self.inner.counts.read();
        Counters { unreported: counters.unreported + self.inner.ended.unreported(), ..counters }
    }

    /// Returns the number of pending frees and kept values.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.tidy();
        self.inner.deferred.len()
    }

    /// Releases a device's unused pool memory.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) while a kernel is queued or running: unmapping may wait for it; [`NoDevice`](Error::NoDevice), the driver's
    /// error.
    pub fn trim(&self, device: u32) -> Result<()> {
        let home = self.inner.device(device)?;
        let _bound = home.bind()?;
        let _alone = self.inner.alone();
        if self.inner.has_kernels() {
            return Err(Error::Busy { what: "a kernel is running, and releasing memory of the pool may wait for it" });
        }
        home.pool.as_ref().map_or(Ok(()), |pool| pool.trim())
    }
}

impl Inner {
    fn calls(&self) -> &'static Calls {
        self.driver.calls()
    }

    fn device(&self, ordinal: u32) -> Result<&Arc<Device>> {
        let Some(place) = self.devices.get(ordinal as usize) else {
            return Err(Error::NoDevice { asked: ordinal, devices: self.devices.len() as u32 });
        };
        if let Some(device) = place.get() {
            return Ok(device);
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if place.get().is_none() {
            let _ = place.set(Device::open(&self.driver, ordinal, &self.settings)?);
        }
        place.get().ok_or_else(|| Error::NoDevice { asked: ordinal, devices: self.devices.len() as u32 })
    }

    fn is_open(&self, ordinal: u32) -> bool {
        self.devices.get(ordinal as usize).is_some_and(|place| place.get().is_some())
    }

    fn listed(&self, id: StreamId) -> Option<Arc<Queue>> {
        if !process::is_home() {
            return None;
        }
        self.streams.get(id)
    }

    fn remembered(&self, id: StreamId) -> Option<Arc<Queue>> {
        self.listed(id).or_else(|| process::is_home().then(|| self.ended.get(id)).flatten())
    }

    fn stream(&self, id: StreamId) -> Result<Arc<Queue>> {
        process::admits("cuCtxGetCurrent")?;
        self.streams.get(id).ok_or_else(|| Error::Closed { what: "stream" })
    }

    fn queues(&self) -> Vec<Arc<Queue>> {
        self.streams.all()
    }

    fn list(&self, queue: Queue) -> StreamId {
        let id = StreamId::next();
        self.streams.insert(id, Arc::new(queue));
        self.counts.streams.fetch_add(1, Relaxed);
        id
    }

    /// An unlisted stream has executed everything.
    fn is_complete(&self, ticket: Ticket) -> bool {
        self.listed(ticket.stream).is_none_or(|queue| queue.is_complete(ticket.number))
    }

    fn are_over(&self, uses: &Uses) -> bool {
        uses.iter().all(|ticket| self.is_complete(ticket))
    }

    fn has_kernels(&self) -> bool {
        self.queues().iter().any(|queue| queue.has_kernels())
    }

    fn tidy(&self) {
        if !process::is_home() {
            return;
        }
        if self.closing.load(Relaxed) > 0 {
            self.streams.take(Queue::is_over, |id, queue| {
                self.closing.fetch_sub(1, Relaxed);
                queue.finish();
                self.counts.unreported.fetch_add(self.ended.keep(id, queue), Relaxed);
            });
        }
        self.deferred.drain(self);
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        if !process::is_home() {
            return;
        }
        let inner = &self.inner;
        inner.watch.end();
        for queue in inner.queues() {
            if queue.close() {
                inner.closing.fetch_add(1, Relaxed);
            }
        }
        let queues = inner.queues();
        let has_left = queues.iter().all(|queue| queue.kernels_end_within(LEAVING));
        let is_left = !(has_left && queues.iter().all(|queue| queue.wait_for_all()));
        inner.tidy();
        if !is_left {
            let opened = std::mem::take(&mut *inner.cudarc.lock().unwrap_or_else(PoisonError::into_inner));
            opened.into_values().map(ManuallyDrop::into_inner).for_each(drop);
        }
        for device in inner.devices.iter().filter_map(OnceLock::get) {
            if is_left {
                device.leave();
            } else {
                let _bound = device.bind();
                inner.unload_all(device);
                inner.timing_events.destroy(device);
            }
        }
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend").field("id", &self.inner.id).field("devices", &self.inner.devices.len()).finish_non_exhaustive()
    }
}
