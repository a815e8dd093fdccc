//! [`Lease`] and [`LeaseMut`]: a managed buffer, for as long as somebody has it.

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

/// A managed buffer, to read. Until the last lease of it has been given back it is neither written to nor resized nor freed.
pub struct Lease<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`. Taken out when this is dropped, and not before.
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

    /// The live elements.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the entry's.
        unsafe { Slice::new(self.entry.held.buffer.view(), self.len()) }
    }

    /// Some of them.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }

    /// The live elements, copied.
    ///
    /// # Errors
    ///
    /// As [`Buffer::to_vec`](crate::memory::Buffer::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }
}

impl<T, M: Memory> Lease<'_, T, M> {
    /// The same lease, which holds the buffers of the manager.
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
        // SAFETY: here only, or in `into_owned`, which does not drop.
        unsafe { ManuallyDrop::drop(&mut self.entry) };
    }
}

/// A managed buffer, to write and to resize: nobody else has a lease.
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

    /// The live elements, to read.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the entry's.
        unsafe { Slice::new(self.entry.held.buffer.view(), self.len()) }
    }

    /// The live elements, to write.
    #[must_use]
    pub fn view_mut(&mut self) -> SliceMut<'_, T, M> {
        self.room(self.len())
    }

    /// The first `len` elements, live or not, of the capacity.
    pub(super) fn room(&mut self, len: usize) -> SliceMut<'_, T, M> {
        let len = len.min(self.capacity());
        // SAFETY: the invariant, and the entry's; the one lease, borrowed mutably.
        unsafe { SliceMut::new(self.entry.held.buffer.view(), len) }
    }

    /// Some of the live elements, to read.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }

    /// Some of the live elements, to write.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.view_mut().slice(range)
    }

    /// The live elements, copied.
    ///
    /// # Errors
    ///
    /// As [`Buffer::to_vec`](crate::memory::Buffer::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }
}

impl<T: DeviceBytes, M: Memory + Clone> LeaseMut<'_, T, M> {
    /// Makes room for at least so many elements in all, by the buffer's [growth](super::Growth). Those that are live are copied on the device.
    ///
    /// It returns when the copy has been executed, and not before what is queued on the buffer: only then the old block is not needed.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for more than the buffer's `max_bytes`, [`Limit`](crate::Error::Limit) where old and new together do not fit, what the
    /// memory refuses, what a use of the buffer or the copy failed with; [`Unsupported`](crate::Error::Unsupported) in a fork. The buffer is as it was.
    pub fn ensure_capacity(&mut self, elements: usize) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, None)
    }

    /// The same in the order of a stream: the new block is allocated there and the copy queued there, and waited for.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn ensure_capacity_on(&mut self, elements: usize, stream: &Stream) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, Some(stream))
    }

    /// Makes `len` elements live, growing as [`ensure_capacity`](Self::ensure_capacity) does. What is in those that were not is unspecified. It never
    /// shrinks the block.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn resize(&mut self, len: usize) -> Result<()> {
        self.grow(len, len, None)
    }

    /// The same in the order of a stream.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity_on`](Self::ensure_capacity_on).
    pub fn resize_on(&mut self, len: usize, stream: &Stream) -> Result<()> {
        self.grow(len, len, Some(stream))
    }

    /// Gives back the room that is neither live nor asked for by `min_bytes`: how many bytes. Old and new are there together for a moment, and
    /// count so.
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
        // A clock that panics would end the process where something else has panicked.
        match caught(|| self.shared.now()) {
            Some(now) => self.entry.metadata.used_at(now),
            None => self.entry.metadata.touch(),
        }
    }
}

macro_rules! figures {
    ($($lease:ident),+) => {$(
        impl<T, M: Memory> $lease<'_, T, M> {
            /// The buffer's name.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.metadata().name
            }

            /// Elements that are live.
            #[must_use]
            pub fn len(&self) -> usize {
                self.metadata().len()
            }

            /// Whether none is.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Elements that there is room for.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.metadata().capacity()
            }

            /// Where kernels find the first as long as this lives; `None` without room.
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
