use core::mem::ManuallyDrop;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Stream;
use super::event::record;
use crate::backend::{Backend, StreamId, Ticket};
use crate::sys::panic::caught;
use crate::{Error, Result};

/// Completed operations of a stream since [`Stream::measure`], failed ones included. Timed events around an operation give its time.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// stream.measure()?; // timed events around each later operation
/// stream.fill(GpuBuffer::<u8>::new(Device::new(&backend, 0), 4096)?, .., 1)?.wait()?;
/// stream.synchronize()?; // the event after the fill is complete too
/// let fills = stream.metrics().expect("measured").fills;
/// assert_eq!((fills.count, fills.bytes), (1, 4096));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "PerformanceMetrics")]
pub struct Metrics {
    /// Copies from host-readable to device memory.
    pub uploads: Traffic,
    /// Copies from device to host-readable memory.
    pub downloads: Traffic,
    /// Copies within one device.
    pub device_copies: Traffic,
    /// Copies between devices.
    pub peer_copies: Traffic,
    /// Copies within host-readable memory.
    pub host_copies: Traffic,
    /// Fills.
    pub fills: Traffic,
    /// Prefetches.
    pub prefetches: Traffic,
    /// Completed kernels.
    pub kernels: Kernels,
    /// Operations without a time, not in other figures.
    pub lost: u64,
}

/// Operations that move or set bytes.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// stream.measure()?;
/// let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 4096)?;
/// stream.copy(pinned, GpuBuffer::new(Device::new(&backend, 0), 4096)?)?.wait()?;
/// stream.synchronize()?;
/// let uploads = stream.metrics().expect("measured").uploads;
/// assert_eq!((uploads.count, uploads.bytes), (1, 4096));
/// println!("{:?} GB/s", uploads.bandwidth());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Count.
    pub count: u64,
    /// Total bytes.
    pub bytes: u64,
    /// Total time.
    pub time: Duration,
}

/// Kernels.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Module, Stream};
///
/// let backend = HostBackend::builder().build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let stream = Stream::new(&backend, 0)?;
/// stream.measure()?;
/// let bytes = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[1; 100])?;
/// // SAFETY: `increment` uses 100 bytes, which the launch owns.
/// unsafe { stream.launch_with(&module, "increment", bytes, &[100]) }?.wait()?;
/// stream.synchronize()?;
/// let kernels = stream.metrics().expect("measured").kernels;
/// assert_eq!((kernels.count, kernels.last().len()), (1, 1));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    /// Count.
    pub count: u64,
    /// Total time.
    pub time: Duration,
    last: VecDeque<Duration>,
}

impl Traffic {
    /// Returns the bandwidth in bytes per ns (GB/s); `None` without a time.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        let ns = self.time.as_nanos();
        (ns > 0).then(|| self.bytes as f64 / ns as f64)
    }

    fn add(&mut self, bytes: u64, took: Duration) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(took);
    }
}

impl Kernels {
    /// Kernels whose times are kept.
    pub const LAST: usize = 100;

    /// Iterates over the last [`LAST`](Self::LAST) kernels' times, oldest first.
    pub fn last(&self) -> impl ExactSizeIterator<Item = Duration> {
        self.last.iter().copied()
    }

    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.time = self.time.saturating_add(took);
        if self.last.len() == Self::LAST {
            self.last.pop_front();
        }
        self.last.push_back(took);
    }
}

impl Stream {
    /// Measures all clones' later operations, by two timed events each.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) without timed events, the driver's error.
    pub fn measure(&self) -> Result<()> {
        let probe = self.record()?;
        match probe.elapsed_since(&probe) {
            Err(error @ Error::Unsupported { .. }) => Err(error),
            _ => {
                self.shared.meter.get_or_init(Meter::default);
                Ok(())
            }
        }
    }

    /// Returns the metrics, if [measured](Self::measure).
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        self.shared.meter.get().map(|meter| meter.read(&**self.backend()))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Work {
    Bytes(Kind, u64),
    Kernel,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Upload,
    Download,
    DeviceCopy,
    PeerCopy,
    HostCopy,
    Fill,
    Prefetch,
}

impl Work {
    pub fn copy(from: Option<u32>, to: Option<u32>, bytes: u64) -> Self {
        let kind = match (from, to) {
            (None, Some(_)) => Kind::Upload,
            (Some(_), None) => Kind::Download,
            (Some(from), Some(to)) if from == to => Kind::DeviceCopy,
            (Some(_), Some(_)) => Kind::PeerCopy,
            (None, None) => Kind::HostCopy,
        };
        Self::Bytes(kind, bytes)
    }

    pub fn fill(bytes: u64) -> Self {
        Self::Bytes(Kind::Fill, bytes)
    }

    pub fn prefetch(bytes: u64) -> Self {
        Self::Bytes(Kind::Prefetch, bytes)
    }
}

impl Metrics {
    fn of(&mut self, kind: Kind) -> &mut Traffic {
        match kind {
            Kind::Upload => &mut self.uploads,
            Kind::Download => &mut self.downloads,
            Kind::DeviceCopy => &mut self.device_copies,
            Kind::PeerCopy => &mut self.peer_copies,
            Kind::HostCopy => &mut self.host_copies,
            Kind::Fill => &mut self.fills,
            Kind::Prefetch => &mut self.prefetches,
        }
    }
}

#[derive(Default)]
pub(super) struct Meter {
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    metrics: Metrics,
    open: VecDeque<Open>,
}

struct Open {
    work: Work,
    begin: Ticket,
    end: Ticket,
}

struct RecordedEvent<'a> {
    backend: &'a dyn Backend,
    ticket: Ticket,
}

impl<'a> RecordedEvent<'a> {
    fn record(backend: &'a dyn Backend, id: StreamId) -> Result<Self> {
        Ok(Self { backend, ticket: record(backend, id)? })
    }

    fn keep(self) -> Ticket {
        ManuallyDrop::new(self).ticket
    }
}

impl Drop for RecordedEvent<'_> {
    fn drop(&mut self) {
        self.backend.forget(self.ticket);
    }
}

impl Meter {
    /// No operation comes between the events.
    pub fn begin<'a>(&'a self, backend: &'a dyn Backend, id: StreamId) -> Result<Timing<'a>> {
        let mut books = self.books();
        books.settle(backend);
        Ok(Timing { books, begin: RecordedEvent::record(backend, id)?, backend, id })
    }

    fn read(&self, backend: &dyn Backend) -> Metrics {
        let mut books = self.books();
        books.settle(backend);
        books.metrics.clone()
    }

    pub fn forget(&self, backend: &dyn Backend) {
        self.books().open.drain(..).for_each(|open| open.forget(backend));
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Timing<'a> {
    books: MutexGuard<'a, Books>,
    begin: RecordedEvent<'a>,
    backend: &'a dyn Backend,
    id: StreamId,
}

impl Timing<'_> {
    pub fn end(mut self, work: Work) {
        // If a clock panics, only the time is unknown.
        match caught(|| RecordedEvent::record(self.backend, self.id)) {
            Some(Ok(end)) => self.books.open.push_back(Open { work, begin: self.begin.keep(), end: end.keep() }),
            Some(Err(_)) | None => self.books.metrics.lost += 1,
        }
    }
}

impl Books {
    fn settle(&mut self, backend: &dyn Backend) {
        while let Some(open) = self.open.pop_front_if(|open| backend.is_complete(open.end)) {
            match (backend.elapsed(open.begin, open.end), open.work) {
                (Ok(took), Work::Bytes(kind, bytes)) => self.metrics.of(kind).add(bytes, took),
                (Ok(took), Work::Kernel) => self.metrics.kernels.add(took),
                (Err(_), _) => self.metrics.lost += 1,
            }
            open.forget(backend);
        }
    }
}

impl Open {
    fn forget(&self, backend: &dyn Backend) {
        backend.forget(self.begin);
        backend.forget(self.end);
    }
}
