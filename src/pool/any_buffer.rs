//! [`AnyBuffer`]: a buffer in a memory that was selected at run time.

mod slices;

use core::ops::RangeBounds;
use std::vec::Vec;

use super::{PinnedPool, Pool};
use crate::backend::{DeviceAddress, MemoryLocation};
use crate::memory::{Buffer, Device, Host, Unified};
use crate::stream::Stream;
use crate::{DeviceBytes, Error, Result};

pub use slices::{AnySlice, AnySliceMut};

/// A buffer in the location that a configuration or a rule selected. It has the operations that a [`Buffer`] has in every memory. Match on it for
/// operations that only some memories have, such as transfers on a stream.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::config::Config;
/// use ringmem::pool::Pools;
///
/// let backend = HostBackend::builder().build()?;
/// let pools = Pools::new(&backend, 0, &Config::host())?;
/// let mut buffer = pools.buffer::<u32>(1000)?;
/// buffer.fill(7)?;
/// buffer.slice_mut(10..20)?.zero()?;
/// assert_eq!(buffer.slice(8..12)?.to_vec()?, [7, 7, 0, 0]);
/// assert_eq!(buffer.size_bytes(), 4000);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyBuffer<T> {
    /// In a device's memory.
    Device(Buffer<T, Pool<Device>>),
    /// In page-locked memory.
    Pinned(Buffer<T, PinnedPool>),
    /// In managed memory.
    Unified(Buffer<T, Pool<Unified>>),
    /// In pageable host memory, which is not pooled.
    Host(Buffer<T, Host>),
}

/// Evaluates an expression for each variant.
macro_rules! each {
    ($kind:ident, $placed:expr, $elements:ident => $result:expr) => {
        match $placed {
            $kind::Device($elements) => $result,
            $kind::Pinned($elements) => $result,
            $kind::Unified($elements) => $result,
            $kind::Host($elements) => $result,
        }
    };
}
use each;

/// Evaluates an expression for each variant that the host can access.
macro_rules! each_on_the_host {
    ($kind:ident, $placed:expr, $elements:ident => $result:expr) => {
        match $placed {
            $kind::Device(_) => Err(Error::Unsupported { what: "a host slice of device memory" }),
            $kind::Pinned($elements) => $result,
            $kind::Unified($elements) => $result,
            $kind::Host($elements) => $result,
        }
    };
}
use each_on_the_host;

impl<T> AnyBuffer<T> {
    /// Returns the location.
    #[must_use]
    pub const fn location(&self) -> MemoryLocation {
        match self {
            Self::Device(_) => MemoryLocation::Device,
            Self::Pinned(_) => MemoryLocation::Pinned,
            Self::Unified(_) => MemoryLocation::Unified,
            Self::Host(_) => MemoryLocation::Host,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(Self, self, buffer => buffer.len())
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        each!(Self, self, buffer => buffer.size_bytes())
    }

    /// Returns whether its pages are locked into memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        each!(Self, self, buffer => buffer.is_pinned())
    }

    /// Returns its address for kernels; `None` for pageable memory, and without bytes.
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress> {
        match self {
            Self::Device(buffer) => buffer.device_address(),
            Self::Pinned(buffer) => buffer.device_address(),
            Self::Unified(buffer) => buffer.device_address(),
            Self::Host(_) => None,
        }
    }

    /// Waits until no queued operation uses it.
    ///
    /// # Errors
    ///
    /// As [`Buffer::settle`].
    pub fn settle(&mut self) -> Result<()> {
        each!(Self, self, buffer => buffer.settle())
    }

    /// Makes later operations on a stream wait for every registered use. Call it before a launch.
    ///
    /// # Errors
    ///
    /// As [`Buffer::ready_on`].
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        each!(Self, self, buffer => buffer.ready_on(stream))
    }

    /// Registers the operations queued on a stream so far as a use. Call it after a launch, which passes memory by address.
    ///
    /// # Errors
    ///
    /// As [`Buffer::used_by`], which describes the other consequences.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        each!(Self, self, buffer => buffer.used_by(stream))
    }

    /// Frees the buffer after its uses, and returns the driver's error. Dropping the buffer does the same, but counts an error as
    /// unreported.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn close(self) -> Result<()> {
        each!(Self, self, buffer => buffer.close())
    }
}

impl<T: DeviceBytes> AnyBuffer<T> {
    /// Copies `elements` from the host into the buffer, which must have the same length.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_from`].
    pub fn copy_from(&mut self, elements: &[T]) -> Result<()> {
        each!(Self, self, buffer => buffer.copy_from(elements))
    }

    /// Copies elements in, starting at index `at`.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_from_at`].
    pub fn copy_from_at(&mut self, at: usize, elements: &[T]) -> Result<()> {
        each!(Self, self, buffer => buffer.copy_from_at(at, elements))
    }

    /// Copies all elements to the host; `elements` must have the same length.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_to`].
    pub fn copy_to(&self, elements: &mut [T]) -> Result<()> {
        each!(Self, self, buffer => buffer.copy_to(elements))
    }

    /// Copies elements out, starting at index `at`.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_to_at`].
    pub fn copy_to_at(&self, at: usize, elements: &mut [T]) -> Result<()> {
        each!(Self, self, buffer => buffer.copy_to_at(at, elements))
    }

    /// Returns a copy of all elements.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_to`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        each!(Self, self, buffer => buffer.to_vec())
    }

    /// Copies elements to another place of this buffer.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_within`].
    pub fn copy_within(&mut self, from: impl RangeBounds<usize>, to: usize) -> Result<()> {
        each!(Self, self, buffer => buffer.copy_within(from, to))
    }

    /// Fills all elements with `value`. Accepts the same elements as [`Buffer::fill`].
    ///
    /// # Errors
    ///
    /// As [`Buffer::fill`].
    pub fn fill(&mut self, value: T) -> Result<()> {
        each!(Self, self, buffer => buffer.fill(value))
    }

    /// Sets every byte to 0.
    ///
    /// # Errors
    ///
    /// As [`Buffer::zero`].
    pub fn zero(&mut self) -> Result<()> {
        each!(Self, self, buffer => buffer.zero())
    }

    /// Returns a view of all elements.
    #[must_use]
    pub fn as_view(&self) -> AnySlice<'_, T> {
        match self {
            Self::Device(buffer) => AnySlice::Device(buffer.as_view()),
            Self::Pinned(buffer) => AnySlice::Pinned(buffer.as_view()),
            Self::Unified(buffer) => AnySlice::Unified(buffer.as_view()),
            Self::Host(buffer) => AnySlice::Host(buffer.as_view()),
        }
    }

    /// Returns a mutable view of all elements.
    #[must_use]
    pub fn as_view_mut(&mut self) -> AnySliceMut<'_, T> {
        match self {
            Self::Device(buffer) => AnySliceMut::Device(buffer.as_view_mut()),
            Self::Pinned(buffer) => AnySliceMut::Pinned(buffer.as_view_mut()),
            Self::Unified(buffer) => AnySliceMut::Unified(buffer.as_view_mut()),
            Self::Host(buffer) => AnySliceMut::Host(buffer.as_view_mut()),
        }
    }

    /// Returns a view of a range of elements.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<AnySlice<'_, T>> {
        self.as_view().slice(range)
    }

    /// Returns a mutable view of a range of elements.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<AnySliceMut<'_, T>> {
        self.as_view_mut().slice(range)
    }

    /// Calls `look` with the elements: with the memory itself if the host can access it, else with a copy.
    ///
    /// # Errors
    ///
    /// As [`Buffer::read`].
    pub fn read<R>(&self, look: impl FnOnce(&[T]) -> R) -> Result<R> {
        each!(Self, self, buffer => buffer.read(look))
    }

    /// Calls `make` to write all elements, and copies nothing from a device.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn write<R>(&mut self, make: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        each!(Self, self, buffer => buffer.write(make))
    }

    /// Calls `change` to read and write the elements.
    ///
    /// # Errors
    ///
    /// As [`Buffer::update`].
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        each!(Self, self, buffer => buffer.update(change))
    }

    /// Returns the elements as a slice.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for device memory; otherwise as [`Buffer::as_slice`].
    pub fn as_slice(&self) -> Result<&[T]> {
        each_on_the_host!(Self, self, buffer => buffer.as_slice())
    }

    /// Returns the elements as a mutable slice.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for device memory; otherwise as [`Buffer::as_mut_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        each_on_the_host!(Self, self, buffer => buffer.as_mut_slice())
    }
}
