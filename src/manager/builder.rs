use core::fmt;
use std::sync::Arc;

use super::MemoryManager;
use crate::Result;
use crate::config::batch_size_hint;
use crate::memory::Memory;
use crate::monotonic::{Clock, monotonic};

/// A builder of a [`MemoryManager`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::MemoryManager;
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::builder(Device::new(&backend, 0)).limit(64 << 20).build();
/// assert_eq!(manager.budget().limit(), 64 << 20);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[must_use]
pub struct Builder<M: Memory> {
    pub(super) memory: M,
    pub(super) limit: u64,
    pub(super) clock: Clock,
}

impl<M: Memory> Builder<M> {
    pub(super) fn new(memory: M) -> Self {
        Self { memory, limit: 6 << 30, clock: monotonic() }
    }

    /// Sets the limit in bytes. Default: 6 GiB.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets the limit to four fifths of the device's memory, if known.
    ///
    /// # Errors
    ///
    /// The backend's error.
    pub fn limit_of_device(self) -> Result<Self> {
        let info = self.memory.backend().memory_info(self.memory.device())?;
        Ok(match info {
            Some(info) => self.limit(batch_size_hint(u64::MAX, info.total)),
            None => self,
        })
    }

    /// Sets a monotonic clock in nanoseconds, which dates uses and saturates after 292 years. Lookups do not call it.
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

impl<M: Memory + Clone> Builder<M> {
    /// Builds the manager. Allocates nothing.
    pub fn build(self) -> MemoryManager<M> {
        MemoryManager::of(self)
    }
}

impl<M: Memory + fmt::Debug> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("memory", &self.memory).field("limit", &self.limit).finish_non_exhaustive()
    }
}
