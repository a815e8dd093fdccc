use core::fmt;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;

use super::heap::LONGEST;
use super::{Classes, Pool};
use crate::memory::Memory;
use crate::sys::clock::Clocks;
use crate::{Error, Result};

/// The contents of new and reused blocks.
///
/// [`DebugPoison`](Self::DebugPoison) is the default. It covers host memory and costs a release build nothing. Use [`Poison`](Self::Poison) in tests
/// for reads of uninitialised device memory: it queues a fill for each allocation.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::{Hygiene, Pool};
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).hygiene(Hygiene::Zero).build()?;
/// Buffer::<u32, _>::new(pool.clone(), 100)?.fill(7)?;
/// assert_eq!(Buffer::<u32, _>::new(pool, 100)?.to_vec()?, [0; 100]); // the same block
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hygiene {
    /// If the crate is compiled with debug assertions, each freed block of pinned or pageable memory is filled with [`FREED`](Self::FREED), so that
    /// a read after the free, or before the next owner's first write, is conspicuous. Blocks that queued work still uses, and device and managed
    /// memory, keep their bytes: a fill would be queued work or wait for a kernel. Without debug assertions, as [`Leave`](Self::Leave).
    #[default]
    DebugPoison,
    /// Unspecified: the bytes of the previous owner.
    Leave,
    /// All bytes are 0 at allocation.
    Zero,
    /// All bytes have this value at allocation.
    Poison(u8),
}

impl Hygiene {
    /// The bytes of a block that [`DebugPoison`](Self::DebugPoison) has filled.
    pub const FREED: u8 = 0xDD;
}

/// An out-of-memory callback: gets the requested bytes, returns whether it freed memory.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::{OutOfMemory, Pool};
///
/// let callback: OutOfMemory = Box::new(|bytes| {
///     eprintln!("{bytes} bytes missing");
///     false // nothing was freed
/// });
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).limit(1 << 20).on_out_of_memory(callback).build()?;
/// assert!(Buffer::<u8, _>::new(pool, 2 << 20).is_err());
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type OutOfMemory = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Options of a pool, with defaults.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::Device;
/// use ringmem::pool::{Classes, Hygiene, Pool};
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0))
///     .limit(256 << 20)
///     .slab(8 << 20)
///     .classes(Classes::new(1024, 16, 4)?)
///     .hygiene(Hygiene::Zero)
///     .on_out_of_memory(|bytes| {
///         eprintln!("{bytes} bytes missing");
///         false // nothing was freed: do not retry
///     })
///     .build()?;
/// pool.prewarm(64 << 10, 16)?; // sixteen blocks, before the first request
/// # Ok::<(), ringmem::Error>(())
/// ```
#[must_use]
pub struct Builder<M: Memory> {
    memory: M,
    pub(super) options: Options,
}

pub(super) struct Options {
    pub limit: u64,
    /// `None`: an address range, where the memory has one.
    pub slab: Option<u64>,
    pub classes: Classes,
    pub is_exact: bool,
    pub is_enabled: bool,
    pub hygiene: Hygiene,
    pub patience: Duration,
    /// The time beyond `patience` for which a request waits for another thread's upstream allocation.
    pub growth_patience: Duration,
    pub out_of_memory: Option<OutOfMemory>,
    pub clocks: Clocks,
}

impl<M: Memory> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { limit, slab, classes, is_exact, is_enabled, hygiene, patience, .. } = &self.options;
        f.debug_struct("Builder")
            .field("limit", limit)
            .field("slab", slab)
            .field("classes", classes)
            .field("exact", is_exact)
            .field("enabled", is_enabled)
            .field("hygiene", hygiene)
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

impl<M: Memory> Builder<M> {
    pub(super) fn new(memory: M) -> Self {
        let options = Options {
            limit: 4 << 30,
            slab: None,
            classes: Classes::default(),
            is_exact: false,
            is_enabled: true,
            hygiene: Hygiene::default(),
            patience: Duration::from_millis(100),
            growth_patience: Duration::from_secs(30),
            out_of_memory: None,
            clocks: Clocks::of_system(),
        };
        Self { memory, options }
    }

    /// Sets the limit of the reserved bytes. Default: 4 GiB. Mapped memory is in whole granules, slabs are whole multiples of 256 bytes. A request that
    /// fits the rest of the limit only without this rounding gets a block of its own length outside both, which is not cached.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.options.limit = bytes;
        self
    }

    /// Selects slabs of this size in bytes. By default, a pool whose memory [can be mapped](Memory::mapping_granularity) maps it behind one address range,
    /// where free memory always joins; others, and that pool while a kernel forbids mapping, have slabs of 32 MiB. Rounds up to multiples of 2 MiB, below that
    /// of 256 bytes. A longer block gets its own slab; without room for a whole slab, a slab is as long as the request.
    pub fn slab(mut self, bytes: u64) -> Self {
        self.options.slab = Some(bytes);
        self
    }

    /// Sets the size classes.
    pub fn classes(mut self, classes: Classes) -> Self {
        self.options.classes = classes;
        self
    }

    /// Sets whether all blocks have the requested size, rounded up to 256 bytes, instead of their class's; over an address range, those above 1 MiB always
    /// have. This wastes less memory, but each call takes a lock. For pools that run nearly full.
    pub fn exact(mut self, is_exact: bool) -> Self {
        self.options.is_exact = is_exact;
        self
    }

    /// Sets whether the pool keeps memory. If `false`, the upstream memory serves every call.
    pub fn enabled(mut self, is_enabled: bool) -> Self {
        self.options.is_enabled = is_enabled;
        self
    }

    /// Sets a block's contents. Default: [`Hygiene::DebugPoison`].
    pub fn hygiene(mut self, hygiene: Hygiene) -> Self {
        self.options.hygiene = hygiene;
        self
    }

    /// Sets how long a request waits for pending frees. Default: 100 ms. If another thread is then allocating a slab, the request waits for it up to
    /// 30 s more: the upstream memory's `alloc` should not wait for a thread that uses this pool. After that time, the request fails with
    /// [`OutOfMemory`](Error::OutOfMemory), which names [the allocation](crate::error::Unavailable::Allocation).
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// Sets a callback, called last. Its own requests, on any pool, call no callback.
    pub fn on_out_of_memory(mut self, callback: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        self.options.out_of_memory = Some(Box::new(callback));
        self
    }

    /// Sets a monotonic clock in nanoseconds, which dates empty slabs and free handles. Default: the system's, a few milliseconds coarse for free handles on
    /// Linux.
    pub fn clock(self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clocks(Clocks::both(Arc::new(clock)))
    }

    pub(super) fn clocks(mut self, clocks: Clocks) -> Self {
        self.options.clocks = clocks;
        self
    }

    /// Builds the pool. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for slabs below 64 KiB or above 1 TiB - 2 MiB - 256 bytes.
    pub fn build(self) -> Result<Pool<M>> {
        // The rounded size stays within `LONGEST`.
        let (least, most) = (64 << 10, LONGEST - (2 << 20));
        let Self { memory, options } = self;
        if let Some(asked) = options.slab.filter(|slab| !(least..=most).contains(slab)) {
            return Err(Error::Size { what: "slab size", asked, least, most });
        }
        Ok(Pool::new(memory, options))
    }
}
