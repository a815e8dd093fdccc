//! [`Registry`]: buffers with numbers that fit into messages.
//!
//! Use a registry to send references to buffers through rings; use a [`manager`](crate::manager) for buffers with names that grow.
//!
//! 1. A [`BufferId`] identifies one buffer forever. The id of a freed buffer, or of another registry in any process, is an error. The element type
//!    is part of the id's type.
//! 2. A buffer is accessed through leases: any number of [`Lease`]s for reading, or one [`LeaseMut`]. A lookup takes no lock.
//! 3. A released buffer grants no new lease. It is freed with its last lease, including leases of queued operations.
//! 4. A [`BufferReference`](crate::message::BufferReference) names some elements of a buffer in 64 bytes. Both ends check its bounds.
//! 5. [`Registry::defragment`] moves buffers without leases; their ids stay valid. A lease keeps the address.
//! 6. In a forked process, a registry rejects every request.
//!
//! It does not grow buffers, name them or share them between processes.
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
mod lease;
mod queued;
mod reference;
pub(crate) mod relocate;
pub(crate) mod slots;
mod stored;

use core::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

pub use crate::error::IdError;
pub use id::BufferId;
pub use lease::{Lease, LeaseMut};
pub use relocate::Relocated;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use slots::{Index, Removed, Slots};
use stored::{Books, Stored};

use crate::DeviceBytes;
use crate::memory::{Buffer, Memory};
use crate::{Error, Rejected, Result};

/// Numbered buffers of one memory. Clones share the same registry; owned leases hold a handle.
pub struct Registry<M: Memory> {
    slots: Arc<Slots<Stored<M>>>,
    books: Arc<Books>,
}

/// Counters and sizes of a registry. Exact while no other thread uses it.
///
/// ```
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
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
    /// The number of buffers registered.
    pub registered: u64,
    /// The number of buffers released or taken, including those that leases still keep.
    pub released: u64,
    /// The number of buffers freed.
    pub freed: u64,
    /// The number of live leases, exclusive ones included.
    pub leases: u64,
    /// The bytes of all buffers that are not freed.
    pub bytes: u64,
    /// The number of slots that are not reused because their generations are used up.
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

/// Returns a number that no other registry or manager of this process has, nor, with very high probability, of another process.
pub(crate) fn next_number() -> u64 {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The keys are random for each process. A forked process has the same keys and count, but another process id.
    let process = KEYS.get_or_init(RandomState::new).hash_one(std::process::id());
    loop {
        let number = process.wrapping_add(NEXT.fetch_add(1, Relaxed));
        // 0 means no registry.
        if number != 0 {
            return number;
        }
    }
}

impl<M: Memory> Registry<M> {
    /// Returns an empty registry with a unique number.
    #[must_use]
    pub fn new() -> Self {
        Self { slots: Arc::new(Slots::new()), books: Arc::new(Books::new(next_number())) }
    }

    /// Returns its number, which references contain.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.books.number
    }

    /// Registers a buffer and returns its id. Zero-sized elements do not compile.
    ///
    /// # Errors
    ///
    /// The buffer, with [`IdError::Full`], or [`Error::Unsupported`] in a forked process.
    pub fn register<T: DeviceBytes>(&self, buffer: Buffer<T, M>) -> Result<BufferId<T>, Rejected<Buffer<T, M>>> {
        if let Err(error) = self.here() {
            return Err(Rejected { error, value: buffer });
        }
        let inserted = self.slots.insert(Stored::new(buffer, &self.books));
        // SAFETY: created from a buffer of `T` above.
        let index = inserted.map_err(|Rejected { error, value }| Rejected { error, value: unsafe { value.into_buffer() } })?;
        Ok(BufferId::new(self.number(), index))
    }

    /// Returns a shared lease.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with the fault of the id, [`Error::Busy`] while the buffer has an exclusive lease.
    #[inline]
    pub fn lease<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Lease<'_, T, M>> {
        let index = self.own(id)?;
        // SAFETY: the id is of this registry and was made for a buffer of `T`; its generation is that buffer's.
        Ok(unsafe { Lease::new(self.slots.share(index)?) })
    }

    /// Returns the exclusive lease, for writing. The buffer is not moved before it is dropped.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and [`Error::Busy`] while the buffer has any lease.
    pub fn lease_mut<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<LeaseMut<'_, T, M>> {
        let index = self.own(id)?;
        // SAFETY: as in `lease`.
        Ok(unsafe { LeaseMut::new(self.slots.exclusive(index)?) })
    }

    /// Returns whether the buffer exists and was not released, leased or not.
    #[must_use]
    pub fn contains<T>(&self, id: BufferId<T>) -> bool {
        self.own(id).is_ok_and(|index| self.slots.contains(index))
    }

    /// Releases a buffer; returns the number of leases that keep it. Without leases it is freed at once, otherwise with the last of them.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] for a buffer that does not exist or was released before. The driver's error if it was freed now; it is freed anyway.
    pub fn release<T>(&self, id: BufferId<T>) -> Result<u32> {
        match self.slots.remove(self.own(id)?)? {
            Removed::Leased(leases) => Ok(leases),
            Removed::Value(stored) => stored.close().map(|()| 0),
        }
    }

    /// Removes a buffer and returns it.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut): a leased buffer stays.
    pub fn take<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Buffer<T, M>> {
        let (stored, _) = self.slots.exclusive(self.own(id)?)?.remove().ok_or_else(forked)?;
        // SAFETY: as in `lease`.
        Ok(unsafe { stored.into_buffer() })
    }

    /// Releases every buffer; returns their number. Leased buffers are freed with their last lease. Does nothing in a forked process.
    pub fn clear(&self) -> u64 {
        if self.here().is_err() {
            return 0;
        }
        let released = self.slots.indices().filter(|&index| self.slots.remove(index).is_ok());
        released.count() as u64
    }

    /// Returns the statistics; empty in a forked process.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        if self.here().is_err() {
            return Statistics::default();
        }
        let slots::Counts { inserted, removed, freed, retired } = self.slots.counts();
        let (leases, bytes) = (self.slots.leases(), self.books.bytes.load(Relaxed));
        Statistics { registered: inserted, released: removed, freed, leases, bytes, retired }
    }

    /// Returns the slot of an id, if the id is of this registry.
    #[inline(always)]
    fn own<T>(&self, id: BufferId<T>) -> Result<Index> {
        self.here()?;
        self.is_own(id.registry())?;
        Ok(id.index())
    }

    #[inline(always)]
    fn is_own(&self, got: u64) -> Result<()> {
        let expected = self.books.number;
        if got == expected { Ok(()) } else { Err(IdError::Foreign { expected, got }.into()) }
    }

    #[inline(always)]
    fn here(&self) -> Result<()> {
        if self.books.process.is_this() { Ok(()) } else { Err(forked()) }
    }
}

fn forked() -> Error {
    Error::Unsupported { what: "a registry of the parent process after fork" }
}

impl<M: Memory> Default for Registry<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Memory> Clone for Registry<M> {
    fn clone(&self) -> Self {
        Self { slots: Arc::clone(&self.slots), books: Arc::clone(&self.books) }
    }
}

impl<M: Memory> fmt::Debug for Registry<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("number", &self.number()).field("statistics", &self.statistics()).finish()
    }
}
