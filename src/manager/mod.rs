//! [`MemoryManager`]: named buffers that grow.
//!
//! A [`registry`] has buffers whose numbers travel in messages; a manager's have names and growth policies.
//!
//! 1. A buffer has a name, an element type and a [`BufferConfig`]. Creating a name twice, or finding it with another type, is an error.
//! 2. Growth copies the live elements on the device. After a failure the buffer is unchanged, in a group every buffer of it.
//! 3. The sum of all blocks and reservations never exceeds the limit, including both blocks of a resize and pending frees.
//! 4. A lookup by [`BufferId`] takes no lock; one by name locks a map briefly. No lock is held during a call of foreign code.
//! 5. Only [`free`](MemoryManager::free), [`clear`](MemoryManager::clear) and [`cleanup`](MemoryManager::cleanup) free buffers.
//! 6. Failures are repeated by an [error policy](Builder::error_policy), and blocks allocated from a [fallback memory](Builder::fallback), if configured.
//! 7. A forked process's manager rejects every request with [`Unsupported`](crate::Error::Unsupported), frees nothing and has empty statistics.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::manager::{BufferConfig, MemoryManager};
//! use ringmem::memory::Device;
//!
//! let backend = HostBackend::builder().build()?;
//! let manager = MemoryManager::new(Device::new(&backend, 0));
//! let positions = manager.create::<[f32; 3]>("positions", 1000, BufferConfig::positions())?;
//! let forces = manager.create::<[f32; 3]>("forces", 1000, BufferConfig::forces())?;
//!
//! manager.lease_mut(positions)?.view_mut().copy_from(&[[1.0; 3]; 1000])?;
//! manager.resize_group([(positions.into(), 2000), (forces.into(), 2000)])?; // both or neither
//! manager.lease_mut(positions)?.extend_from_slice(&[[2.0; 3]; 5])?;
//!
//! let found = manager.find::<[f32; 3]>("positions")?;
//! let lease = manager.lease(found)?; // not moved or freed meanwhile
//! assert_eq!((lease.len(), lease.slice(999..1000)?.to_vec()?, lease.slice(2004..)?.to_vec()?), (2005, vec![[1.0; 3]], vec![[2.0; 3]]));
//! # Ok(())
//! # }
//! ```
//! ```compile_fail
//! # use ringmem::manager::{BufferId, Lease, MemoryManager};
//! # use ringmem::memory::Device;
//! fn swapped(manager: &MemoryManager<Device>, id: BufferId<f32>) -> ringmem::Result<Lease<'_, i32, Device>> {
//!     manager.lease(id) // f32 is not i32
//! }
//! ```

mod any;
mod append;
mod builder;
mod cleanup;
mod config;
mod create;
mod defragment;
mod entry;
mod group;
mod growth;
mod guard;
mod metadata;
mod names;
mod queued;
mod resize;
mod statistics;

use core::alloc::Layout;
use core::fmt;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use entry::{Entry, Held};
use guard::Guard;
use metadata::{LATEST, Look};
use names::Names;
use statistics::Counts;

use crate::memory::{Budget, Buffer, Memory, Origin, Reservation, most_bytes};
use crate::monotonic::Clock;
use crate::registry;
use crate::registry::slots::{Exclusive, Removed, Slots};
use crate::registry::stored::Element;
use crate::stream::Stream;
use crate::{DeviceBytes, Error, Result};

pub use any::AnyBufferId;
pub use append::Append;
pub use builder::Builder;
pub use config::{BufferConfig, Growth};
pub use metadata::BufferStatistics;
pub use statistics::Statistics;

pub use crate::registry::BufferId;

/// Named buffers in one memory. Clones share the manager.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::with_limit(Device::new(&backend, 0), 1 << 20);
/// let id = manager.clone().create::<f32>("weights", 1000, BufferConfig::new())?;
/// assert!(manager.contains(id) && !manager.can_allocate(1 << 20));
/// assert!(manager.find::<i32>("weights").is_err()); // another element type
/// # Ok::<(), ringmem::Error>(())
/// ```
#[doc(alias = "GpuMemoryManager")]
pub struct MemoryManager<M: Memory> {
    slots: Arc<Slots<Entry<M>>>,
    shared: Arc<Shared<M>>,
}

/// A managed buffer's shared lease.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let id = manager.create::<u32>("counts", 4, BufferConfig::new())?;
/// let lease = manager.lease(id)?; // not resized or freed meanwhile
/// assert_eq!(lease.len(), 4);
/// assert!(manager.lease_mut(id).is_err());
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type Lease<'a, T, M> = registry::Lease<'a, T, M, Entry<M>>;
/// A managed buffer's exclusive lease, for writing and resizing.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let id = manager.create::<u32>("counts", 2, BufferConfig::new())?;
/// let mut lease = manager.lease_mut(id)?;
/// lease.view_mut().copy_from(&[1, 2])?;
/// lease.extend_from_slice(&[3, 4, 5])?; // grows if necessary
/// assert!(manager.lease(id).is_err()); // exclusive
/// drop(lease);
/// assert_eq!(manager.lease(id)?.to_vec()?, [1, 2, 3, 4, 5]);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type LeaseMut<'a, T, M> = registry::LeaseMut<'a, T, M, Entry<M>>;

struct Shared<M: Memory> {
    memory: M,
    fallback: Option<M>,
    guard: Guard,
    names: Names,
    budget: Budget,
    clock: Clock,
    looks: AtomicU64,
    counts: Counts,
}

impl<M: Memory + Clone> MemoryManager<M> {
    /// Returns a manager with the default limit.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self::builder(memory).build()
    }

    /// Returns a manager with a limit in bytes.
    #[must_use]
    pub fn with_limit(memory: M, limit: u64) -> Self {
        Self::builder(memory).limit(limit).build()
    }

    /// Returns a builder.
    pub fn builder(memory: M) -> Builder<M> {
        Builder::new(memory)
    }

    fn of(builder: Builder<M>) -> Self {
        let Builder { memory, limit, clock, policy, fallback } = builder;
        let shared = Shared {
            memory,
            fallback,
            guard: Guard::new(policy),
            names: Names::default(),
            budget: Budget::new(limit),
            clock,
            looks: AtomicU64::new(0),
            counts: Counts::default(),
        };
        Self { slots: Arc::new(Slots::new()), shared: Arc::new(shared) }
    }
}

impl<M: Memory> MemoryManager<M> {
    /// Returns the buffer of that name.
    ///
    /// # Errors
    ///
    /// [`NotFound`](Error::NotFound); [`IdError::Elements`](crate::error::IdError::Elements) with both type names for another element type.
    #[inline]
    pub fn find<T: DeviceBytes>(&self, name: &str) -> Result<BufferId<T>> {
        self.slots.here()?;
        match self.shared.names.find(name, |index, metadata| metadata.element.check::<T>().map(|()| index)) {
            Some(index) => Ok(BufferId::new(self.slots.number(), index?)),
            None => Err(Error::NotFound { what: "buffer", name: name.into(), known: Box::default() }),
        }
    }

    /// Returns a shared lease.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with the id's fault, [`Error::Busy`] under an exclusive lease.
    #[inline]
    pub fn lease<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Lease<'_, T, M>> {
        self.slots.lease(id)
    }

    /// Returns the exclusive lease, for writing and resizing.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and [`Error::Busy`] under any lease.
    pub fn lease_mut<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<LeaseMut<'_, T, M>> {
        self.slots.lease_mut(id)
    }

    /// Returns whether the buffer exists, even leased. Not a use.
    #[inline]
    #[must_use]
    pub fn contains<T>(&self, id: BufferId<T>) -> bool {
        self.slots.own(id.registry(), id.index()).is_ok_and(|index| self.slots.contains(index))
    }

    /// Frees a buffer and its name; returns the number of leases that keep the memory. The last of them frees it; without any, this call does.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with the id's fault. The driver's error if this call frees the memory; the buffer is freed anyway.
    pub fn free(&self, buffer: impl Into<AnyBufferId>) -> Result<u32> {
        let AnyBufferId { manager, index } = buffer.into();
        let index = self.slots.own(manager, index)?;
        // After removal, another buffer may get the slot.
        let metadata = self.shared.names.of(index);
        let removed = self.slots.remove(index)?;
        self.shared.counts.freed();
        if let Some(metadata) = metadata {
            self.shared.names.free(&metadata);
        }
        match removed {
            Removed::Value(entry) => entry.held.close().map(|()| 0),
            Removed::Leased(leases) => Ok(leases),
        }
    }

    /// Frees every buffer; returns their number.
    pub fn clear(&self) -> u64 {
        if self.slots.here().is_err() {
            return 0;
        }
        let here = self.shared.names.all();
        let indices = here.into_iter().filter_map(|metadata| metadata.index());
        indices.filter(|&index| self.free(AnyBufferId { manager: self.slots.number(), index }).is_ok()).count() as u64
    }

    /// Reserves bytes of the budget for buffers [created](Self::create_in) with them, or for other memory.
    ///
    /// # Errors
    ///
    /// [`Limit`](Error::Limit).
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.slots.here()?;
        self.shared.reserve(bytes)
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// Returns the statistics. Dates the reads since the last poll.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        if self.slots.here().is_err() {
            return Statistics::default();
        }
        let Shared { names, memory, budget, counts, guard, .. } = &*self.shared;
        memory.backend().free_deferred();
        let (all, look) = (names.all(), self.shared.look());
        all.iter().for_each(|metadata| metadata.look(look));
        let now = self.shared.now();
        let buffers = all.iter().map(|metadata| metadata.read(look, now)).collect();
        let (used_bytes, peak_bytes, limit_bytes) = (budget.used(), budget.peak(), budget.limit());
        Statistics { buffers, used_bytes, peak_bytes, limit_bytes, ..guard.read(counts.read()) }
    }

    /// Dates the reads since the last poll: called once per frame, it makes ages exact to a frame. Allocates nothing.
    pub fn tick(&self) {
        if self.slots.here().is_err() {
            return;
        }
        let look = self.shared.look();
        self.shared.names.each(|metadata| metadata.look(look));
        let now = self.shared.now();
        self.shared.names.each(|metadata| {
            metadata.last_used(look, now);
        });
    }

    fn alone(&self, buffer: AnyBufferId) -> Result<Exclusive<'_, Entry<M>>> {
        self.slots.exclusive(self.slots.own(buffer.manager, buffer.index)?)
    }
}

impl<M: Memory> Shared<M> {
    fn now(&self) -> u64 {
        (self.clock)().min(LATEST)
    }

    fn look(&self) -> Look {
        Look::next(&self.looks)
    }

    /// Includes bytes of pending frees.
    fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.budget.reserve(bytes).or_else(|_| {
            self.memory.backend().free_deferred();
            self.budget.reserve(bytes)
        })
    }
}

impl<M: Memory + Clone> Shared<M> {
    fn try_block(&self, bytes: u64, origin: &Origin) -> Result<()> {
        let reservation = self.reserve(bytes)?;
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, align_of::<u64>()).ok());
        let layout = layout.ok_or_else(|| Error::Size {
            what: "size in bytes",
            asked: bytes,
            least: 0,
            most: most_bytes(align_of::<u64>()) as u64,
        })?;
        let (block, _) = origin.around(|| self.allocate(layout, None))?;
        drop(Held::new(block, reservation));
        Ok(())
    }

    /// Returns also whether the block is of the fallback memory.
    fn block(&self, element: &Element, capacity: usize, on: Option<&Stream>, origin: &Origin) -> Result<(Buffer<u8, M>, bool)> {
        let layout = element.layout(capacity)?;
        origin.around(|| self.allocate(layout, on))
    }

    fn allocate(&self, layout: Layout, on: Option<&Stream>) -> Result<(Buffer<u8, M>, bool)> {
        let from = |memory: &M, is_fallback| Ok((Buffer::bytes(memory.clone(), layout, on)?, is_fallback));
        self.guard.retry_or(|| from(&self.memory, false), self.fallback.as_ref().map(|memory| || from(memory, true)))
    }
}

impl<M: Memory> Clone for MemoryManager<M> {
    fn clone(&self) -> Self {
        Self { slots: Arc::clone(&self.slots), shared: Arc::clone(&self.shared) }
    }
}

impl<M: Memory> fmt::Debug for MemoryManager<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryManager").field("budget", &self.shared.budget).field("counts", &self.shared.counts).finish_non_exhaustive()
    }
}
