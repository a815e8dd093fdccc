//! [`Lease`] and [`LeaseMut`]: borrows of a registered buffer that are counted at run time.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use std::boxed::Box;

use super::slots::{Exclusive, Shared};
use super::stored::Stored;
use super::{BufferId, forked};
use crate::backend::{DeviceAddress, MemoryLocation, Ticket, Uses};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, SliceMut};
use crate::stream::Stream;
use crate::{DeviceBytes, Result};

/// A shared lease of a registered buffer. The buffer is not moved, freed or written before its last lease is dropped.
///
/// It borrows the registry; [`into_owned`](Self::into_owned) makes it own a handle, so that it can be queued on a stream. If it is dropped with
/// work queued, the lease ends after that work.
///
/// ```
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id = registry.register(GpuBuffer::<f32>::from_slice(Device::new(&backend, 0), &[1.0, 2.0])?)?;
/// let (one, two) = (registry.lease(id)?, registry.lease(id)?);
/// assert_eq!(one.slice(1..)?.to_vec()?, [2.0]);
/// assert!(registry.lease_mut(id).is_err()); // two shared leases
/// # drop(two);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Lease<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`. Taken only when this is dropped.
    stored: ManuallyDrop<Shared<'a, Stored<M>>>,
    /// The last operation queued with this lease; it is ordered after the others.
    used: Option<Ticket>,
    _elements: PhantomData<T>,
}

impl<'a, T: DeviceBytes, M: Memory> Lease<'a, T, M> {
    /// # Safety
    ///
    /// The buffer was registered with elements `T`.
    #[inline(always)]
    pub(super) unsafe fn new(stored: Shared<'a, Stored<M>>) -> Self {
        Self { stored: ManuallyDrop::new(stored), used: None, _elements: PhantomData }
    }

    /// Returns all elements.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the buffer's.
        unsafe { Slice::new(self.stored.buffer.view(), self.len()) }
    }

    /// Returns some of the elements.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }
}

impl<'a, T, M: Memory> Lease<'a, T, M> {
    /// Converts to a lease that owns a handle of the registry.
    #[must_use]
    pub fn into_owned(self) -> Lease<'static, T, M> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its lease not used again.
        let stored = unsafe { ManuallyDrop::take(&mut this.stored) };
        Lease { stored: ManuallyDrop::new(stored.into_owned()), used: this.used, _elements: PhantomData }
    }

    /// Extends the lease over the work that is queued on a stream now, also if this value is dropped. For launches, which get memory by address. If
    /// the lease is forgotten, the registry's buffers are never freed.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), or the driver's error; the lease is not extended.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        let backend = self.stored.buffer.memory().backend();
        let id = stream.on(&**backend)?;
        if let Some(earlier) = self.used.filter(|earlier| earlier.stream != id) {
            backend.after(earlier, id)?;
        }
        self.used = Some(stream.mark()?);
        // The buffer does not list the work. So a registry that is dropped must not free it if this lease is forgotten.
        self.stored.hold();
        Ok(())
    }

    /// Returns the operation that the next operation with this lease must be ordered after.
    pub(super) fn used(&self) -> Option<Ticket> {
        self.used
    }

    /// Records a queued operation, which is ordered after the earlier ones.
    pub(super) fn use_by(&mut self, ticket: Ticket) {
        self.used = Some(ticket);
    }

    /// Records that an operation is complete.
    pub(super) fn settled(&mut self, ticket: Ticket) {
        if self.used == Some(ticket) {
            self.used = None;
        }
    }
}

impl<T, M: Memory> Drop for Lease<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: only here, or in `into_owned`, which does not drop.
        let stored = unsafe { ManuallyDrop::take(&mut self.stored) };
        if let Some(ticket) = self.used {
            let stored = stored.into_owned();
            let backend = stored.buffer.memory().backend().clone();
            backend.keep(Box::new(stored), &Uses::of(ticket), None);
        }
    }
}

impl<T, M: Memory> fmt::Debug for Lease<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The exclusive lease of a registered buffer, for writing. If it is dropped with work queued, the next use of the buffer is ordered after that
/// work.
///
/// ```
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::Registry;
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id = registry.register(GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2])?)?;
/// let mut lease = registry.lease_mut(id)?;
/// lease.slice_mut(1..)?.fill(7)?;
/// let buffer = lease.take()?; // out of the registry
/// assert_eq!((buffer.to_vec()?, registry.contains(id)), (vec![1, 7], false));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct LeaseMut<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`.
    stored: Exclusive<'a, Stored<M>>,
    _elements: PhantomData<T>,
}

impl<'a, T: DeviceBytes, M: Memory> LeaseMut<'a, T, M> {
    /// # Safety
    ///
    /// The buffer was registered with elements `T`.
    pub(super) unsafe fn new(stored: Exclusive<'a, Stored<M>>) -> Self {
        Self { stored, _elements: PhantomData }
    }

    /// Returns all elements for reading.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the buffer's.
        unsafe { Slice::new(self.stored.buffer.view(), self.len()) }
    }

    /// Returns all elements for writing.
    #[must_use]
    pub fn view_mut(&mut self) -> SliceMut<'_, T, M> {
        // SAFETY: as above; the exclusive lease is borrowed mutably.
        unsafe { SliceMut::new(self.stored.buffer.view(), self.len()) }
    }

    /// Returns some of the elements for reading.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }

    /// Returns some of the elements for writing.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.view_mut().slice(range)
    }

    /// Removes the buffer from the registry and returns it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process: the buffer stays.
    pub fn take(self) -> Result<Buffer<T, M>> {
        let (stored, _) = self.stored.remove().ok_or_else(forked)?;
        // SAFETY: the invariant.
        Ok(unsafe { stored.into_buffer() })
    }
}

impl<'a, T, M: Memory> LeaseMut<'a, T, M> {
    /// Converts to a lease that owns a handle of the registry.
    #[must_use]
    pub fn into_owned(self) -> LeaseMut<'static, T, M> {
        LeaseMut { stored: self.stored.into_owned(), _elements: PhantomData }
    }

    /// Orders later work on a stream after all listed uses. For launches.
    ///
    /// # Errors
    ///
    /// As [`Buffer::ready_on`].
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        self.stored.buffer.ready_on(stream)
    }

    /// Lists the work queued on a stream as a use, as [`Buffer::used_by`] does. For launches, which get memory by address. The next use of the
    /// buffer, a move and a free are ordered after it.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), or the driver's error; nothing is listed.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        self.stored.buffer.used_by(stream)
    }

    pub(super) fn buffer_mut(&mut self) -> &mut Buffer<u8, M> {
        &mut self.stored.buffer
    }
}

/// Accessors of both kinds of lease.
macro_rules! says_of_its_buffer {
    ($lease:ident) => {
        impl<T, M: Memory> $lease<'_, T, M> {
            /// Returns the buffer's id.
            #[must_use]
            pub fn id(&self) -> BufferId<T> {
                BufferId::new(self.stored.registry(), self.stored.id())
            }

            /// Returns the number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.stored.buffer.len() / size_of::<T>()
            }

            /// Returns whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.stored.buffer.is_empty()
            }

            /// Returns the size in bytes.
            #[must_use]
            pub fn size_bytes(&self) -> usize {
                self.stored.buffer.size_bytes()
            }

            /// Returns the location of the memory.
            #[must_use]
            pub fn location(&self) -> MemoryLocation {
                self.stored.buffer.location()
            }

            /// Returns the device address, valid as long as this lease; `None` without bytes.
            #[must_use]
            pub fn device_address(&self) -> Option<DeviceAddress>
            where
                M::Visibility: DeviceReadable,
            {
                self.stored.buffer.device_address()
            }
        }
    };
}

says_of_its_buffer!(Lease);
says_of_its_buffer!(LeaseMut);

impl<T, M: Memory> fmt::Debug for LeaseMut<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseMut").field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
    }
}
