//! A manager's buffers in a pool, moved together.

use super::MemoryManager;
use super::entry::Entry;
use crate::Result;
use crate::backend::Block;
use crate::memory::{Buffer, Memory};
use crate::pool::Pool;
use crate::registry::Relocated;
use crate::registry::relocate::{Movable, relocate};

impl<M: Memory> MemoryManager<Pool<M>> {
    /// Moves the buffers together within the pool, so that its free bytes are in one piece, and frees the slabs that become empty.
    ///
    /// Buffers without a lease are moved that no queued operation uses; they keep their ids, elements and capacity, and it counts as no use of them.
    /// A request for a lease meanwhile waits for at most one copy. Other blocks of the pool stay where they are. As
    /// [`Registry::defragment`](crate::registry::Registry::defragment), a second call copies nothing.
    ///
    /// # Errors
    ///
    /// What a copy failed with: that buffer and those that were to follow are where they were.
    /// [`Unsupported`](crate::Error::Unsupported) in a fork.
    pub fn defragment(&self) -> Result<Relocated> {
        self.here()?;
        relocate(&self.shared.slots, &self.shared.memory)
    }
}

impl<M: Memory> Movable<M> for Entry<Pool<M>> {
    fn buffer(&self) -> &Buffer<u8, Pool<M>> {
        &self.held.buffer
    }

    unsafe fn put_in(&mut self, block: Block) -> Block {
        // SAFETY: the caller's promise.
        unsafe { self.held.put_in(block) }
    }
}
