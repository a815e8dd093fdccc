use core::ops::{Range, RangeBounds};

use super::numbers::Index;
use super::{BufferId, Lease, MemoryManager};
use crate::memory::{Memory, range};
use crate::message::BufferReference;
use crate::{DeviceBytes, Error, Layout, Result};

impl<M: Memory> MemoryManager<M> {
    /// Returns a reference to elements. It does not keep the buffer: the sender keeps a lease or [hands it over](BufferReference::handed_over).
    ///
    /// # Errors
    ///
    /// [`Error::Range`] beyond the live elements; as [`lease`](Self::lease).
    pub fn reference<T: DeviceBytes + Layout>(&self, id: BufferId<T>, part: impl RangeBounds<usize>) -> Result<BufferReference> {
        let part = range::<T>(part, self.lease(id)?.len())?;
        Ok(BufferReference::new::<T>(self.number(), id.bits(), part.start as u64..part.end as u64))
    }

    /// Returns a lease on the referenced buffer, and the range of elements, which is checked against the present length. A buffer that was handed over
    /// is freed after this lease, and its name at once.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] for bytes that are no reference to elements of `T`; [`Error::Range`]; as [`lease`](Self::lease). Nothing is freed then.
    pub fn resolve<T: DeviceBytes + Layout>(&self, reference: &BufferReference) -> Result<(Lease<'_, T, M>, Range<usize>)> {
        let part = reference.part::<T>()?;
        let index = self.table.own(reference.registry, Index::from_bits(reference.id))?;
        let entry = self.table.share(index)?;
        entry.element().check::<T>()?;
        // SAFETY: the type was checked.
        let lease = unsafe { Lease::new(entry) };
        let part = within::<T>(reference, part, lease.len())?;
        if reference.is_handed_over() {
            // Fails if another call has resolved it.
            drop(self.remove(index)?);
        }
        Ok((lease, part))
    }
}

/// Checks the reference's `part` against the `len` elements of its buffer or mirror.
pub(super) fn within<T>(reference: &BufferReference, part: Range<u64>, len: usize) -> Result<Range<usize>> {
    if part.end > len as u64 {
        let size = (len * size_of::<T>()) as u64;
        return Err(Error::Range { offset: reference.offset, len: reference.length, size, element_bytes: 1 });
    }
    Ok(part.start as usize..part.end as usize)
}
