use std::vec::Vec;

use super::{MirroredBuffer, Side, State};
use crate::memory::{DeviceReadable, HostReadable, Memory, on_the_host, same_len};
use crate::{DeviceBytes, Result};

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// Returns the host's elements for reading; updates a stale copy, or zeroes it if nothing was written.
    ///
    /// ```compile_fail
    /// fn write(mirror: &mut ringmem::mirror::MirroredBuffer<u8>) {
    ///     mirror.host().unwrap()[0] = 1; // the device would never hear of it
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the memory, the copy or earlier work; [`Busy`](crate::Error::Busy) while a kernel excludes the host from managed memory.
    #[inline]
    pub fn host(&mut self) -> Result<&[T]> {
        if !(self.state.is_valid(Side::Host) && self.host.is_at_rest()) {
            self.refresh(Side::Host)?;
        }
        self.host.elements(self.state).map(|elements| &*elements)
    }

    /// As [`host`](Self::host), for reading and writing; the device's copy becomes stale.
    #[inline]
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        if !(self.state.is_valid(Side::Host) && self.host.is_at_rest()) {
            self.refresh(Side::Host)?;
        }
        let elements = self.host.elements(self.state)?;
        self.state = State::HostDirty;
        Ok(elements)
    }

    /// Overwrites the host's copy without an update; the device's becomes stale.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for another number of elements, before any change; as [`host`](Self::host).
    pub fn copy_from(&mut self, elements: &[T]) -> Result<()> {
        same_len(self.len, elements.len())?;
        self.overwrite(|host| host.copy_from_slice(elements))
    }

    /// As [`copy_from`](Self::copy_from), with one value. On the device, use [`device_write_only`](Self::device_write_only).
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.overwrite(|host| {
            // Zero-sized elements may be too many.
            if size_of::<T>() > 0 {
                host.fill(value);
            }
        })
    }

    /// Copies all elements out.
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from).
    pub fn copy_to(&mut self, elements: &mut [T]) -> Result<()> {
        same_len(self.len, elements.len())?;
        elements.copy_from_slice(self.host()?);
        Ok(())
    }

    /// Returns a copy of the elements.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host); [`Map`](crate::Error::Map) without host memory for them.
    #[doc(alias = "to_numpy")]
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
            (self.state, self.is_torn) = (State::HostDirty, false);
        }
        Ok(())
    }
}
