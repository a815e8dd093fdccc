//! [`Registry`]: buffers by number, to be leased, named in messages, moved and released.
//!
//! 1. A [`BufferId`] names one buffer for ever. One whose buffer has gone is refused, and so is one of another registry, in this process or
//!    another; none leads to somebody else's bytes. Its element type is part of its type.
//! 2. A buffer is reached through leases: any number of [`Lease`]s to read, or one [`LeaseMut`]. A lookup takes no lock.
//! 3. What is released admits no new lease, and is freed when the last lease is given back: also one that a queued operation has.
//! 4. A [`BufferReference`](crate::message::BufferReference) says in 64 bytes which elements of which buffer are meant, and travels as
//!    plain bytes. Both ends check its bounds.
//! 5. A buffer without a lease may be moved: [`Registry::defragment`] does, and its id stays. Who has a lease has the place, too.
//! 6. In a process that was forked from its own a registry refuses everything.
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

/// Buffers of one memory, by number. Clones are the same registry; leases hold it where they must.
pub struct Registry<M: Memory> {
    slots: Arc<Slots<Stored<M>>>,
    books: Arc<Books>,
}

/// What a registry has done and what it holds. Exact while no other thread uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Buffers that were registered.
    pub registered: u64,
    /// Buffers that were released or taken out, among them those that leases still keep.
    pub released: u64,
    /// Buffers that have gone.
    pub freed: u64,
    /// Leases that there are, exclusive ones among them.
    pub leases: u64,
    /// Bytes of all buffers that have not gone.
    pub bytes: u64,
    /// Numbers that are not given again, since all their generations were.
    pub retired: u64,
}

impl Statistics {
    /// Buffers that can be had.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.registered.saturating_sub(self.released)
    }

    /// Buffers that were released and that a lease still keeps.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.released.saturating_sub(self.freed)
    }
}

/// A number that no registry and no manager of this process has, and none of another by all odds.
pub(crate) fn next_number() -> u64 {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The keys are random and the process's own; a fork has the same keys and count, and another number of its own.
    let process = KEYS.get_or_init(RandomState::new).hash_one(std::process::id());
    loop {
        let number = process.wrapping_add(NEXT.fetch_add(1, Relaxed));
        // 0 is nobody's.
        if number != 0 {
            return number;
        }
    }
}

impl<M: Memory> Registry<M> {
    /// A registry without buffers. Its number is no other registry's, of any process.
    #[must_use]
    pub fn new() -> Self {
        Self { slots: Arc::new(Slots::new()), books: Arc::new(Books::new(next_number())) }
    }

    /// Its number, as references carry it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.books.number
    }

    /// Takes a buffer in, and names it. Elements have bytes: others do not compile.
    ///
    /// # Errors
    ///
    /// The buffer, with [`IdError::Full`] or [`Error::Unsupported`] in a fork.
    pub fn register<T: DeviceBytes>(&self, buffer: Buffer<T, M>) -> Result<BufferId<T>, Rejected<Buffer<T, M>>> {
        if let Err(error) = self.here() {
            return Err(Rejected { error, value: buffer });
        }
        let inserted = self.slots.insert(Stored::new(buffer, &self.books));
        // SAFETY: made of a buffer of `T` just now.
        let index = inserted.map_err(|Rejected { error, value }| Rejected { error, value: unsafe { value.into_buffer() } })?;
        Ok(BufferId::new(self.number(), index))
    }

    /// A lease to read with, beside others of its kind.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with what is wrong with the id, [`Error::Busy`] while somebody has it to write.
    #[inline]
    pub fn lease<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Lease<'_, T, M>> {
        let index = self.own(id)?;
        // SAFETY: an id of this registry, made for a buffer of `T`; its generation is that buffer's.
        Ok(unsafe { Lease::new(self.slots.share(index)?) })
    }

    /// The one lease to write with. The buffer stays where it is until this is dropped.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and [`Error::Busy`] while it has any lease.
    pub fn lease_mut<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<LeaseMut<'_, T, M>> {
        let index = self.own(id)?;
        // SAFETY: as in `lease`.
        Ok(unsafe { LeaseMut::new(self.slots.exclusive(index)?) })
    }

    /// Whether a buffer can be had, now or when whoever writes to it has done.
    #[must_use]
    pub fn contains<T>(&self, id: BufferId<T>) -> bool {
        self.own(id).is_ok_and(|index| self.slots.contains(index))
    }

    /// Gives a buffer up: how many leases keep it. With none it is freed at once, else with the last of them.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] for what is not there, or was released before. What the driver said where it was freed now; it is gone all the same.
    pub fn release<T>(&self, id: BufferId<T>) -> Result<u32> {
        match self.slots.remove(self.own(id)?)? {
            Removed::Leased(leases) => Ok(leases),
            Removed::Value(stored) => stored.close().map(|()| 0),
        }
    }

    /// Gives a buffer back to who registered it.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut): a buffer that is leased stays.
    pub fn take<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Buffer<T, M>> {
        let (stored, _) = self.slots.exclusive(self.own(id)?)?.remove().ok_or_else(forked)?;
        // SAFETY: as in `lease`.
        Ok(unsafe { stored.into_buffer() })
    }

    /// Releases every buffer: how many. Those that are leased go with their last lease. In a fork it does nothing.
    pub fn clear(&self) -> u64 {
        if self.here().is_err() {
            return 0;
        }
        let released = self.slots.indices().filter(|&index| self.slots.remove(index).is_ok());
        released.count() as u64
    }

    /// What it has done and what it holds; nothing in a fork.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        if self.here().is_err() {
            return Statistics::default();
        }
        let slots::Counts { inserted, removed, freed, retired } = self.slots.counts();
        let (leases, bytes) = (self.slots.leases(), self.books.bytes.load(Relaxed));
        Statistics { registered: inserted, released: removed, freed, leases, bytes, retired }
    }

    /// The slot of an id, if it is this registry's.
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
