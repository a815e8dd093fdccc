//! [`Block`], a piece of allocated memory, and the [`Request`] for one.

use core::alloc::Layout;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;

use bitflags::bitflags;

use super::{Place, Ticket};
use crate::{Error, Result};

/// A place in a device's memory. The host cannot follow it: it is a number, not a pointer, and not convertible to one.
///
/// ```compile_fail
/// fn read(address: ringmem::backend::DeviceAddress) -> u8 {
///     *address
/// }
/// ```
/// ```compile_fail
/// fn pointer(address: ringmem::backend::DeviceAddress) -> *const u8 {
///     address as *const u8
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// The place with this number. Whether anything is there is not checked, here or anywhere that does not say so.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The number, as kernels take it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on; `None` past the end of the numbers. Whether anything is there is not checked.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }
}

impl fmt::Debug for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceAddress({:#018x})", self.0)
    }
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryLocation {
    /// Pageable host memory, which a device does not see.
    Host,
    /// A device's own, which the host does not see.
    Device,
    /// Page-locked host memory that devices see.
    Pinned,
    /// Managed: one address on both sides, and pages that move.
    Unified,
}

bitflags! {
    /// Properties of an allocation other than its size and alignment. An unknown bit, or an option that the location does not support, is an error.
    ///
    /// Pinned memory is always portable and mapped: every device of the backend sees it, and kernels reach it at a device address.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Options: u32 {
        /// All bytes 0. Host-visible memory is so anyway.
        const ZEROED = 1;
        /// Pinned: quick for the device to read, slow for the host to read, and stores to it are not ordered by a release store.
        const WRITE_COMBINED = 2;
        /// Pinned: an error where the system locks no pages, instead of pageable memory that says so.
        const MUST_PIN = 4;
    }
}

impl Options {
    /// Returns an error for unknown bits, and for options that memory at this location does not support.
    pub(crate) fn check(self, location: MemoryLocation) -> Result<()> {
        if !Self::all().contains(self) {
            return Err(Error::Unsupported { what: "an allocation option with an unknown bit" });
        }
        if location != MemoryLocation::Pinned && self.intersects(Self::WRITE_COMBINED | Self::MUST_PIN) {
            return Err(Error::Unsupported { what: "an option for pinned memory on memory of another kind" });
        }
        Ok(())
    }
}

/// A request for memory.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The kind of memory.
    pub location: MemoryLocation,
    /// The device that owns the memory, or is near it.
    pub device: u32,
    /// The size, at least one byte, and the alignment.
    pub layout: Layout,
    /// Other properties.
    pub options: Options,
}

/// A piece of memory that is somebody's until it is freed. Only numbers: freeing is [`Memory::free`](crate::memory::Memory::free)'s.
#[derive(Debug)]
pub struct Block {
    /// Where kernels find it; `None` where no device sees it.
    pub device_address: Option<DeviceAddress>,
    /// Where the host finds it; `None` where it does not see it.
    pub host: Option<NonNull<u8>>,
    /// Bytes and alignment, as asked for.
    pub layout: Layout,
    /// Where it is.
    pub location: MemoryLocation,
    /// Whose, or near whom.
    pub device: u32,
    /// The pages are locked into memory.
    pub is_pinned: bool,
    /// From when on it may be used; `None` for now.
    pub ready: Option<Ticket>,
    /// A number of the memory's own, for its bookkeeping. Whoever passes a block on leaves it as it is.
    pub tag: u64,
}

// SAFETY: it owns nothing and dereferences nothing; who may use the memory is its owner's affair.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// No memory: what a buffer of no bytes has. It is not to be freed.
    #[must_use]
    pub const fn empty(location: MemoryLocation, align: usize) -> Self {
        let align = if align.is_power_of_two() { align } else { 1 };
        // A power of two and no bytes: always a layout.
        let layout = match Layout::from_size_align(0, align) {
            Ok(layout) => layout,
            Err(_) => Layout::new::<()>(),
        };
        Self { device_address: None, host: None, layout, location, device: 0, is_pinned: false, ready: None, tag: 0 }
    }

    /// The place `offset` bytes in, as a backend copies to and from it; `None` for a block of no memory.
    ///
    /// # Safety
    ///
    /// `offset` is within the block.
    #[must_use]
    pub unsafe fn place(&self, offset: u64) -> Option<Place> {
        match self.host {
            // SAFETY: the caller's promise.
            Some(host) => Some(Place::Host(unsafe { host.add(offset as usize) })),
            None => self.device_address.and_then(|address| address.offset(offset)).map(Place::Device),
        }
    }

    /// Returns the address that distinguishes it from every live block of its memory: the host's if the host sees it.
    pub(crate) fn address(&self) -> u64 {
        match (self.host, self.device_address) {
            (Some(host), _) => host.as_ptr().addr() as u64,
            (None, address) => address.map_or(0, DeviceAddress::get),
        }
    }

    /// Returns the range of its addresses.
    pub(crate) fn addresses(&self) -> Range<u64> {
        let start = self.address();
        start..start.saturating_add(self.layout.size() as u64)
    }
}
