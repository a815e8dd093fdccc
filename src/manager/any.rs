//! [`AnyBuffer`]: a managed buffer whatever its elements are.

use crate::registry::BufferId;
use crate::registry::slots::Index;

/// A [`BufferId`] that says nothing of the elements: for what is done with buffers of several types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnyBuffer {
    pub(super) manager: u64,
    pub(super) index: Index,
}

impl<T> From<BufferId<T>> for AnyBuffer {
    fn from(id: BufferId<T>) -> Self {
        Self { manager: id.registry(), index: id.index() }
    }
}
