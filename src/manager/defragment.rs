//! Defragmentation of a manager over a pool.

use super::MemoryManager;
use crate::Result;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::registry::Relocated;
use crate::registry::relocate::relocate;

impl<M: Memory> MemoryManager<Pool<M>> {
    /// Moves the buffers together within the pool so that its free bytes are contiguous, and frees the slabs that become empty.
    ///
    /// Moves only buffers without a lease and without queued operations. They keep their ids, elements and capacity, and a move does not count as a use.
    /// A concurrent request for a lease waits for at most one copy. Other blocks of the pool stay. As with
    /// [`Registry::defragment`](crate::registry::Registry::defragment), a second call copies nothing.
    ///
    /// # Errors
    ///
    /// The error of a failed copy: that buffer and the remaining ones stay where they were.
    /// [`Unsupported`](crate::Error::Unsupported) in a fork.
    pub fn defragment(&self) -> Result<Relocated> {
        relocate(&self.slots, &self.shared.memory)
    }
}
