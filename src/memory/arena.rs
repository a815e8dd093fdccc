use core::alloc::Layout;
use core::{fmt, mem};
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Memory, check_align, max_bytes, raised};
use crate::backend::{Block, DeviceAddress, MemoryLocation, Uses};
use crate::first_fit::{FirstFit, Shortage};
use crate::stream::Stream;
use crate::{Error, Result};

/// Allocates first-fit from one block of another memory; adjacent free blocks coalesce. Clones share the arena.
///
/// The block is freed after the arena and all its parts. A kernel can address a part by its offset. The time of an
/// allocation grows with the number of free parts; that of a [`Pool`](crate::pool::Pool) does not.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Arena, Buffer, Device};
///
/// let backend = HostBackend::builder().build()?;
/// let arena = Arena::new(Device::new(&backend, 0), 100 * 4096, 256)?;
/// let buffers: Vec<_> = (0..100).map(|_| Buffer::<u32, _>::new(arena.clone(), 1024)).collect::<Result<_, _>>()?;
/// assert_eq!((backend.counters().device_allocations.count, arena.free_bytes()), (1, 0));
/// # drop(buffers);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Arena<M: Memory> {
    shared: Arc<Shared<M>>,
}

struct Shared<M: Memory> {
    memory: M,
    /// INVARIANT: of `memory`, freed when this is dropped.
    block: Block,
    free_list: Mutex<FirstFit>,
}

impl<M: Memory> Arena<M> {
    /// Creates an arena of `bytes` bytes; `align` is the largest alignment of its blocks.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size), [`Align`](Error::Align), the memory's errors.
    #[track_caller]
    pub fn new(memory: M, bytes: usize, align: usize) -> Result<Self> {
        check_align(&memory, align as u64)?;
        let layout = Layout::from_size_align(bytes, align).ok().filter(|_| bytes > 0);
        let layout =
            layout.ok_or_else(|| Error::Size { what: "size in bytes", asked: bytes as u64, least: 1, most: max_bytes(align) as u64 })?;
        let block = memory.alloc(layout, None)?;
        Ok(Self { shared: Arc::new(Shared { memory, block, free_list: Mutex::new(FirstFit::new(bytes as u64)) }) })
    }

    /// Returns its first byte's device address; `None` without device access.
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress> {
        self.shared.block.device_address
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.block.layout.size()
    }

    /// Returns the free bytes, perhaps fragmented.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.backend().free_deferred();
        self.shared.free_list().free()
    }
}

impl<M: Memory> Clone for Arena<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: Memory> fmt::Debug for Arena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("size", &self.size()).field("free", &self.shared.free_list().free()).finish_non_exhaustive()
    }
}

// SAFETY: `FirstFit` allocates a part once until freed. The large block lives as long as this memory; `Part` keeps it until the uses of freed
// parts are complete.
unsafe impl<M: Memory> Memory for Arena<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let whole = &self.shared.block;
        if let Some(on) = on {
            on.on(&**self.backend())?;
        }
        if layout.size() == 0 {
            return Err(Error::Size { what: "size in bytes", asked: 0, least: 1, most: whole.layout.size() as u64 });
        }
        if layout.align() > whole.layout.align() {
            return Err(Error::Align { asked: layout.align() as u64, most: whole.layout.align() as u64 });
        }
        let layout = raised(layout, self.shared.memory.min_align())?;
        let requested = layout.size() as u64;
        let take = || self.shared.free_list().allocate(requested, layout.align() as u64);
        // Includes deferred frees.
        let taken = take().or_else(|_| {
            self.backend().free_deferred();
            take()
        });
        let offset =
            taken.map_err(|Shortage { free, largest }| Error::OutOfMemory { requested, free, largest, limit: None, unavailable: None })?;
        Ok(Block {
            device_address: whole.device_address.and_then(|address| address.offset(offset)),
            // SAFETY: `FirstFit` returns offsets within the block.
            host: whole.host.map(|host| unsafe { host.add(offset as usize) }),
            layout,
            location: whole.location,
            device: whole.device,
            is_pinned: whole.is_pinned,
            ready: whole.ready,
            tag: 0,
        })
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        if uses.is_empty() {
            self.shared.give(block);
        } else {
            let block = Block { ready: None, ..*block };
            let part = Part { arena: Arc::clone(&self.shared), block: Block { ..block } };
            self.backend().keep(Box::new(part), uses, Some(&block));
        }
        Ok(())
    }

    of_upstream!(shared.memory);
}

impl<M: Memory> Shared<M> {
    fn free_list(&self) -> MutexGuard<'_, FirstFit> {
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, part: &Block) {
        let whole = &self.block;
        let offset = match (whole.device_address, part.device_address, whole.host, part.host) {
            (Some(whole), Some(part), ..) => part.get() - whole.get(),
            (_, _, Some(whole), Some(part)) => (part.as_ptr().addr() - whole.as_ptr().addr()) as u64,
            // Unreachable: every block has an address.
            _ => return,
        };
        self.free_list().release(offset, part.layout.size() as u64);
    }
}

struct Part<M: Memory> {
    arena: Arc<Shared<M>>,
    block: Block,
}

impl<M: Memory> Drop for Part<M> {
    fn drop(&mut self) {
        self.arena.give(&self.block);
    }
}

impl<M: Memory> Drop for Shared<M> {
    fn drop(&mut self) {
        let block = mem::replace(&mut self.block, Block::empty(MemoryLocation::Host, 1));
        let uses = block.ready.map_or(Uses::NONE, Uses::of);
        // SAFETY: of this memory by the invariant, freed only here, after all parts and their uses.
        if let Err(error) = unsafe { self.memory.free(&block, &uses) } {
            self.memory.backend().unreported(error);
        }
    }
}
