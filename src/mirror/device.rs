use super::{Access, MirroredBuffer, Side, State};
use crate::backend::same_backend;
use crate::error::MirrorFault;
use crate::memory::{Buffer, DeviceReadable, HostReadable, Memory, Slice, SliceMut, View, same_len};
use crate::{DeviceBytes, Error, Result};

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// Returns the device's elements for reading; updates a stale copy, or zeroes both if nothing was written.
    ///
    /// [List](Self::used_by) a launch that gets their address.
    ///
    /// # Errors
    ///
    /// The error of the memory, the copy or earlier work.
    #[inline]
    pub fn device(&mut self) -> Result<Slice<'_, T, D>> {
        self.refresh(Side::Device)?;
        let view = self.device_view()?;
        // SAFETY: `len` elements, by the invariant.
        Ok(unsafe { Slice::new(view, self.len) })
    }

    /// As [`device`](Self::device), for reading and writing; the host's copy becomes stale, even after a failed write.
    #[inline]
    pub fn device_mut(&mut self) -> Result<SliceMut<'_, T, D>> {
        self.open_device(Access::Update)?;
        self.device_slice_mut()
    }

    /// As [`device_mut`](Self::device_mut), with unspecified contents, for a caller that writes all elements.
    pub fn device_write_only(&mut self) -> Result<SliceMut<'_, T, D>> {
        self.open_device(Access::Write)?;
        self.device_slice_mut()
    }

    /// Passes the device's copy through a closure that returns it:
    ///
    /// ```
    /// # fn main() -> ringmem::Result<()> {
    /// # use ringmem::memory::{Device, Pinned};
    /// # use ringmem::mirror::{Access, MirroredBuffer};
    /// # use ringmem::stream::{Pending, Stream};
    /// use ringmem::backend::host::HostBackend;
    ///
    /// let backend = HostBackend::builder().build()?;
    /// # let stream = Stream::new(&backend, 0)?;
    /// # let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 100)?;
    /// mirror.through(Access::Write, |device| match stream.fill(device, .., 7).map(Pending::detach) {
    ///     Ok(device) => (device, Ok(())),
    ///     Err(rejected) => (rejected.value, Err(rejected.error)),
    /// })??;
    /// assert_eq!(mirror.host()?, [7; 100]); // waits for the fill
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If `queue` panics or returns another buffer, the copy is lost. If only it was valid, calls that need it return
    /// [`Mirror`](Error::Mirror) until it is rewritten or [discarded](Self::discard_device).
    ///
    /// # Errors
    ///
    /// As [`device`](Self::device), or [`Unsupported`](Error::Unsupported) if the sides [share](Self::is_shared) memory, without calling `queue`.
    /// [`Size`](Error::Size), [`OtherBackend`](Error::OtherBackend) or [`Unsupported`](Error::Unsupported) if it returns another buffer.
    pub fn through<R>(&mut self, access: Access, queue: impl FnOnce(Buffer<T, D>) -> (Buffer<T, D>, R)) -> Result<R> {
        if self.is_shared {
            return Err(Error::Unsupported { what: "a loan of the device copy where host and device share one buffer" });
        }
        self.open_device(access)?;
        let Some(device) = self.device.take() else {
            return Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() });
        };
        let state = self.state;
        if state == State::Synchronized {
            self.state = State::HostOnly;
        }
        let lent = (device.device_address(), device.memory().device());
        let (device, result) = queue(device);
        same_len(self.len, device.len())?;
        same_backend(&**self.device_memory.backend(), &**device.memory().backend())?;
        if (device.device_address(), device.memory().device()) != lent {
            return Err(Error::Unsupported { what: "returning a buffer other than the borrowed one" });
        }
        (self.device, self.state) = (Some(device), state);
        Ok(result)
    }

    #[inline]
    fn open_device(&mut self, access: Access) -> Result<()> {
        if access == Access::Write {
            self.land()?;
            self.allocate(Side::Device)?;
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

    #[inline]
    pub(super) fn device_written(&mut self) {
        if !self.state.is_valid(Side::Device) {
            self.is_torn = false;
        }
        self.state = if self.state == State::Uninitialized { State::DeviceOnly } else { State::DeviceDirty };
    }

    #[inline]
    fn device_slice_mut(&mut self) -> Result<SliceMut<'_, T, D>> {
        let view = self.device_view()?;
        // SAFETY: `len` elements, by the invariant, borrowed mutably.
        Ok(unsafe { SliceMut::new(view, self.len) })
    }

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
        // A view needs only the same backend.
        Ok(View { memory: &self.device_memory, block, uses, offset })
    }
}
