//! [`PlacedSlice`] and [`PlacedSliceMut`]: some elements of a [`Placed`](super::Placed), without a copy.

use core::fmt;
use core::ops::RangeBounds;
use std::vec::Vec;

use super::{each, each_on_the_host};
use crate::backend::DeviceAddress;
use crate::memory::{Device, Host, Slice, SliceMut, Unified};
use crate::pool::{PinnedPool, Pool};
use crate::{DeviceBytes, Error, Result};

/// Elements to read, wherever their buffer is placed. For what only some memories can do, match.
#[non_exhaustive]
pub enum PlacedSlice<'a, T> {
    /// In a device's memory.
    Device(Slice<'a, T, Pool<Device>>),
    /// In page-locked memory.
    Pinned(Slice<'a, T, PinnedPool>),
    /// In managed memory.
    Unified(Slice<'a, T, Pool<Unified>>),
    /// In pageable host memory.
    Host(Slice<'a, T, Host>),
}

/// Elements to write, wherever their buffer is placed: nobody else has them.
#[non_exhaustive]
pub enum PlacedSliceMut<'a, T> {
    /// In a device's memory.
    Device(SliceMut<'a, T, Pool<Device>>),
    /// In page-locked memory.
    Pinned(SliceMut<'a, T, PinnedPool>),
    /// In managed memory.
    Unified(SliceMut<'a, T, Pool<Unified>>),
    /// In pageable host memory.
    Host(SliceMut<'a, T, Host>),
}

impl<T> Clone for PlacedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PlacedSlice<'_, T> {}

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

impl<'a, T: DeviceBytes> PlacedSlice<'a, T> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(Self, self, elements => elements.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of them.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(map!(Self, self, elements => elements.slice(range)?))
    }

    /// Copies them to the host, and returns when that is done.
    ///
    /// # Errors
    ///
    /// As [`Slice::copy_to`].
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        each!(Self, self, elements => elements.copy_to(to))
    }

    /// The elements, copied to the host.
    ///
    /// # Errors
    ///
    /// As [`Slice::copy_to`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        each!(Self, self, elements => elements.to_vec())
    }

    /// Lets `look` see the elements: the memory itself where the host sees it, else a copy.
    ///
    /// # Errors
    ///
    /// As [`Slice::read`].
    pub fn read<R>(&self, look: impl FnOnce(&[T]) -> R) -> Result<R> {
        each!(Self, self, elements => elements.read(look))
    }

    /// The elements, by reference.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) in a device's own memory; as [`Slice::as_slice`].
    pub fn as_slice(&self) -> Result<&'a [T]> {
        each_on_the_host!(Self, self, elements => elements.as_slice())
    }

    /// Where kernels find the first; `None` for pageable memory, and without bytes.
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

impl<'a, T: DeviceBytes> PlacedSliceMut<'a, T> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(Self, self, elements => elements.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same elements, to read.
    #[must_use]
    pub fn as_view(&self) -> PlacedSlice<'_, T> {
        match self {
            Self::Device(elements) => PlacedSlice::Device(elements.as_view()),
            Self::Pinned(elements) => PlacedSlice::Pinned(elements.as_view()),
            Self::Unified(elements) => PlacedSlice::Unified(elements.as_view()),
            Self::Host(elements) => PlacedSlice::Host(elements.as_view()),
        }
    }

    /// The same elements for a shorter time.
    #[must_use]
    pub fn reborrow(&mut self) -> PlacedSliceMut<'_, T> {
        map!(PlacedSliceMut, self, elements => elements.reborrow())
    }

    /// Some of them.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(map!(Self, self, elements => elements.slice(range)?))
    }

    /// Copies elements in from the host, and returns when that is done.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::copy_from`].
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        each!(Self, self, elements => elements.copy_from(from))
    }

    /// Copies elements in from another buffer of the same backend, on the device where both are there.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::copy_from_view`].
    pub fn copy_from_view(&mut self, from: PlacedSlice<'_, T>) -> Result<()> {
        each!(Self, self, elements => each!(PlacedSlice, from, from => elements.copy_from_view(from)))
    }

    /// Makes every element `value`. The same elements as in [`SliceMut::fill`] compile.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::fill`].
    pub fn fill(&mut self, value: T) -> Result<()> {
        each!(Self, self, elements => elements.fill(value))
    }

    /// Makes every byte 0.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::zero`].
    pub fn zero(&mut self) -> Result<()> {
        each!(Self, self, elements => elements.zero())
    }

    /// Lets `make` write the elements, copying nothing from a device.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::write`].
    pub fn write<R>(&mut self, make: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        each!(Self, self, elements => elements.write(make))
    }

    /// Lets `change` see and write the elements.
    ///
    /// # Errors
    ///
    /// As [`SliceMut::update`].
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        each!(Self, self, elements => elements.update(change))
    }

    /// The elements, by reference, to write.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) in a device's own memory; as [`SliceMut::into_mut_slice`].
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
shown!(PlacedSlice, PlacedSliceMut);
