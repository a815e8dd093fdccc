use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

use super::slots::Index;

/// A buffer's id in a registry or [manager](crate::manager): 16 bytes, never reused. Messages carry it as a
/// [`BufferReference`](crate::message::BufferReference).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::registry::{BufferId, Registry};
///
/// let backend = HostBackend::builder().build()?;
/// let registry = Registry::new();
/// let id: BufferId<f32> = registry.register(GpuBuffer::new(Device::new(&backend, 0), 8)?)?;
/// assert!(registry.contains(id) && !Registry::<Device>::new().contains(id));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct BufferId<T> {
    registry: u64,
    // INVARIANT: this index's buffer has elements `T`; in the table of mirrors, the mirror is a `T`.
    index: Index,
    _elements: PhantomData<fn() -> T>,
}

impl<T> BufferId<T> {
    pub(crate) const fn new(registry: u64, index: Index) -> Self {
        Self { registry, index, _elements: PhantomData }
    }

    pub(crate) const fn registry(self) -> u64 {
        self.registry
    }

    pub(crate) const fn index(self) -> Index {
        self.index
    }

    /// Returns a number, unique among the buffers, or mirrors, of the registry.
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
        (self.registry, self.index) == (other.registry, other.index)
    }
}

impl<T> Eq for BufferId<T> {}

impl<T> Hash for BufferId<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.registry, self.index).hash(state);
    }
}

impl<T> fmt::Debug for BufferId<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferId({}.{} of {:#018x})", self.index.index, self.index.generation, self.registry)
    }
}

const _: () = assert!(size_of::<BufferId<u8>>() == 16);
