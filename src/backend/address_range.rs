//! [`AddressRange`]: reserved addresses of a device, behind which memory is mapped in blocks.
//!
//! The allocator chooses the address of an allocated block, which therefore cannot grow: the addresses behind it belong to something else. In an address
//! range the caller chooses. A heap that reserves addresses for the whole device once grows at its end, and its free parts always join.
//!
//! | step | addresses | memory |
//! |---|---|---|
//! | [`reserve`](super::Backend::reserve) | reserved | none |
//! | [`map`](super::Backend::map) | occupied | allocated: a [`Block`](super::Block) |
//! | [`remap`](super::Backend::remap) | those of the block become vacant, others occupied | moves, with its bytes |
//! | [`free`](super::Backend::free) of the block | vacant once its uses are complete | freed then |
//! | drop of the last clone and the last block | given back; on CUDA at a later call, when no kernel runs | none |
//!
//! Blocks that lie next to each other are one range for copies, fills and kernels. Each is freed and moved as a whole, so its size decides how finely memory
//! can be returned. Offsets and sizes are multiples of the device's [granularity](super::Capabilities::mapping_granularity).
//!
//! # Occupied addresses
//!
//! A backend frees a block in steps: it leaves the list of live memory, then the system unmaps it. Between the two another thread must not map memory there,
//! since the unmapping would remove that. So a block's [`Place`] occupies its addresses from before the first step of `map` until after the last step of
//! `free`, and keeps the reservation alive.

use core::alloc::Layout;
use core::any::Any;
use core::fmt;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DeviceAddress, MemoryLocation, Options, Request};
use crate::{Error, Result};

/// Reserved addresses of a device; a clone is the same range.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Backend, Uses};
///
/// let backend = HostBackend::builder().build()?;
/// let Some(granularity) = backend.capabilities(0)?.mapping_granularity else { return Ok(()) };
/// let range = backend.reserve(0, 1 << 40)?; // addresses alone: the device has 256 MiB
/// let mut first = backend.map(&range, 0, granularity)?;
/// let second = backend.map(&range, granularity, granularity)?; // continues the first
/// assert_eq!(second.device_address, range.address().offset(granularity));
/// // SAFETY: nothing uses it.
/// unsafe { backend.remap(&mut first, 2 * granularity) }?;
/// for block in [first, second] {
///     // SAFETY: each is freed once, without uses.
///     unsafe { backend.free(&block, &Uses::NONE) }?;
/// }
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone)]
pub struct AddressRange {
    shared: Arc<Shared>,
}

struct Shared {
    backend: u64,
    device: u32,
    address: DeviceAddress,
    bytes: u64,
    granularity: u64,
    /// INVARIANT: the bytes of each occupied place by its offset, without overlap.
    occupied: Mutex<BTreeMap<u64, u64>>,
    held: Box<dyn Any + Send + Sync>,
}

/// Occupied addresses, vacant when dropped. A backend holds one per mapped block.
pub struct Place {
    range: AddressRange,
    offset: u64,
}

impl AddressRange {
    /// Returns a range of the backend with this number, which stays reserved until `held` is dropped. Address, `bytes` and `granularity` are from the system.
    #[must_use]
    pub fn new(backend: u64, device: u32, address: DeviceAddress, bytes: u64, granularity: u64, held: Box<dyn Any + Send + Sync>) -> Self {
        let occupied = Mutex::default();
        Self { shared: Arc::new(Shared { backend, device, address, bytes, granularity: granularity.max(1), occupied, held }) }
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        self.shared.address
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes
    }

    /// Returns the unit of offsets and sizes in bytes.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.shared.granularity
    }

    /// Returns the device whose memory is mapped.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.shared.device
    }

    /// Returns what [`new`](Self::new) got, for the backend with this number.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](Error::OtherBackend) for a range of another backend.
    pub fn held<T: 'static>(&self, backend: u64) -> Result<&T> {
        let Shared { backend: got, held, .. } = &*self.shared;
        let other = Error::OtherBackend { expected: backend, got: *got };
        if backend == *got { held.downcast_ref().ok_or(other) } else { Err(other) }
    }

    /// Occupies addresses, for the backend itself.
    ///
    /// # Errors
    ///
    /// [`Granularity`](Error::Granularity), also for no bytes; [`Range`](Error::Range) beyond the end; [`Busy`](Error::Busy) if some are occupied.
    pub fn occupy(&self, offset: u64, bytes: u64) -> Result<Place> {
        let Shared { bytes: size, granularity, .. } = *self.shared;
        if bytes == 0 || !offset.is_multiple_of(granularity) || !bytes.is_multiple_of(granularity) {
            return Err(Error::Granularity { offset, bytes, granularity });
        }
        let end = offset.checked_add(bytes).filter(|&end| end <= size);
        let end = end.ok_or(Error::Range { offset, len: bytes, size, element_bytes: 1 })?;
        let mut occupied = self.occupied();
        let before = occupied.range(..end).next_back();
        if before.is_some_and(|(&other, &len)| other + len > offset) {
            return Err(Error::Busy { what: "memory is mapped there, or its free is not complete" });
        }
        occupied.insert(offset, bytes);
        Ok(Place { range: self.clone(), offset })
    }

    /// Returns the request that a part of `bytes` is, for the backend's list of live memory.
    pub(super) fn request(&self, bytes: u64) -> Result<Request> {
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, self.granularity() as usize).ok());
        let layout = layout.ok_or(Error::Size { what: "size in bytes", asked: bytes, least: 1, most: isize::MAX as u64 })?;
        Ok(Request { location: MemoryLocation::Device, device: self.device(), layout, options: Options::empty() })
    }

    fn occupied(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.shared.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Returns the range.
    #[must_use]
    pub const fn range(&self) -> &AddressRange {
        &self.range
    }

    /// Returns the offset of the first address.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress::new(self.range.address().get() + self.offset)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.range.occupied().remove(&self.offset);
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { device, address, bytes, granularity, .. } = &*self.shared;
        let mut text = f.debug_struct("AddressRange");
        text.field("device", device)
            .field("address", address)
            .field("bytes", bytes)
            .field("granularity", granularity)
            .finish_non_exhaustive()
    }
}
