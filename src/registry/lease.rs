use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use ringmem_layouts::kernel::DevicePointer;

use super::BufferId;
use super::slots::{Exclusive, Shared, Slots};
use super::stored::Stored;
use crate::backend::{Block, DeviceAddress, MemoryLocation, Ticket, Uses};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, SliceMut};
use crate::stream::Stream;
use crate::{DeviceBytes, Result};

/// A table's buffer of erased elements.
pub trait Leased: Send + Sync + 'static {
    type Memory: Memory;

    // INVARIANT: whole elements, aligned for them.
    fn buffer(&self) -> &Buffer<u8, Self::Memory>;
    fn buffer_mut(&mut self) -> &mut Buffer<u8, Self::Memory>;

    fn len<T>(&self) -> usize;

    /// Replaces the buffer's block; returns the old one.
    ///
    /// # Safety
    ///
    /// As [`Buffer::put_in`].
    unsafe fn put_in(&mut self, block: Block) -> Block;

    fn was_read(&self) {}
    fn was_written(&self) {}

    fn may_queue(&self) -> Result<()> {
        Ok(())
    }
    fn has_queued(&self) {}
}

/// A shared lease of a buffer. The buffer is not moved, resized, freed or written before its last lease is dropped.
///
/// It borrows the registry or manager; [`into_owned`](Self::into_owned) makes it own a handle, for queuing a registered buffer on a stream. A lease
/// that is dropped with work queued ends after that work.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id = registry.register(GpuBuffer::<f32>::from_slice(Device::new(&backend, 0), &[1.0, 2.0])?)?;
/// let (one, two) = (registry.lease(id)?, registry.lease(id)?);
/// assert_eq!(one.slice(1..)?.to_vec()?, [2.0]);
/// assert!(registry.lease_mut(id).is_err()); // two shared leases
/// # drop(two);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Lease<'a, T, M: Memory, V: Leased<Memory = M> = Stored<M>> {
    // INVARIANT: a buffer of `T`. Taken only when this is dropped.
    pub(crate) value: ManuallyDrop<Shared<'a, V>>,
    /// The last operation queued with this lease, ordered after the others.
    used: Option<Ticket>,
    _elements: PhantomData<(T, fn() -> M)>,
}

/// The exclusive lease of a buffer, for writing. After a drop with work queued, the buffer's next use is ordered after that work.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id = registry.register(GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2])?)?;
/// let mut lease = registry.lease_mut(id)?;
/// lease.slice_mut(1..)?.fill(7)?;
/// let buffer = lease.take()?; // out of the registry
/// assert_eq!((buffer.to_vec()?, registry.contains(id)), (vec![1, 7], false));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct LeaseMut<'a, T, M: Memory, V: Leased<Memory = M> = Stored<M>> {
    // INVARIANT: a buffer of `T`. Taken only when this is dropped.
    pub(crate) value: ManuallyDrop<Exclusive<'a, V>>,
    _elements: PhantomData<(T, fn() -> M)>,
}

impl<V: Leased> Slots<V> {
    #[inline]
    pub(crate) fn lease<T: DeviceBytes>(self: &Arc<Self>, id: BufferId<T>) -> Result<Lease<'_, T, V::Memory, V>> {
        let shared = self.share(self.own(id.registry(), id.index())?)?;
        // SAFETY: only this table has this number, so it created the id, for a buffer of `T` in this generation.
        Ok(unsafe { Lease::new(shared) })
    }

    pub(crate) fn lease_mut<T: DeviceBytes>(self: &Arc<Self>, id: BufferId<T>) -> Result<LeaseMut<'_, T, V::Memory, V>> {
        let value = ManuallyDrop::new(self.exclusive(self.own(id.registry(), id.index())?)?);
        Ok(LeaseMut { value, _elements: PhantomData })
    }
}

impl<'a, T, M: Memory, V: Leased<Memory = M>> Lease<'a, T, M, V> {
    /// # Safety
    ///
    /// The buffer has elements `T`.
    #[inline(always)]
    pub(super) unsafe fn new(value: Shared<'a, V>) -> Self {
        Self { value: ManuallyDrop::new(value), used: None, _elements: PhantomData }
    }

    /// Makes the lease own a handle of the registry or manager.
    #[must_use]
    pub fn into_owned(self) -> Lease<'static, T, M, V> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped; its value is not used again.
        let value = unsafe { ManuallyDrop::take(&mut this.value) };
        Lease { value: ManuallyDrop::new(value.into_owned()), used: this.used, _elements: PhantomData }
    }

    pub(super) fn use_by(&mut self, ticket: Ticket) {
        self.used = Some(ticket);
    }

    pub(super) fn settled(&mut self, ticket: Ticket) {
        self.used = self.used.filter(|&used| used != ticket);
    }

    pub(super) fn used(&self) -> Option<Ticket> {
        self.used
    }

    /// Extends the lease over the work queued on a stream so far, even if this value is dropped. For launches by address. If the lease is
    /// forgotten, the buffers of its registry or manager are never freed.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), or the driver's error; the lease is not extended.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        let backend = self.value.buffer().memory().backend();
        let id = stream.on(&**backend)?;
        if let Some(earlier) = self.used.filter(|earlier| earlier.stream != id) {
            backend.after(earlier, id)?;
        }
        self.used = Some(stream.mark()?);
        // The buffer does not list the work: after this lease is forgotten, a dropped registry must not free it.
        self.value.hold();
        Ok(())
    }
}

impl<T, M: Memory, V: Leased<Memory = M>> Drop for Lease<'_, T, M, V> {
    #[inline]
    fn drop(&mut self) {
        self.value.was_read();
        match self.used {
            // SAFETY: only here, or in `into_owned`, which does not drop.
            None => unsafe { ManuallyDrop::drop(&mut self.value) },
            // SAFETY: as above.
            Some(ticket) => keep(unsafe { ManuallyDrop::take(&mut self.value) }, ticket),
        }
    }
}

/// Not inlined, so that the drop of a lease without an operation is.
#[cold]
#[inline(never)]
fn keep<V: Leased>(value: Shared<'_, V>, ticket: Ticket) {
    let backend = value.buffer().memory().backend().clone();
    backend.keep(Box::new(value.into_owned()), &Uses::of(ticket), None);
}

impl<T: DeviceBytes, M: Memory, V: Leased<Memory = M>> LeaseMut<'_, T, M, V> {
    /// Returns the live elements for writing.
    #[must_use]
    pub fn view_mut(&mut self) -> SliceMut<'_, T, M> {
        // SAFETY: the invariants; the exclusive lease is borrowed mutably.
        unsafe { SliceMut::new(self.value.buffer().view(), self.len()) }
    }

    /// As [`slice`](Self::slice), for writing.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.view_mut().slice(range)
    }
}

impl<'a, T, M: Memory, V: Leased<Memory = M>> LeaseMut<'a, T, M, V> {
    /// As [`Lease::into_owned`].
    #[must_use]
    pub fn into_owned(self) -> LeaseMut<'static, T, M, V> {
        LeaseMut { value: ManuallyDrop::new(self.into_value().into_owned()), _elements: PhantomData }
    }

    fn into_value(self) -> Exclusive<'a, V> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again.
        unsafe { ManuallyDrop::take(&mut this.value) }
    }

    /// As [`Buffer::ready_on`].
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        self.value.buffer().ready_on(stream)
    }

    /// As [`Buffer::used_by`].
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        self.value.buffer_mut().used_by(stream)
    }
}

impl<T: DeviceBytes, M: Memory> LeaseMut<'_, T, M> {
    /// Removes the buffer from the registry and returns it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process: the buffer stays.
    pub fn take(self) -> Result<Buffer<T, M>> {
        let (stored, _) = self.into_value().remove()?;
        // SAFETY: the invariant.
        Ok(unsafe { stored.into_buffer() })
    }
}

impl<T, M: Memory, V: Leased<Memory = M>> Drop for LeaseMut<'_, T, M, V> {
    fn drop(&mut self) {
        self.value.was_written();
        // SAFETY: only here, or in `into_value`, which does not drop.
        unsafe { ManuallyDrop::drop(&mut self.value) };
    }
}

macro_rules! says_of_its_buffer {
    ($lease:ident) => {
        impl<T: DeviceBytes, M: Memory, V: Leased<Memory = M>> $lease<'_, T, M, V> {
            /// Returns the live elements for reading.
            #[must_use]
            pub fn view(&self) -> Slice<'_, T, M> {
                // SAFETY: the invariants.
                unsafe { Slice::new(self.value.buffer().view(), self.len()) }
            }

            /// Returns a range of the live elements for reading.
            ///
            /// # Errors
            ///
            /// [`Range`](crate::Error::Range).
            pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
                self.view().slice(range)
            }

            /// As [`Buffer::to_vec`].
            pub fn to_vec(&self) -> Result<Vec<T>> {
                self.view().to_vec()
            }
        }

        impl<T, M: Memory, V: Leased<Memory = M>> $lease<'_, T, M, V> {
            /// Returns the buffer's id.
            #[must_use]
            pub fn id(&self) -> BufferId<T> {
                BufferId::new(self.value.table().number(), self.value.id())
            }

            /// Returns the number of live elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.value.len::<T>()
            }

            /// Returns true without live elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the size in bytes.
            #[must_use]
            pub fn size_bytes(&self) -> usize {
                self.len() * size_of::<T>()
            }

            /// Returns the memory's location.
            #[must_use]
            pub fn location(&self) -> MemoryLocation {
                self.value.buffer().location()
            }

            /// Returns the device address, valid as long as this lease; `None` without bytes.
            #[must_use]
            pub fn device_address(&self) -> Option<DeviceAddress>
            where
                M::Visibility: DeviceReadable,
            {
                self.value.buffer().device_address()
            }

            /// As [`device_address`](Self::device_address), for a [typed launch](crate::stream::Stream::start).
            #[must_use]
            pub fn device_pointer(&self) -> Option<DevicePointer<T>>
            where
                M::Visibility: DeviceReadable,
            {
                self.device_address().map(DeviceAddress::pointer)
            }
        }

        impl<T, M: Memory, V: Leased<Memory = M>> fmt::Debug for $lease<'_, T, M, V> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($lease)).field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
            }
        }
    };
}

says_of_its_buffer!(Lease);
says_of_its_buffer!(LeaseMut);
