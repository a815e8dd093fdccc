use core::time::Duration;
use std::time::Instant;

use super::{MirroredBuffer, Side, State};
use crate::error::MirrorFault;
use crate::memory::{Buffer, DeviceReadable, HostReadable, Memory};
use crate::{DeviceBytes, Error, Result};

/// Transfers of a [`MirroredBuffer`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::MirroredBuffer;
///
/// let backend = HostBackend::builder().build()?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 100)?;
/// mirror.copy_from(&[7; 100])?;
/// mirror.device()?;
/// mirror.device()?; // valid: no copy
/// let to_device = mirror.statistics().to_device;
/// assert_eq!((to_device.count, to_device.bytes), (1, 400));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// From host to device.
    pub to_device: Transfers,
    /// From device to host.
    pub to_host: Transfers,
}

/// Successful transfers in one direction.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::MirroredBuffer;
///
/// let backend = HostBackend::builder().build()?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 1000)?;
/// mirror.fill(7)?;
/// mirror.sync_to_device()?;
/// let up = mirror.statistics().to_device;
/// assert_eq!((up.count, up.bytes), (1, 4000));
/// println!("{} GB/s", up.bytes as f64 / up.ns as f64);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Queued transfers are counted at the wait.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of blocking transfers in nanoseconds, without earlier work.
    pub ns: u64,
}

impl Statistics {
    pub(super) fn add(&mut self, to: Side, bytes: usize, took: Duration) {
        let transfers = match to {
            Side::Host => &mut self.to_host,
            Side::Device => &mut self.to_device,
        };
        transfers.count += 1;
        transfers.bytes += bytes as u64;
        transfers.ns = transfers.ns.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    #[inline]
    pub(super) fn refresh(&mut self, side: Side) -> Result<()> {
        if self.state.is_valid(side) && self.flights.are_none() { Ok(()) } else { self.refresh_stale(side) }
    }

    #[cold]
    fn refresh_stale(&mut self, side: Side) -> Result<()> {
        self.land()?;
        match (self.state, side) {
            (State::Uninitialized, Side::Host) => self.begin(&[Side::Host], State::HostOnly),
            (State::Uninitialized, Side::Device) => self.begin(&[Side::Host, Side::Device], State::Synchronized),
            (state, side) if state.is_valid(side) => Ok(()),
            (_, side) => self.transfer(side),
        }
    }

    pub(super) fn begin(&mut self, sides: &[Side], state: State) -> Result<()> {
        let sides = sides.iter().take(if self.is_shared { 1 } else { sides.len() });
        let begun = sides.clone().try_for_each(|&side| {
            self.allocate(side)?;
            match (side, &mut self.device) {
                (Side::Device, Some(device)) => device.zero(),
                _ => self.host.overwritten(self.state).map(|elements| elements.fill(T::zeroed())),
            }
        });
        match begun {
            Ok(()) => (self.state, self.is_torn) = (state, false),
            Err(_) => sides.for_each(|&side| self.give_up(side, true)),
        }
        begun
    }

    pub(super) fn transfer(&mut self, to: Side) -> Result<()> {
        let is_new = self.allocate(to)?;
        let copied = self.copy_over(to);
        match copied {
            Ok(()) => {
                self.state = State::Synchronized;
                self.is_torn = false;
            }
            Err(_) => self.give_up(to, is_new),
        }
        copied
    }

    fn copy_over(&mut self, to: Side) -> Result<()> {
        if self.is_shared {
            return self.host.get_mut().map_or(Ok(()), Buffer::settle);
        }
        let Some(host) = self.host.get_mut() else { return Err(Error::Mirror { what: MirrorFault::NoHostCopy, state: self.state.name() }) };
        let Some(device) = &mut self.device else {
            return Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: self.state.name() });
        };
        host.settle()?;
        device.settle()?;
        self.is_torn = true;
        let begun = Instant::now();
        match to {
            Side::Host => host.as_view_mut().copy_from_view(device.as_view())?,
            Side::Device => device.as_view_mut().copy_from_view(host.as_view())?,
        }
        let bytes = self.size_bytes();
        if bytes > 0 {
            self.statistics.add(to, bytes, begun.elapsed());
        }
        Ok(())
    }

    pub(super) fn allocate(&mut self, side: Side) -> Result<bool> {
        let is_new = self.allocate_if_none(side)?;
        // Not written yet, even after a panic.
        self.is_torn |= is_new && !self.state.is_valid(side);
        Ok(is_new)
    }

    fn allocate_if_none(&mut self, side: Side) -> Result<bool> {
        if side == Side::Host || self.is_shared {
            let is_new = self.host.get().is_none();
            if is_new {
                self.host.put(self.origin.around(|| Buffer::new(self.host_memory.clone(), self.len))?);
            }
            return Ok(is_new);
        }
        let is_new = self.device.is_none();
        if is_new {
            self.device = Some(self.origin.around(|| Buffer::new(self.device_memory.clone(), self.len))?);
        }
        Ok(is_new)
    }

    pub(super) fn give_up(&mut self, side: Side, is_new: bool) {
        match side {
            _ if !is_new => {}
            Side::Device if !self.is_shared => self.device = None,
            _ => drop(self.host.take()),
        }
    }
}
