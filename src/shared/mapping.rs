//! [`Mapping`]: a file that is mapped into this process and others.

use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringmem_layouts::attach::AttachError;
use ringmem_layouts::region::RegionEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Error, HostWord, Result, RingHeader};

/// Owns a shared mapping. Its bytes are accessed atomically only.
pub(super) struct Mapping {
    place: NonNull<u8>,
    /// INVARIANT: the mapped length; at least 1.
    len: usize,
}

// SAFETY: an address with provenance; accesses through it are unsafe and argued where they are made.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes, at least one.
    pub fn new(fd: BorrowedFd<'_>, len: u64) -> Result<Self> {
        let refused = |source| Error::Map { bytes: len, source };
        let size = usize::try_from(len).map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let place = unsafe { mmap(ptr::null_mut(), size, access, MapFlags::SHARED, fd, 0) }.map_err(|errno| refused(errno.into()))?;
        let place = NonNull::new(place.cast()).ok_or_else(|| refused(io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { place, len: size })
    }

    pub fn place(&self) -> NonNull<u8> {
        self.place
    }

    pub fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `new`, and unmapped only here. It fails only for ranges that were never mapped.
        let result = unsafe { munmap(self.place.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

/// The place of the ring in a mapping.
#[derive(Clone)]
pub(super) struct Place {
    mapping: Arc<Mapping>,
    // INVARIANT: `len` bytes from `at` lie within the mapping, enough for a header and aligned for one.
    at: usize,
    len: u64,
}

impl Place {
    /// Returns the ring of an entry, if its header is within the mapping and aligned.
    pub fn new(mapping: Arc<Mapping>, entry: &RegionEntry<u64>) -> Result<Self, AttachError> {
        let inside = entry.offset.checked_add(entry.size).is_some_and(|end| end <= mapping.len());
        if !inside || !entry.offset.is_multiple_of(align_of::<RingHeader<HostWord>>() as u64) {
            return Err(AttachError::Offset { got: entry.offset });
        }
        let needed = size_of::<RingHeader<HostWord>>() as u64;
        if entry.size < needed {
            return Err(AttachError::TooSmall { needed, got: entry.size });
        }
        // The mapping's length fits `usize`.
        Ok(Self { mapping, at: entry.offset as usize, len: entry.size })
    }

    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: within the mapping, by the invariant.
        unsafe { self.mapping.place().add(self.at) }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: the invariant; pages are aligned to more than a header needs. A header consists of words, valid for any bytes, and is accessed
        // through their own operations.
        unsafe { self.base().cast().as_ref() }
    }
}
