//! [`Pools`]: the memory of a device as a [`Config`] says.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::{Builder, PinnedPool, Placed, Pool};
use crate::backend::{Backend, MemoryLocation, host};
use crate::config::{self, Config};
use crate::error::LimitOf;
use crate::memory::{Buffer, Device, Host, Memory, Pinned, Unified};
use crate::{DeviceBytes, Error, Result};

/// A pool for each kind of memory that a device's buffers are in, configured once.
///
/// | field of the [`Config`] | what it does here |
/// |---|---|
/// | `pooling.enabled` | `false`: every buffer is allocated and freed by the backend, and nothing but `pinning` limits them |
/// | `pooling.max_bytes` | the most that the device's pool holds, and as much again the managed one |
/// | `pooling.trim_interval` | what is idle for so long goes when [`maintain`](Self::maintain) looks |
/// | `pinning.pool_bytes` | the most that is page-locked, or a quarter of the machine's memory where that is less |
/// | `managed` | `false`: no managed memory |
/// | `location` | where [`buffer`](Self::buffer) puts what nobody has placed |
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
    clock: Clock,
    /// When idle memory was last looked for, by the clock.
    looked: AtomicU64,
}

/// Nanoseconds of a clock that never goes back.
type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Pools to be, with every default.
#[must_use]
pub struct PoolsBuilder {
    backend: Arc<dyn Backend>,
    device: u32,
    config: Config,
    host_memory: Option<u64>,
    clock: Clock,
}

impl Pools {
    /// The pools of a device.
    ///
    /// # Errors
    ///
    /// As [`PoolsBuilder::build`].
    pub fn new<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, config: &Config) -> Result<Self> {
        Self::builder(backend, device).config(config).build()
    }

    /// The pools of a device to be.
    pub fn builder<B: Backend + ?Sized>(backend: &Arc<B>, device: u32) -> PoolsBuilder {
        let born = Instant::now();
        PoolsBuilder {
            backend: Arc::clone(backend).erased(),
            device,
            config: Config::default(),
            host_memory: None,
            clock: Arc::new(move || nanoseconds(born.elapsed())),
        }
    }

    /// What it was made with.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Whose memory it is.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.device.backend()
    }

    /// The device's ordinal.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.device.device()
    }

    /// The device's own memory.
    #[must_use]
    pub const fn device(&self) -> &Pool<Device> {
        &self.device
    }

    /// Page-locked memory.
    #[must_use]
    pub const fn pinned(&self) -> &PinnedPool {
        &self.pinned
    }

    /// Managed memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) where the configuration has it off.
    pub fn unified(&self) -> Result<&Pool<Unified>> {
        if self.config.managed {
            Ok(&self.unified)
        } else {
            Err(Error::Unsupported { what: "managed memory, which the configuration has off," })
        }
    }

    /// `len` elements where the configuration puts what nobody has placed.
    ///
    /// # Errors
    ///
    /// As [`buffer_in`](Self::buffer_in).
    pub fn buffer<T: DeviceBytes>(&self, len: usize) -> Result<Placed<T>> {
        self.buffer_in(self.config.location, len)
    }

    /// `len` elements in a memory of one's choice.
    ///
    /// # Errors
    ///
    /// As [`Buffer::new`]; as [`unified`](Self::unified).
    pub fn buffer_in<T: DeviceBytes>(&self, location: MemoryLocation, len: usize) -> Result<Placed<T>> {
        Ok(match location {
            MemoryLocation::Device => Placed::Device(Buffer::new(self.device.clone(), len)?),
            MemoryLocation::Pinned => Placed::Pinned(Buffer::new(self.pinned.clone(), len)?),
            MemoryLocation::Unified => Placed::Unified(Buffer::new(self.unified()?.clone(), len)?),
            MemoryLocation::Host => Placed::Host(Buffer::new(self.host.clone(), len)?),
        })
    }

    /// `len` elements on the host, to be copied so often: page-locked where that [pays](config::should_pin) and can be had, else pageable.
    ///
    /// # Errors
    ///
    /// As [`Buffer::new`].
    pub fn staging<T: DeviceBytes>(&self, len: usize, transfers: u64) -> Result<Placed<T>> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        if config::should_pin(transfers, bytes, self.pinned.left()) {
            match self.buffer_in(MemoryLocation::Pinned, len) {
                // Others were quicker, or the backend has less than the configuration.
                Err(Error::Limit { of: LimitOf::Pinned, .. } | Error::OutOfMemory { .. }) => {}
                outcome => return outcome,
            }
        }
        self.buffer_in(MemoryLocation::Host, len)
    }

    /// How large a [batch](config::batch_size_hint) to make, bytes: what is available is what the device's pool may still give, and where anybody knows
    /// what the device has, not more than is free there or idle in the pool.
    ///
    /// # Errors
    ///
    /// As [`Backend::memory_info`].
    pub fn batch_bytes(&self, requested: u64) -> Result<u64> {
        let statistics = self.device.statistics();
        let within = match self.config.pooling.enabled {
            true => self.config.pooling.max_bytes.saturating_sub(statistics.held_bytes),
            false => u64::MAX,
        };
        let idle = statistics.reserved_bytes.saturating_sub(statistics.held_bytes);
        let there = self.backend().memory_info(self.ordinal())?.map_or(u64::MAX, |info| info.free.saturating_add(idle));
        Ok(config::batch_size_hint(requested, within.min(there)))
    }

    /// Frees what the pools have had idle for the configured interval; how many bytes. It looks once an interval and is nothing between, so it
    /// belongs into a loop that the program has anyway: no thread does it. What is idle goes between one interval and two after its last use.
    pub fn maintain(&self) -> u64 {
        let (now, interval) = ((self.clock)(), self.config.pooling.trim_interval);
        let looked = self.looked.load(Relaxed);
        let is_time = now.saturating_sub(looked) >= nanoseconds(interval);
        if !is_time || self.looked.compare_exchange(looked, now, Relaxed, Relaxed).is_err() {
            return 0;
        }
        self.device.trim_older_than(interval) + self.pinned.trim_older_than(interval) + self.unified.trim_older_than(interval)
    }
}

impl PoolsBuilder {
    /// What they do; [`Config::default`] unless set.
    pub const fn config(mut self, config: &Config) -> Self {
        self.config = *config;
        self
    }

    /// The machine's memory in bytes, of which no more than a quarter is page-locked; what the system says unless set.
    pub const fn host_memory(mut self, bytes: u64) -> Self {
        self.host_memory = Some(bytes);
        self
    }

    /// Nanoseconds of a clock that never goes back, for the age of what is idle.
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The pools. They ask the backend for no memory yet.
    ///
    /// # Errors
    ///
    /// [`Config`](Error::Config) for one that makes no sense, [`NoDevice`](Error::NoDevice).
    pub fn build(self) -> Result<Pools> {
        let Self { backend, device, config, host_memory, clock } = self;
        config.validate()?;
        backend.capabilities(device)?;
        let ram = host_memory.or_else(host::host_memory).unwrap_or(u64::MAX);
        let (enabled, looked) = (config.pooling.enabled, AtomicU64::new(clock()));
        let pinned =
            PinnedPool::with(Pinned::new(&backend, device), config.pinning.budget(ram), |builder| timed(builder, &clock).enabled(enabled))?;
        Ok(Pools {
            config,
            device: timed(Pool::builder(Device::new(&backend, device)), &clock).pooling(&config.pooling).build()?,
            unified: timed(Pool::builder(Unified::new(&backend, device)), &clock).pooling(&config.pooling).build()?,
            pinned,
            host: Host::new(&backend, device),
            clock,
            looked,
        })
    }
}

fn timed<M: Memory>(builder: Builder<M>, clock: &Clock) -> Builder<M> {
    let clock = Arc::clone(clock);
    builder.clock(move || clock())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, device, pinned, unified, .. } = self;
        f.debug_struct("Pools").field("config", config).field("device", device).field("pinned", pinned).field("unified", unified).finish()
    }
}

impl fmt::Debug for PoolsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, device, config, host_memory, .. } = self;
        let mut shown = f.debug_struct("PoolsBuilder");
        shown
            .field("backend", backend)
            .field("device", device)
            .field("config", config)
            .field("host_memory", host_memory)
            .finish_non_exhaustive()
    }
}
