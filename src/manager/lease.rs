//! [`Lease`] and [`LeaseMut`]: borrows of a managed buffer that are counted at run time.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use std::vec::Vec;

use super::Shared;
use super::entry::Entry;
use super::metadata::Metadata;
use super::resize::{Step, resize};
use crate::backend::DeviceAddress;
use crate::backend::panic::caught;
use crate::memory::{DeviceReadable, Memory, Slice, SliceMut};
use crate::registry::slots;
use crate::stream::Stream;
use crate::{DeviceBytes, Result};

/// A shared lease of a managed buffer. The buffer is not written, resized or freed before its last lease is dropped.
///
/// ```
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let id = manager.create::<u32>("counts", 4, BufferConfig::new())?;
/// let lease = manager.lease(id)?; // not resized or freed meanwhile
/// assert_eq!((lease.name(), lease.len()), ("counts", 4));
/// assert!(manager.lease_mut(id).is_err());
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Lease<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`. Taken only when this is dropped.
    entry: ManuallyDrop<slots::Shared<'a, Entry<M>>>,
    _elements: PhantomData<T>,
}

impl<'a, T: DeviceBytes, M: Memory> Lease<'a, T, M> {
    /// # Safety
    ///
    /// The buffer was created with elements `T`.
    #[inline(always)]
    pub(super) unsafe fn new(entry: slots::Shared<'a, Entry<M>>) -> Self {
        Self { entry: ManuallyDrop::new(entry), _elements: PhantomData }
    }

    /// Returns the live elements.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the entry's.
        unsafe { Slice::new(self.entry.held.buffer.view(), self.len()) }
    }

    /// Returns some of the live elements.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }

    /// Copies the live elements.
    ///
    /// # Errors
    ///
    /// As [`Buffer::to_vec`](crate::memory::Buffer::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }
}

impl<T, M: Memory> Lease<'_, T, M> {
    /// Converts to a lease that owns a handle of the manager.
    #[must_use]
    pub fn into_owned(self) -> Lease<'static, T, M> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its entry not used again.
        let entry = unsafe { ManuallyDrop::take(&mut this.entry) };
        Lease { entry: ManuallyDrop::new(entry.into_owned()), _elements: PhantomData }
    }

    fn metadata(&self) -> &Metadata {
        &self.entry.metadata
    }
}

impl<T, M: Memory> Drop for Lease<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        self.entry.metadata.touch();
        // SAFETY: only here, or in `into_owned`, which does not drop.
        unsafe { ManuallyDrop::drop(&mut self.entry) };
    }
}

/// The exclusive lease of a managed buffer, for writing and resizing.
///
/// ```
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// # use ringmem::backend::host::HostBackend;
/// # let backend = HostBackend::builder().build()?;
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
pub struct LeaseMut<'a, T, M: Memory> {
    pub(super) shared: &'a Shared<M>,
    // INVARIANT: a buffer of `T`.
    pub(super) entry: slots::Exclusive<'a, Entry<M>>,
    _elements: PhantomData<T>,
}

impl<'a, T: DeviceBytes, M: Memory> LeaseMut<'a, T, M> {
    /// # Safety
    ///
    /// The buffer was created with elements `T`.
    pub(super) unsafe fn new(shared: &'a Shared<M>, entry: slots::Exclusive<'a, Entry<M>>) -> Self {
        Self { shared, entry, _elements: PhantomData }
    }

    /// Returns the live elements for reading.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the entry's.
        unsafe { Slice::new(self.entry.held.buffer.view(), self.len()) }
    }

    /// Returns the live elements for writing.
    #[must_use]
    pub fn view_mut(&mut self) -> SliceMut<'_, T, M> {
        self.room(self.len())
    }

    /// Returns the first `len` elements of the capacity, live or not.
    pub(super) fn room(&mut self, len: usize) -> SliceMut<'_, T, M> {
        let len = len.min(self.capacity());
        // SAFETY: the invariant, and the entry's; the exclusive lease is borrowed mutably.
        unsafe { SliceMut::new(self.entry.held.buffer.view(), len) }
    }

    /// Returns some of the live elements for reading.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }

    /// Returns some of the live elements for writing.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.view_mut().slice(range)
    }

    /// Copies the live elements.
    ///
    /// # Errors
    ///
    /// As [`Buffer::to_vec`](crate::memory::Buffer::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }
}

impl<T: DeviceBytes, M: Memory + Clone> LeaseMut<'_, T, M> {
    /// Ensures a capacity of at least `elements`, by the buffer's [growth](super::Growth). Copies the live elements on the device.
    ///
    /// Waits for queued work on the buffer and for the copy: until then the old block is needed.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for more than the buffer's `max_bytes`, [`Limit`](crate::Error::Limit) if old and new block together exceed the
    /// limit, the memory's error, the error of a use of the buffer or of the copy; [`Unsupported`](crate::Error::Unsupported) in a forked process.
    /// The buffer is unchanged.
    pub fn ensure_capacity(&mut self, elements: usize) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, None)
    }

    /// As [`ensure_capacity`](Self::ensure_capacity), in the order of a stream: allocates the block and queues the copy there, and waits for it.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn ensure_capacity_on(&mut self, elements: usize, stream: &Stream) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, Some(stream))
    }

    /// Sets the length, and grows as [`ensure_capacity`](Self::ensure_capacity) does. The contents of new elements are unspecified. Never shrinks
    /// the block.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn resize(&mut self, len: usize) -> Result<()> {
        self.grow(len, len, None)
    }

    /// As [`resize`](Self::resize), in the order of a stream.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity_on`](Self::ensure_capacity_on).
    pub fn resize_on(&mut self, len: usize, stream: &Stream) -> Result<()> {
        self.grow(len, len, Some(stream))
    }

    /// Frees capacity beyond the live elements and `min_bytes`; returns the freed bytes. Old and new block exist and count at the same time.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn shrink_to_fit(&mut self) -> Result<u64> {
        self.shared.here()?;
        let (len, size) = (self.len(), self.entry.metadata.element.size as u64);
        let capacity = self.entry.metadata.config.capacity_exact(len as u64, size)?;
        let freed = (self.capacity() as u64).saturating_sub(capacity) * size;
        if freed > 0 {
            resize(self.shared, &mut [Step::to(&mut self.entry, capacity as usize, len)], None)?;
        }
        Ok(freed)
    }

    fn grow(&mut self, needed: usize, len: usize, on: Option<&Stream>) -> Result<()> {
        self.shared.here()?;
        resize(self.shared, &mut [Step::grow(&mut self.entry, needed, len)?], on)
    }
}

impl<T, M: Memory> LeaseMut<'_, T, M> {
    fn metadata(&self) -> &Metadata {
        &self.entry.metadata
    }
}

impl<T, M: Memory> Drop for LeaseMut<'_, T, M> {
    fn drop(&mut self) {
        // A clock that panics during another panic would abort the process.
        match caught(|| self.shared.now()) {
            Some(now) => self.entry.metadata.used_at(now),
            None => self.entry.metadata.touch(),
        }
    }
}

macro_rules! figures {
    ($($lease:ident),+) => {$(
        impl<T, M: Memory> $lease<'_, T, M> {
            /// Returns the buffer's name.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.metadata().name
            }

            /// Returns the number of live elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.metadata().len()
            }

            /// Returns whether no element is live.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the capacity in elements.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.metadata().capacity()
            }

            /// Returns the device address of the first element, valid as long as this lease; `None` without capacity.
            #[must_use]
            pub fn device_address(&self) -> Option<DeviceAddress>
            where
                M::Visibility: DeviceReadable,
            {
                self.entry.held.buffer.device_address()
            }
        }

        impl<T, M: Memory> fmt::Debug for $lease<'_, T, M> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($lease)).field("metadata", self.metadata()).finish_non_exhaustive()
            }
        }
    )+};
}
figures!(Lease, LeaseMut);
