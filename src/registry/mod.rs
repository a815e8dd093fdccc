//! [`Registry`]: buffers and mirrors with numbers that fit into messages.
//!
//! A [`manager`](crate::manager)'s buffers have names and grow; a registry's have numbers that travel in messages.
//!
//! 1. A typed [`BufferId`] identifies one buffer forever. The id of a freed buffer, or of another registry in any process, is an error.
//! 2. A buffer is accessed through any number of [`Lease`]s, or one [`LeaseMut`]. A lookup takes no lock.
//! 3. A released buffer grants no new lease. It is freed after its last lease and its last queued operation.
//! 4. A [`BufferReference`](crate::message::BufferReference) names elements of a buffer in 64 bytes. Sender and receiver check its bounds.
//! 5. [`Registry::defragment`] moves buffers without leases; their ids stay valid.
//! 6. A [mirror](crate::mirror) is registered, leased and referenced alike, by [`MirrorLease`]s, which are exclusive. It is not moved.
//! 7. A forked process's registry rejects every request with [`Unsupported`](crate::Error::Unsupported), frees nothing and has empty statistics.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Device, GpuBuffer};
//! use ringmem::registry::Registry;
//!
//! let backend = HostBackend::builder().build()?;
//! let registry = Registry::new();
//! let id = registry.register(GpuBuffer::<f32>::from_slice(Device::new(&backend, 0), &[1.0, 2.0, 3.0])?)?;
//!
//! let message = registry.reference(id, 1..)?; // 64 bytes, through any ring
//! let (lease, range) = registry.resolve::<f32>(&message)?;
//! assert_eq!(lease.slice(range)?.to_vec()?, [2.0, 3.0]);
//!
//! assert_eq!(registry.release(id)?, 1); // one lease keeps it
//! drop(lease);
//! assert!(registry.resolve::<f32>(&message).is_err());
//! # Ok(())
//! # }
//! ```
//! ```compile_fail
//! # use ringmem::memory::Device;
//! # use ringmem::registry::{BufferId, Lease, Registry};
//! fn swapped(registry: &Registry<Device>, id: BufferId<f32>) -> ringmem::Result<Lease<'_, i32, Device>> {
//!     registry.lease(id) // f32 is not i32
//! }
//! ```
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

mod id;
pub(crate) mod lease;
mod mirrors;
mod queued;
mod reference;
pub(crate) mod relocate;
pub(crate) mod slots;
pub(crate) mod stored;

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

pub use crate::error::IdError;
pub use id::BufferId;
pub use lease::{Lease, LeaseMut};
pub use mirrors::{MirrorId, MirrorLease};
pub use relocate::Relocated;

use mirrors::StoredMirror;
use slots::{Removed, Slots};
use stored::Stored;

use crate::memory::{Buffer, Memory};
use crate::{DeviceBytes, Rejected, Result};

/// Numbered buffers of one memory, and mirrors whose device copies are in that memory. Clones share the registry.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id = registry.register(GpuBuffer::<f32>::new(Device::new(&backend, 0), 100)?)?;
/// let buffer = registry.clone().take(id)?; // out of the registry
/// assert_eq!((buffer.len(), registry.contains(id)), (100, false));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Registry<M: Memory> {
    slots: Arc<Slots<Stored<M>>>,
    mirrors: Arc<Slots<StoredMirror>>,
    bytes: Arc<AtomicU64>,
}

/// A registry's counters and sizes, of buffers and mirrors. Exact while no other thread uses it.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id = registry.register(GpuBuffer::<u8>::new(Device::new(&backend, 0), 100)?)?;
/// let lease = registry.lease(id)?;
/// registry.release(id)?;
/// let statistics = registry.statistics();
/// assert_eq!((statistics.live(), statistics.kept(), statistics.bytes), (0, 1, 100)); // freed with the lease
/// # drop(lease);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Buffers registered.
    pub registered: u64,
    /// Buffers released or taken, even leased ones.
    pub released: u64,
    /// Buffers freed.
    pub freed: u64,
    /// Live leases.
    pub leases: u64,
    /// Bytes of all buffers that are not freed.
    pub bytes: u64,
    /// Slots whose generations are used up.
    pub retired: u64,
}

impl Statistics {
    /// Returns the number of buffers that can be leased.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.registered.saturating_sub(self.released)
    }

    /// Returns the number of released buffers that a lease still keeps.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.released.saturating_sub(self.freed)
    }
}

impl<M: Memory> Registry<M> {
    /// Returns an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self { slots: Arc::new(Slots::new()), mirrors: Arc::new(Slots::new()), bytes: Arc::default() }
    }

    /// Returns its number, which references to its buffers contain. References to its mirrors contain another one.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.slots.number()
    }

    /// Registers a buffer and returns its id. Zero-sized elements do not compile.
    ///
    /// # Errors
    ///
    /// The buffer, with [`IdError::Full`], or [`Unsupported`](crate::Error::Unsupported) in a forked process.
    pub fn register<T: DeviceBytes>(&self, buffer: Buffer<T, M>) -> Result<BufferId<T>, Rejected<Buffer<T, M>>> {
        let inserted = self.slots.insert(Stored::new(buffer, &self.bytes));
        // SAFETY: created from a buffer of `T` above.
        let index = inserted.map_err(|Rejected { error, value }| Rejected { error, value: unsafe { value.into_buffer() } })?;
        Ok(BufferId::new(self.number(), index))
    }

    /// Returns a shared lease.
    ///
    /// # Errors
    ///
    /// [`Id`](crate::Error::Id) with the id's fault, [`Busy`](crate::Error::Busy) under an exclusive lease.
    #[inline]
    pub fn lease<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Lease<'_, T, M>> {
        self.slots.lease(id)
    }

    /// Returns the exclusive lease, for writing. Until its drop, the buffer is not moved.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and [`Busy`](crate::Error::Busy) under any lease.
    pub fn lease_mut<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<LeaseMut<'_, T, M>> {
        self.slots.lease_mut(id)
    }

    /// Returns whether the buffer or mirror exists and was not released, even leased.
    #[must_use]
    pub fn contains<T>(&self, id: BufferId<T>) -> bool {
        let (registry, index) = (id.registry(), id.index());
        self.slots.own(registry, index).is_ok_and(|index| self.slots.contains(index))
            || self.mirrors.own(registry, index).is_ok_and(|index| self.mirrors.contains(index))
    }

    /// Releases a buffer or mirror; returns the number of leases that keep it. The last of them frees it; without any, this call does.
    ///
    /// # Errors
    ///
    /// [`Id`](crate::Error::Id) for a buffer that does not exist or was released. The driver's error if this call frees the buffer, which is freed
    /// anyway.
    pub fn release<T>(&self, id: BufferId<T>) -> Result<u32> {
        if id.registry() == self.mirrors.number() {
            self.mirrors.here()?;
            return match self.mirrors.remove(id.index())? {
                Removed::Leased(leases) => Ok(leases),
                Removed::Value(mirror) => mirror.close().map(|()| 0),
            };
        }
        match self.slots.remove(self.slots.own(id.registry(), id.index())?)? {
            Removed::Leased(leases) => Ok(leases),
            Removed::Value(stored) => stored.buffer.close().map(|()| 0),
        }
    }

    /// Removes a buffer and returns it.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut): a leased buffer stays.
    pub fn take<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Buffer<T, M>> {
        self.lease_mut(id)?.take()
    }

    /// Releases every buffer and mirror; returns their number.
    pub fn clear(&self) -> u64 {
        if self.slots.here().is_err() {
            return 0;
        }
        let buffers = self.slots.indices().filter(|&index| self.slots.remove(index).is_ok()).count();
        let mirrors = self.mirrors.indices().filter(|&index| self.mirrors.remove(index).is_ok()).count();
        (buffers + mirrors) as u64
    }

    /// Returns the statistics.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        if self.slots.here().is_err() {
            return Statistics::default();
        }
        let (buffers, mirrors) = (self.slots.counts(), self.mirrors.counts());
        Statistics {
            registered: buffers.inserted + mirrors.inserted,
            released: buffers.removed + mirrors.removed,
            freed: buffers.freed + mirrors.freed,
            leases: self.slots.leases() + self.mirrors.leases(),
            bytes: self.bytes.load(Relaxed),
            retired: buffers.retired + mirrors.retired,
        }
    }
}

impl<M: Memory> Default for Registry<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Memory> Clone for Registry<M> {
    fn clone(&self) -> Self {
        Self { slots: Arc::clone(&self.slots), mirrors: Arc::clone(&self.mirrors), bytes: Arc::clone(&self.bytes) }
    }
}

impl<M: Memory> fmt::Debug for Registry<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("number", &self.number()).field("statistics", &self.statistics()).finish()
    }
}
