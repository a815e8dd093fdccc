//! The host backend: a simulated device in this process, for machines without one and for tests.
//!
//! 1. Device memory is an address space of its own. Its addresses are in no mapping of the process, so host code that follows one
//!    faults; only transfers and kernels reach the bytes.
//! 2. Device memory holds [`POISON`] when it is allocated and again when it is freed. Pinned memory is zeroed.
//! 3. A [`Stream`] is a thread. It executes what was queued in order, and reads a source when it executes, not before.
//! 4. Transfers of one device allocation exclude each other, on whatever streams they are. A transfer that overlaps what a *running
//!    kernel* touches is that kernel's protocol's affair: see [`Stream::launch`].
//! 5. Memory outlives what is queued on it, and what a launch's arguments name outlives that launch.
//! 6. Every allocation, free, transfer, fill and launch is in the [`Counters`], once, when it has been done.
//!
//! It does not model the speed of anything: a copy is a `memcpy`.

mod arena;
mod counters;
mod device;
mod holes;
mod mapping;
mod memory;
mod module;
mod operation;
mod pending;
mod pinned;
mod ranges;
mod stream;
mod trace;

use core::fmt;
use std::sync::Arc;

use ringmem_layouts::{Abi, Image};

use crate::Result;
use crate::backend::MemoryInfo;
use device::Device;

pub use arena::POISON;
pub use counters::{Counters, Live, Tally};
pub use memory::DeviceMemory;
pub use module::Module;
pub use pending::Pending;
pub use pinned::PinnedMemory;
pub use stream::Stream;

/// A simulated device. Clones are the same device; it goes when the last of them and all that was made of it have gone.
#[derive(Clone)]
pub struct HostBackend {
    device: Arc<Device>,
}

impl HostBackend {
    /// A backend to be, with every default.
    pub const fn builder() -> Builder {
        Builder { device_memory: 256 << 20 }
    }

    /// Device memory of `bytes` bytes at a multiple of `align`, poisoned: first fit.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for no bytes, [`Align`](crate::Error::Align) unless `align` is a power of two up to 2 MiB,
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    pub fn alloc_device(&self, bytes: u64, align: u64) -> Result<DeviceMemory> {
        DeviceMemory::new(&self.device, bytes, align)
    }

    /// Host memory of `bytes` bytes, page aligned and zeroed, page-locked where the system allows it:
    /// [`PinnedMemory::is_pinned`] says.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for no bytes or more than an address can span, [`Map`](crate::Error::Map) where the system gives none.
    pub fn alloc_pinned(&self, bytes: u64) -> Result<PinnedMemory> {
        PinnedMemory::new(&self.device, bytes)
    }

    /// A stream, running.
    ///
    /// # Errors
    ///
    /// [`Thread`](crate::Error::Thread).
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(&self.device)
    }

    /// The kernels of an image, if it was compiled with the layouts that are expected.
    ///
    /// # Errors
    ///
    /// [`Abi`](crate::Error::Abi) with both sides' tables.
    pub fn load(&self, image: &Image, expected: &Abi) -> Result<Module> {
        Module::new(&self.device, image, expected)
    }

    /// What has been done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.device.counts.read()
    }

    /// How much device memory there is, and how much is free.
    #[must_use]
    pub fn memory_info(&self) -> MemoryInfo {
        self.device.arena.info()
    }
}

impl fmt::Debug for HostBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBackend").field("id", &self.device.id).field("memory", &self.memory_info()).finish_non_exhaustive()
    }
}

/// What a host backend will be.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    device_memory: u64,
}

impl Builder {
    /// The device's memory in bytes; 256 MiB unless set. The process pays for the pages that allocations touch, not for this.
    pub const fn device_memory(mut self, bytes: u64) -> Self {
        self.device_memory = bytes;
        self
    }

    /// The backend.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for a memory of nothing or above 1 TiB, [`Map`](crate::Error::Map) where the system has no room for it.
    pub fn build(self) -> Result<HostBackend> {
        Ok(HostBackend { device: Arc::new(Device::new(self.device_memory)?) })
    }
}
