use core::fmt;
use core::iter;
use core::marker::PhantomData;
use core::ops::RangeBounds;
use core::ptr::NonNull;
use core::slice;
use std::vec::Vec;

use ringmem_layouts::kernel::DevicePointer;

use super::bounds::{on_the_host, range, recount, same_len};
use super::view::{Contents, View};
use super::{DeviceReadable, HostReadable, Memory};
use crate::backend::fill::{FillSteps, fill_steps};
use crate::backend::{Address, Copy, DeviceAddress, Fill, MemoryLocation, Uses};
use crate::{DeviceBytes, Result};

/// A read-only view of a buffer's elements.
///
/// INVARIANT: `len` elements from the view on are in its block, aligned for `T`.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let buffer = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2, 3, 4])?;
/// let (low, high) = buffer.as_view().split_at(2)?;
/// assert_eq!((low.to_vec()?, high.slice(1..)?.to_vec()?), (vec![1, 2], vec![4]));
/// assert_eq!(low.cast::<u16>()?.len(), 4);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[doc(alias = "CudaView")]
pub struct Slice<'a, T, M> {
    pub(super) view: View<'a, M>,
    len: usize,
    _elements: PhantomData<&'a T>,
}

/// An exclusive view of a buffer's elements.
///
/// INVARIANT: as [`Slice`]'s, and the elements are exclusively this value's.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let mut buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 4)?;
/// let (mut low, mut high) = buffer.as_view_mut().split_at(2)?;
/// low.fill(7)?; // on the device
/// high.copy_from(&[8, 9])?;
/// assert_eq!(buffer.to_vec()?, [7, 7, 8, 9]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[doc(alias = "CudaViewMut")]
pub struct SliceMut<'a, T, M> {
    pub(super) view: View<'a, M>,
    len: usize,
    _elements: PhantomData<&'a mut T>,
}

impl<T, M> Clone for Slice<'_, T, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, M> core::marker::Copy for Slice<'_, T, M> {}

impl<T, M> fmt::Debug for Slice<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug::<T, M>("Slice", &self.view, self.len, f)
    }
}

impl<T, M> fmt::Debug for SliceMut<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug::<T, M>("SliceMut", &self.view, self.len, f)
    }
}

fn debug<T, M>(name: &str, view: &View<'_, M>, len: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name)
        .field("type", &core::any::type_name::<T>())
        .field("len", &len)
        .field("location", &view.block.location())
        .field("address", &view.block.device_address().and_then(|address| address.offset(view.offset as u64)))
        .finish_non_exhaustive()
}

impl<'a, T: DeviceBytes, M: Memory> Slice<'a, T, M> {
    /// # Safety
    ///
    /// The invariant.
    pub(crate) unsafe fn new(view: View<'a, M>, len: usize) -> Self {
        Self { view, len, _elements: PhantomData }
    }

    pub(crate) fn address(&self) -> Option<Address> {
        // SAFETY: by the invariant the elements from the view on are in its block, so its offset is too.
        unsafe { self.view.address() }
    }

    pub(crate) fn device(&self) -> Option<u32> {
        let block = self.view.block;
        (block.location() == MemoryLocation::Device).then_some(block.device())
    }

    pub(crate) fn memory(&self) -> &'a M {
        self.view.memory
    }

    pub(crate) fn uses(&self) -> &'a Uses {
        self.view.uses.uses()
    }

    pub(crate) fn settle(&self) -> Result<()> {
        self.view.settle()
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a part of the view.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(self, part: impl RangeBounds<usize>) -> Result<Self> {
        let part = range::<T>(part, self.len)?;
        Ok(Self { view: self.view.part::<T>(part.start), len: part.len(), _elements: PhantomData })
    }

    /// Splits the view before element `at`.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn split_at(self, at: usize) -> Result<(Self, Self)> {
        Ok((self.slice(..at)?, self.slice(at..)?))
    }

    /// Reinterprets the bytes as elements of another type.
    ///
    /// # Errors
    ///
    /// [`Cast`](crate::Error::Cast) for a partial or misaligned element.
    pub fn cast<U: DeviceBytes>(self) -> Result<Slice<'a, U, M>> {
        let len = recount::<U>(self.len * size_of::<T>(), self.view.align())?;
        Ok(Slice { view: self.view, len, _elements: PhantomData })
    }

    /// As [`Buffer::copy_to`](super::Buffer::copy_to).
    pub fn copy_to(&self, elements: &mut [T]) -> Result<()> {
        same_len(self.len, elements.len())?;
        let bytes = size_of_val(elements);
        let Some(from) = self.address() else { return Ok(()) };
        if bytes == 0 {
            return Ok(());
        }
        let to = Address::Host(NonNull::from(elements).cast());
        // SAFETY: so many bytes on both sides, checked above; the mutably borrowed target is not the source.
        unsafe { self.view.copy(to, from, bytes) }
    }

    /// As [`Buffer::to_vec`](super::Buffer::to_vec).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = on_the_host(self.len)?;
        self.copy_to(&mut elements)?;
        Ok(elements)
    }

    /// As [`Buffer::device_address`](super::Buffer::device_address).
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress>
    where
        M::Visibility: DeviceReadable,
    {
        self.view.block.device_address()?.offset(self.view.offset as u64)
    }

    /// As [`Buffer::device_pointer`](super::Buffer::device_pointer).
    #[must_use]
    pub fn device_pointer(&self) -> Option<DevicePointer<T>>
    where
        M::Visibility: DeviceReadable,
    {
        self.device_address().map(DeviceAddress::pointer)
    }

    /// As [`Buffer::as_slice`](super::Buffer::as_slice).
    pub fn as_slice(&self) -> Result<&'a [T]>
    where
        M::Visibility: HostReadable,
    {
        let Some(first) = self.view.host::<T>(self.len, Contents::Kept)? else { return Ok(zeroes(self.len)) };
        // SAFETY: by the invariant `len` elements, aligned for `T`; initialised by the memory's promise. No queued operation writes them,
        // as just checked; a launch is responsible for its kernel's accesses beyond its promise.
        Ok(unsafe { slice::from_raw_parts(first.as_ptr(), self.len) })
    }
}

impl<'a, T: DeviceBytes, M: Memory> SliceMut<'a, T, M> {
    /// # Safety
    ///
    /// The invariant.
    pub(crate) unsafe fn new(view: View<'a, M>, len: usize) -> Self {
        Self { view, len, _elements: PhantomData }
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Borrows the same elements for reading.
    #[must_use]
    pub fn as_view(&self) -> Slice<'_, T, M> {
        Slice { view: self.view, len: self.len, _elements: PhantomData }
    }

    /// Borrows the same elements for a shorter lifetime.
    #[must_use]
    pub fn reborrow(&mut self) -> SliceMut<'_, T, M> {
        SliceMut { view: self.view, len: self.len, _elements: PhantomData }
    }

    /// As [`Slice::slice`].
    pub fn slice(self, part: impl RangeBounds<usize>) -> Result<Self> {
        let part = range::<T>(part, self.len)?;
        Ok(Self { view: self.view.part::<T>(part.start), len: part.len(), _elements: PhantomData })
    }

    /// As [`Slice::split_at`].
    pub fn split_at(self, at: usize) -> Result<(Self, Self)> {
        let rest = range::<T>(at.., self.len)?;
        let after = Self { view: self.view.part::<T>(at), len: rest.len(), _elements: PhantomData };
        Ok((Self { view: self.view, len: at, _elements: PhantomData }, after))
    }

    /// As [`Slice::cast`].
    pub fn cast<U: DeviceBytes>(self) -> Result<SliceMut<'a, U, M>> {
        let len = recount::<U>(self.len * size_of::<T>(), self.view.align())?;
        Ok(SliceMut { view: self.view, len, _elements: PhantomData })
    }

    /// As [`Buffer::copy_from`](super::Buffer::copy_from).
    pub fn copy_from(&mut self, elements: &[T]) -> Result<()> {
        same_len(self.len, elements.len())?;
        let bytes = size_of_val(elements);
        // SAFETY: by the invariant the elements from the view on are in its block, so its offset is too.
        let Some(to) = (unsafe { self.view.address() }) else { return Ok(()) };
        if bytes == 0 {
            return Ok(());
        }
        // The host copies a word by one store, which must read from this value.
        let mut word = 0_u64;
        let from = if bytes == size_of::<u64>() {
            let word = NonNull::from(&mut word).cast::<u8>();
            // SAFETY: that many bytes on both sides, initialised as elements.
            unsafe { word.copy_from_nonoverlapping(NonNull::from(elements).cast(), bytes) };
            word
        } else {
            NonNull::from(elements).cast()
        };
        // SAFETY: so many bytes on both sides, checked above; the target is exclusively this value's and not the source, which is borrowed
        // or the local word.
        unsafe { self.view.copy(to, Address::Host(from), bytes) }
    }

    /// Copies from a buffer of the same backend, on the device if both are in device memory.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend) before any copy; as [`copy_from`](Self::copy_from).
    pub fn copy_from_view<N: Memory>(&mut self, from: Slice<'_, T, N>) -> Result<()> {
        same_len(self.len, from.len)?;
        // SAFETY: so many bytes on both sides; the exclusive target does not overlap the source.
        unsafe { from.view.copy_to_view(&self.view, self.len * size_of::<T>()) }
    }

    /// As [`Buffer::fill`](super::Buffer::fill).
    pub fn fill(&mut self, mut value: T) -> Result<()> {
        let Some((to, count)) = self.settled()? else { return Ok(()) };
        let backend = self.view.memory.backend();
        match fill_steps(to, &value, count) {
            // SAFETY: the elements are exclusively this value's, without queued operations.
            FillSteps::Fill(fill) => unsafe { backend.fill_now(&fill) },
            FillSteps::Copies(bytes, doublings) => {
                let first = Copy { to, from: Address::Host(NonNull::from(&mut value).cast()), bytes };
                // SAFETY: the elements are exclusively this value's, without queued operations; `value` is a local, and a doubling copies to
                // later elements.
                iter::once(first).chain(doublings).try_for_each(|copy| unsafe { backend.copy_now(&copy) })
            }
        }
    }

    /// As [`Buffer::zero`](super::Buffer::zero).
    pub fn zero(&mut self) -> Result<()> {
        let Some((to, count)) = self.settled()? else { return Ok(()) };
        let fill = Fill { to, pattern: 0, size: 1, count: count * size_of::<T>() as u64 };
        // SAFETY: the elements are exclusively this value's, and `settled` has waited for queued operations.
        unsafe { self.view.memory.backend().fill_now(&fill) }
    }

    /// Waits for the uses; `None` without bytes.
    fn settled(&self) -> Result<Option<(Address, u64)>> {
        let (Some(to), count @ 1.., 1..) = (self.as_view().address(), self.len as u64, size_of::<T>()) else { return Ok(None) };
        self.view.settle()?;
        Ok(Some((to, count)))
    }

    /// As [`Slice::device_address`].
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress>
    where
        M::Visibility: DeviceReadable,
    {
        self.as_view().device_address()
    }

    /// As [`Slice::device_pointer`].
    #[must_use]
    pub fn device_pointer(&self) -> Option<DevicePointer<T>>
    where
        M::Visibility: DeviceReadable,
    {
        self.as_view().device_pointer()
    }

    /// As [`Buffer::as_mut_slice`](super::Buffer::as_mut_slice).
    pub fn into_mut_slice(self) -> Result<&'a mut [T]>
    where
        M::Visibility: HostReadable,
    {
        self.lent(Contents::Kept)
    }

    /// For a caller that writes all elements: earlier failed writes do not matter.
    pub(crate) fn overwritten(self) -> Result<&'a mut [T]>
    where
        M::Visibility: HostReadable,
    {
        self.lent(Contents::Overwritten)
    }

    #[inline(always)]
    fn lent(self, contents: Contents) -> Result<&'a mut [T]>
    where
        M::Visibility: HostReadable,
    {
        let first = match self.view.host::<T>(self.len, contents)? {
            Some(first) => first,
            None => NonNull::dangling(),
        };
        // SAFETY: by the invariant `len` elements, initialised by the memory's promise, which no queued operation uses, as just checked;
        // without a place there are no elements or no bytes, which any aligned address holds. They are exclusively this value's for 'a.
        Ok(unsafe { slice::from_raw_parts_mut(first.as_ptr(), self.len) })
    }
}

fn zeroes<'a, T: DeviceBytes>(len: usize) -> &'a [T] {
    // SAFETY: without a place there are no elements or no bytes: any aligned address holds them.
    unsafe { slice::from_raw_parts(NonNull::dangling().as_ptr(), len) }
}
