use core::alloc::Layout;
use core::fmt;
use core::mem;
use std::boxed::Box;
use std::sync::Arc;

use super::{Budget, Memory};
use crate::Result;
use crate::backend::{AddressRange, Block, Uses};
use crate::stream::Stream;
use crate::sys::panic::both;

/// Refuses allocations beyond a limit. Clones share the limit.
///
/// 1. [`used`](Self::used) never exceeds the limit.
/// 2. A block counts until its bytes can be reused: its uses are complete, and the backend no longer
///    [defers](crate::backend::Backend::defers_free) its free.
/// 3. The requested size counts. An upstream [`Aligned`](super::Aligned) may take more.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Limited};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Limited::new(Device::new(&backend, 0), 1000);
/// let first = Buffer::<u8, _>::new(memory.clone(), 600)?;
/// assert!(matches!(Buffer::<u8, _>::new(memory.clone(), 600), Err(Error::Limit { requested: 600, used: 600, limit: 1000, .. })));
/// drop(first);
/// Buffer::<u8, _>::new(memory, 600)?;
/// # Ok(())
/// # }
/// ```
pub struct Limited<M> {
    shared: Arc<Shared<M>>,
}

struct Shared<M> {
    memory: M,
    /// Separate: a deferred release must not keep its backend alive.
    budget: Budget,
}

impl<M: Memory> Limited<M> {
    /// Limits a memory to `limit` bytes.
    #[must_use]
    pub fn new(memory: M, limit: u64) -> Self {
        Self { shared: Arc::new(Shared { memory, budget: Budget::new(limit) }) }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.budget.limit()
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.memory.backend().free_deferred();
        self.shared.budget.used()
    }

    /// Returns the high-water mark of the bytes in use.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.shared.budget.peak()
    }

    /// Returns the upstream memory.
    #[must_use]
    pub fn inner(&self) -> &M {
        &self.shared.memory
    }
}

impl<M: Memory> Shared<M> {
    fn take(&self, bytes: u64) -> Result<Taken<'_>> {
        let Self { memory, budget } = self;
        budget.take(bytes).or_else(|_| {
            memory.backend().free_deferred();
            budget.take(bytes)
        })?;
        Ok(Taken { budget, bytes })
    }
}

struct Taken<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

/// A block that moves. If that freed it, its bytes are given back, also after a panic.
struct Moving<'a> {
    budget: &'a Budget,
    bytes: u64,
    block: &'a mut Block,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if self.block.layout.size() == 0 {
            self.budget.give(self.bytes);
        }
    }
}

// SAFETY: the upstream memory's blocks, unchanged.
unsafe impl<M: Memory> Memory for Limited<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let taken = self.shared.take(layout.size() as u64)?;
        // In no closure, which would be the caller.
        let block = self.shared.memory.alloc(layout, on)?;
        mem::forget(taken);
        Ok(block)
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        let Shared { memory, budget } = &*self.shared;
        let (bytes, left) = (block.layout.size() as u64, Block { ready: None, ..*block });
        let mut outcome = Ok(());
        let give = |_| {
            let backend = memory.backend();
            if uses.is_empty() && !backend.is_deferred(&left) {
                budget.give(bytes);
            } else {
                backend.keep(Box::new(budget.taken(bytes)), uses, Some(&left));
            }
        };
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the upstream memory's,
        // unchanged.
        both(|| outcome = unsafe { memory.free(block, uses) }, give);
        outcome
    }

    of_upstream!(shared.memory);

    fn mapping_granularity(&self) -> Option<u64> {
        self.shared.memory.mapping_granularity()
    }

    fn mappable(&self) -> Option<u64> {
        let left = self.limit() - self.used();
        Some(self.shared.memory.mappable().map_or(left, |free| free.min(left)))
    }

    fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        let taken = self.shared.take(bytes)?;
        let block = self.shared.memory.map(range, offset, bytes)?;
        mem::forget(taken);
        Ok(block)
    }

    unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
        let moving = Moving { budget: &self.shared.budget, bytes: block.layout.size() as u64, block };
        // SAFETY: the caller promises that nothing uses the block, now or later at its old address, except uses that the upstream memory knows and waits for.
        // The block is the upstream memory's, unchanged.
        unsafe { self.shared.memory.remap(moving.block, offset) }
    }
}

impl<M> Clone for Limited<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: fmt::Debug> fmt::Debug for Limited<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { memory, budget } = &*self.shared;
        f.debug_struct("Limited").field("limit", &budget.limit()).field("used", &budget.used()).field("memory", memory).finish()
    }
}
