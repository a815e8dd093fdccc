use std::vec::Vec;

/// The features of a device.
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
///
/// let backend = HostBackend::builder().devices(2).peer(0, 1).build()?;
/// let capabilities = backend.capabilities(0)?;
/// assert_eq!(capabilities.peers, [1]);
/// assert!(capabilities.system_scope && capabilities.unified);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The device has managed memory.
    pub unified: bool,
    /// The host may access managed memory while a kernel runs.
    pub concurrent_managed_access: bool,
    /// Host and kernel see each other's accesses of pinned memory at system scope.
    pub system_scope: bool,
    /// Host and kernel read-modify-writes of pinned memory are atomic.
    pub host_native_atomics: bool,
    /// Host and device share one memory.
    pub shared_memory: bool,
    /// Allocations are stream-ordered.
    pub stream_ordered: bool,
    /// Largest alignment, in bytes.
    pub largest_align: u64,
    /// Unit of [mapped](super::Backend::map) memory in bytes, a power of two; `None` if addresses cannot be reserved.
    pub mapping_granularity: Option<u64>,
    /// Other devices whose memory it can [access](super::Backend::set_peer).
    pub peers: Vec<u32>,
}

impl Capabilities {
    /// Returns true if a host slice of managed memory is undefined behaviour while a kernel runs. No type excludes one, so then only `unsafe` functions launch.
    pub(crate) const fn excludes_host_slices(&self) -> bool {
        self.unified && !self.concurrent_managed_access
    }
}

/// A device's memory, in bytes.
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
///
/// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
/// let memory = backend.memory_info(0)?.expect("known");
/// assert_eq!((memory.total, memory.used()), (1 << 20, 0));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Total size.
    pub total: u64,
    /// Bytes without an allocation or managed page; may be fragmented.
    pub free: u64,
}

impl MemoryInfo {
    /// Returns `total` minus `free`.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}
