//! Registered mirrors: each access of a mirror may copy or allocate, so that all of their leases are exclusive.
//!
//! Mirrors have a table of their own, with another number than the buffers' table: a lease of a buffer need not check which of the two it leases, and the
//! id or reference of a mirror is never taken for that of a buffer.

#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::any::{Any, type_name};
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut, Range, RangeBounds};
use core::ptr;
use std::boxed::Box;
use std::sync::Arc;

use super::entry::Freed;
use super::numbers::{Exclusive, Index};
use super::reference::within;
use super::{BufferId, MemoryManager};
use crate::backend::{Backend, Block, Uses};
use crate::error::IdError;
use crate::memory::{DeviceReadable, HostReadable, Memory, Reservation, range};
use crate::message::BufferReference;
use crate::mirror::MirroredBuffer;
use crate::{DeviceBytes, Layout, Rejected, Result};

/// A registered mirror's id: it has the type of the mirror.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{MemoryManager, MirrorId};
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::MirroredBuffer;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let mirror = MirroredBuffer::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 8)?;
/// let id: MirrorId<f32, Pinned, Device> = manager.register_mirror(mirror)?;
/// assert!(manager.contains(id));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type MirrorId<T, H, D> = BufferId<MirroredBuffer<T, H, D>>;

/// A mirror of any type.
pub(super) trait AnyMirror: Any + Send + Sync {
    fn type_name(&self) -> &'static str;
    /// The copy whose bytes are in the budget, and its uses, if it is allocated.
    fn counted(&self) -> Option<(Block, Uses)>;
    fn size_bytes(&self) -> u64;
    fn backend(&self) -> &Arc<dyn Backend>;
    fn free(&mut self) -> Result<()>;
}

impl<T, H, D> AnyMirror for MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    fn type_name(&self) -> &'static str {
        type_name::<Self>()
    }
    fn counted(&self) -> Option<(Block, Uses)> {
        self.main_copy()
    }
    fn size_bytes(&self) -> u64 {
        Self::size_bytes(self) as u64
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.device_memory().backend()
    }
    fn free(&mut self) -> Result<()> {
        Self::free(self)
    }
}

pub(super) struct StoredMirror {
    mirror: Box<dyn AnyMirror>,
    /// The bytes of one copy. `None` once the mirror is freed or taken out.
    reservation: Option<Reservation>,
}

impl StoredMirror {
    pub(super) fn close(mut self) -> Result<()> {
        self.free()
    }

    /// A lease can put another mirror in the place of this one.
    fn recount(&mut self) {
        let bytes = self.mirror.size_bytes();
        if let Some(reservation) = self.reservation.as_mut().filter(|reservation| reservation.bytes() != bytes) {
            reservation.recount(bytes);
        }
    }

    /// The steps are explained in `entry`.
    fn free(&mut self) -> Result<()> {
        let backend = Arc::clone(self.mirror.backend());
        let (reservation, counted) = (self.reservation.take(), self.mirror.counted());
        let _freed = counted.map(|(block, uses)| Freed { reservation, backend, block, uses });
        self.mirror.free()
    }

    fn check<V: 'static>(&self) -> Result<()> {
        let mirror: &dyn Any = &*self.mirror;
        if mirror.is::<V>() { Ok(()) } else { Err(IdError::Mirror { expected: self.mirror.type_name(), got: type_name::<V>() }.into()) }
    }

    /// # Safety
    ///
    /// The mirror is a `V`.
    unsafe fn into_mirror<V: 'static>(mut self) -> V {
        drop(self.reservation.take());
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again; its other field is `None`.
        let mirror: Box<dyn Any> = unsafe { ptr::read::<Box<dyn AnyMirror>>(&raw const this.mirror) };
        // SAFETY: the caller promises that the mirror is a `V`, so the downcast succeeds.
        unsafe { *mirror.downcast().unwrap_unchecked() }
    }
}

impl Drop for StoredMirror {
    fn drop(&mut self) {
        if self.reservation.is_some()
            && let Err(error) = self.free()
        {
            self.mirror.backend().unreported(error);
        }
    }
}

/// The exclusive lease of a mirror, which it dereferences to. The mirror is not freed before the end of the lease.
///
/// It borrows the manager; [`into_owned`](Self::into_owned) makes it own a handle. It may be dropped with work queued, as [listed](MirroredBuffer::used_by)
/// in the mirror.
///
/// A caller can replace the mirror as a whole, as with [`mem::replace`](core::mem::replace). From the end of the lease on, the manager counts
/// the bytes of the new mirror. Its memory may exist already, so that they count even beyond the limit.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::MemoryManager;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::{MirroredBuffer, State};
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 4)?;
/// let id = manager.register_mirror(mirror)?;
/// manager.lease_mirror(id)?.copy_from(&[1, 2, 3, 4])?;
/// let mut lease = manager.lease_mirror(id)?;
/// lease.device_mut()?.slice(..2)?.fill(7)?; // copies to the device first
/// assert_eq!((lease.state(), lease.host()?), (State::DeviceDirty, &[7, 7, 3, 4][..]));
/// assert!(manager.lease_mirror(id).is_err()); // exclusive
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct MirrorLease<'a, T, H: Memory, D: Memory> {
    // INVARIANT: the mirror is a `MirroredBuffer<T, H, D>`. Taken only when this is dropped.
    value: ManuallyDrop<Exclusive<'a, StoredMirror>>,
    _mirror: PhantomData<MirrorId<T, H, D>>,
}

impl<M: Memory<Visibility: DeviceReadable> + Clone> MemoryManager<M> {
    /// Registers a mirror and returns its id, for [`contains`](Self::contains) and [`free`](Self::free) too. The bytes of one copy count towards the
    /// limit. Zero-sized elements do not compile.
    ///
    /// # Errors
    ///
    /// The mirror, as [`register`](Self::register).
    #[allow(clippy::type_complexity, reason = "the mirror itself comes back")]
    pub fn register_mirror<T, H>(&self, mirror: MirroredBuffer<T, H, M>) -> Result<MirrorId<T, H, M>, Rejected<MirroredBuffer<T, H, M>>>
    where
        T: DeviceBytes,
        H: Memory<Visibility: HostReadable> + Clone,
    {
        const { assert!(size_of::<T>() > 0, "a manager takes elements that have bytes") };
        let bytes = mirror.size_bytes();
        let reservation = match self.reserve(bytes as u64) {
            Ok(reservation) => Some(reservation),
            Err(error) => return Err(Rejected { error, value: mirror }),
        };
        let mirrors = &self.store().mirrors;
        match mirrors.insert(StoredMirror { mirror: Box::new(mirror), reservation }) {
            Ok(index) => Ok(BufferId::new(mirrors.number(), index)),
            // SAFETY: created from this mirror above.
            Err(Rejected { error, value }) => Err(Rejected { error, value: unsafe { value.into_mirror() } }),
        }
    }

    /// Returns the lease of a mirror.
    ///
    /// # Errors
    ///
    /// [`Id`](crate::Error::Id) with the id's fault, [`Busy`](crate::Error::Busy) during another lease.
    pub fn lease_mirror<T, H>(&self, id: MirrorId<T, H, M>) -> Result<MirrorLease<'_, T, H, M>>
    where
        T: DeviceBytes,
        H: Memory<Visibility: HostReadable> + Clone,
    {
        self.lease_mirror_at(self.store().mirrors.own(id.table, id.index)?)
    }

    /// Removes a mirror and returns it.
    ///
    /// # Errors
    ///
    /// As [`lease_mirror`](Self::lease_mirror): a leased mirror stays.
    pub fn take_mirror<T, H>(&self, id: MirrorId<T, H, M>) -> Result<MirroredBuffer<T, H, M>>
    where
        T: DeviceBytes,
        H: Memory<Visibility: HostReadable> + Clone,
    {
        self.lease_mirror(id)?.take()
    }

    /// As [`reference`](Self::reference), to elements of a mirror.
    ///
    /// # Errors
    ///
    /// [`Error::Range`](crate::Error::Range) beyond the end; as [`lease_mirror`](Self::lease_mirror).
    pub fn reference_mirror<T, H>(&self, id: MirrorId<T, H, M>, part: impl RangeBounds<usize>) -> Result<BufferReference>
    where
        T: DeviceBytes + Layout,
        H: Memory<Visibility: HostReadable> + Clone,
    {
        let part = range::<T>(part, self.lease_mirror(id)?.len())?;
        Ok(BufferReference::new::<T>(id.table, id.bits(), part.start as u64..part.end as u64))
    }

    /// As [`resolve`](Self::resolve), of a reference to a mirror.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve) and [`lease_mirror`](Self::lease_mirror); [`IdError::Mirror`] for another memory of the host's copy.
    pub fn resolve_mirror<T, H>(&self, reference: &BufferReference) -> Result<(MirrorLease<'_, T, H, M>, Range<usize>)>
    where
        T: DeviceBytes + Layout,
        H: Memory<Visibility: HostReadable> + Clone,
    {
        let part = reference.part::<T>()?;
        let index = self.store().mirrors.own(reference.registry, Index::from_bits(reference.id))?;
        let lease = self.lease_mirror_at::<T, H>(index)?;
        let part = within::<T>(reference, part, lease.len())?;
        if reference.is_handed_over() {
            drop(self.store().mirrors.remove(index)?);
        }
        Ok((lease, part))
    }

    fn lease_mirror_at<T, H>(&self, index: Index) -> Result<MirrorLease<'_, T, H, M>>
    where
        T: DeviceBytes,
        H: Memory<Visibility: HostReadable> + Clone,
    {
        let value = self.store().mirrors.exclusive(index)?;
        value.check::<MirroredBuffer<T, H, M>>()?;
        Ok(MirrorLease { value: ManuallyDrop::new(value), _mirror: PhantomData })
    }
}

impl<'a, T: DeviceBytes, H: Memory, D: Memory> MirrorLease<'a, T, H, D> {
    /// Returns the mirror's id.
    #[must_use]
    pub fn id(&self) -> MirrorId<T, H, D> {
        BufferId::new(self.value.table().number(), self.value.id())
    }

    /// Makes the lease own a handle of the manager.
    #[must_use]
    pub fn into_owned(self) -> MirrorLease<'static, T, H, D> {
        MirrorLease { value: ManuallyDrop::new(self.into_value().into_owned()), _mirror: PhantomData }
    }

    /// Removes the mirror from the manager and returns it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process: the mirror stays.
    pub fn take(self) -> Result<MirroredBuffer<T, H, D>> {
        let (stored, _) = self.into_value().remove()?;
        // SAFETY: by the invariant of `value` the mirror is a `MirroredBuffer<T, H, D>`.
        Ok(unsafe { stored.into_mirror() })
    }

    fn into_value(self) -> Exclusive<'a, StoredMirror> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again.
        unsafe { ManuallyDrop::take(&mut this.value) }
    }
}

impl<T, H: Memory, D: Memory> Drop for MirrorLease<'_, T, H, D> {
    fn drop(&mut self) {
        // Before the end of the lease, which may free the mirror.
        self.value.recount();
        // SAFETY: only here, or in `into_value`, which does not drop.
        unsafe { ManuallyDrop::drop(&mut self.value) };
    }
}

impl<T: DeviceBytes, H: Memory, D: Memory> Deref for MirrorLease<'_, T, H, D> {
    type Target = MirroredBuffer<T, H, D>;

    fn deref(&self) -> &Self::Target {
        let mirror: &dyn Any = &*self.value.mirror;
        // SAFETY: by the invariant of `value` the mirror is a `MirroredBuffer<T, H, D>`, so the downcast succeeds.
        unsafe { mirror.downcast_ref().unwrap_unchecked() }
    }
}

impl<T: DeviceBytes, H: Memory, D: Memory> DerefMut for MirrorLease<'_, T, H, D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        let mirror: &mut dyn Any = &mut *self.value.mirror;
        // SAFETY: by the invariant of `value` the mirror is a `MirroredBuffer<T, H, D>`, so the downcast succeeds.
        unsafe { mirror.downcast_mut().unwrap_unchecked() }
    }
}

impl<T: DeviceBytes, H: Memory, D: Memory> fmt::Debug for MirrorLease<'_, T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorLease").field("id", &self.id()).field("mirror", &**self).finish()
    }
}
