use super::queue::Flights;
use super::{MirroredBuffer, Side, State};
use crate::error::MirrorFault;
use crate::memory::{Buffer, DeviceReadable, HostReadable, Memory};
use crate::{DeviceBytes, Error, Result};

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// Updates the device's copy if it is stale.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) if nothing was written; as [`device`](Self::device).
    pub fn sync_to_device(&mut self) -> Result<()> {
        self.bring(Side::Device)
    }

    /// Updates the host's copy if it is stale.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) if nothing was written; as [`host`](Self::host).
    pub fn sync_to_host(&mut self) -> Result<()> {
        self.bring(Side::Host)
    }

    /// Makes both copies valid.
    ///
    /// # Errors
    ///
    /// As [`sync_to_device`](Self::sync_to_device).
    pub fn synchronize(&mut self) -> Result<()> {
        self.sync_to_device()?;
        self.sync_to_host()
    }

    /// Marks the host's copy as written.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) if nothing was written, the host has no copy, or lacks the device's writes.
    pub fn mark_host_dirty(&mut self) -> Result<()> {
        self.mark(Side::Host)
    }

    /// Marks the device's copy as written.
    ///
    /// # Errors
    ///
    /// As [`mark_host_dirty`](Self::mark_host_dirty), with the sides exchanged.
    pub fn mark_device_dirty(&mut self) -> Result<()> {
        self.mark(Side::Device)
    }

    /// Drops the host's writes in favour of the device's copy.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) if nothing was written, the device has no copy, or a transfer to it failed. If one buffer
    /// [serves both sides](Self::is_shared), the device has no other copy than the one with the host's writes.
    pub fn discard_host(&mut self) -> Result<()> {
        self.discard(Side::Host)
    }

    /// Drops the device's writes in favour of the host's copy.
    ///
    /// # Errors
    ///
    /// As [`discard_host`](Self::discard_host), with the sides exchanged.
    pub fn discard_device(&mut self) -> Result<()> {
        self.discard(Side::Device)
    }

    /// Updates one copy and frees the other after its uses.
    ///
    /// # Errors
    ///
    /// As [`sync_to_device`](Self::sync_to_device), before the free; or the driver's error after it.
    pub fn compact(&mut self, keep: Side) -> Result<()> {
        self.bring(keep)?;
        (self.state, self.is_torn) = (State::only(keep), false);
        match keep {
            _ if self.is_shared => Ok(()),
            Side::Host => self.device.take().map_or(Ok(()), Buffer::close),
            Side::Device => self.host.take().map_or(Ok(()), Buffer::close),
        }
    }

    /// Frees both copies after their uses: as a new mirror.
    ///
    /// # Errors
    ///
    /// The driver's error; both are freed anyway.
    pub fn free(&mut self) -> Result<()> {
        (self.state, self.is_torn, self.flights) = (State::Uninitialized, false, Flights::default());
        let host = self.host.take().map_or(Ok(()), Buffer::close);
        let device = self.device.take().map_or(Ok(()), Buffer::close);
        host.and(device)
    }

    fn mark(&mut self, side: Side) -> Result<()> {
        self.written()?;
        if self.state.is_dirty(side.other()) {
            return Err(Error::Mirror { what: MirrorFault::DirtyConflict, state: self.state.name() });
        }
        if !self.has(side) {
            return Err(self.has_no(side));
        }
        self.state = State::dirty(side);
        Ok(())
    }

    fn discard(&mut self, side: Side) -> Result<()> {
        self.written()?;
        if !self.state.is_valid(side) {
            return Ok(());
        }
        let rest = side.other();
        let is_only_copy = self.is_shared && self.state.is_dirty(side);
        if !self.has(rest) || self.is_torn || is_only_copy {
            return Err(self.has_no(rest));
        }
        self.state = State::dirty(rest);
        Ok(())
    }

    /// [`through`](Self::through) may have lost the copy.
    fn bring(&mut self, side: Side) -> Result<()> {
        self.written()?;
        self.refresh(side)?;
        if self.has(side) { Ok(()) } else { Err(self.has_no(side)) }
    }

    pub(super) fn has(&self, side: Side) -> bool {
        match side {
            _ if self.is_shared => self.state != State::only(side.other()),
            Side::Host => self.host.get().is_some(),
            Side::Device => self.device.is_some(),
        }
    }

    fn written(&mut self) -> Result<()> {
        if self.state == State::Uninitialized {
            return Err(Error::Mirror { what: MirrorFault::NotAllocated, state: self.state.name() });
        }
        self.land()
    }

    pub(super) fn has_no(&self, side: Side) -> Error {
        let state = self.state;
        match side {
            Side::Host => Error::Mirror { what: MirrorFault::NoHostCopy, state: state.name() },
            Side::Device => Error::Mirror { what: MirrorFault::NoDeviceCopy, state: state.name() },
        }
    }
}
