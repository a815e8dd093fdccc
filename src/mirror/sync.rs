//! What a caller says of the copies: that they are to be equal, that one was written, that one is to go.

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
    /// Brings the device's copy up to date.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) where nothing was ever written; as [`device`](Self::device).
    pub fn sync_to_device(&mut self) -> Result<()> {
        self.bring(Side::Device)
    }

    /// Brings the host's copy up to date.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) where nothing was ever written; as [`host`](Self::host).
    pub fn sync_to_host(&mut self) -> Result<()> {
        self.bring(Side::Host)
    }

    /// Makes both copies valid, whichever is stale or not there.
    ///
    /// # Errors
    ///
    /// As [`sync_to_device`](Self::sync_to_device).
    pub fn synchronize(&mut self) -> Result<()> {
        self.sync_to_device()?;
        self.sync_to_host()
    }

    /// Says that the host's copy was written, by whom nobody here has seen.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) where nothing was written or the host has no copy, or where the device has writes that the host has
    /// not seen.
    pub fn mark_host_dirty(&mut self) -> Result<()> {
        self.mark(Side::Host)
    }

    /// Says that the device's copy was written, for one: by a kernel that was given its address earlier.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) where nothing was written or the device has no copy, or where the host has writes that the device
    /// has not seen.
    pub fn mark_device_dirty(&mut self) -> Result<()> {
        self.mark(Side::Device)
    }

    /// Gives the host's writes up: the device's copy is the valid one.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) where nothing was written, or the device has none, or a transfer to it failed half way.
    pub fn discard_host(&mut self) -> Result<()> {
        self.discard(Side::Host)
    }

    /// Gives the device's writes up: the host's copy is the valid one.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) where nothing was written, or the host has none, or a transfer to it failed half way.
    pub fn discard_device(&mut self) -> Result<()> {
        self.discard(Side::Device)
    }

    /// Brings one copy up to date and frees the other after its uses.
    ///
    /// # Errors
    ///
    /// As [`sync_to_device`](Self::sync_to_device), and then nothing was freed; what the driver said of the free, and then it is gone all the same.
    pub fn compact(&mut self, keep: Side) -> Result<()> {
        self.bring(keep)?;
        (self.state, self.is_torn) = (State::only(keep), false);
        match keep {
            // The one buffer that serves both.
            _ if self.is_shared => Ok(()),
            Side::Host => self.device.take().map_or(Ok(()), Buffer::close),
            Side::Device => self.host.take().map_or(Ok(()), Buffer::close),
        }
    }

    /// Frees both copies after their uses: the mirror is as new. The second time there is nothing to do.
    ///
    /// # Errors
    ///
    /// What the driver said; both are gone all the same.
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
        if !self.has(rest) || self.is_torn {
            return Err(self.has_no(rest));
        }
        self.state = State::dirty(rest);
        Ok(())
    }

    /// Makes a side's copy valid, and sees that it is there: [`through`](Self::through) may have lost it.
    fn bring(&mut self, side: Side) -> Result<()> {
        self.written()?;
        self.refresh(side)?;
        if self.has(side) { Ok(()) } else { Err(self.has_no(side)) }
    }

    /// Whether a side has a copy, of whatever age.
    pub(super) fn has(&self, side: Side) -> bool {
        match side {
            _ if self.is_shared => self.state != State::only(side.other()),
            Side::Host => self.host.get().is_some(),
            Side::Device => self.device.is_some(),
        }
    }

    /// Refuses where there is nothing yet; else waits for what is queued between the two sides.
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
