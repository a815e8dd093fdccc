//! [`Metrics`]: what a stream's operations were and took, where somebody asks for it.

use core::mem::ManuallyDrop;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Stream;
use super::event::record;
use crate::backend::panic::caught;
use crate::backend::{Backend, StreamId, Ticket};
use crate::{Error, Result};

/// Operations of a stream that have been executed since [`Stream::measure`], each direction's with the time between a recorded moment before each and
/// one after it. One that failed when it was executed counts as any other: who waits for it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Copies to a device's own memory from memory that the host sees.
    pub uploads: Traffic,
    /// Copies from a device's own memory to memory that the host sees.
    pub downloads: Traffic,
    /// Copies within one device.
    pub device_copies: Traffic,
    /// Copies from one device to another, whichever way they go.
    pub peer_copies: Traffic,
    /// Copies between two places that the host sees.
    pub host_copies: Traffic,
    /// Fills.
    pub fills: Traffic,
    /// Prefetches.
    pub prefetches: Traffic,
    /// Kernels that have left.
    pub kernels: Kernels,
    /// Operations whose end could not be recorded: they are in no other figure.
    pub lost: u64,
}

/// Operations that move or set bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many.
    pub count: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Time in all.
    pub time: Duration,
}

/// Kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    /// How many.
    pub count: u64,
    /// Time in all.
    pub time: Duration,
    last: VecDeque<Duration>,
}

impl Traffic {
    /// Bytes per nanosecond, which is GB/s; `None` where no time has passed.
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
    /// How many single times are remembered.
    pub const LAST: usize = 100;

    /// The time of each of the last [`LAST`](Self::LAST), the oldest first.
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
    /// Measures what is queued here from now on, by whichever clone. Nothing happens the second time. Each operation then costs two recorded moments.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) where nothing is timed, what the driver said.
    pub fn measure(&self) -> Result<()> {
        let probe = self.record()?;
        match probe.elapsed_since(&probe) {
            Err(error @ Error::Unsupported { .. }) => Err(error),
            // Whether it has been reached yet is no matter.
            _ => {
                self.shared.meter.get_or_init(Meter::default);
                Ok(())
            }
        }
    }

    /// What has been executed of what was measured; `None` where [nothing is](Self::measure).
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        self.shared.meter.get().map(|meter| meter.read(&**self.backend()))
    }
}

/// What is measured.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// Bytes, and where they are counted.
    Bytes(fn(&mut Metrics) -> &mut Traffic, u64),
    Kernel,
}

impl Work {
    /// Of a copy between memories of devices, or of the host for `None`.
    pub fn copy(from: Option<u32>, to: Option<u32>, bytes: u64) -> Self {
        let way: fn(&mut Metrics) -> &mut Traffic = match (from, to) {
            (None, Some(_)) => |metrics| &mut metrics.uploads,
            (Some(_), None) => |metrics| &mut metrics.downloads,
            (Some(from), Some(to)) if from == to => |metrics| &mut metrics.device_copies,
            (Some(_), Some(_)) => |metrics| &mut metrics.peer_copies,
            (None, None) => |metrics| &mut metrics.host_copies,
        };
        Self::Bytes(way, bytes)
    }

    pub fn fill(bytes: u64) -> Self {
        Self::Bytes(|metrics| &mut metrics.fills, bytes)
    }

    pub fn prefetch(bytes: u64) -> Self {
        Self::Bytes(|metrics| &mut metrics.prefetches, bytes)
    }
}

/// Metrics while they are taken.
#[derive(Default)]
pub(super) struct Meter {
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    metrics: Metrics,
    /// What is not known to be over, in the order of the stream.
    open: VecDeque<Open>,
}

/// A measured operation, between two recorded tickets.
struct Open {
    work: Work,
    begin: Ticket,
    end: Ticket,
}

/// A recorded ticket that is forgotten unless it is kept: an operation may be refused, and what it calls may panic.
struct Moment<'a> {
    backend: &'a dyn Backend,
    ticket: Ticket,
}

impl<'a> Moment<'a> {
    fn record(backend: &'a dyn Backend, id: StreamId) -> Result<Self> {
        Ok(Self { backend, ticket: record(backend, id)? })
    }

    fn keep(self) -> Ticket {
        ManuallyDrop::new(self).ticket
    }
}

impl Drop for Moment<'_> {
    fn drop(&mut self) {
        self.backend.extension().forget(self.ticket);
    }
}

impl Meter {
    /// Queues an operation between two recorded moments. The lock is held meanwhile, so that no other operation comes between.
    pub fn timed(
        &self,
        backend: &dyn Backend,
        id: StreamId,
        work: Work,
        operation: impl FnOnce(&dyn Backend, StreamId) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let mut books = self.books();
        books.settle(backend);
        let begin = Moment::record(backend, id)?;
        let ticket = operation(backend, id)?;
        // It is queued, and its caller's to wait for, whatever is known of its time: also where a clock panics.
        match caught(|| Moment::record(backend, id)) {
            Some(Ok(end)) => books.open.push_back(Open { work, begin: begin.keep(), end: end.keep() }),
            Some(Err(_)) | None => books.metrics.lost += 1,
        }
        Ok(ticket)
    }

    fn read(&self, backend: &dyn Backend) -> Metrics {
        let mut books = self.books();
        books.settle(backend);
        books.metrics.clone()
    }

    /// Forgets what is not over.
    pub fn forget(&self, backend: &dyn Backend) {
        self.books().open.drain(..).for_each(|open| open.forget(backend));
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Counts what is over.
    fn settle(&mut self, backend: &dyn Backend) {
        while let Some(open) = self.open.pop_front_if(|open| backend.reached(open.end)) {
            match (backend.extension().elapsed(open.begin, open.end), open.work) {
                (Ok(took), Work::Bytes(way, bytes)) => way(&mut self.metrics).add(bytes, took),
                (Ok(took), Work::Kernel) => self.metrics.kernels.add(took),
                (Err(_), _) => self.metrics.lost += 1,
            }
            open.forget(backend);
        }
    }
}

impl Open {
    fn forget(&self, backend: &dyn Backend) {
        backend.extension().forget(self.begin);
        backend.extension().forget(self.end);
    }
}
