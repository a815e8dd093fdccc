use std::sync::Arc;

use super::resize::{Step, resize};
use super::{Lease, LeaseMut};
use crate::memory::{Memory, SliceMut};
use crate::registry::lease::Leased;
use crate::stream::Stream;
use crate::{DeviceBytes, Result};

macro_rules! says_of_its_block {
    ($lease:ident) => {
        impl<T, M: Memory> $lease<'_, T, M> {
            /// Returns the capacity in elements.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.value.metadata.capacity()
            }

            /// Returns whether the buffer is in the [fallback memory](super::Builder::fallback).
            #[must_use]
            pub fn is_fallback(&self) -> bool {
                self.value.metadata.is_fallback()
            }
        }
    };
}
says_of_its_block!(Lease);
says_of_its_block!(LeaseMut);

impl<T: DeviceBytes, M: Memory + Clone> LeaseMut<'_, T, M> {
    /// Ensures a capacity of at least `elements`, by the buffer's [growth](super::Growth). The device copies the live elements after all queued work.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) above `max_bytes`, [`Limit`](crate::Error::Limit) if old and new block exceed the limit, the memory's error, a
    /// use's or the copy's error. The buffer is unchanged.
    pub fn ensure_capacity(&mut self, elements: usize) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, None)
    }

    /// As [`ensure_capacity`](Self::ensure_capacity), in stream order. Waits for the copy.
    pub fn ensure_capacity_on(&mut self, elements: usize, stream: &Stream) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, Some(stream))
    }

    /// Sets the length; grows as by [`ensure_capacity`](Self::ensure_capacity), never shrinks. New elements are unspecified.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn resize(&mut self, len: usize) -> Result<()> {
        self.grow(len, len, None)
    }

    /// As [`resize`](Self::resize), in stream order.
    pub fn resize_on(&mut self, len: usize, stream: &Stream) -> Result<()> {
        self.grow(len, len, Some(stream))
    }

    /// Frees capacity beyond the live elements and `min_bytes`; returns its bytes.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn shrink_to_fit(&mut self) -> Result<u64> {
        self.value.table().here()?;
        let (len, size) = (self.len(), size_of::<T>() as u64);
        let capacity = self.value.metadata.config.capacity_exact(len as u64, size)?;
        let freed = (self.capacity() as u64).saturating_sub(capacity) * size;
        if freed > 0 {
            let shared = Arc::clone(&self.value.shared);
            resize(&shared, &mut [Step::to(&mut self.value, capacity as usize, len)], None)?;
        }
        Ok(freed)
    }

    fn grow(&mut self, needed: usize, len: usize, on: Option<&Stream>) -> Result<()> {
        self.value.table().here()?;
        let shared = Arc::clone(&self.value.shared);
        resize(&shared, &mut [Step::grow(&mut self.value, needed, len)?], on)
    }

    pub(super) fn room(&mut self, len: usize) -> SliceMut<'_, T, M> {
        let len = len.min(self.capacity());
        // SAFETY: the invariants of lease and entry; the exclusive lease is borrowed mutably.
        unsafe { SliceMut::new(self.value.buffer().view(), len) }
    }
}
