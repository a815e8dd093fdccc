use core::alloc::Layout;

use super::Memory;
use crate::backend::{Block, MemoryLocation, Prefetch, Uses};
use crate::stream::Stream;
use crate::sys::panic::both;
use crate::{Error, Result};

/// Prefetches each allocation of managed memory to a device or to the host. Other memory, and devices without prefetches, are unchanged.
///
/// The prefetch is a use of the buffer: until it is complete or [`settle`](super::Buffer::settle)d, borrowing a host slice returns
/// [`Busy`](crate::Error::Busy).
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Prefetching, Unified};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Prefetching::new(Unified::new(&backend, 0), Stream::new(&backend, 0)?, Some(0));
/// let mut buffer = Buffer::<f64, _>::new(memory, 1000)?;
/// buffer.settle()?;
/// assert_eq!(backend.counters().prefetches.bytes, 8000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Prefetching<M> {
    memory: M,
    stream: Stream,
    to: Option<u32>,
}

impl<M: Memory> Prefetching<M> {
    /// Prefetches to a device (`None`: the host), on the allocation's stream, else on `stream`.
    #[must_use]
    pub const fn new(memory: M, stream: Stream, to: Option<u32>) -> Self {
        Self { memory, stream, to }
    }

    /// Returns the upstream memory.
    #[must_use]
    pub const fn inner(&self) -> &M {
        &self.memory
    }

    fn prefetch(&self, block: &Block, on: &Stream) -> Result<Option<Uses>> {
        let (MemoryLocation::Unified, Some(address)) = (block.location, block.device_address) else { return Ok(None) };
        let backend = self.memory.backend();
        let id = on.on(&**backend)?;
        if let Some(ready) = block.ready {
            backend.stream_wait(ready, id)?;
        }
        let prefetch = Prefetch { address, bytes: block.layout.size() as u64, to: self.to };
        Ok(Some(Uses::of(backend.prefetch(&prefetch, id)?)))
    }

    fn give_back(&self, block: &Block) {
        let uses = block.ready.map_or(Uses::NONE, Uses::of);
        // SAFETY: of this memory, not handed out, unused since `ready`.
        if let Err(lost) = unsafe { self.memory.free(block, &uses) } {
            self.memory.backend().unreported(lost);
        }
    }
}

// SAFETY: the upstream memory's blocks, migrated but unchanged, and unused before they are ready.
unsafe impl<M: Memory> Memory for Prefetching<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let block = self.memory.alloc(layout, on)?;
        let mut prefetched = Ok(None);
        both(
            || prefetched = self.prefetch(&block, on.unwrap_or(&self.stream)),
            |has_panicked| {
                if has_panicked {
                    self.give_back(&block);
                }
            },
        );
        match prefetched {
            Ok(None) | Err(Error::Unsupported { .. }) => Ok(block),
            Ok(Some(uses)) => Ok(Block { ready: uses.iter().next(), ..block }),
            Err(error) => {
                self.give_back(&block);
                Err(error)
            }
        }
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the upstream memory's,
        // apart from `ready`.
        unsafe { self.memory.free(block, uses) }
    }

    of_upstream!(memory);
}
