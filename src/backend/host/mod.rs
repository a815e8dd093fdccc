//! Simulated devices, for tests and machines without a GPU.
//!
//! 1. Device memory has its own address space; a host access there faults.
//! 2. Device memory holds [`POISON`] when allocated and when freed. Host-visible memory is zeroed.
//! 3. A stream is a thread.
//! 4. [`Faults`] can be injected into the calls that have a [`Verb`]; a [log](Call) has all of these.
//! 5. Copies without peer access, set per direction, go through the host.
//! 6. Managed pages [occupy](HostBackend::occupied) device memory, and are evicted when it is short.
//! 7. A forked process frees nothing and drops no kept value: both are the parent's.
//!
//! A copy is a `memcpy`; a [model](Link) computes a link's time. Use of a freed host pointer to pinned or managed memory is not detected.

mod address_range;
mod allocation;
mod arena;
mod backend;
mod builder;
mod calls;
mod execute;
mod faults;
mod group;
mod inner;
mod link;
mod log;
mod mapping;
mod pager;
mod peers;
pub(crate) mod pinned;
mod queue;
mod reserved;

use core::fmt;
use std::sync::Arc;

use std::vec::Vec;

use crate::Result;
use crate::backend::{Backend, Block, Options, Ticket};
use inner::Inner;

pub use crate::backend::counters::{Counters, Live, Tally};
pub use arena::POISON;
pub use builder::Builder;
pub use faults::{Fault, Faults, Verb};
pub use link::{KernelTime, Link};
pub use log::{Call, Phase};
pub use pinned::{host_memory, pinned_budget};

/// A clock in ns.
///
/// ```
/// use std::sync::Arc;
///
/// use ringmem::backend::host::{Clock, HostBackend};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let clock: Clock = Arc::new(|| 7_000); // repeatable times in a test
/// let backend = HostBackend::builder().log(true).clock(clock).build()?;
/// let _buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100)?;
/// assert_eq!(backend.call_log()[0].at_ns, 7_000);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Simulated devices; memory and streams keep them alive.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().device_memories([1 << 20, 4 << 20]).build()?; // two devices
/// assert!(GpuBuffer::<u8>::new(Device::new(&backend, 0), 2 << 20).is_err());
/// let _buffer = GpuBuffer::<u8>::new(Device::new(&backend, 1), 2 << 20)?;
/// assert_eq!((backend.occupied(0)?.bytes, backend.occupied(1)?.bytes), (0, 2 << 20));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct HostBackend {
    inner: Arc<Inner>,
}

impl HostBackend {
    /// Returns a builder with every default.
    pub const fn builder() -> Builder {
        Builder::new()
    }

    /// Returns the counters, after all due frees.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.deferred.catch_up(&self.inner);
        let counters = self.inner.counts.read();
        Counters { unreported: counters.unreported + self.inner.ended.unreported(), ..counters }
    }

    /// Returns the number of calls of a verb; `None` without [faults](Builder::faults), a [log](Builder::log), a [link](Builder::link) or
    /// [`set_faults`](Self::set_faults).
    #[must_use]
    pub fn calls(&self, verb: Verb) -> Option<u64> {
        self.inner.is_watched().then(|| self.inner.plan.calls(verb))
    }

    /// Replaces the plan of faults, which counts from now on.
    pub fn set_faults(&self, faults: &Faults) {
        self.inner.set_faults(faults);
    }

    /// Returns the [log](Builder::log).
    #[must_use]
    pub fn call_log(&self) -> Vec<Call> {
        self.inner.calls()
    }

    /// Returns a live block's options.
    #[must_use]
    pub fn options_of(&self, block: &Block) -> Option<Options> {
        self.inner.ranges.options(block)
    }

    /// Returns the device memory of allocations and resident pages.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice).
    pub fn occupied(&self, device: u32) -> Result<Live> {
        Ok(self.inner.arena(device)?.occupied())
    }

    /// Returns the host's virtual time in the [model](Builder::link), in ns.
    #[must_use]
    pub fn model_now(&self) -> Option<u64> {
        self.inner.model.as_ref().map(link::Model::now)
    }

    /// Returns the virtual time at which an operation completes.
    #[must_use]
    pub fn model_end(&self, ticket: Ticket) -> Option<u64> {
        self.inner.model.as_ref().map(|model| model.end(ticket))
    }

    /// Advances the host's virtual time by `ns`.
    pub fn model_work(&self, ns: u64) {
        if let Some(model) = &self.inner.model {
            model.work(ns);
        }
    }
}

impl fmt::Debug for HostBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBackend").field("id", &self.id()).field("devices", &self.devices()).finish_non_exhaustive()
    }
}
