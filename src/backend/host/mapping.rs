//! Memory from the operating system, in pages: zeroed, committed on first access.

use core::ptr::NonNull;
use std::io;

use crate::{Error, Result};

#[derive(Clone, Copy)]
pub(super) struct HostPointer(pub NonNull<u8>);

// SAFETY: only a number; each access has its own argument.
unsafe impl Send for HostPointer {}
// SAFETY: only a number; each access has its own argument.
unsafe impl Sync for HostPointer {}

const PAGE: usize = 4096;

pub(super) struct Mapping {
    /// INVARIANT: `len` mapped bytes begin here, at least 1.
    place: HostPointer,
    len: usize,
    /// INVARIANT: the mapped address and size.
    base: (HostPointer, usize),
}

impl Mapping {
    pub fn new(len: usize, align: usize) -> Result<Self> {
        Self::by(len, align, |len| system::map(len, true))
    }

    pub fn sparse(len: usize) -> Result<Self> {
        Self::by(len, PAGE, |len| system::map(len, false))
    }

    pub fn by(len: usize, align: usize, map: impl FnOnce(usize) -> io::Result<NonNull<u8>>) -> Result<Self> {
        if len == 0 {
            return Err(Error::Size { what: "size in bytes", asked: 0, least: 1, most: isize::MAX as u64 });
        }
        let mapped = len.saturating_add(align.saturating_sub(PAGE));
        let base = map(mapped).map_err(|source| Error::Map { bytes: len as u64, source })?;
        let padding = if align > PAGE { base.align_offset(align) } else { 0 };
        // SAFETY: at most `align - PAGE` bytes further, mapped in addition to `len`.
        let place = HostPointer(unsafe { base.add(padding) });
        Ok(Self { place, len, base: (HostPointer(base), mapped) })
    }

    pub fn place(&self) -> HostPointer {
        self.place
    }

    pub fn lock(&self) -> bool {
        system::lock(self.place.0, self.len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (HostPointer(base), mapped) = self.base;
        // SAFETY: mapped with this length, and unmapped only here.
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
        // SAFETY: no address is requested, so no mapping is replaced.
        let place = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        NonNull::new(place.cast()).ok_or(io::Error::from(Errno::NOMEM))
    }

    pub fn lock(place: NonNull<u8>, len: usize) -> bool {
        // SAFETY: locking does not change contents.
        let locked = unsafe { mlock(place.as_ptr().cast(), len) }.is_ok();
        if !locked {
            // SAFETY: unlocking does not change contents. The lock may be partial. If this fails, pages stay locked until unmapped.
            let _ = unsafe { munlock(place.as_ptr().cast(), len) };
        }
        locked
    }

    /// # Safety
    ///
    /// From one `map`, and no longer used.
    pub unsafe fn unmap(place: NonNull<u8>, len: usize) {
        // SAFETY: the caller promises the range of one `map`, which nothing uses any more.
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
    /// From one `map`, and no longer used.
    pub unsafe fn unmap(place: NonNull<u8>, len: usize) {
        // SAFETY: `map` created the same layout.
        let layout = unsafe { Layout::from_size_align_unchecked(len, PAGE) };
        // SAFETY: the caller promises the range of one `map`, which nothing uses any more; `map` allocated it with this layout.
        unsafe { dealloc(place.as_ptr(), layout) };
    }
}
