use core::ops::RangeBounds;
use core::ptr::NonNull;
use std::vec::Vec;

use super::bounds::{end, range};
use super::{Buffer, HostReadable, Memory, Slice, SliceMut};
use crate::DeviceBytes;
use crate::{Error, Result};

impl<T: DeviceBytes, M: Memory> Buffer<T, M> {
    /// Copies all elements in, and waits.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) before any copy; an earlier use's error.
    pub fn copy_from(&mut self, elements: &[T]) -> Result<()> {
        self.as_view_mut().copy_from(elements)
    }

    /// Copies elements in, from index `at`.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range) before any copy; as [`copy_from`](Self::copy_from).
    pub fn copy_from_at(&mut self, at: usize, elements: &[T]) -> Result<()> {
        self.slice_mut(at..end::<T>(at, elements.len(), self.len())?)?.copy_from(elements)
    }

    /// Copies all elements out, and waits.
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from).
    pub fn copy_to(&self, elements: &mut [T]) -> Result<()> {
        self.as_view().copy_to(elements)
    }

    /// Copies elements out, from index `at`.
    ///
    /// # Errors
    ///
    /// As [`copy_from_at`](Self::copy_from_at).
    pub fn copy_to_at(&self, at: usize, elements: &mut [T]) -> Result<()> {
        self.slice(at..end::<T>(at, elements.len(), self.len())?)?.copy_to(elements)
    }

    /// Returns a copy of the elements.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_view().to_vec()
    }

    /// Fills all elements, on the device for device memory: by one fill, or by copies as in [`Stream::fill`](crate::stream::Stream::fill).
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from); [`Cast`](Error::Cast) for elements misaligned by a cast.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.as_view_mut().fill(value)
    }

    /// Sets every byte to 0.
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from).
    pub fn zero(&mut self) -> Result<()> {
        self.as_view_mut().zero()
    }

    /// Copies elements within this buffer.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range) or [`Overlap`](Error::Overlap) before any copy; as [`copy_from`](Self::copy_from).
    pub fn copy_within(&mut self, from: impl RangeBounds<usize>, to: usize) -> Result<()> {
        let from = range::<T>(from, self.len())?;
        end::<T>(to, from.len(), self.len())?;
        let size = size_of::<T>() as u64;
        if from.start < to + from.len() && to < from.end && size > 0 {
            return Err(Error::Overlap { from: from.start as u64 * size, to: to as u64 * size, len: from.len() as u64 * size });
        }
        let view = self.view();
        // SAFETY: both within the buffer, disjoint, and borrowed mutably.
        unsafe { view.part::<T>(from.start).copy_to_view(&view.part::<T>(to), from.len() * size_of::<T>()) }
    }

    /// Borrows all elements for reading.
    pub fn as_view(&self) -> Slice<'_, T, M> {
        // SAFETY: by the buffer's invariant its block has `len` elements of `T`, or is empty if they have no bytes.
        unsafe { Slice::new(self.view(), self.len()) }
    }

    /// Borrows all elements for writing.
    pub fn as_view_mut(&mut self) -> SliceMut<'_, T, M> {
        // SAFETY: by the buffer's invariant its block has `len` elements of `T`, or is empty if they have no bytes; it is borrowed mutably.
        unsafe { SliceMut::new(self.view(), self.len()) }
    }

    /// Borrows elements for reading.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.as_view().slice(range)
    }

    /// Borrows elements for writing.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.as_view_mut().slice(range)
    }

    /// Borrows the elements in host memory.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) while a queued operation uses the buffer, or a kernel excludes the host from managed memory.
    pub fn as_slice(&self) -> Result<&[T]>
    where
        M::Visibility: HostReadable,
    {
        self.as_view().as_slice()
    }

    /// Returns the host address, for memory shared with a kernel by a protocol; `None` without bytes. Valid until the buffer's drop.
    ///
    /// Unchecked: the caller must not write bytes that a borrowed slice or a queued operation may access.
    #[must_use]
    pub fn as_ptr(&self) -> Option<NonNull<T>>
    where
        M::Visibility: HostReadable,
    {
        self.view().block.host.map(NonNull::cast)
    }

    /// Borrows the elements in host memory for writing.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]>
    where
        M::Visibility: HostReadable,
    {
        self.as_view_mut().into_mut_slice()
    }
}
