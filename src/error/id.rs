use ringmem_layouts::message::ReferenceError;

/// Why an id is invalid, or unavailable.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::error::IdError;
/// use ringmem::manager::MemoryManager;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Device::new(&backend, 0);
/// let manager = MemoryManager::new(memory.clone());
/// let id = manager.register(GpuBuffer::<u8>::new(memory, 8)?)?;
/// manager.free(id)?;
/// assert!(matches!(manager.lease(id), Err(Error::Id(IdError::Stale { .. }))));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Nothing ever had this id.
    #[error("no buffer ever had number {index}: the manager has {slots} numbers")]
    Unknown {
        /// Number in the id.
        index: u32,
        /// Number of slots, from 0.
        slots: u32,
    },
    /// The id's buffer was freed.
    #[error("stale id: number {index} has generation {expected}, the id has {got}; its buffer was freed")]
    Stale {
        /// Number in the id.
        index: u32,
        /// Slot's generation, or its next entry's.
        expected: u32,
        /// Generation in the id.
        got: u32,
    },
    /// The id's buffer was freed: only existing leases keep its memory.
    #[error("buffer {index} was freed; {leases} leases keep its memory")]
    Released {
        /// Number in the id.
        index: u32,
        /// Number of leases.
        leases: u32,
    },
    /// An id of another manager.
    #[error("id of manager {got:#018x} used on manager {expected:#018x}")]
    Foreign {
        /// Number of the manager.
        expected: u64,
        /// Number in the id.
        got: u64,
    },
    /// A buffer with another element type.
    #[error("type mismatch: the buffer has elements `{expected}`, requested `{got}`")]
    Elements {
        /// The buffer's element type.
        expected: &'static str,
        /// Requested element type.
        got: &'static str,
    },
    /// A mirror of another type.
    #[error("type mismatch: the mirror is a `{expected}`, requested `{got}`")]
    Mirror {
        /// Registered mirror's type.
        expected: &'static str,
        /// Requested type.
        got: &'static str,
    },
    /// All slots are in use.
    #[error("manager full: all {slots} ids are in use")]
    Full {
        /// Number of slots.
        slots: u32,
    },
    /// A message without elements of the requested type.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}
