//! The device's side: views for calls that block.

use super::{Access, MirroredBuffer, Side, State};
use crate::backend::same_backend;
use crate::error::MirrorFault;
use crate::memory::{Buffer, DeviceReadable, HostReadable, Memory, Slice, SliceMut, View};
use crate::{DeviceBytes, Error, Result};

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// The elements on the device, to read: brought from the host if the device's are stale, 0 on both sides if there were none.
    ///
    /// A launch that is given their address is to be [listed](Self::used_by).
    ///
    /// # Errors
    ///
    /// What the memory refuses; what the copy or something queued before failed with.
    #[inline]
    pub fn device(&mut self) -> Result<Slice<'_, T, D>> {
        self.refresh(Side::Device)?;
        let view = self.device_view()?;
        // SAFETY: the invariant: `len` elements.
        Ok(unsafe { Slice::new(view, self.len) })
    }

    /// The elements on the device, to read and write: the host's are stale from now on, also if the write fails.
    ///
    /// A launch that is given their address is to be [listed](Self::used_by).
    ///
    /// # Errors
    ///
    /// As [`device`](Self::device).
    #[inline]
    pub fn device_mut(&mut self) -> Result<SliceMut<'_, T, D>> {
        self.open_device(Access::Update)?;
        self.device_slice_mut()
    }

    /// The same for who will write all of them: a copy that is stale is not brought up to date, and what is in it is unspecified.
    ///
    /// # Errors
    ///
    /// As [`device`](Self::device).
    pub fn device_write_only(&mut self) -> Result<SliceMut<'_, T, D>> {
        self.open_device(Access::Write)?;
        self.device_slice_mut()
    }

    /// Moves the device's copy through something that takes it by value and gives it back, such as what is queued on a stream:
    ///
    /// ```
    /// # fn main() -> ringmem::Result<()> {
    /// # use ringmem::backend::host::HostBackend;
    /// # use ringmem::memory::{Device, Pinned};
    /// # use ringmem::mirror::{Access, MirroredBuffer};
    /// # use ringmem::stream::{Pending, Stream};
    /// # let backend = HostBackend::builder().build()?;
    /// # let stream = Stream::new(&backend, 0)?;
    /// # let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 100)?;
    /// mirror.through(Access::Write, |device| match stream.fill(device, .., 7).map(Pending::ordered) {
    ///     Ok(device) => (device, Ok(())),
    ///     Err(rejected) => (rejected.value, Err(rejected.error)),
    /// })??;
    /// assert_eq!(mirror.host()?, [7; 100]); // waits for the fill
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If `queue` panics, or gives another buffer back, the device's copy is gone. If it was the only valid one, what needs it is
    /// [`Mirror`](Error::Mirror) until it is written anew or [discarded](Self::discard_device).
    ///
    /// # Errors
    ///
    /// As [`device`](Self::device), and then `queue` was not called; [`Unsupported`](Error::Unsupported) where the sides [share](Self::is_shared) their memory.
    /// [`Size`](Error::Size), [`OtherBackend`](Error::OtherBackend) or [`Unsupported`](Error::Unsupported) for a buffer that is not the one that was
    /// given.
    pub fn through<R>(&mut self, access: Access, queue: impl FnOnce(Buffer<T, D>) -> (Buffer<T, D>, R)) -> Result<R> {
        if self.is_shared {
            return Err(Error::Unsupported { what: "a loan of the device copy where host and device share one buffer" });
        }
        self.open_device(access)?;
        let Some(device) = self.device.take() else {
            return Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() });
        };
        // Until it is back.
        let state = self.state;
        if state == State::Synchronized {
            self.state = State::HostOnly;
        }
        let lent = (device.device_address(), device.memory().device());
        let (device, result) = queue(device);
        if device.len() != self.len {
            return Err(Error::Size {
                what: "length in bytes",
                asked: device.size_bytes() as u64,
                least: self.size_bytes() as u64,
                most: self.size_bytes() as u64,
            });
        }
        same_backend(&**self.device_memory.backend(), &**device.memory().backend())?;
        if (device.device_address(), device.memory().device()) != lent {
            return Err(Error::Unsupported { what: "a buffer other than the borrowed one" });
        }
        (self.device, self.state) = (Some(device), state);
        Ok(result)
    }

    /// Makes the device's copy what an access needs, and the state what it is afterwards.
    #[inline]
    fn open_device(&mut self, access: Access) -> Result<()> {
        if access == Access::Write {
            self.land()?;
            self.allocate(Side::Device)?;
            // An access that writes all elements does not depend on earlier failed writes.
            self.device.iter().for_each(Buffer::forget_contents);
        } else if access == Access::Update && self.state == State::Uninitialized {
            return self.begin(&[Side::Device], State::DeviceOnly);
        } else {
            self.refresh(Side::Device)?;
        }
        if access != Access::Read {
            self.device_written();
        }
        Ok(())
    }

    /// The device's copy is the last that was written.
    #[inline]
    pub(super) fn device_written(&mut self) {
        if !self.state.is_valid(Side::Device) {
            // What is stale now is the host's copy, and that is whole.
            self.is_torn = false;
        }
        self.state = if self.state == State::Uninitialized { State::DeviceOnly } else { State::DeviceDirty };
    }

    #[inline]
    fn device_slice_mut(&mut self) -> Result<SliceMut<'_, T, D>> {
        let view = self.device_view()?;
        // SAFETY: the invariant: `len` elements, and the mirror is borrowed mutably.
        Ok(unsafe { SliceMut::new(view, self.len) })
    }

    /// Where the device finds its elements.
    #[inline]
    pub(super) fn device_view(&self) -> Result<View<'_, D>> {
        if !self.is_shared {
            let Some(device) = &self.device else {
                return Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() });
            };
            return Ok(device.view());
        }
        let Some(host) = self.host.get() else { return Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() }) };
        let View { block, uses, offset, .. } = host.view();
        // Of the same backend, which is what a view asks its memory for.
        Ok(View { memory: &self.device_memory, block, uses, offset })
    }
}
