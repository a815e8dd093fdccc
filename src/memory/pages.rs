use core::ptr::NonNull;
use std::sync::Arc;

use ringmem_layouts::SharedLayout;

use super::{Device, GpuBuffer, Pinned, PinnedBuffer, Unified, UnifiedBuffer};
use crate::backend::{Address, Backend, DeviceAddress, MemoryLocation, Ticket};
use crate::{Error, Result};

/// Has the largest alignment of ring slots.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(4096))]
pub(crate) struct Page {
    pub bytes: [u8; 4096],
}

pub(crate) enum Pages {
    Device(GpuBuffer<Page>),
    Pinned(PinnedBuffer<Page>),
    Unified(UnifiedBuffer<Page>),
}

macro_rules! each {
    ($pages:expr, $buffer:ident => $do:expr) => {
        match $pages {
            Pages::Device($buffer) => $do,
            Pages::Pinned($buffer) => $do,
            Pages::Unified($buffer) => $do,
        }
    };
}

impl Pages {
    /// At least one page.
    pub fn new(backend: &Arc<dyn Backend>, device: u32, location: MemoryLocation, bytes: u64) -> Result<Self> {
        let count = usize::try_from(bytes.div_ceil(size_of::<Page>() as u64).max(1)).unwrap_or(usize::MAX);
        Ok(match location {
            MemoryLocation::Device => Self::Device(GpuBuffer::new(Device::new(backend, device), count)?),
            MemoryLocation::Pinned => Self::Pinned(PinnedBuffer::new(Pinned::new(backend, device), count)?),
            MemoryLocation::Unified => Self::Unified(UnifiedBuffer::new(Unified::new(backend, device), count)?),
            MemoryLocation::Host => return Err(Error::Unsupported { what: "pageable memory for device access" }),
        })
    }

    pub fn address(&self) -> Result<DeviceAddress> {
        each!(self, buffer => buffer.device_address()).ok_or(Error::Unsupported { what: "memory without a device address" })
    }

    /// `None` for managed memory, which a running kernel may deny the host.
    pub fn host(&self) -> Option<NonNull<u8>> {
        match self {
            Self::Pinned(buffer) => buffer.as_ptr().map(NonNull::cast),
            Self::Device(_) | Self::Unified(_) => None,
        }
    }

    pub fn address_at(&self, offset: u64) -> Result<Address> {
        let size = each!(self, buffer => buffer.size_bytes()) as u64;
        let address = self.address()?;
        match address.offset(offset) {
            Some(address) if offset < size => Ok(Address::Device(address)),
            _ => Err(Error::Range { offset, len: 1, size, element_bytes: 1 }),
        }
    }

    /// The pages must not be shared yet.
    pub fn copy_from(&mut self, pages: &[Page]) -> Result<()> {
        each!(self, buffer => buffer.copy_from_at(0, pages))
    }

    pub fn used(&mut self, ticket: Ticket) -> Result<()> {
        each!(self, buffer => buffer.used_too(ticket)).map_err(|_| Error::Busy { what: "the maximum number of streams uses the buffer" })
    }
}
