use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

use super::numbers::Index;

/// A buffer's id in a [manager](super::MemoryManager): 16 bytes, never reused. Messages carry it as a
/// [`BufferReference`](crate::message::BufferReference).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferId, MemoryManager};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Device::new(&backend, 0);
/// let [manager, other] = [(); 2].map(|()| MemoryManager::new(memory.clone()));
/// let id: BufferId<f32> = manager.register(GpuBuffer::new(memory, 8)?)?;
/// assert!(manager.contains(id) && !other.contains(id));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct BufferId<T> {
    pub(super) table: u64,
    // INVARIANT: this index's buffer has elements `T`; in the table of mirrors, the mirror is a `T`.
    pub(super) index: Index,
    _elements: PhantomData<fn() -> T>,
}

impl<T> BufferId<T> {
    pub(super) const fn new(table: u64, index: Index) -> Self {
        Self { table, index, _elements: PhantomData }
    }

    /// Returns a number, unique among the buffers, or mirrors, of the manager.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.index.bits()
    }
}

impl<T> Clone for BufferId<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BufferId<T> {}

impl<T> PartialEq for BufferId<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.table, self.index) == (other.table, other.index)
    }
}

impl<T> Eq for BufferId<T> {}

impl<T> Hash for BufferId<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.table, self.index).hash(state);
    }
}

impl<T> fmt::Debug for BufferId<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferId({}.{} of {:#018x})", self.index.index, self.index.generation, self.table)
    }
}

const _: () = assert!(size_of::<BufferId<u8>>() == 16);

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
    pub(super) table: u64,
    pub(super) index: Index,
}

impl<T> From<BufferId<T>> for AnyBufferId {
    fn from(id: BufferId<T>) -> Self {
        Self { table: id.table, index: id.index }
    }
}
