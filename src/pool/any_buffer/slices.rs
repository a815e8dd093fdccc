//! [`AnySlice`] and [`AnySliceMut`]: views of elements of an [`AnyBuffer`](super::AnyBuffer).

use core::fmt;
use core::ops::RangeBounds;
use std::vec::Vec;

use super::{each, each_on_the_host};
use crate::backend::DeviceAddress;
use crate::memory::{Device, Host, Slice, SliceMut, Unified};
use crate::pool::{PinnedPool, Pool};
use crate::{DeviceBytes, Error, Result};

/// A view of elements in any location. Match on it for operations that only some memories have.
#[non_exhaustive]
pub enum AnySlice<'a, T> {
    /// In a device's memory.
    Device(Slice<'a, T, Pool<Device>>),
    /// In page-locked memory.
    Pinned(Slice<'a, T, PinnedPool>),
    /// In managed memory.
    Unified(Slice<'a, T, Pool<Unified>>),
    /// In pageable host memory.
    Host(Slice<'a, T, Host>),
}

/// A mutable view of elements in any location. It is exclusive.
#[non_exhaustive]
pub enum AnySliceMut<'a, T> {
    /// In a device's memory.
    Device(SliceMut<'a, T, Pool<Device>>),
    /// In page-locked memory.
    Pinned(SliceMut<'a, T, PinnedPool>),
    /// In managed memory.
    Unified(SliceMut<'a, T, Pool<Unified>>),
    /// In pageable host memory.
    Host(SliceMut<'a, T, Host>),
}

impl<T> Clone for AnySlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for AnySlice<'_, T> {}

/// Applies a function to the slice in each kind, and wraps the result in the same kind.
macro_rules! map {
    ($kind:ident, $placed:expr, $elements:ident => $result:expr) => {
        match $placed {
            $kind::Device($elements) => $kind::Device($result),
            $kind::Pinned($elements) => $kind::Pinned($result),
            $kind::Unified($elements) => $kind::Unified($result),
            $kind::Host($elements) => $kind::Host($result),
        }
    };
}

impl<'a, T: DeviceBytes> AnySlice<'a, T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(Self, self, elements => elements.len())
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a view of a range of them.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(map!(Self, self, elements => elements.slice(range)?))
    }

    /// Copies the elements to the host, and returns when the copy is complete.
    ///
    /// # Errors
    ///
    /// As [`Slice::copy_to`].
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        each!(Self, self, elements => elements.copy_to(to))
    }

    /// Returns a copy of the elements on the host.
    ///
    /// # Errors
    ///
    /// As [`Slice::copy_to`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        each!(Self, self, elements => elements.to_vec())
    }

    /// Calls `look` with the elements: with the memory itself if the host can access it, else with a copy.
    ///
    /// # Errors
    ///
    /// As [`Slice::read`].
    pub fn read<R>(&self, look: impl FnOnce(&[T]) -> R) -> Result<R> {
        each!(Self, self, elements => elements.read(look))
    }

    /// Returns the elements as a slice.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for device memory; otherwise as [`Slice::as_slice`].
    pub fn as_slice(&self) -> Result<&'a [T]> {
        each_on_the_host!(Self, self, elements => elements.as_slice())
    }

    /// Returns the address of the first element for kernels; `None` for pageable memory, and without bytes.
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress> {
        match self {
            Self::Device(elements) => elements.device_address(),
            Self::Pinned(elements) => elements.device_address(),
            Self::Unified(elements) => elements.device_address(),
            Self::Host(_) => None,
        }
    }
}

impl<'a, T: DeviceBytes> AnySliceMut<'a, T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(Self, self, elements => elements.len())
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a view of the same elements for reads.
    #[must_use]
    pub fn as_view(&self) -> AnySlice<'_, T> {
        match self {
            Self::Device(elements) => AnySlice::Device(elements.as_view()),
            Self::Pinned(elements) => AnySlice::Pinned(elements.as_view()),
            Self::Unified(elements) => AnySlice::Unified(elements.as_view()),
            Self::Host(elements) => AnySlice::Host(elements.as_view()),
        }
    }

    /// Reborrows the same elements for a shorter lifetime.
    #[must_use]
    pub fn reborrow(&mut self) -> AnySliceMut<'_, T> {
        map!(AnySliceMut, self, elements => elements.reborrow())
    }

    /// Returns a mutable view of a range of them.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(map!(Self, self, elements => elements.slice(range)?))
    }

    /// Copies elements in from the host, and returns when the copy is complete.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::copy_from`].
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        each!(Self, self, elements => elements.copy_from(from))
    }

    /// Copies elements in from another buffer of the same backend, on the device if both are in device memory.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::copy_from_view`].
    pub fn copy_from_view(&mut self, from: AnySlice<'_, T>) -> Result<()> {
        each!(Self, self, elements => each!(AnySlice, from, from => elements.copy_from_view(from)))
    }

    /// Fills all elements with `value`. Accepts the same elements as [`SliceMut::fill`].
    ///
    /// # Errors
    ///
    /// As [`SliceMut::fill`].
    pub fn fill(&mut self, value: T) -> Result<()> {
        each!(Self, self, elements => elements.fill(value))
    }

    /// Sets every byte to 0.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::zero`].
    pub fn zero(&mut self) -> Result<()> {
        each!(Self, self, elements => elements.zero())
    }

    /// Calls `make` to write the elements, and copies nothing from a device.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::write`].
    pub fn write<R>(&mut self, make: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        each!(Self, self, elements => elements.write(make))
    }

    /// Calls `change` to read and write the elements.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::update`].
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        each!(Self, self, elements => elements.update(change))
    }

    /// Returns the elements as a mutable slice.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for device memory; otherwise as [`SliceMut::into_mut_slice`].
    pub fn into_mut_slice(self) -> Result<&'a mut [T]> {
        each_on_the_host!(Self, self, elements => elements.into_mut_slice())
    }
}

macro_rules! shown {
    ($($kind:ident),+) => {$(
        impl<T: DeviceBytes> fmt::Debug for $kind<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let place = match self {
                    Self::Device(_) => "Device",
                    Self::Pinned(_) => "Pinned",
                    Self::Unified(_) => "Unified",
                    Self::Host(_) => "Host",
                };
                f.debug_struct(stringify!($kind)).field("location", &place).field("len", &self.len()).finish_non_exhaustive()
            }
        }
    )+};
}
shown!(AnySlice, AnySliceMut);
