use core::alloc::Layout;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;

use bitflags::bitflags;
use ringmem_layouts::kernel::DevicePointer;

use super::{Address, MemoryLocation, Ticket};
use crate::{Error, Result};

/// An address in device memory, not a host pointer.
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
    /// Returns an address, allocated or not.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the number, as a kernel's argument.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` further on; `None` on overflow.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }

    pub(crate) const fn pointer<T>(self) -> DevicePointer<T> {
        DevicePointer::new(self.0)
    }
}

impl fmt::Debug for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceAddress({:#018x})", self.0)
    }
}

bitflags! {
    /// Allocation properties; an unknown or unsupported bit is an error.
    ///
    /// ```
    /// use ringmem::backend::Options;
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Buffer, Device};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let memory = Device::new(&backend, 0).with(Options::ZEROED);
    /// assert_eq!(Buffer::<u32, _>::new(memory.clone(), 4)?.to_vec()?, [0; 4]);
    /// assert!(Buffer::<u32, _>::new(memory.with(Options::MUST_PIN), 4).is_err()); // for pinned memory only
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Options: u32 {
        /// Zeroed memory, as host-readable memory always is.
        const ZEROED = 1;
        /// Pinned: fast device reads, slow host reads, not ordered by a release store. Copies and fills use its host address.
        const WRITE_COMBINED = 2;
        /// Pinned: fails if pages cannot be locked, instead of returning pageable memory.
        const MUST_PIN = 4;
    }
}

impl Options {
    pub(crate) fn check(self, location: MemoryLocation) -> Result<()> {
        if !Self::all().contains(self) {
            return Err(Error::Unsupported { what: "an allocation option with an unknown bit" });
        }
        if location != MemoryLocation::Pinned && self.intersects(Self::WRITE_COMBINED | Self::MUST_PIN) {
            return Err(Error::Unsupported { what: "WRITE_COMBINED or MUST_PIN for memory that is not pinned" });
        }
        Ok(())
    }
}

/// A request for memory.
///
/// ```
/// use std::alloc::Layout;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Backend, MemoryLocation, Options, Request, Uses};
///
/// let backend = HostBackend::builder().build()?;
/// let layout = Layout::new::<[u64; 4]>();
/// let block = backend.allocate(&Request { location: MemoryLocation::Pinned, device: 0, layout, options: Options::empty() }, None)?;
/// assert_eq!(block.layout, layout);
/// // SAFETY: freed once, without uses.
/// unsafe { backend.free(&block, &Uses::NONE) }?;
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Kind of memory.
    pub location: MemoryLocation,
    /// Device that owns or is near the memory.
    pub device: u32,
    /// Size, at least one byte, and alignment.
    pub layout: Layout,
    /// Other properties.
    pub options: Options,
}

/// Allocated memory: plain numbers, freed only by [`Memory::free`](crate::memory::Memory::free).
///
/// ```
/// use std::alloc::Layout;
///
/// use ringmem::backend::Uses;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Memory};
///
/// let memory = Device::new(&HostBackend::builder().build()?, 0);
/// let block = memory.alloc(Layout::new::<u64>(), None)?;
/// assert!(block.device_address.is_some() && block.host.is_none());
/// // SAFETY: of this memory, freed once, without uses.
/// unsafe { memory.free(&block, &Uses::NONE) }?;
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Debug)]
pub struct Block {
    /// `None` if devices cannot access it.
    pub device_address: Option<DeviceAddress>,
    /// `None` if the host cannot access it.
    pub host: Option<NonNull<u8>>,
    /// Requested size and alignment.
    pub layout: Layout,
    /// Kind of memory.
    pub location: MemoryLocation,
    /// As [`Request::device`].
    pub device: u32,
    /// Its pages are locked.
    pub is_pinned: bool,
    /// Ticket after which it may be used; `None` if at once.
    pub ready: Option<Ticket>,
    /// A number for the memory that allocated it.
    pub tag: u64,
}

// SAFETY: dereferences nothing; its owner decides about accesses.
unsafe impl Send for Block {}
// SAFETY: dereferences nothing; its owner decides about accesses.
unsafe impl Sync for Block {}

impl Block {
    /// Returns an empty buffer's block, which must not be freed.
    #[must_use]
    pub const fn empty(location: MemoryLocation, align: usize) -> Self {
        let align = if align.is_power_of_two() { align } else { 1 };
        let layout = match Layout::from_size_align(0, align) {
            Ok(layout) => layout,
            Err(_) => Layout::new::<()>(),
        };
        Self { device_address: None, host: None, layout, location, device: 0, is_pinned: false, ready: None, tag: 0 }
    }

    /// Returns the place at a byte offset; `None` without memory.
    ///
    /// # Safety
    ///
    /// `offset` is within the block.
    #[must_use]
    pub unsafe fn address_at(&self, offset: u64) -> Option<Address> {
        match self.host {
            // SAFETY: the caller promises an offset within the block, whose host address has that many bytes.
            Some(host) => Some(Address::Host(unsafe { host.add(offset as usize) })),
            None => self.device_address.and_then(|address| address.offset(offset)).map(Address::Device),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match (self.host, self.device_address) {
            (Some(host), _) => host.as_ptr().addr() as u64,
            (None, address) => address.map_or(0, DeviceAddress::get),
        }
    }

    pub(crate) fn addresses(&self) -> Range<u64> {
        let start = self.address();
        start..start.saturating_add(self.layout.size() as u64)
    }
}
