//! [`Pages`]: memory for what has offsets of its own, at a location that is chosen at run time.

use core::ptr::NonNull;
use std::sync::Arc;

use ringmem_layouts::SharedLayout;

use super::{Device, GpuBuffer, Pinned, PinnedBuffer, Unified, UnifiedBuffer};
use crate::backend::{Backend, DeviceAddress, MemoryLocation, Place, Ticket};
use crate::{Error, Result};

/// The element of a region: a ring's slots may ask for as much alignment.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(4096))]
pub(crate) struct Page {
    pub bytes: [u8; 4096],
}

/// Whole pages, in memory that a device reaches.
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
    /// Pages for so many bytes, at least one.
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

    /// Where the host finds it. Managed memory is not the host's while a kernel runs, so not here.
    pub fn host(&self) -> Option<NonNull<u8>> {
        match self {
            Self::Pinned(buffer) => buffer.as_ptr().map(NonNull::cast),
            Self::Device(_) | Self::Unified(_) => None,
        }
    }

    /// Where a backend finds the byte at `offset`, which is within.
    pub fn place(&self, offset: u64) -> Result<Place> {
        let size = each!(self, buffer => buffer.size_bytes()) as u64;
        let address = self.address()?;
        match address.offset(offset) {
            Some(address) if offset < size => Ok(Place::Device(address)),
            _ => Err(Error::Range { offset, len: 1, size }),
        }
    }

    /// Copies bytes in, from the first on, before anybody else knows of these pages.
    pub fn copy_from(&mut self, pages: &[Page]) -> Result<()> {
        each!(self, buffer => buffer.copy_from_at(0, pages))
    }

    /// A queued operation uses them, beside others.
    pub fn used(&mut self, ticket: Ticket) -> Result<()> {
        each!(self, buffer => buffer.used_too(ticket)).map_err(|_| Error::Busy { what: "by the maximum number of streams" })
    }
}
