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
