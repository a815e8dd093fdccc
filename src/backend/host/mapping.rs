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

/// What a mapping is aligned to at least.
const PAGE: usize = 4096;

/// Owns zeroed memory that nothing refers to but the holder; page aligned at least.
pub(super) struct Mapping {
    /// INVARIANT: `len` bytes from here on are in the mapping; at least 1.
    place: Place,
    len: usize,
    /// INVARIANT: what was mapped, and how much.
    base: (Place, usize),
}

impl Mapping {
    /// Memory that will be used: refused where the system has not that much.
    pub fn new(len: usize, align: usize) -> Result<Self> {
        Self::map(len, align, true)
    }

    /// Room of which a part will be used, however strictly the system accounts for the rest.
    pub fn sparse(len: usize) -> Result<Self> {
        Self::map(len, PAGE, false)
    }

    fn map(len: usize, align: usize, reserve: bool) -> Result<Self> {
        if len == 0 {
            return Err(Error::Size { what: "size in bytes", asked: 0, least: 1, most: isize::MAX as u64 });
        }
        // What a page's alignment may lack of a larger one.
        let mapped = len.saturating_add(align.saturating_sub(PAGE));
        let base = system::map(mapped, reserve).map_err(|source| Error::Map { bytes: len as u64, source })?;
        let padding = if align > PAGE { base.align_offset(align) } else { 0 };
        // SAFETY: from a page's boundary the next that is aligned is at most `align - PAGE` bytes away, which were mapped on top of `len`.
        let place = Place(unsafe { base.add(padding) });
        Ok(Self { place, len, base: (Place(base), mapped) })
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
        let (Place(base), mapped) = self.base;
        // SAFETY: mapped with this length in `map`, and unmapped here only.
        unsafe { system::unmap(base, mapped) };
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

    use super::PAGE;

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
