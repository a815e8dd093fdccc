//! References: which elements of which buffer, in 64 bytes that go through a ring.
//!
//! A registry resolves its own references and no others. Another process that has the same memory, imported from where this one exported
//! it, registers that in a registry of its own and refers to it by its own ids: an address, a length and a right to be freed hold in one
//! process.

use core::ops::{Range, RangeBounds};

use super::slots::Index;
use super::{BufferId, Lease, Registry};
use crate::memory::{Memory, range};
use crate::message::BufferReference;
use crate::{DeviceBytes, Error, Layout, Result};

impl<M: Memory> Registry<M> {
    /// Names some elements of a buffer. It stays registered, and nobody keeps it for the receiver: keep a lease, or
    /// [hand it over](BufferReference::handed_over).
    ///
    /// # Errors
    ///
    /// [`Error::Range`] for elements that it has not; as [`lease`](Self::lease).
    pub fn reference<T: DeviceBytes + Layout>(&self, id: BufferId<T>, part: impl RangeBounds<usize>) -> Result<BufferReference> {
        let part = range::<T>(part, self.lease(id)?.len())?;
        Ok(BufferReference::new::<T>(self.number(), id.bits(), part.start as u64..part.end as u64))
    }

    /// What a reference names: a lease on its buffer, and which elements are meant.
    ///
    /// Of a buffer that was handed over this is the only lease there will be: it is released now, and freed when the leases have gone.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] for bytes that name no elements of `T`, [`Error::Range`] for elements that the buffer has not, else as
    /// [`lease`](Self::lease); nothing is released then.
    pub fn resolve<T: DeviceBytes + Layout>(&self, reference: &BufferReference) -> Result<(Lease<'_, T, M>, Range<usize>)> {
        let part = reference.part::<T>()?;
        self.here()?;
        self.is_own(reference.registry)?;
        let index = Index::from_bits(reference.id);
        let stored = self.slots.share(index)?;
        stored.is_of::<T>()?;
        // SAFETY: of `T`, as was just seen.
        let lease = unsafe { Lease::<T, M>::new(stored) };
        if part.end > lease.len() as u64 {
            return Err(Error::Range { offset: reference.offset, len: reference.length, size: lease.size_bytes() as u64 });
        }
        if reference.is_handed_over() {
            // Refused if somebody has taken it up before. The buffer itself stays: this lease is on it.
            drop(self.slots.remove(index)?);
        }
        // Within the buffer, so within the address space.
        Ok((lease, part.start as usize..part.end as usize))
    }
}
