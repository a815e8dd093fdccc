//! Virtual memory: a [`Reservation`] of addresses, [`Physical`] memory, and the [mapping](Mapped) of one to the other.
//!
//! 1. Physical memory is taken from its device when it is created, and given back when it has no owner left: neither its handle nor a mapping.
//! 2. A mapping is a [`Block`] of [`Kind::Mapped`]: one whole physical memory, in one reservation. It is whole in all calls.
//! 3. No device may access a mapping until it is given access.
//! 4. Unmapping while queued work uses the mapping is a violation. A kernel uses the mappings into which its arguments point, and those that it
//!    has accessed, until it ends. The work that remains finds [`POISON`](crate::POISON) there.
//!
//! A second mapping of mapped physical memory is refused: its bytes would be in two blocks, and neither block would know of the other's uses.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backing::{Pages, Range, Store};
use crate::block::{Block, Kind, MOST};
use crate::code::{Answer, Code};
use crate::device::Device;
use crate::driver::Driver;
use crate::entry;
use crate::handle_table::Table;

/// Of addresses, sizes and alignments.
pub const GRANULARITY: u64 = 2 << 20;

const READ: u32 = 1;
const READ_WRITE: u32 = 3;

#[derive(Clone, Copy)]
pub enum Use {
    Read,
    Write,
}

/// INVARIANT: the mappings of all blocks, the owners of physical memory and the access to mappings change under the lock of `reservations`.
pub struct VirtualMemory {
    pub handles: Table<Physical>,
    reservations: Mutex<Reservations>,
    store: Store,
    bytes: AtomicU64,
}

/// By address.
type Reservations = BTreeMap<u64, Arc<Reservation>>;

pub struct Physical {
    device: u32,
    len: u64,
    pages: Pages,
    /// 2 with a handle and a mapping, 1 with one of them; then the memory is given back.
    owners: AtomicU32,
}

struct Reservation {
    address: u64,
    len: u64,
    made: u64,
    host: Range,
}

/// What makes a block a mapping. It keeps the host's range, since queued work keeps the block.
pub struct Mapped {
    physical: Arc<Physical>,
    reservation: Arc<Reservation>,
    /// The devices that may read and write, a bit each.
    readers: AtomicU64,
    writers: AtomicU64,
}

impl VirtualMemory {
    pub const fn new() -> Self {
        let handles = Table::new(0xA7, "physical memory");
        Self { handles, reservations: Mutex::new(BTreeMap::new()), store: Store::new(), bytes: AtomicU64::new(0) }
    }

    /// Returns the bytes of all physical memory.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the address, the length and the call of each reservation.
    pub fn reserved(&self) -> Vec<(u64, u64, u64)> {
        self.reservations().values().map(|reservation| (reservation.address, reservation.len, reservation.made)).collect()
    }

    pub fn reserve(&self, driver: &Driver, len: u64, alignment: u64) -> Answer<u64> {
        let mut reservations = self.reservations();
        let host = Range::reserve(len)?;
        let address = driver.space.reserve(len, alignment.max(GRANULARITY))?;
        reservations.insert(address, Arc::new(Reservation { address, len, made: entry::current().0, host }));
        Ok(address)
    }

    pub fn free(&self, driver: &Driver, address: u64, len: u64) -> Answer {
        let mut reservations = self.reservations();
        let is_whole = reservations.get(&address).is_some_and(|reservation| reservation.len == len);
        if !is_whole || driver.space.has_memory_in(address, len) {
            return Err(Code::INVALID_VALUE);
        }
        reservations.remove(&address);
        Ok(())
    }

    pub fn create(&self, device: &Device, len: u64) -> Answer<usize> {
        let _changes = self.reservations();
        if len > MOST {
            return Err(Code::OUT_OF_MEMORY);
        }
        device.take(len)?;
        let pages = self.store.pages(len).inspect_err(|_| device.give_back(len))?;
        self.bytes.fetch_add(len, Relaxed);
        Ok(self.handles.insert(Physical { device: device.ordinal, len, pages, owners: AtomicU32::new(1) }))
    }

    pub fn release(&self, driver: &Driver, handle: usize) -> Answer {
        let _changes = self.reservations();
        let physical = self.handles.remove(handle).map_err(|_| Code::INVALID_VALUE)?;
        self.disown(driver, &physical);
        Ok(())
    }

    pub fn map(&self, driver: &Driver, address: u64, len: u64, handle: usize) -> Answer {
        let reservations = self.reservations();
        let physical = self.handles.find(handle).map_err(|_| Code::INVALID_VALUE)?;
        let (_, reservation) = reservations.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        let offset = address - reservation.address;
        let is_within = offset.checked_add(len).is_some_and(|end| end <= reservation.len);
        if !is_within || len != physical.len || driver.space.has_memory_in(address, len) {
            return Err(Code::INVALID_VALUE);
        }
        if physical.owners.load(Relaxed) > 1 {
            driver.violations.of_call(&format!("maps physical memory {handle:#x} a second time at once, which the double does not model"));
            return Err(Code::NOT_SUPPORTED);
        }
        reservation.host.insert(offset, &physical.pages)?;
        physical.owners.fetch_add(1, Relaxed);
        let mut block = Block::borrowed(Kind::Mapped, physical.device, reservation.host.place(offset), len);
        let (readers, writers) = (AtomicU64::new(0), AtomicU64::new(0));
        block.mapped = Some(Mapped { physical, reservation: Arc::clone(reservation), readers, writers });
        driver.space.map(address, block);
        Ok(())
    }

    /// Does not wait for the work that uses the mappings, as a driver does not.
    pub fn unmap(&self, driver: &Driver, address: u64, len: u64) -> Answer {
        let _changes = self.reservations();
        for (at, block) in driver.space.mappings(address, len)? {
            let Some(mapped) = &block.mapped else { continue };
            if block.is_in_flight() {
                driver.violations.of_call(&format!("unmaps {at:#x} while queued work uses it"));
            }
            driver.space.remove(at);
            // Nothing can resolve the address from now on. What has resolved it holds the block, or has noted its use before it dropped the block:
            // so the count is read first. If there is no use, the block ends here, and its memory may become inaccessible.
            let is_held = Arc::strong_count(&block) > 1;
            fence(Acquire);
            let is_used = is_held || block.is_in_flight();
            mapped.reservation.host.remove(at - mapped.reservation.address, &mapped.physical.pages, is_used);
            self.disown(driver, &mapped.physical);
        }
        Ok(())
    }

    /// Sets the access of each device to the flags beside it.
    pub fn set_access(&self, driver: &Driver, address: u64, len: u64, list: &[(u32, u32)]) -> Answer {
        let _changes = self.reservations();
        let mappings = driver.space.mappings(address, len)?;
        for (_, block) in &mappings {
            let reaches = |device| device == block.device || driver.settings.peers.can_reach(device, block.device);
            if list.iter().any(|&(device, flags)| flags != 0 && !reaches(device)) {
                return Err(Code::INVALID_DEVICE);
            }
        }
        for mapped in mappings.iter().filter_map(|(_, block)| block.mapped.as_ref()) {
            list.iter().for_each(|&(device, flags)| mapped.set(device, flags));
        }
        Ok(())
    }

    fn disown(&self, driver: &Driver, physical: &Physical) {
        if physical.owners.fetch_sub(1, Relaxed) == 1 {
            driver.devices[physical.device as usize].give_back(physical.len);
            self.bytes.fetch_sub(physical.len, Relaxed);
        }
    }

    fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mapped {
    pub fn lets(&self, device: u32, access: Use) -> bool {
        let devices = match access {
            Use::Read => &self.readers,
            Use::Write => &self.writers,
        };
        devices.load(Relaxed) >> device & 1 == 1
    }

    /// Returns the flags of a device's access.
    pub fn access(&self, device: u32) -> u32 {
        match (self.lets(device, Use::Read), self.lets(device, Use::Write)) {
            (_, true) => READ_WRITE,
            (true, false) => READ,
            (false, false) => 0,
        }
    }

    /// Returns the address and the length of the reservation.
    pub fn reserved(&self) -> (u64, u64) {
        (self.reservation.address, self.reservation.len)
    }

    fn set(&self, device: u32, flags: u32) {
        for (devices, may) in [(&self.readers, flags != 0), (&self.writers, flags == READ_WRITE)] {
            if may {
                devices.fetch_or(1 << device, Relaxed);
            } else {
                devices.fetch_and(!(1 << device), Relaxed);
            }
        }
    }
}
