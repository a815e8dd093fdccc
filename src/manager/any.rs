use crate::registry::BufferId;
use crate::registry::slots::Index;

/// A [`BufferId`] without the element type, for operations on buffers of several types.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let positions = manager.create::<[f32; 3]>("positions", 100, BufferConfig::positions())?;
/// let edges = manager.create::<[u64; 4]>("edges", 100, BufferConfig::edges())?;
/// manager.resize_group([(positions.into(), 200), (edges.into(), 300)])?; // both or neither
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnyBufferId {
    pub(super) manager: u64,
    pub(super) index: Index,
}

impl<T> From<BufferId<T>> for AnyBufferId {
    fn from(id: BufferId<T>) -> Self {
        Self { manager: id.registry(), index: id.index() }
    }
}
