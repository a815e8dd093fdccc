//! [`MemoryLocation`], which errors and settings name too.

/// A kind of memory.
///
/// ```
/// use ringmem::backend::MemoryLocation;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Pinned};
///
/// let backend = HostBackend::builder().build()?;
/// assert_eq!(Buffer::<u8, _>::new(Device::new(&backend, 0), 4)?.location(), MemoryLocation::Device);
/// assert_eq!(Buffer::<u8, _>::new(Pinned::new(&backend, 0), 4)?.location(), MemoryLocation::Pinned);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryLocation {
    /// Pageable host memory, inaccessible to devices.
    Host,
    /// Device memory, inaccessible to the host.
    Device,
    /// Page-locked host memory, accessible to every device of the backend.
    Pinned,
    /// Managed memory: one address everywhere, and pages that migrate.
    Unified,
}

impl MemoryLocation {
    /// Returns the location in two bits, for the words in which blocks are kept.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self as u64
    }

    /// Returns the location of the two low bits; the others are ignored.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Host,
            1 => Self::Device,
            2 => Self::Pinned,
            _ => Self::Unified,
        }
    }
}
