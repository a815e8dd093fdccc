//! [`AnyBufferId`]: the id of a managed buffer of any element type.

use crate::registry::BufferId;
use crate::registry::slots::Index;

/// A [`BufferId`] without the element type, for operations on buffers of several types.
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
