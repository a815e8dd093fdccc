//! [`Statistics`]: what is held, has been held at most, and was asked for, by scope.

use core::alloc::Layout;
use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Memory;
use crate::Result;
use crate::backend::{Block, Uses};
use crate::stream::Stream;

/// Counts what passes through it, in scopes that nest. Clones share the counts.
///
/// 1. Every figure is exact whatever the threads do: each call is counted under one lock, which is not held while the memory below is called.
/// 2. A block counts from when it was given until it is given back, also if the memory below waits for its uses before it frees it.
/// 3. A scope belongs to the memory, not to a thread: [`push`](Self::push) and [`pop`](Self::pop) around a phase of a program. Scopes nest as those of
///    RMM's `statistics_resource_adaptor`.
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
    /// Those around it, the outermost first.
    around: Vec<Scope>,
}

/// What has happened since a scope was begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Bytes, as asked for.
    pub bytes: Figures,
    /// Blocks.
    pub blocks: Figures,
    /// Allocations that failed.
    pub refused: u64,
}

/// A quantity that goes up and down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Now, less what there was when the scope was begun: below 0 if more went than came.
    pub live: i64,
    /// The most that `live` was.
    pub peak: i64,
    /// All that came.
    pub total: u64,
}

impl<M: Memory> Statistics<M> {
    /// A memory that counts, with one scope.
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

    /// Ends the innermost scope, whose figures then count in the one around it; `None` where only the first is left, which goes on.
    pub fn pop(&self) -> Option<Scope> {
        let mut scopes = self.scopes();
        let around = scopes.around.pop()?;
        let ended = scopes.innermost;
        scopes.innermost = around.with(&ended);
        Some(ended)
    }

    /// The innermost scope so far.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scopes().innermost
    }

    /// Everything since this memory was made, as if all scopes ended now.
    #[must_use]
    pub fn overall(&self) -> Scope {
        let scopes = self.scopes();
        scopes.around.iter().rev().fold(scopes.innermost, |within, around| around.with(&within))
    }

    /// The memory below.
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
    /// This scope with one in it that has ended.
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

// SAFETY: the blocks are the other memory's, unchanged.
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

    unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()> {
        {
            let scope = &mut self.scopes().innermost;
            scope.bytes.remove(block.layout.size());
            scope.blocks.remove(1);
        }
        // SAFETY: the caller's promise.
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
