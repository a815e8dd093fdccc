//! [`BufferId`]: the name of a registered buffer.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

use super::slots::Index;

/// Which buffer of which registry or [manager](crate::manager), for as long as that lives: 16 bytes. Only they make one.
///
/// In a message it is a [`BufferReference`](crate::message::BufferReference).
pub struct BufferId<T> {
    registry: u64,
    // INVARIANT: a buffer of `T` was registered or created there under this index.
    index: Index,
    _elements: PhantomData<fn() -> T>,
}

impl<T> BufferId<T> {
    /// For a buffer of `T` that a registry or a manager has under this index.
    pub(crate) const fn new(registry: u64, index: Index) -> Self {
        Self { registry, index, _elements: PhantomData }
    }

    pub(crate) const fn registry(self) -> u64 {
        self.registry
    }

    pub(crate) const fn index(self) -> Index {
        self.index
    }

    /// As one number that no other buffer of its registry has had: its generation in the high half.
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
