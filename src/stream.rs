//! [`Stream`]: a queue of copies, fills and kernels that a device executes in order.
//!
//! 1. A queued operation takes its buffers, or [leases](crate::manager) of them, by value; its [`Pending`] returns them. So they cannot
//!    be freed too early.
//! 2. It is ordered after all operations on its buffers, on any stream.
//! 3. A rejected operation returns its buffers.
//! 4. A failed operation invalidates its target: reads return [`Error::Tainted`] with the first cause, until the
//!    target is written again.
//! 5. A thread, a task ([`Completion`]) or another stream ([`Event`]) can wait for an operation.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

mod completion;
mod event;
mod grid;
mod launch;
mod metrics;
mod module;
mod operand;
mod pending;
mod policy;
mod set;
mod transfer;

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::vec::Vec;

use ringmem_layouts::Image;

use crate::backend::{Backend, StreamId, Ticket, Uses, same_backend};
use crate::trace::event;
use crate::{Error, Result};

pub use completion::Completion;
pub use event::Event;
pub use grid::{Given, Lent};
pub use launch::Operands;
pub use metrics::{Kernels, Metrics, Traffic};
pub use module::Module;
pub(crate) use operand::sealed::Elements;
pub use operand::{Operand, Source, Target};
pub(crate) use pending::sealed::Settle;
pub use pending::{Pending, Queue, Queued};
pub use policy::{Action, ErrorGuard, ErrorPolicy, Guarded, Kind};
pub use set::{Failures, Role, StreamSet};

use metrics::{Meter, Work};

/// A stream of a device. Clones share it.
///
/// # Dropping
///
/// The drop of the last clone waits for queued operations, unless a kernel is queued or running here or on an awaited stream. They are
/// executed in any case.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let [one, two] = [(); 2].map(|()| GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000));
/// let one = stream.fill(one?, .., 7)?.detach(); // queued; the next operation comes after it
/// let (_, two) = stream.copy(one, two?)?.wait()?; // returns both
/// assert_eq!(two.to_vec()?, [7; 1000]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "StreamHandle")]
pub struct Stream {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    id: StreamId,
    device: u32,
    meter: OnceLock<Meter>,
    /// Images of kernels over buffers.
    modules: Mutex<Vec<Module>>,
}

impl Stream {
    /// Opens a stream on a device.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), [`System`](crate::Error::System), the driver's error.
    pub fn new<B: Backend + ?Sized>(backend: &Arc<B>, device: u32) -> Result<Self> {
        let backend = Arc::clone(backend).erased();
        let id = backend.open_stream(device)?;
        Ok(Self { shared: Arc::new(Shared { backend, id, device, meter: OnceLock::new(), modules: Mutex::default() }) })
    }

    /// Returns its number.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.shared.id
    }

    /// Returns the ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.shared.device
    }

    /// Returns its backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// Orders later operations after those queued on another stream so far.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), the driver's error.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        same_backend(&*self.shared.backend, &*other.shared.backend)?;
        let ticket = other.record_position()?;
        self.shared.backend.stream_wait(ticket, self.shared.id)
    }

    /// Waits until all queued operations are complete: forever for a persistent kernel that does not end.
    ///
    /// # Errors
    ///
    /// The first error whose [`Pending`] was not waited for.
    pub fn synchronize(&self) -> Result<()> {
        self.shared.backend.synchronize(self.shared.id)
    }

    /// As [`synchronize`](Self::synchronize), for at most `timeout`. Returns whether the operations that were queued before this call are complete.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Device, GpuBuffer};
    /// use ringmem::stream::Stream;
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let stream = Stream::new(&backend, 0)?;
    /// let filled = stream.fill(GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000)?, .., 7)?;
    /// assert!(stream.synchronize_timeout(Duration::from_secs(10))?);
    /// # drop(filled);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize), if they are complete.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool> {
        self.record()?.wait_timeout(timeout)
    }

    pub(crate) fn record_position(&self) -> Result<Ticket> {
        self.shared.backend.record_position(self.shared.id)
    }

    pub(crate) fn on(&self, backend: &dyn Backend) -> Result<StreamId> {
        same_backend(&*self.shared.backend, backend)?;
        Ok(self.shared.id)
    }

    fn queue(&self, uses: &[&Uses], work: Work, operation: impl FnOnce(&dyn Backend, StreamId) -> Result<Ticket>) -> Result<Ticket> {
        uses.iter().try_for_each(|uses| self.come_after(uses))?;
        let Shared { backend, id, meter, .. } = &*self.shared;
        let timing = meter.get().map(|meter| meter.begin(&**backend, *id)).transpose()?;
        let ticket = operation(&**backend, *id)?;
        if let Some(timing) = timing {
            timing.end(work);
        }
        if let Work::Bytes(kind, bytes) = work {
            event!(trace, stream = id.get(), operation = ?kind, bytes, "queued");
        }
        Ok(ticket)
    }

    /// Returns an image's module, loaded at the first call, for launches that the type system makes safe.
    fn module_of(&self, image: &Image) -> Result<Module> {
        let Shared { backend, device, modules, .. } = &*self.shared;
        let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = modules.iter().find(|known| known.is_of(image)) {
            return Ok(known.clone());
        }
        if backend.capabilities(*device)?.excludes_host_slices() {
            return Err(Error::Unsupported {
                what: "a safe launch on a device without concurrent managed access (use Stream::start, and hold no host slice of managed memory)",
            });
        }
        let module = Module::load(backend, image, &image.abi)?;
        modules.push(module.clone());
        Ok(module)
    }

    pub(crate) fn come_after(&self, uses: &Uses) -> Result<()> {
        let Shared { backend, id, .. } = &*self.shared;
        // The backend may use another clock: complete tickets count too.
        uses.iter().filter(|ticket| ticket.stream != *id).try_for_each(|ticket| backend.stream_wait(ticket, *id))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.get() {
            meter.forget(&*self.backend);
        }
        self.backend.close_stream(self.id);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.shared.id.get()).field("device", &self.shared.device).finish_non_exhaustive()
    }
}
