use core::time::Duration;

use ringmem_layouts::kernel::DevicePointer;

use super::{Access, MirroredBuffer, Side, State};
use crate::backend::{DeviceAddress, Ticket};
use crate::error::MirrorFault;
use crate::memory::{Buffer, DeviceReadable, HostReadable, Memory};
use crate::stream::Stream;
use crate::{DeviceBytes, Error, Result};

struct Flight {
    ticket: Ticket,
    /// Reports a failure here even to a second waiter.
    stream: Stream,
    before: State,
    /// The target was allocated for it.
    is_new: bool,
}

#[derive(Default)]
pub(super) struct Flights {
    to_host: Option<Flight>,
    to_device: Option<Flight>,
}

impl Flights {
    #[inline]
    pub const fn are_none(&self) -> bool {
        self.to_host.is_none() && self.to_device.is_none()
    }

    const fn of(&mut self, to: Side) -> &mut Option<Flight> {
        match to {
            Side::Host => &mut self.to_host,
            Side::Device => &mut self.to_device,
        }
    }
}

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// Queues an update of the device's copy.
    ///
    /// The state changes at once. The next call that waits for a failed transfer restores it and returns the error, even to a second waiter.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror) if nothing was written; [`OtherBackend`](Error::OtherBackend); the memory's or backend's error. Nothing
    /// changes.
    pub fn sync_to_device_on(&mut self, stream: &Stream) -> Result<()> {
        self.queue(Side::Device, stream)
    }

    /// As [`sync_to_device_on`](Self::sync_to_device_on), for the host's copy.
    pub fn sync_to_host_on(&mut self, stream: &Stream) -> Result<()> {
        self.queue(Side::Host, stream)
    }

    /// Returns the device pointer for a launch on `stream`; `None` without bytes. Queues the update of a stale copy, and the order after
    /// other streams' work; zeroes an unwritten copy.
    ///
    /// [List](Self::used_by) the launch; if it writes, the host's copy becomes stale, even if it fails.
    ///
    /// # Errors
    ///
    /// As [`sync_to_device_on`](Self::sync_to_device_on) or [`device`](Self::device).
    pub fn device_on(&mut self, access: Access, stream: &Stream) -> Result<Option<DevicePointer<T>>> {
        let id = stream.on(&**self.device_memory.backend())?;
        let state = self.state;
        let mut is_new = state == State::Uninitialized;
        match access {
            Access::Write => is_new = self.allocate(Side::Device)?,
            Access::Update if state == State::Uninitialized => self.begin(&[Side::Device], State::DeviceOnly)?,
            Access::Read if state == State::Uninitialized => self.refresh(Side::Device)?,
            Access::Read | Access::Update => self.queue(Side::Device, stream)?,
        }
        let view = self.device_view()?;
        let backend = view.memory.backend();
        let ordered = view.uses.uses().iter().filter(|ticket| ticket.stream != id).try_for_each(|ticket| backend.stream_wait(ticket, id));
        let pointer = view.block.device_address().map(DeviceAddress::pointer);
        if let Err(error) = ordered {
            self.state = state;
            self.give_up(Side::Device, is_new);
            self.give_up(Side::Host, state == State::Uninitialized);
            return Err(error);
        }
        // A copy zeroed here is the only one, and stays valid.
        if access == Access::Write || (access == Access::Update && state != State::Uninitialized) {
            self.device_written();
        }
        Ok(pointer)
    }

    /// Lists the work queued on a stream as a use of the device's copy.
    ///
    /// # Errors
    ///
    /// [`Mirror`](Error::Mirror), [`OtherBackend`](Error::OtherBackend), or the driver's error; nothing is listed.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        match (&mut self.device, self.host.get_mut()) {
            (Some(device), _) => device.used_by(stream),
            (None, Some(host)) if self.is_shared => host.used_by(stream),
            _ => Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() }),
        }
    }

    /// Waits until no queued work uses either copy.
    ///
    /// # Errors
    ///
    /// The first error of this work; the state before a failed transfer is restored.
    pub fn settle(&mut self) -> Result<()> {
        let landed = self.land();
        let host = self.host.get_mut().map_or(Ok(()), Buffer::settle);
        let device = self.device.as_mut().map_or(Ok(()), Buffer::settle);
        landed.and(host).and(device)
    }

    /// Returns whether no queued work uses either copy.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let backend = self.device_memory.backend();
        let host = self.host.get().into_iter().flat_map(|host| host.uses().iter());
        host.chain(self.device.iter().flat_map(|device| device.uses().iter())).all(|ticket| backend.is_complete(ticket))
    }

    fn queue(&mut self, to: Side, stream: &Stream) -> Result<()> {
        stream.on(&**self.device_memory.backend())?;
        if self.state == State::Uninitialized {
            return Err(Error::Mirror { what: MirrorFault::NotAllocated, state: self.state.name() });
        }
        if self.state.is_valid(to) {
            return Ok(());
        }
        if self.flights.of(to).is_some() {
            self.land()?;
        }
        let before = self.state;
        if !self.has(to.other()) {
            return Err(self.has_no(to.other()));
        }
        let is_new = self.allocate(to)?;
        let queued = if self.is_shared { Ok(None) } else { self.queue_copy(to, stream) };
        match queued {
            Ok(ticket) => {
                *self.flights.of(to) = ticket.map(|ticket| Flight { ticket, stream: stream.clone(), before, is_new });
                (self.state, self.is_torn) = (State::Synchronized, false);
                Ok(())
            }
            Err(error) => {
                self.give_up(to, is_new);
                Err(error)
            }
        }
    }

    fn queue_copy(&mut self, to: Side, stream: &Stream) -> Result<Option<Ticket>> {
        let Some(host) = self.host.get_mut() else { return Err(Error::Mirror { what: MirrorFault::NoHostCopy, state: self.state.name() }) };
        let Some(device) = &mut self.device else {
            return Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() });
        };
        let (on_host, on_device) = (host.as_view(), device.as_view());
        // SAFETY: borrowed mutably, separate memory, and both list the copy at once.
        let ticket = unsafe {
            match to {
                Side::Host => stream.queue_copy(on_device, on_host, [None; 2]),
                Side::Device => stream.queue_copy(on_host, on_device, [None; 2]),
            }
        }?;
        if let Some(ticket) = ticket {
            host.used(ticket);
            device.used(ticket);
        }
        Ok(ticket)
    }

    /// Waits for queued transfers; undoes a failed one, unless later writes built on it.
    #[inline]
    pub(super) fn land(&mut self) -> Result<()> {
        if self.flights.are_none() { Ok(()) } else { self.land_queued() }
    }

    #[cold]
    fn land_queued(&mut self) -> Result<()> {
        // Both stay listed until both outcomes are known.
        let (up, down) = (self.outcome(Side::Device)?, self.outcome(Side::Host));
        let has_down = self.flights.to_host.is_some();
        let (up, down) = (self.landed(Side::Device, up), down.map(|down| self.landed(Side::Host, down)));
        match (&up, &down) {
            (Some((flight, Err(_))), _) if !has_down && self.state == State::Synchronized => self.take_back(Side::Device, flight),
            // The host's data derives from data that the device never received.
            (Some((_, Err(_))), _) if has_down => (self.state, self.is_torn) = (State::DeviceDirty, true),
            (_, Ok(Some((flight, Err(_))))) => self.take_back(Side::Host, flight),
            _ => {}
        }
        let outcome = |landed: Option<(Flight, Result<()>)>| landed.map_or(Ok(()), |(_, outcome)| outcome);
        outcome(up).and(down.and_then(outcome))
    }

    /// The outer error: the wait failed; the transfer may be in flight.
    fn outcome(&mut self, to: Side) -> Result<Option<Result<()>>> {
        let Some(Flight { ticket, stream, .. }) = self.flights.of(to) else { return Ok(None) };
        let backend = stream.backend();
        let outcome = backend.outcome(*ticket, None).map(drop);
        if outcome.is_err() && !backend.is_complete(*ticket) {
            return outcome.map(|()| None);
        }
        Ok(Some(outcome))
    }

    fn landed(&mut self, to: Side, outcome: Option<Result<()>>) -> Option<(Flight, Result<()>)> {
        let (outcome, flight) = (outcome?, self.flights.of(to).take()?);
        if let Some(host) = self.host.get_mut() {
            host.settled(flight.ticket);
        }
        if let Some(device) = &mut self.device {
            device.settled(flight.ticket);
        }
        if outcome.is_ok() {
            self.statistics.add(to, self.size_bytes(), Duration::ZERO);
        }
        Some((flight, outcome))
    }

    fn take_back(&mut self, to: Side, flight: &Flight) {
        self.is_torn = true;
        if self.state == State::Synchronized {
            self.state = flight.before;
            self.give_up(to, flight.is_new);
        }
    }
}
