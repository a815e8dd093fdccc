//! [`Tracked`]: which blocks are out, how large and since when.

use core::alloc::Layout;
use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::vec::Vec;

use super::{Memory, address};
use crate::Result;
use crate::backend::{Backend, Block, MemoryLocation, Uses};
use crate::stream::Stream;

/// Lists the blocks that were given and have not come back: after the last buffer has gone, what is left leaked. Clones are the same list.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Tracked};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Tracked::new(Device::new(&backend, 0));
/// drop(Buffer::<u8, _>::new(memory.clone(), 100)?);
/// std::mem::forget(Buffer::<u8, _>::new(memory.clone(), 200)?);
/// let leaks = memory.leaks();
/// assert_eq!((leaks.len(), leaks[0].number, leaks[0].layout.size()), (1, 2, 200));
/// # Ok(())
/// # }
/// ```
pub struct Tracked<M> {
    shared: Arc<Shared<M>>,
}

struct Shared<M> {
    memory: M,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    given: u64,
    bytes: u64,
    /// By [`address`].
    blocks: HashMap<u64, Held>,
}

struct Held {
    number: u64,
    layout: Layout,
    location: MemoryLocation,
    since: Instant,
}

/// A block that has not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Blocks are numbered as they are given, from 1.
    pub number: u64,
    /// Bytes and alignment.
    pub layout: Layout,
    /// Where it is.
    pub location: MemoryLocation,
    /// How long ago it was given.
    pub age: Duration,
}

impl<M: Memory> Tracked<M> {
    /// A memory that lists its blocks.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self { shared: Arc::new(Shared { memory, live: Mutex::default() }) }
    }

    /// The blocks that are out, the oldest first.
    #[must_use]
    pub fn leaks(&self) -> Vec<Leak> {
        let now = Instant::now();
        let leak = |held: &Held| Leak {
            number: held.number,
            layout: held.layout,
            location: held.location,
            age: now.saturating_duration_since(held.since),
        };
        let mut leaks: Vec<Leak> = self.live().blocks.values().map(leak).collect();
        leaks.sort_unstable_by_key(|leak| leak.number);
        leaks
    }

    /// How many blocks are out.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        self.live().blocks.len()
    }

    /// How many bytes they have, as asked for.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live().bytes
    }

    /// The memory below.
    #[must_use]
    pub fn inner(&self) -> &M {
        &self.shared.memory
    }
}

impl<M> Tracked<M> {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.shared.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the blocks are the other memory's, unchanged.
unsafe impl<M: Memory> Memory for Tracked<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let block = self.shared.memory.alloc(layout, on)?;
        let since = Instant::now();
        let mut live = self.live();
        live.given += 1;
        live.bytes += layout.size() as u64;
        let held = Held { number: live.given, layout, location: block.location, since };
        live.blocks.insert(address(&block), held);
        Ok(block)
    }

    unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()> {
        {
            // Before the memory has it back: then another block may be at this address.
            let mut live = self.live();
            if let Some(held) = live.blocks.remove(&address(&block)) {
                live.bytes -= held.layout.size() as u64;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.shared.memory.free(block, uses) }
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.shared.memory.backend()
    }

    fn device(&self) -> u32 {
        self.shared.memory.device()
    }
}

impl<M> Clone for Tracked<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: fmt::Debug> fmt::Debug for Tracked<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blocks, bytes) = {
            let live = self.live();
            (live.blocks.len(), live.bytes)
        };
        f.debug_struct("Tracked").field("blocks", &blocks).field("bytes", &bytes).field("memory", &self.shared.memory).finish()
    }
}
