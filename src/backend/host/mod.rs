//! The host backend: simulated devices in this process, for machines without one and for tests.
//!
//! 1. Device memory is an address space of its own. Its addresses are in no mapping of the process, so host code that follows one
//!    faults; only copies and kernels reach the bytes.
//! 2. Device memory holds [`POISON`] when it is allocated and again when it is freed. Host-visible memory is zeroed.
//! 3. A stream is a thread. It executes what was queued in order, and reads a source when it executes, not before.
//! 4. An address that is in no live memory is an error at the call that names it: after a free, of another backend, past the end.
//! 5. Every allocation, free, copy, fill and launch is in the [`Counters`], once, when it has been done.
//!
//! It does not model the speed of anything: a copy is a `memcpy`.

mod arena;
mod backend;
mod counters;
mod limbo;
mod mapping;
mod operation;
mod queue;
mod ranges;
mod shared;

use core::fmt;
use std::sync::Arc;

use crate::Result;
use crate::backend::Backend;
use shared::Shared;

pub use arena::POISON;
pub use counters::{Counters, Live, Tally};

/// Simulated devices. It goes when the last reference to it, and all that was made of it, have gone.
pub struct HostBackend {
    shared: Arc<Shared>,
}

impl HostBackend {
    /// A backend to be, with every default.
    pub const fn builder() -> Builder {
        Builder { device_memory: 256 << 20, devices: 1 }
    }

    /// What has been done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counts.read()
    }
}

impl fmt::Debug for HostBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBackend").field("id", &self.id()).field("devices", &self.devices()).finish_non_exhaustive()
    }
}

/// What a host backend will be.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    device_memory: u64,
    devices: u32,
}

impl Builder {
    /// Each device's memory in bytes; 256 MiB unless set. The process pays for the pages that allocations touch, not for this.
    pub const fn device_memory(mut self, bytes: u64) -> Self {
        self.device_memory = bytes;
        self
    }

    /// How many devices; 1 unless set.
    pub const fn devices(mut self, devices: u32) -> Self {
        self.devices = devices;
        self
    }

    /// The backend.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for a memory of nothing or above 1 TiB, [`NoDevice`](crate::Error::NoDevice) for no devices,
    /// [`Map`](crate::Error::Map) where the system has no room for it.
    pub fn build(self) -> Result<Arc<HostBackend>> {
        Ok(Arc::new(HostBackend { shared: Arc::new(Shared::new(&self)?) }))
    }
}
