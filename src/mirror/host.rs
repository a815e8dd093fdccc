//! The host's side: slices, and copies of all elements.

use std::vec::Vec;

use super::{MirroredBuffer, Side, State};
use crate::memory::{DeviceReadable, HostReadable, Memory, on_the_host};
use crate::{DeviceBytes, Error, Result};

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// The elements on the host, to read: brought from the device if the host's are stale, 0 if there were none.
    ///
    /// ```compile_fail
    /// fn write(mirror: &mut ringmem::mirror::MirroredBuffer<u8>) {
    ///     mirror.host().unwrap()[0] = 1; // the device would never hear of it
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// What the memory refuses; what the copy or something queued before failed with; [`Busy`](Error::Busy) for managed memory while a kernel runs
    /// that must not meet the host.
    #[inline]
    pub fn host(&mut self) -> Result<&[T]> {
        // At rest it has no transfer queued either.
        if !(self.state.is_valid(Side::Host) && self.host.is_at_rest()) {
            self.refresh(Side::Host)?;
        }
        self.host.elements(self.state).map(|elements| &*elements)
    }

    /// The elements on the host, to read and write: the device's are stale from now on.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    #[inline]
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        if !(self.state.is_valid(Side::Host) && self.host.is_at_rest()) {
            self.refresh(Side::Host)?;
        }
        let elements = self.host.elements(self.state)?;
        self.state = State::HostDirty;
        Ok(elements)
    }

    /// Makes the host's elements these, and the device's stale. Nothing is copied from the device, and nothing allocated for the copy.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for another number of elements, before anything is done; as [`host`](Self::host).
    pub fn copy_from(&mut self, elements: &[T]) -> Result<()> {
        self.same_len(elements)?;
        self.overwrite(|host| host.copy_from_slice(elements))
    }

    /// Makes each of the host's elements `value`, and the device's stale. Nothing is copied from the device.
    ///
    /// [`device_write_only`](Self::device_write_only) and a fill of that do the same on the device.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.overwrite(|host| {
            // Without bytes there may be more elements than anybody could write one by one.
            if size_of::<T>() > 0 {
                host.fill(value);
            }
        })
    }

    /// Copies all elements out, as [`host`](Self::host) sees them.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for another number of elements, before anything is done; as [`host`](Self::host).
    pub fn copy_to(&mut self, elements: &mut [T]) -> Result<()> {
        self.same_len(elements)?;
        elements.copy_from_slice(self.host()?);
        Ok(())
    }

    /// The elements, copied, as [`host`](Self::host) sees them.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host), and [`Map`](Error::Map) where the host has no memory for the elements.
    pub fn to_vec(&mut self) -> Result<Vec<T>> {
        let mut elements = on_the_host(self.len)?;
        elements.copy_from_slice(self.host()?);
        Ok(elements)
    }

    fn overwrite(&mut self, write: impl FnOnce(&mut [T])) -> Result<()> {
        self.land()?;
        let is_new = self.allocate(Side::Host)?;
        match self.host.overwritten(self.state) {
            Ok(elements) => write(elements),
            Err(error) => {
                self.give_up(Side::Host, is_new);
                return Err(error);
            }
        }
        if !self.state.is_dirty(Side::Host) {
            // What is stale now is the device's copy, and that is whole.
            (self.state, self.is_torn) = (State::HostDirty, false);
        }
        Ok(())
    }

    fn same_len(&self, elements: &[T]) -> Result<()> {
        if elements.len() == self.len {
            return Ok(());
        }
        Err(Error::Size {
            what: "length in bytes",
            asked: size_of_val(elements) as u64,
            least: self.size_bytes() as u64,
            most: self.size_bytes() as u64,
        })
    }
}
