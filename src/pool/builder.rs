//! [`Builder`]: the options of a pool.

use core::mem::ManuallyDrop;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;

use super::central::Central;
use super::heap::LONGEST;
use super::{Classes, Handle, Pool};
use crate::memory::Memory;
use crate::monotonic::{Clock, monotonic};
use crate::{Error, Result};

/// The contents of a block at allocation, for new and reused blocks.
///
/// The default is [`Leave`](Self::Leave) in debug builds too: a fill costs time for each reused block. Use [`Poison`](Self::Poison) in
/// tests that look for reads of uninitialised memory.
///
/// ```
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::{Hygiene, Pool};
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).hygiene(Hygiene::Zero).build()?;
/// Buffer::<u32, _>::new(pool.clone(), 100)?.fill(7)?;
/// assert_eq!(Buffer::<u32, _>::new(pool, 100)?.to_vec()?, [0; 100]); // the same block
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hygiene {
    /// Unspecified: the bytes of the previous owner, even if the upstream memory zeroes its blocks.
    #[default]
    Leave,
    /// All bytes are 0.
    Zero,
    /// All bytes have this value, which makes reads of unwritten bytes visible.
    Poison(u8),
}

/// An out-of-memory callback. It gets the requested bytes, and returns whether it freed memory, so that a retry may succeed.
pub type OutOfMemory = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Options of a pool, with a default for each.
///
/// ```
/// use ringmem::memory::Device;
/// use ringmem::pool::{Classes, Hygiene, Pool};
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
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
    options: Options,
}

/// The options of a pool, as the methods of [`Builder`] describe them.
pub(super) struct Options {
    pub limit: u64,
    pub slab: u64,
    pub classes: Classes,
    pub is_exact: bool,
    pub is_enabled: bool,
    pub hygiene: Hygiene,
    pub patience: Duration,
    pub out_of_memory: Option<OutOfMemory>,
    pub clock: Clock,
}

impl<M: Memory> Builder<M> {
    pub(super) fn new(memory: M) -> Self {
        let options = Options {
            limit: 4 << 30,
            slab: 32 << 20,
            classes: Classes::default(),
            is_exact: false,
            is_enabled: true,
            hygiene: Hygiene::Leave,
            patience: Duration::from_millis(100),
            out_of_memory: None,
            clock: monotonic(),
        };
        Self { memory, options }
    }

    /// Sets the limit of the bytes that the pool reserves from its upstream memory. Default: 4 GiB.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.options.limit = bytes;
        self
    }

    /// Sets the size of a slab in bytes. Default: 32 MiB. Sizes round up to multiples of 2 MiB; sizes below 2 MiB round up to multiples of
    /// 256 bytes. A longer block gets a slab of its own. If the limit or the memory has no room for a whole slab, the slab is as long as
    /// the request.
    pub fn slab(mut self, bytes: u64) -> Self {
        self.options.slab = bytes;
        self
    }

    /// Sets the size classes.
    pub fn classes(mut self, classes: Classes) -> Self {
        self.options.classes = classes;
        self
    }

    /// Sets whether blocks have the requested size, rounded up to 256 bytes, instead of the size of their class. Exact blocks are not
    /// cached and coalesce when they are freed. This wastes less memory but takes a lock for each call. Use it for pools that run nearly
    /// full.
    pub fn exact(mut self, is_exact: bool) -> Self {
        self.options.is_exact = is_exact;
        self
    }

    /// Sets whether the pool keeps memory. If `false`, the upstream memory serves every request and every free.
    pub fn enabled(mut self, is_enabled: bool) -> Self {
        self.options.is_enabled = is_enabled;
        self
    }

    /// Sets the contents of a block at allocation. Default: [`Hygiene::Leave`].
    pub fn hygiene(mut self, hygiene: Hygiene) -> Self {
        self.options.hygiene = hygiene;
        self
    }

    /// Sets how long a request waits for pending frees when no other memory is left. Default: 100 ms.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// Sets a callback that is called last, with the requested bytes. Requests that the callback itself makes, on any pool, call no
    /// callback.
    pub fn on_out_of_memory(mut self, callback: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        self.options.out_of_memory = Some(Box::new(callback));
        self
    }

    /// Sets a monotonic clock in nanoseconds, which dates empty slabs.
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.options.clock = Arc::new(clock);
        self
    }

    /// Builds the pool. Allocates nothing from the upstream memory yet.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for slabs of less than 64 KiB or more than 1 TiB - 2 MiB - 256 bytes.
    pub fn build(self) -> Result<Pool<M>> {
        // So that the rounded size stays within `LONGEST`.
        let (least, most) = (64 << 10, LONGEST - (2 << 20));
        let Self { memory, options } = self;
        if options.slab < least || options.slab > most {
            return Err(Error::Size { what: "slab size", asked: options.slab, least, most });
        }
        Ok(Pool { shared: ManuallyDrop::new(Arc::new(Central::new(memory, options))), handle: Handle::First })
    }
}
