use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::vec::Vec;

use super::{AnyMemory, Builder, PartState, PinnedPool, Pool};
use crate::backend::{Backend, MemoryLocation, host};
use crate::config::{self, Config, Pooling};
use crate::error::LimitOf;
use crate::first_fit::longest;
use crate::memory::{Buffer, Device, Host, Memory, Pinned, Unified};
use crate::sys::clock::{Clocks, nanoseconds};
use crate::{DeviceBytes, Error, Result};

/// A pool for each kind of a device's memory.
///
/// `pooling.max_bytes` of the [`Config`] limits the device pool and, separately, the managed pool. Without `pooling.enabled`, the backend serves
/// every buffer, and only `pinning` limits them.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::MemoryLocation;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::config::Config;
/// use ringmem::pool::Pools;
///
/// let backend = HostBackend::builder().build()?;
/// let pools = Pools::new(&backend, 0, &Config::host().with_pool_bytes(32 << 20))?;
/// let mut buffer = pools.buffer::<f32>(1000)?;
/// buffer.copy_from(&[1.5; 1000])?;
/// assert_eq!(buffer.location(), MemoryLocation::Device);
/// // Copied a hundred times, 4 MB are worth being page-locked; once, they are not.
/// assert_eq!(pools.staging::<f32>(1_000_000, 100)?.location(), MemoryLocation::Pinned);
/// assert_eq!(pools.staging::<f32>(1_000_000, 1)?.location(), MemoryLocation::Host);
/// # Ok(())
/// # }
/// ```
pub struct Pools {
    config: Config,
    device: Pool<Device>,
    pinned: PinnedPool,
    unified: Pool<Unified>,
    host: Host,
    clocks: Clocks,
    /// The earliest time at which idle memory can be old enough, in nanoseconds of the clock.
    due: AtomicU64,
}

impl Pools {
    /// Creates a device's pools. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`Config`](Error::Config) for an invalid configuration, [`NoDevice`](Error::NoDevice).
    pub fn new<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, config: &Config) -> Result<Self> {
        Self::with(backend, device, config, host::host_memory(), Clocks::of_system())
    }

    fn with<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, config: &Config, ram: Option<u64>, clocks: Clocks) -> Result<Self> {
        config.validate()?;
        backend.capabilities(device)?;
        let Pooling { enabled, max_bytes, .. } = config.pooling;
        let (budget, limit) = (config.pinning.budget(ram.unwrap_or(u64::MAX)), if enabled { max_bytes } else { u64::MAX });
        let pinned = PinnedPool::with(Pinned::new(backend, device), budget, |builder| set(builder, enabled, &clocks))?;
        Ok(Self {
            config: *config,
            device: set(Pool::builder(Device::new(backend, device)), enabled, &clocks).limit(limit).build()?,
            unified: set(Pool::builder(Unified::new(backend, device)), enabled, &clocks).limit(limit).build()?,
            pinned,
            host: Host::new(backend, device),
            due: AtomicU64::new((clocks.exact)().saturating_add(nanoseconds(config.pooling.trim_interval))),
            clocks,
        })
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.device.backend()
    }

    /// Returns the device's ordinal.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.device.device()
    }

    /// Returns the pool of device memory.
    #[must_use]
    pub const fn device(&self) -> &Pool<Device> {
        &self.device
    }

    /// Returns the pool of page-locked memory.
    #[must_use]
    pub const fn pinned(&self) -> &PinnedPool {
        &self.pinned
    }

    /// Returns the pool of managed memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) if the configuration disables it.
    pub fn unified(&self) -> Result<&Pool<Unified>> {
        if self.config.managed {
            Ok(&self.unified)
        } else {
            Err(Error::Unsupported { what: "managed memory (disabled in the configuration)" })
        }
    }

    /// Returns the memory of a location.
    ///
    /// # Errors
    ///
    /// As [`unified`](Self::unified).
    pub fn memory(&self, location: MemoryLocation) -> Result<AnyMemory> {
        Ok(match location {
            MemoryLocation::Device => AnyMemory::Device(self.device.clone()),
            MemoryLocation::Pinned => AnyMemory::Pinned(self.pinned.clone()),
            MemoryLocation::Unified => AnyMemory::Unified(self.unified()?.clone()),
            MemoryLocation::Host => AnyMemory::Host(self.host.clone()),
        })
    }

    /// Allocates `len` elements in the configured location.
    ///
    /// # Errors
    ///
    /// As [`Buffer::new`] and [`memory`](Self::memory).
    #[track_caller]
    pub fn buffer<T: DeviceBytes>(&self, len: usize) -> Result<Buffer<T, AnyMemory>> {
        self.buffer_in(self.config.location, len)
    }

    /// Allocates `len` elements in `location`.
    ///
    /// # Errors
    ///
    /// As [`buffer`](Self::buffer).
    #[track_caller]
    pub fn buffer_in<T: DeviceBytes>(&self, location: MemoryLocation, len: usize) -> Result<Buffer<T, AnyMemory>> {
        Buffer::new(self.memory(location)?, len)
    }

    /// Allocates a host buffer for `transfers` copies: page-locked if that [pays](config::should_pin) and fits, else pageable.
    ///
    /// # Errors
    ///
    /// As [`Buffer::new`].
    #[track_caller]
    pub fn staging<T: DeviceBytes>(&self, len: usize, transfers: u64) -> Result<Buffer<T, AnyMemory>> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        if config::should_pin(transfers, bytes, self.pinned.left()) {
            match self.buffer_in(MemoryLocation::Pinned, len) {
                // Another thread took the rest, or the backend's limit is lower.
                Err(Error::Limit { of: LimitOf::Pinned, .. } | Error::OutOfMemory { .. }) => {}
                outcome => return outcome,
            }
        }
        self.buffer_in(MemoryLocation::Host, len)
    }

    /// Returns a [batch size](config::batch_size_hint) in bytes for one buffer. It counts the longest free range: of the pool, or of new memory within the
    /// limit. Behind addresses of the pool, free mapped blocks and the device's free memory make one range. Elsewhere a new slab is within the device's
    /// [longest free range](crate::backend::Backend::largest_free). Flushes the thread caches, and takes time in proportion to the parts of the pool.
    ///
    /// # Errors
    ///
    /// As [`Backend::memory_info`].
    pub fn batch_bytes(&self, requested: u64) -> Result<u64> {
        let limit = if self.config.pooling.enabled { self.config.pooling.max_bytes } else { u64::MAX };
        let free_bytes = self.backend().memory_info(self.ordinal())?.map(|info| info.free);
        let extended = self.device.here().map_or(0, |shared| shared.obtainable(free_bytes.unwrap_or(u64::MAX)));
        let (mut in_slabs, mut empty, mut empty_bytes) = (extended, Vec::new(), 0);
        for slab in self.device.snapshot() {
            let free = || slab.parts.iter().filter(|(.., state)| *state != PartState::Live);
            in_slabs = in_slabs.max(longest(free().map(|&(offset, bytes, _)| (offset, bytes))));
            // A request for a new slab frees the empty ones if it needs their bytes.
            if extended == 0 && free().count() == slab.parts.len() {
                empty.extend(slab.device_address.map(|address| (address, slab.bytes)));
                empty_bytes += slab.bytes;
            }
        }
        let reserved = self.device.here().map_or(0, |shared| shared.reserved());
        let within = limit.saturating_sub(reserved.saturating_sub(empty_bytes));
        let on_device = free_bytes.map_or(u64::MAX, |free| free.saturating_add(empty_bytes));
        let in_a_row = self.backend().largest_free(self.ordinal(), &empty).unwrap_or(u64::MAX);
        Ok(config::batch_size_hint(requested, in_slabs.max(within.min(on_device).min(in_a_row))))
    }

    /// Frees memory that has been idle for the configured interval; returns the freed bytes. Call it from an existing loop: it frees idle memory at
    /// the first call an interval after its last use, or at most 1/64 of an interval later. [`Pool::trim_older_than`] defines the last use.
    ///
    /// Most calls only read the clock. A call inspects the pools once the memory that was idle longest at the last inspection may have been idle for
    /// the interval. Each inspection flushes the thread caches.
    pub fn maintain(&self) -> u64 {
        let (now, age) = ((self.clocks.exact)(), self.config.pooling.trim_interval);
        let (due, interval) = (self.due.load(Relaxed), nanoseconds(age));
        let latest = now.saturating_add(interval);
        if now < due || self.due.compare_exchange(due, latest, Relaxed, Relaxed).is_err() {
            return 0;
        }
        let freed = self.device.trim_older_than(age) + self.pinned.trim_older_than(age) + self.unified.trim_older_than(age);
        let oldest = [self.device.idle_since(), self.pinned.idle_since(), self.unified.idle_since()].into_iter().flatten().min();
        if let Some(oldest) = oldest {
            let earliest = now.saturating_add(interval / 64);
            self.due.fetch_min(oldest.saturating_add(interval).max(earliest), Relaxed);
        }
        freed
    }
}

fn set<M: Memory>(builder: Builder<M>, enabled: bool, clocks: &Clocks) -> Builder<M> {
    builder.enabled(enabled).clocks(clocks.clone())
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, device, pinned, unified, .. } = self;
        f.debug_struct("Pools").field("config", config).field("device", device).field("pinned", pinned).field("unified", unified).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::HostBackend;

    const MIB: u64 = 1 << 20;
    const KINDS: [MemoryLocation; 3] = [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified];

    #[test]
    fn maintain_frees_memory_idle_for_the_interval() {
        let now = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&now);
        let backend = HostBackend::builder().device_memory(128 * MIB).build().expect("a backend");
        let config = Config::host().with_managed(true).with_setting("MemoryPooling.TrimInterval", "00:00:10").expect("a setting");
        let pools = Pools::with(&backend, 0, &config, None, Clocks::both(Arc::new(move || clock.load(Relaxed)))).expect("pools");
        let held = || {
            let counters = backend.counters();
            [counters.device_live, counters.pinned_live, counters.unified_live].map(|live| live.bytes > 0)
        };
        let maintain_after = |seconds: u64| {
            now.fetch_add(seconds * 1_000_000_000, Relaxed);
            pools.maintain()
        };
        for location in KINDS {
            drop(pools.buffer_in::<u8>(location, 100_000).expect("room"));
        }
        let in_use = pools.buffer_in::<u8>(MemoryLocation::Device, 100_000).expect("room");
        assert_eq!((maintain_after(9), maintain_after(0)), (0, 0), "the interval has not passed");
        let pinned = pools.pinned().locked();
        assert!(maintain_after(1) > pinned);
        assert_eq!((held(), pools.pinned().locked()), ([true, false, false], 0), "a live block holds its slab");
        maintain_after(3);
        drop(in_use);
        let other = pools.buffer_in::<u8>(MemoryLocation::Unified, 100_000).expect("room");
        maintain_after(2);
        drop(other);
        assert_eq!((maintain_after(5), held()), (0, [true, false, true]), "an interval after the last trim, not after the last use");
        assert_eq!((maintain_after(2), held()), (0, [true, false, true]));
        assert!(maintain_after(1) > 0);
        assert_eq!(held(), [false, false, true], "each an interval after its last use");
        assert_eq!((maintain_after(1), held()), (0, [false, false, true]));
        assert!(maintain_after(1) > 0);
        assert_eq!(held(), [false; 3]);
    }

    #[test]
    fn pinned_bytes_are_limited_by_setting_and_machine_memory() {
        for (ram, budget) in [(1 << 40, MIB), (4 * MIB, MIB), (2 * MIB, MIB / 2)] {
            let backend = HostBackend::builder().build().expect("a backend");
            let config = Config::host().with_pinned_bytes(MIB);
            let pools = Pools::with(&backend, 0, &config, Some(ram), Clocks::of_system()).expect("pools");
            assert_eq!((pools.pinned().budget(), pools.pinned().left()), (budget, budget));
            let all = pools.buffer_in::<u8>(MemoryLocation::Pinned, budget as usize).expect("all of it");
            assert_eq!((backend.counters().pinned_live.bytes, pools.pinned().left()), (budget, 0));
            match pools.buffer_in::<u8>(MemoryLocation::Pinned, 1) {
                Err(Error::Limit { of: LimitOf::Pinned, requested, used, limit }) => {
                    assert_eq!((requested, used, limit), (1, budget, budget))
                }
                more => panic!("{more:?}"),
            }
            drop(all);
        }
    }
}
