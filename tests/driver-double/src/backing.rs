//! The host's memory of virtual memory: [`Range`], addresses without memory, and [`Pages`], memory without an address.
//!
//! 1. A range takes no memory. Pages are placed in it at any multiple of [`GRANULARITY`]; adjacent ones are contiguous.
//! 2. Pages keep their bytes while they are in no range, and hold [`POISON`] at first.
//! 3. Removed pages cannot be reached through the range: it is inaccessible there, or poisoned if an access may still be under way.
//!
//! All pages are in one file without a name. Its offsets are never reused: freed pages become holes. With a file for each handle, a
//! program would reach its limit of open files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::block::POISON;
use crate::code::{Answer, Code};
use crate::log::give_up;
use crate::virtual_memory::GRANULARITY;

const ACCESSIBLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The file of all pages, made with the first ones, and where the next ones begin.
pub struct Store {
    file: Mutex<Option<(Arc<File>, u64)>>,
}

impl Store {
    pub const fn new() -> Self {
        Self { file: Mutex::new(None) }
    }

    /// Returns poisoned pages. `len` is a multiple of [`GRANULARITY`].
    pub fn pages(&self, len: u64) -> Answer<Pages> {
        let mut place = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            let file = memfd_create(c"ringmem driver double", MemfdFlags::CLOEXEC).map_err(|_| Code::OUT_OF_MEMORY)?;
            *place = Some((Arc::new(File::from(file)), 0));
        }
        let (file, next) = place.as_mut().ok_or(Code::UNKNOWN)?;
        let pages = Pages { file: Arc::clone(file), offset: *next, len };
        *next += len;
        poison(&pages.file, pages.offset, len).map(|()| pages)
    }
}

/// Extends the file, if it ends before.
fn poison(file: &File, offset: u64, len: u64) -> Answer {
    const PART: u64 = 64 << 10;
    let mut parts = (offset..offset + len).step_by(PART as usize);
    parts.try_for_each(|part| file.write_all_at(&[POISON; PART as usize], part)).map_err(|_| Code::OUT_OF_MEMORY)
}

/// Returns a file of [`GRANULARITY`] bytes of [`POISON`], which private mappings share until they are written.
fn poison_file() -> Option<&'static File> {
    static POISONED: OnceLock<Option<File>> = OnceLock::new();
    let made = || {
        let file = File::from(memfd_create(c"ringmem driver double, poison", MemfdFlags::CLOEXEC).ok()?);
        poison(&file, 0, GRANULARITY).is_ok().then_some(file)
    };
    POISONED.get_or_init(made).as_ref()
}

/// Maps private pages that hold [`POISON`] until they are written, and that a forked child does not have.
pub fn poisoned(len: usize) -> Option<NonNull<u8>> {
    let file = poison_file()?;
    // SAFETY: no address is requested, so no mapping is replaced.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) }.ok()?;
    let base = NonNull::new(base.cast::<u8>())?;
    for offset in (0..len).step_by(GRANULARITY as usize) {
        let part = (len - offset).min(GRANULARITY as usize);
        // SAFETY: `offset` is below `len`.
        let place = unsafe { base.add(offset) };
        // SAFETY: replaces a part of the mapping above, which nothing else uses yet.
        let mapped =
            unsafe { mmap(place.as_ptr().cast(), part, ACCESSIBLE, MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED, file, 0) };
        if mapped.is_err() {
            // SAFETY: mapped above, and not given out.
            unsafe { unmap(base, len) };
            return None;
        }
    }
    // SAFETY: mapped above; the advice changes nothing in this process.
    let advised = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) };
    debug_assert!(advised.is_ok());
    Some(base)
}

/// # Safety
///
/// Of [`poisoned`] with this length, once; nothing accesses the pages any more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller promises pages of `poisoned`, which nothing accesses.
    let result = unsafe { munmap(base.as_ptr().cast(), len) };
    debug_assert!(result.is_ok());
}

pub struct Pages {
    file: Arc<File>,
    offset: u64,
    len: u64,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // If this fails, the pages stay until the process ends: their offsets are not used again.
        let _ = fallocate(&*self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, self.offset, self.len);
    }
}

/// INVARIANT: `len` bytes at `base` are mapped by `reserve` until the drop, so a mapping that replaces a part of them replaces no other memory.
pub struct Range {
    base: NonNull<u8>,
    len: usize,
    /// A kernel's host build may hold a pointer for as long as it runs.
    stays: AtomicBool,
}

// SAFETY: a range of addresses; every access has its own proof.
unsafe impl Send for Range {}
// SAFETY: a range of addresses; every access has its own proof.
unsafe impl Sync for Range {}

impl Range {
    pub fn reserve(len: u64) -> Answer<Self> {
        let len = usize::try_from(len).map_err(|_| Code::OUT_OF_MEMORY)?;
        // SAFETY: no address is requested, so no mapping is replaced.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) };
        let base = base.ok().and_then(|base| NonNull::new(base.cast())).ok_or(Code::OUT_OF_MEMORY)?;
        Ok(Self { base, len, stays: AtomicBool::new(false) })
    }

    pub fn place(&self, offset: u64) -> NonNull<u8> {
        assert!(offset <= self.len as u64);
        // SAFETY: within the range or its end, as checked.
        unsafe { self.base.add(offset as usize) }
    }

    /// Makes the pages accessible at an offset.
    pub fn insert(&self, offset: u64, pages: &Pages) -> Answer {
        self.replace(offset, pages.len, ACCESSIBLE, MapFlags::SHARED, Some((&pages.file, pages.offset))).map_err(|_| Code::OUT_OF_MEMORY)
    }

    /// Removes pages. If `is_used`, operations or kernels that still access the range find and change [`POISON`] of their own, and the range is never
    /// unmapped from the host.
    pub fn remove(&self, offset: u64, pages: &Pages, is_used: bool) {
        let removed = if is_used {
            self.stays.store(true, Relaxed);
            let Some(poison) = poison_file() else { give_up("the host has no memory for poison") };
            let mut parts = (offset..offset + pages.len).step_by(GRANULARITY as usize);
            parts.try_for_each(|part| {
                self.replace(part, GRANULARITY, ACCESSIBLE, MapFlags::PRIVATE | MapFlags::NORESERVE, Some((poison, 0)))
            })
        } else {
            self.replace(offset, pages.len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE, None)
        };
        if let Err(error) = removed {
            give_up(&format!("the host cannot unmap {} bytes: {error}", pages.len));
        }
    }

    fn replace(&self, offset: u64, len: u64, access: ProtFlags, flags: MapFlags, of: Option<(&File, u64)>) -> rustix::io::Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len as u64));
        let (place, len, flags) = (self.place(offset).as_ptr().cast(), len as usize, flags | MapFlags::FIXED);
        match of {
            // SAFETY: within the range, as checked, so by the invariant this replaces no other memory.
            Some((file, from)) => unsafe { mmap(place, len, access, flags, file, from) },
            // SAFETY: within the range, as checked, so by the invariant this replaces no other memory.
            None => unsafe { mmap_anonymous(place, len, access, flags) },
        }
        .map(drop)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if !self.stays.load(Relaxed) {
            // SAFETY: mapped with this length by `reserve`, and unmapped only here. Blocks of the range hold it, and a kernel that has used one
            // makes it stay.
            let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
            debug_assert!(result.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how the host maps an address: `rw-s` is shared with the file of the pages, `rw-p` is private, `---p` is inaccessible.
    fn access(place: NonNull<u8>) -> String {
        let all = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = all.lines().find(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            (usize::from_str_radix(start, 16).unwrap()..usize::from_str_radix(end, 16).unwrap()).contains(&place.addr().get())
        });
        line.map_or(String::new(), |line| line.split(' ').nth(1).unwrap().to_owned())
    }

    #[test]
    fn pages_move_with_their_bytes_and_leave_nothing_behind() {
        let (store, range) = (Store::new(), Range::reserve(4 * GRANULARITY).ok().unwrap());
        let (one, two) = (store.pages(GRANULARITY).ok().unwrap(), store.pages(2 * GRANULARITY).ok().unwrap());
        let (place, last) = (range.place(0), range.place(3 * GRANULARITY));
        assert_eq!([access(place), access(last)], ["---p"; 2]);
        assert!(range.insert(0, &one).is_ok() && range.insert(GRANULARITY, &two).is_ok());
        assert_eq!([access(place), access(range.place(2 * GRANULARITY)), access(last)], ["rw-s", "rw-s", "---p"]);
        // SAFETY: both pages, which are adjacent, and which only this test accesses.
        unsafe {
            let all = std::slice::from_raw_parts(place.as_ptr(), 3 * GRANULARITY as usize);
            assert!(all.iter().all(|&byte| byte == POISON));
            place.add(GRANULARITY as usize - 8).write_bytes(7, 16);
        }
        range.remove(0, &one, false);
        range.remove(GRANULARITY, &two, true);
        assert_eq!([access(place), access(range.place(GRANULARITY)), access(range.place(2 * GRANULARITY))], ["---p", "rw-p", "rw-p"]);
        // SAFETY: accessible, since it was removed in use; only this test accesses it.
        unsafe {
            let stale = range.place(GRANULARITY);
            assert!(std::slice::from_raw_parts(stale.as_ptr(), 2 * GRANULARITY as usize).iter().all(|&byte| byte == POISON));
            stale.write_bytes(9, 2 * GRANULARITY as usize);
        }
        let other = Range::reserve(3 * GRANULARITY).ok().unwrap();
        assert!(other.insert(0, &two).is_ok() && other.insert(2 * GRANULARITY, &one).is_ok());
        // SAFETY: accessible pages, which only this test accesses.
        let byte = |offset| unsafe { other.place(offset).read() };
        assert_eq!([0, 7, 8, 3 * GRANULARITY - 9, 3 * GRANULARITY - 8].map(byte), [7, 7, POISON, POISON, 7]);
        let again = store.pages(GRANULARITY).ok().unwrap();
        assert!(range.insert(0, &again).is_ok());
        // SAFETY: an accessible page, which only this test accesses.
        assert_eq!(unsafe { place.read() }, POISON);
        let (stays, goes) = (range.place(GRANULARITY), other.place(0));
        drop((range, other));
        assert_eq!(access(stays), "rw-p", "pages were removed from it in use");
        assert_ne!(access(goes), "rw-s");
    }
}
