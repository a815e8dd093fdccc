//! Memory from the operating system, page by page: zeroed, paid for when touched.

use core::ptr::NonNull;

use crate::{Error, Result};

/// An address that is shared between threads. Whoever uses it says why he may.
#[derive(Clone, Copy)]
pub(super) struct Place(pub NonNull<u8>);

// SAFETY: a number with provenance; reading or writing through it is unsafe and argued where it is done.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// Owns zeroed memory that nothing refers to but the holder; page aligned at least.
pub(super) struct Mapping {
    place: Place,
    /// INVARIANT: what it was mapped with; at least 1.
    len: usize,
}

impl Mapping {
    /// Memory that will be used: refused where the system has not that much.
    pub fn new(len: usize) -> Result<Self> {
        Self::map(len, true)
    }

    /// Room of which a part will be used, however strictly the system accounts for the rest.
    pub fn sparse(len: usize) -> Result<Self> {
        Self::map(len, false)
    }

    fn map(len: usize, reserve: bool) -> Result<Self> {
        if len == 0 {
            return Err(Error::Size { asked: 0, least: 1, most: isize::MAX as u64 });
        }
        match system::map(len, reserve) {
            Ok(place) => Ok(Self { place: Place(place), len }),
            Err(source) => Err(Error::Map { bytes: len as u64, source }),
        }
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Locks the pages into memory, all or none. Whether they are.
    pub fn lock(&self) -> bool {
        system::lock(self.place.0, self.len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `new`, and unmapped here only.
        unsafe { system::unmap(self.place.0, self.len) };
    }
}

#[cfg(unix)]
mod system {
    use core::ptr::{self, NonNull};
    use std::io;

    use rustix::io::Errno;
    use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munlock, munmap};

    pub fn map(len: usize, reserve: bool) -> io::Result<NonNull<u8>> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let flags = if reserve { MapFlags::PRIVATE } else { MapFlags::PRIVATE | MapFlags::NORESERVE };
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let (flags, _) = (MapFlags::PRIVATE, reserve);
        // SAFETY: no address is asked for, so nothing that exists is replaced.
        let place = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        NonNull::new(place.cast()).ok_or(io::Error::from(Errno::NOMEM))
    }

    pub fn lock(place: NonNull<u8>, len: usize) -> bool {
        // SAFETY: locking changes where pages are, not what they hold.
        let locked = unsafe { mlock(place.as_ptr().cast(), len) }.is_ok();
        if !locked {
            // A lock that failed may have locked a part.
            // SAFETY: as above. Its failure leaves pages locked until they are unmapped, and nothing depends on them.
            let _ = unsafe { munlock(place.as_ptr().cast(), len) };
        }
        locked
    }

    /// # Safety
    ///
    /// `place` and `len` are of one `map`, and nothing uses the memory any more.
    pub unsafe fn unmap(place: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise. It fails only for ranges that were never mapped.
        let result = unsafe { munmap(place.as_ptr().cast(), len) };
        debug_assert!(result.is_ok());
    }
}

#[cfg(not(unix))]
mod system {
    use core::alloc::Layout;
    use core::ptr::NonNull;
    use std::alloc::{alloc_zeroed, dealloc};
    use std::io;

    const PAGE: usize = 4096;

    pub fn map(len: usize, _: bool) -> io::Result<NonNull<u8>> {
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: `len` is not zero: `Mapping`'s invariant.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    pub fn lock(_: NonNull<u8>, _: usize) -> bool {
        false
    }

    /// # Safety
    ///
    /// `place` and `len` are of one `map`, and nothing uses the memory any more.
    pub unsafe fn unmap(place: NonNull<u8>, len: usize) {
        // SAFETY: `map` made this very layout.
        let layout = unsafe { Layout::from_size_align_unchecked(len, PAGE) };
        // SAFETY: the caller's promise.
        unsafe { dealloc(place.as_ptr(), layout) };
    }
}
