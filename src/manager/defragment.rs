//! Defragmentation of a manager over a pool.

use super::MemoryManager;
use crate::Result;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::registry::Relocated;
use crate::registry::relocate::relocate;

impl<M: Memory> MemoryManager<Pool<M>> {
    /// Moves the buffers together within the pool, as [`Registry::defragment`](crate::registry::Registry::defragment) does. A move is not a use.
    ///
    /// # Errors
    ///
    /// The error of a failed copy: that buffer and the remaining ones stay. [`Unsupported`](crate::Error::Unsupported) in a fork.
    pub fn defragment(&self) -> Result<Relocated> {
        relocate(&self.slots, &self.shared.memory)
    }
}
