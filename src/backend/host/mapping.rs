//! Memory from the operating system, in pages: zeroed, committed on first access.

use core::ptr::NonNull;

use crate::{Error, Result};

/// An address that is shared between threads. Each user argues why its access is safe.
#[derive(Clone, Copy)]
pub(super) struct Place(pub NonNull<u8>);

// SAFETY: a number with provenance; each access through it is unsafe and has its own argument.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// The minimum alignment of a mapping.
const PAGE: usize = 4096;

/// An owner of zeroed memory with no other references; at least page-aligned.
pub(super) struct Mapping {
    /// INVARIANT: `len` bytes from here on are in the mapping; `len` is at least 1.
    place: Place,
    len: usize,
    /// INVARIANT: the address and size that were mapped.
    base: (Place, usize),
}

impl Mapping {
    /// Maps memory that will be used. Fails if the system does not have that much.
    pub fn new(len: usize, align: usize) -> Result<Self> {
        Self::map(len, align, true)
    }

    /// Reserves addresses of which a part will be used, even if the system does not overcommit.
    pub fn sparse(len: usize) -> Result<Self> {
        Self::map(len, PAGE, false)
    }

    fn map(len: usize, align: usize, reserve: bool) -> Result<Self> {
        if len == 0 {
            return Err(Error::Size { what: "size in bytes", asked: 0, least: 1, most: isize::MAX as u64 });
        }
        // Adds the bytes needed for an alignment above a page.
        let mapped = len.saturating_add(align.saturating_sub(PAGE));
        let base = system::map(mapped, reserve).map_err(|source| Error::Map { bytes: len as u64, source })?;
        let padding = if align > PAGE { base.align_offset(align) } else { 0 };
        // SAFETY: the next aligned address is at most `align - PAGE` bytes after a page boundary, and that many bytes were mapped in
        // addition to `len`.
        let place = Place(unsafe { base.add(padding) });
        Ok(Self { place, len, base: (Place(base), mapped) })
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Page-locks all pages or none. Returns true if they are locked.
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
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let place = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        NonNull::new(place.cast()).ok_or(io::Error::from(Errno::NOMEM))
    }

    pub fn lock(place: NonNull<u8>, len: usize) -> bool {
        // SAFETY: locking does not change the contents of pages.
        let locked = unsafe { mlock(place.as_ptr().cast(), len) }.is_ok();
        if !locked {
            // A failed lock may have locked a part.
            // SAFETY: as above. If it fails, pages stay locked until they are unmapped, which is harmless.
            let _ = unsafe { munlock(place.as_ptr().cast(), len) };
        }
        locked
    }

    /// # Safety
    ///
    /// `place` and `len` come from one `map`, and nothing uses the memory any more.
    pub unsafe fn unmap(place: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise. Fails only for ranges that were never mapped.
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
        // SAFETY: `len` is not zero: the invariant of `Mapping`.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    pub fn lock(_: NonNull<u8>, _: usize) -> bool {
        false
    }

    /// # Safety
    ///
    /// `place` and `len` come from one `map`, and nothing uses the memory any more.
    pub unsafe fn unmap(place: NonNull<u8>, len: usize) {
        // SAFETY: `map` created the same layout.
        let layout = unsafe { Layout::from_size_align_unchecked(len, PAGE) };
        // SAFETY: the caller's promise.
        unsafe { dealloc(place.as_ptr(), layout) };
    }
}
