use core::fmt;
use std::sync::Arc;

use super::MemoryManager;
use crate::Result;
use crate::config::batch_size_hint;
use crate::memory::Memory;
use crate::stream::ErrorPolicy;
use crate::sys::clock::{Clock, monotonic};

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
    pub(super) policy: Option<ErrorPolicy>,
    pub(super) fallback: Option<M>,
}

impl<M: Memory> Builder<M> {
    pub(super) fn new(memory: M) -> Self {
        Self { memory, limit: 6 << 30, clock: monotonic(), policy: None, fallback: None }
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

impl<M: Memory> Builder<M> {
    /// Sets how the manager reacts if the memory fails to allocate a block, or the backend to copy or to queue a transfer. By default, the first error is
    /// returned.
    ///
    /// Each call repeats what failed until the policy no longer says [`Retry`](crate::stream::Action::Retry); [`Statistics`](super::Statistics)
    /// count it. The thresholds for failures in a row apply to each call, the one for a reset to all calls together. An operation that was queued
    /// and fails later is not repeated.
    ///
    /// ```
    /// use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
    /// use ringmem::manager::{BufferConfig, MemoryManager};
    /// use ringmem::memory::Device;
    /// use ringmem::stream::ErrorPolicy;
    ///
    /// let backend = HostBackend::builder().faults(Faults::new().on(Verb::Allocate, Fault::nth(1))).build()?;
    /// let manager = MemoryManager::builder(Device::new(&backend, 0)).error_policy(ErrorPolicy::default()).build();
    /// manager.create::<f32>("weights", 1000, BufferConfig::new())?; // the second attempt succeeds
    /// assert_eq!(manager.statistics().retries, 1);
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    pub fn error_policy(mut self, policy: ErrorPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets a memory of the same backend for blocks that the manager's memory fails to allocate, once the [policy](Self::error_policy) says
    /// [`Fallback`](crate::stream::Action::Fallback) or [`Reset`](crate::stream::Action::Reset). Without a policy, the
    /// [default](ErrorPolicy::DEFAULT) one applies.
    ///
    /// Leases, by their location and [`is_fallback`](super::Lease::is_fallback), and [`BufferStatistics`](super::BufferStatistics) tell such a buffer
    /// from others. Its bytes count towards the limit. The next resize that replaces its block tries the manager's memory again.
    ///
    /// Both memories have one type. For a fallback from device to host memory, it is [`AnyMemory`](crate::pool::AnyMemory):
    ///
    /// ```
    /// use ringmem::backend::MemoryLocation;
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::config::Config;
    /// use ringmem::manager::{BufferConfig, MemoryManager};
    /// use ringmem::pool::Pools;
    ///
    /// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
    /// let pools = Pools::new(&backend, 0, &Config::host())?;
    /// let [device, host] = [MemoryLocation::Device, MemoryLocation::Host].map(|location| pools.memory(location));
    /// let manager = MemoryManager::builder(device?).fallback(host?).build();
    /// let id = manager.create::<u8>("large", 2 << 20, BufferConfig::new())?; // larger than the device
    /// assert_eq!((manager.lease(id)?.is_fallback(), manager.lease(id)?.location()), (true, MemoryLocation::Host));
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    pub fn fallback(mut self, memory: M) -> Self {
        self.policy.get_or_insert_default();
        self.fallback = Some(memory);
        self
    }
}

impl<M: Memory> Builder<M> {
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
