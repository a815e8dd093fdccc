//! [`MemoryManager`]: a store of numbered buffers. Created buffers also have a name and grow.
//!
//! 1. Each buffer has a typed [`BufferId`], forever: the id of a freed buffer, or of another manager in any process, is an error.
//! 2. A buffer is accessed through any number of [`Lease`]s, or one [`LeaseMut`]. A lookup by [`BufferId`] takes no lock, one by name locks a map
//!    briefly. No lock is held during a call of foreign code.
//! 3. A freed buffer grants no new lease. Its memory is freed after its last lease and its last queued operation.
//! 4. A [created](MemoryManager::create) buffer has a name, an element type and a [`BufferConfig`]. Creating a name twice, or finding it with another
//!    type, is an error. A [registered](MemoryManager::register) buffer was allocated by the caller, has no name and does not grow.
//! 5. Growth copies the live elements on the device. After a failure the buffer is unchanged, in a group every buffer of it.
//! 6. The sum of all blocks and reservations never exceeds the limit, including registered buffers, both blocks of a resize and pending frees.
//!    The exception is a mirror that a [`MirrorLease`] replaces as a whole: its bytes count from the end of the lease, even beyond the limit.
//! 7. Only [`free`](MemoryManager::free), [`clear`](MemoryManager::clear), [`cleanup`](MemoryManager::cleanup) and a reference that hands a buffer over
//!    free buffers.
//! 8. A [`BufferReference`](crate::message::BufferReference) names elements of a buffer in 64 bytes. Sender and receiver check its bounds.
//! 9. [`defragment`](MemoryManager::defragment) moves buffers without leases; their ids stay valid.
//! 10. A [mirror](crate::mirror) is registered, leased and referenced alike, by [`MirrorLease`]s, which are exclusive. It is not moved.
//! 11. Failures are repeated by an [error policy](Builder::error_policy), and blocks allocated from a [fallback memory](Builder::fallback), if configured.
//! 12. A forked process's manager rejects every request with [`Unsupported`](crate::Error::Unsupported), frees nothing and has empty statistics.
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
//! A buffer of the caller, sent by reference:
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::manager::MemoryManager;
//! use ringmem::memory::{Device, GpuBuffer};
//!
//! let backend = HostBackend::builder().build()?;
//! let memory = Device::new(&backend, 0);
//! let manager = MemoryManager::new(memory.clone());
//! let id = manager.register(GpuBuffer::<f32>::from_slice(memory, &[1.0, 2.0, 3.0])?)?;
//!
//! let message = manager.reference(id, 1..)?; // 64 bytes, through any ring
//! let (lease, range) = manager.resolve::<f32>(&message)?;
//! assert_eq!(lease.slice(range)?.to_vec()?, [2.0, 3.0]);
//!
//! assert_eq!(manager.free(id)?, 1); // one lease keeps it
//! drop(lease);
//! assert!(manager.resolve::<f32>(&message).is_err());
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
//!
//! # Parts
//!
//! `numbers` is the table, which decides who accesses an entry; `entry` is a buffer and its bytes of the budget; `names` finds created buffers. A lookup
//! by id needs only the table.

mod builder;
mod cleanup;
mod config;
mod create;
mod element;
mod entry;
mod growth;
mod guard;
mod id;
mod lease;
mod mirrors;
mod names;
mod numbers;
mod reference;
mod relocate;
mod statistics;

use core::fmt;
use core::sync::atomic::AtomicU64;
use std::boxed::Box;
use std::sync::Arc;

use entry::Entry;
use guard::Guard;
use mirrors::StoredMirror;
use names::{LATEST, Names, Poll};
use numbers::{Index, Removed, Slots};
use statistics::Counts;

use crate::memory::{Budget, Buffer, Memory, Reservation};
use crate::sys::clock::Clock;
use crate::{DeviceBytes, Error, Result};

pub use builder::Builder;
pub use config::{BufferConfig, Growth};
pub use growth::Append;
pub use id::{AnyBufferId, BufferId};
pub use lease::{Lease, LeaseMut};
pub use mirrors::{MirrorId, MirrorLease};
pub use relocate::Relocated;
pub use statistics::{BufferStatistics, Statistics};

/// A store of buffers in one memory, and of mirrors whose device copies are in that memory. Clones share the manager.
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
#[doc(alias = "GpuMemoryManager", alias = "Registry")]
pub struct MemoryManager<M: Memory> {
    table: Arc<Slots<Entry<M>, Store<M>>>,
}

/// The parts of a manager without its buffers. Each lease reaches them through the table.
struct Store<M: Memory> {
    memory: M,
    fallback: Option<M>,
    guard: Guard,
    names: Names,
    budget: Budget,
    clock: Clock,
    polls: AtomicU64,
    counts: Counts,
    mirrors: Arc<Slots<StoredMirror>>,
}

impl<M: Memory> MemoryManager<M> {
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
        let store = Store {
            memory,
            fallback,
            guard: Guard::new(policy),
            names: Names::default(),
            budget: Budget::new(limit),
            clock,
            polls: AtomicU64::new(0),
            counts: Counts::default(),
            mirrors: Arc::new(Slots::new(())),
        };
        Self { table: Arc::new(Slots::new(store)) }
    }

    fn store(&self) -> &Store<M> {
        &self.table.shared
    }

    /// Returns its number, which references to its buffers contain. References to its mirrors contain another one.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.table.number()
    }

    /// Returns the buffer of that name.
    ///
    /// # Errors
    ///
    /// [`NotFound`](Error::NotFound); [`IdError::Elements`](crate::error::IdError::Elements) with both type names for another element type.
    #[inline]
    pub fn find<T: DeviceBytes>(&self, name: &str) -> Result<BufferId<T>> {
        self.table.here()?;
        match self.store().names.find(name, |index, named| named.element.check::<T>().map(|()| index)) {
            Some(index) => Ok(BufferId::new(self.table.number(), index?)),
            None => Err(Error::NotFound { what: "buffer", name: name.into(), known: Box::default() }),
        }
    }

    /// Returns whether the buffer or mirror exists and was not freed, even leased. Not a use.
    #[inline]
    #[must_use]
    pub fn contains<T>(&self, id: BufferId<T>) -> bool {
        let mirrors = &self.store().mirrors;
        self.table.own(id.table, id.index).is_ok_and(|index| self.table.contains(index))
            || mirrors.own(id.table, id.index).is_ok_and(|index| mirrors.contains(index))
    }

    /// Frees a buffer or mirror, and its name; returns the number of leases that keep the memory. The last of them frees it; without any, this call
    /// does.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with the id's fault. The driver's error if this call frees the memory; the buffer is freed anyway.
    pub fn free(&self, buffer: impl Into<AnyBufferId>) -> Result<u32> {
        let AnyBufferId { table, index } = buffer.into();
        let mirrors = &self.store().mirrors;
        if table == mirrors.number() {
            mirrors.here()?;
            return match mirrors.remove(index)? {
                Removed::UnderLease(leases) => Ok(leases),
                Removed::Value(mirror) => mirror.close().map(|()| 0),
            };
        }
        match self.remove(self.table.own(table, index)?)? {
            Removed::UnderLease(leases) => Ok(leases),
            Removed::Value(entry) => entry.counted.close().map(|()| 0),
        }
    }

    /// Removes a buffer and its name from the table.
    fn remove(&self, index: Index) -> Result<Removed<Entry<M>>> {
        let removed = self.table.remove(index)?;
        // A leased entry does not tell whether it has a name.
        let is_unnamed = matches!(&removed, Removed::Value(entry) if entry.named().is_none());
        if !is_unnamed {
            self.store().names.free(index);
        }
        Ok(removed)
    }

    /// Removes a buffer and returns it, as [`LeaseMut::take`].
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut): a leased buffer stays.
    pub fn take<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Buffer<T, M>> {
        self.lease_mut(id)?.take()
    }

    /// Frees every buffer and mirror; returns their number.
    pub fn clear(&self) -> u64 {
        if self.table.here().is_err() {
            return 0;
        }
        let mirrors = &self.store().mirrors;
        let buffers = self.table.indices().filter(|&index| self.remove(index).is_ok()).count();
        let mirrors = mirrors.indices().filter(|&index| mirrors.remove(index).is_ok()).count();
        (buffers + mirrors) as u64
    }

    /// Reserves bytes of the budget for buffers [created](Self::create_in) with them, or for other memory.
    ///
    /// # Errors
    ///
    /// [`Limit`](Error::Limit).
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.table.here()?;
        self.store().reserve(bytes)
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.store().budget
    }

    /// Returns the statistics. Dates the reads since the last poll.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        if self.table.here().is_err() {
            return Statistics::default();
        }
        let store = self.store();
        let Store { names, memory, budget, counts, guard, mirrors, .. } = store;
        memory.backend().free_deferred();
        let (all, poll) = (names.all(), store.poll());
        all.iter().for_each(|named| named.begin_dating(poll));
        let now = store.now();
        let buffers = all.iter().map(|named| named.read(poll, now)).collect();
        let (of_buffers, of_mirrors, counts) = (self.table.counts(), mirrors.counts(), counts.read());
        guard.read(Statistics {
            buffers,
            used_bytes: budget.used(),
            peak_bytes: budget.peak(),
            limit_bytes: budget.limit(),
            registered: (of_buffers.inserted + of_mirrors.inserted).saturating_sub(counts.created),
            released: of_buffers.removed + of_mirrors.removed,
            freed: of_buffers.freed + of_mirrors.freed,
            leases: self.table.leases() + mirrors.leases(),
            retired: of_buffers.retired + of_mirrors.retired,
            ..counts
        })
    }

    /// Dates the reads since the last poll: called once per frame, it makes ages exact to a frame. Allocates nothing.
    pub fn tick(&self) {
        if self.table.here().is_err() {
            return;
        }
        let store = self.store();
        let poll = store.poll();
        store.names.each(|named| named.begin_dating(poll));
        let now = store.now();
        store.names.each(|named| {
            named.last_used(poll, now);
        });
    }
}

impl<M: Memory> Store<M> {
    fn now(&self) -> u64 {
        (self.clock)().min(LATEST)
    }

    fn poll(&self) -> Poll {
        Poll::next(&self.polls)
    }

    /// Reserves bytes, if necessary after the frees that wait for a kernel which has ended.
    fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.budget.reserve(bytes).or_else(|_| {
            self.memory.backend().free_deferred();
            self.budget.reserve(bytes)
        })
    }
}

impl<M: Memory> Clone for MemoryManager<M> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table) }
    }
}

impl<M: Memory> fmt::Debug for MemoryManager<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Store { budget, counts, .. } = self.store();
        f.debug_struct("MemoryManager")
            .field("number", &self.number())
            .field("budget", budget)
            .field("counts", counts)
            .finish_non_exhaustive()
    }
}
