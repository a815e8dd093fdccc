//! [`Reserved`]: addresses of the process, whose parts get memory, lose it, and pass it on.
//!
//! Linux alone can move pages within a reservation, since 5.7; elsewhere every call fails.

use core::ptr::NonNull;

use super::arena::ALIGN;
use super::mapping::Mapping;
use crate::{Error, Result};

/// Addresses that are inaccessible, except the parts that have memory.
///
/// Every address stays mapped, with or without access: an unmapped one could become part of another mapping of the process, which a later call would then
/// change. A call that replaces a mapping and fails may leave it unmapped. So after such a failure the caller forgets the [`Place`](crate::backend::Place): it
/// is never occupied again, and keeps the whole reservation for good.
pub(super) struct Reserved(Mapping);

impl Reserved {
    pub fn new(len: usize) -> Result<Self> {
        Mapping::by(len, ALIGN as usize, system::reserve).map(Self)
    }

    /// # Safety
    ///
    /// `offset` is within the addresses.
    pub unsafe fn place(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: the caller promises an offset within the mapping.
        unsafe { self.0.place().0.add(offset) }
    }

    /// # Safety
    ///
    /// The part is within the addresses, exclusive to the caller, and a multiple of the page size.
    pub unsafe fn commit(&self, offset: usize, len: usize) -> Result<()> {
        // SAFETY: the caller promises a part of the addresses, which are mapped.
        unsafe { system::commit(self.place(offset), len) }.map_err(|source| Error::Map { bytes: len as u64, source })
    }

    /// Takes the memory of a part, and the access to it. False if the system refuses: the caller forgets the place.
    ///
    /// # Safety
    ///
    /// As [`commit`](Self::commit), and unused.
    #[must_use]
    pub unsafe fn decommit(&self, offset: usize, len: usize) -> bool {
        // SAFETY: the caller promises a part of the addresses, which are mapped, and that nothing uses its bytes.
        unsafe { system::decommit(self.place(offset), len) }.is_ok()
    }

    /// Moves the memory of a part to another. The first stays accessible, without memory; after an error, the caller forgets the second.
    ///
    /// # Safety
    ///
    /// As [`decommit`](Self::decommit), for both parts, which do not overlap.
    pub unsafe fn shift(&self, from: u64, to: u64, len: u64) -> Result<()> {
        // SAFETY: the caller promises parts of the addresses, which are mapped, and that nothing uses their bytes.
        let moved = unsafe { system::shift(self.place(from as usize), self.place(to as usize), len as usize) };
        moved.map_err(|source| Error::Map { bytes: len, source })
    }
}

/// Returns the size of a page in bytes, if parts of reserved addresses can get and lose memory.
pub(super) fn page_size() -> Option<u64> {
    system::page_size()
}

#[cfg(target_os = "linux")]
mod system {
    use core::ptr::{self, NonNull};
    use std::io;

    use rustix::io::Errno;
    use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap_fixed};

    pub fn page_size() -> Option<u64> {
        // Not rustix's, which reads the auxiliary vector in a way that ends a program under valgrind.
        // SAFETY: takes an integer.
        u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
    }

    pub fn reserve(len: usize) -> io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is requested, so no mapping is replaced.
        let place = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        NonNull::new(place.cast()).ok_or(io::Error::from(Errno::NOMEM))
    }

    /// # Safety
    ///
    /// A part of one `reserve`.
    pub unsafe fn commit(place: NonNull<u8>, len: usize) -> io::Result<()> {
        // SAFETY: the caller promises a part of one `reserve`, to which no reference exists.
        unsafe { mprotect(place.as_ptr().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(())
    }

    /// A new mapping: an advice to drop the pages would leave the offset of a moved mapping, and the next part here would be several mappings, which Linux
    /// before 6.17 does not move at once.
    ///
    /// # Safety
    ///
    /// A part of one `reserve`, whose bytes nothing uses.
    pub unsafe fn decommit(place: NonNull<u8>, len: usize) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller promises a part of one `reserve`, whose bytes nothing uses: its mapping may be replaced.
        unsafe { mmap_anonymous(place.as_ptr().cast(), len, ProtFlags::empty(), flags) }?;
        Ok(())
    }

    /// # Safety
    ///
    /// Two parts of one `reserve`, without overlap, whose bytes nothing uses.
    pub unsafe fn shift(from: NonNull<u8>, to: NonNull<u8>, len: usize) -> io::Result<()> {
        // By number: rustix has no name for it over libc, which the sanitizers need.
        let flags = MremapFlags::MAYMOVE | MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);
        // SAFETY: the caller promises two parts of one `reserve`: the target replaces a mapping of the caller's. With `DONTUNMAP`, the source stays mapped,
        // without memory.
        unsafe { mremap_fixed(from.as_ptr().cast(), len, len, flags, to.as_ptr().cast()) }?;
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use core::ptr::NonNull;
    use std::io;

    pub fn page_size() -> Option<u64> {
        None
    }

    pub fn reserve(_: usize) -> io::Result<NonNull<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub unsafe fn commit(_: NonNull<u8>, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub unsafe fn decommit(_: NonNull<u8>, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub unsafe fn shift(_: NonNull<u8>, _: NonNull<u8>, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
