use core::alloc::Layout;
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Memory;
use crate::Result;
use crate::backend::{Block, Uses};
use crate::stream::Stream;

/// Counts allocations and frees in nested scopes. Clones share the counts.
///
/// 1. Figures are exact with any number of threads.
/// 2. A block counts until its free, even if the upstream memory waits for its uses.
/// 3. A scope belongs to the memory, not to a thread.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Host, Statistics};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Statistics::new(Host::new(&backend, 0));
/// let kept = Buffer::<u8, _>::new(memory.clone(), 100)?;
/// memory.push();
/// drop(Buffer::<u8, _>::new(memory.clone(), 900)?);
/// let phase = memory.pop().unwrap_or_default();
/// assert_eq!((phase.bytes.live, phase.bytes.peak), (0, 900)); // since the push
/// assert_eq!((memory.scope().bytes.live, memory.scope().bytes.peak), (100, 1000));
/// # drop(kept);
/// # Ok(())
/// # }
/// ```
pub struct Statistics<M> {
    shared: Arc<Shared<M>>,
}

struct Shared<M> {
    memory: M,
    scopes: Mutex<Scopes>,
}

#[derive(Default)]
struct Scopes {
    innermost: Scope,
    /// Outermost first.
    around: Vec<Scope>,
}

/// Figures since the start of a scope.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Statistics};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Statistics::new(Device::new(&backend, 0));
/// memory.push();
/// drop(Buffer::<u8, _>::new(memory.clone(), 100)?);
/// let phase = memory.pop().expect("pushed above");
/// assert_eq!((phase.bytes.live, phase.bytes.peak, phase.blocks.total), (0, 100, 1));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Requested bytes.
    pub bytes: Figures,
    /// Blocks.
    pub blocks: Figures,
    /// Failed allocations.
    pub refused: u64,
}

/// A quantity over time.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Statistics};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Statistics::new(Device::new(&backend, 0));
/// let kept = Buffer::<u8, _>::new(memory.clone(), 100)?;
/// drop(Buffer::<u8, _>::new(memory.clone(), 900)?);
/// let bytes = memory.overall().bytes;
/// assert_eq!((bytes.live, bytes.peak, bytes.total), (100, 1000, 1000));
/// # drop(kept);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Change since the scope's start; may be negative.
    pub live: i64,
    /// The high-water mark of `live`.
    pub peak: i64,
    /// Sum of all allocations.
    pub total: u64,
}

impl<M: Memory> Statistics<M> {
    /// Wraps a memory, in one scope.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self { shared: Arc::new(Shared { memory, scopes: Mutex::default() }) }
    }

    /// Begins a scope within the innermost.
    pub fn push(&self) {
        let mut scopes = self.scopes();
        let around = core::mem::take(&mut scopes.innermost);
        scopes.around.push(around);
    }

    /// Ends the innermost scope and adds its figures to the enclosing one; `None` for the outermost, which stays open.
    pub fn pop(&self) -> Option<Scope> {
        let mut scopes = self.scopes();
        let around = scopes.around.pop()?;
        let ended = scopes.innermost;
        scopes.innermost = around.with(&ended);
        Some(ended)
    }

    /// Returns the innermost scope's figures.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scopes().innermost
    }

    /// Returns the figures since the creation.
    #[must_use]
    pub fn overall(&self) -> Scope {
        let scopes = self.scopes();
        scopes.around.iter().rev().fold(scopes.innermost, |within, around| around.with(&within))
    }

    /// Returns the upstream memory.
    #[must_use]
    pub fn inner(&self) -> &M {
        &self.shared.memory
    }
}

impl<M> Statistics<M> {
    fn scopes(&self) -> MutexGuard<'_, Scopes> {
        self.shared.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scope {
    fn with(&self, within: &Self) -> Self {
        Self { bytes: self.bytes.with(&within.bytes), blocks: self.blocks.with(&within.blocks), refused: self.refused + within.refused }
    }
}

impl Figures {
    fn add(&mut self, amount: usize) {
        self.live += amount as i64;
        self.peak = self.peak.max(self.live);
        self.total += amount as u64;
    }

    fn remove(&mut self, amount: usize) {
        self.live -= amount as i64;
    }

    fn with(&self, within: &Self) -> Self {
        Self { live: self.live + within.live, peak: self.peak.max(self.live + within.peak), total: self.total + within.total }
    }
}

// SAFETY: the upstream memory's blocks, unchanged.
unsafe impl<M: Memory> Memory for Statistics<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let outcome = self.shared.memory.alloc(layout, on);
        let scope = &mut self.scopes().innermost;
        if outcome.is_ok() {
            scope.bytes.add(layout.size());
            scope.blocks.add(1);
        } else {
            scope.refused += 1;
        }
        outcome
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        {
            let scope = &mut self.scopes().innermost;
            scope.bytes.remove(block.layout.size());
            scope.blocks.remove(1);
        }
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the upstream memory's,
        // unchanged.
        unsafe { self.shared.memory.free(block, uses) }
    }

    of_upstream!(shared.memory);
}

impl<M> Clone for Statistics<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: fmt::Debug> fmt::Debug for Statistics<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statistics").field("scope", &self.scopes().innermost).field("memory", &self.shared.memory).finish()
    }
}
