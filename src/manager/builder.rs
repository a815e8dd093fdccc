//! What a manager will be.

use core::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::MemoryManager;
use crate::Result;
use crate::config::batch_size_hint;
use crate::memory::Memory;

/// A manager to be, with every default.
#[must_use]
pub struct Builder<M: Memory> {
    pub(super) memory: M,
    pub(super) limit: u64,
    pub(super) clock: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl<M: Memory> Builder<M> {
    pub(super) fn new(memory: M) -> Self {
        let born = Instant::now();
        Self { memory, limit: 6 << 30, clock: Arc::new(move || u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// The most bytes of all buffers and reservations together; 6 GiB unless set.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Four fifths of the device's memory, where its backend knows how much that is.
    ///
    /// # Errors
    ///
    /// What the backend says of the device.
    pub fn limit_of_device(self) -> Result<Self> {
        let info = self.memory.backend().memory_info(self.memory.device())?;
        Ok(match info {
            Some(info) => self.limit(batch_size_hint(u64::MAX, info.total)),
            None => self,
        })
    }

    /// Nanoseconds of a clock that never goes back, for ages; it stands still after 292 years. It is called without a lock held, at the end of what is not a mere lookup.
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

impl<M: Memory + Clone> Builder<M> {
    /// The manager. It asks its memory for nothing yet.
    pub fn build(self) -> MemoryManager<M> {
        MemoryManager::of(self)
    }
}

impl<M: Memory + fmt::Debug> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("memory", &self.memory).field("limit", &self.limit).finish_non_exhaustive()
    }
}
