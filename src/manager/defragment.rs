use super::MemoryManager;
use crate::Result;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::registry::Relocated;
use crate::registry::relocate::relocate;

impl<M: Memory> MemoryManager<Pool<M>> {
    /// As [`Registry::defragment`](crate::registry::Registry::defragment), for this manager's buffers within its pool. A move is not a use.
    pub fn defragment(&self) -> Result<Relocated> {
        relocate(&self.slots, &self.shared.memory)
    }
}
