//! Closures over elements as a host slice. The calls wait for the buffer's uses. If the closure panics, nothing is written to a device.

use core::slice;
use std::vec::Vec;

use super::bounds::on_the_host;
use super::view::Contents;
use super::{Buffer, Memory, Slice, SliceMut};
use crate::DeviceBytes;
use crate::Result;

impl<T: DeviceBytes, M: Memory> Slice<'_, T, M> {
    /// Calls `look` with the elements: the memory itself if host-readable, else a copy.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to), or [`Busy`](crate::Error::Busy) while a kernel excludes the host from managed memory, without a call of
    /// `look`.
    pub fn read<R>(&self, look: impl FnOnce(&[T]) -> R) -> Result<R> {
        self.view.settle()?;
        match self.view.host::<T>(self.len(), Contents::Kept)? {
            // SAFETY: the view's elements, initialised by the memory's promise, borrowed, and their uses complete: nothing writes them.
            Some(first) => Ok(look(unsafe { slice::from_raw_parts(first.as_ptr(), self.len()) })),
            None => Ok(look(&self.to_vec()?)),
        }
    }
}

impl<T: DeviceBytes, M: Memory> SliceMut<'_, T, M> {
    /// Calls `make` to write the elements, without a copy from the device. Unwritten elements become unspecified.
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from), or [`Busy`](crate::Error::Busy) while a kernel excludes the host from managed memory.
    pub fn write<R>(&mut self, make: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        self.staged(Contents::Overwritten, |view| on_the_host(view.len()), make)
    }

    /// Calls `change` to read and write the elements, copied from and to a device if the host cannot access them.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        self.staged(Contents::Kept, |view| view.as_view().to_vec(), change)
    }

    fn staged<R>(
        &mut self,
        contents: Contents,
        stage: impl FnOnce(&Self) -> Result<Vec<T>>,
        change: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        self.view.settle()?;
        if let Some(first) = self.view.host::<T>(self.len(), contents)? {
            // SAFETY: the view's elements, initialised by the memory's promise and exclusively this value's; `settle` has waited for their
            // uses.
            return Ok(change(unsafe { slice::from_raw_parts_mut(first.as_ptr(), self.len()) }));
        }
        let mut staged = stage(self)?;
        let result = change(&mut staged);
        self.copy_from(&staged)?;
        Ok(result)
    }
}

impl<T: DeviceBytes, M: Memory> Buffer<T, M> {
    /// As [`Slice::read`].
    pub fn read<R>(&self, look: impl FnOnce(&[T]) -> R) -> Result<R> {
        self.as_view().read(look)
    }

    /// As [`SliceMut::write`].
    pub fn write<R>(&mut self, make: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        self.as_view_mut().write(make)
    }

    /// As [`SliceMut::update`].
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        self.as_view_mut().update(change)
    }
}
