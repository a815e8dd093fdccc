use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringmem_layouts::attach::AttachError;
use ringmem_layouts::region::RegionEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Error, HostWord, Result, RingHeader};

/// A shared mapping, accessed atomically only.
pub(crate) struct Mapping {
    place: NonNull<u8>,
    /// INVARIANT: the mapped length, at least 1.
    len: usize,
}

// SAFETY: an address, without accesses of its own.
unsafe impl Send for Mapping {}
// SAFETY: an address, without accesses of its own.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(fd: BorrowedFd<'_>, len: u64) -> Result<Self> {
        Self::with(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// For relaxed loads: Rust guarantees no other atomics on read-only memory.
    pub fn read_only(fd: BorrowedFd<'_>, len: u64) -> Result<Self> {
        Self::with(fd, len, ProtFlags::READ)
    }

    fn with(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> Result<Self> {
        let refused = |source| Error::Map { bytes: len, source };
        let size = usize::try_from(len).map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: no requested address: no existing mapping is replaced.
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
        // SAFETY: mapped with this length in `new`, unmapped only here.
        let result = unsafe { munmap(self.place.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

#[derive(Clone)]
pub(super) struct RingMemory {
    mapping: Arc<Mapping>,
    // INVARIANT: `len` bytes from `at` are in the mapping, enough and aligned for a header.
    at: usize,
    len: u64,
}

impl RingMemory {
    pub fn new(mapping: Arc<Mapping>, entry: &RegionEntry<u64>) -> Result<Self, AttachError> {
        let inside = entry.offset.checked_add(entry.size).is_some_and(|end| end <= mapping.len());
        if !inside || !entry.offset.is_multiple_of(align_of::<RingHeader<HostWord>>() as u64) {
            return Err(AttachError::Offset { got: entry.offset });
        }
        let needed = size_of::<RingHeader<HostWord>>() as u64;
        if entry.size < needed {
            return Err(AttachError::TooSmall { needed, got: entry.size });
        }
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
        // SAFETY: by the invariant the mapping has enough bytes from `at` on, aligned for a header, which consists of atomic words, valid
        // for any bytes.
        unsafe { self.base().cast().as_ref() }
    }
}
