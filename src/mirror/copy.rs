use core::slice;

use super::State;
use crate::backend::MemoryLocation;
use crate::error::MirrorFault;
use crate::memory::{Buffer, HostReadable, Memory, SliceMut};
use crate::{DeviceBytes, Error, Result};

/// Avoids [`Buffer::as_mut_slice`], whose check of uses may cost more than an access.
pub(super) struct HostCopy<T, H: Memory> {
    buffer: Option<Buffer<T, H>>,
    // INVARIANT: the buffer lists no use and is not managed memory, where a kernel may exclude the host. Mutable borrows reset it.
    is_at_rest: bool,
}

impl<T, H: Memory> HostCopy<T, H> {
    pub const fn none() -> Self {
        Self { buffer: None, is_at_rest: false }
    }

    #[inline]
    pub const fn is_at_rest(&self) -> bool {
        self.is_at_rest
    }

    pub const fn get(&self) -> Option<&Buffer<T, H>> {
        self.buffer.as_ref()
    }

    pub fn get_mut(&mut self) -> Option<&mut Buffer<T, H>> {
        self.is_at_rest = false;
        self.buffer.as_mut()
    }

    pub fn put(&mut self, buffer: Buffer<T, H>) {
        *self = Self { buffer: Some(buffer), is_at_rest: false };
    }

    pub fn take(&mut self) -> Option<Buffer<T, H>> {
        self.is_at_rest = false;
        self.buffer.take()
    }

    #[inline]
    pub fn elements(&mut self, state: State) -> Result<&mut [T]>
    where
        T: DeviceBytes,
        H::Visibility: HostReadable,
    {
        self.lent(state, SliceMut::into_mut_slice)
    }

    pub fn overwritten(&mut self, state: State) -> Result<&mut [T]>
    where
        T: DeviceBytes,
        H::Visibility: HostReadable,
    {
        self.lent(state, SliceMut::overwritten)
    }

    #[inline]
    fn lent<'a>(&'a mut self, state: State, lend: impl FnOnce(SliceMut<'a, T, H>) -> Result<&'a mut [T]>) -> Result<&'a mut [T]>
    where
        T: DeviceBytes,
        H::Visibility: HostReadable,
    {
        if self.is_at_rest
            && let Some(buffer) = &self.buffer
            && let Some(first) = buffer.as_ptr()
        {
            // SAFETY: so many elements, initialised by the memory's promise, borrowed mutably, unused by others by the invariant.
            return Ok(unsafe { slice::from_raw_parts_mut(first.as_ptr(), buffer.len()) });
        }
        self.settled(state, lend)
    }

    #[cold]
    fn settled<'a>(&'a mut self, state: State, lend: impl FnOnce(SliceMut<'a, T, H>) -> Result<&'a mut [T]>) -> Result<&'a mut [T]>
    where
        T: DeviceBytes,
        H::Visibility: HostReadable,
    {
        let Some(buffer) = &mut self.buffer else { return Err(Error::Mirror { what: MirrorFault::NoHostCopy, state: state.name() }) };
        buffer.settle()?;
        let may_rest = buffer.location() != MemoryLocation::Unified;
        let elements = lend(buffer.as_view_mut())?;
        self.is_at_rest = may_rest;
        Ok(elements)
    }
}
