//! Defragmentation of a pool: buffers move together, so that free bytes are contiguous.
//!
//! # Order of steps
//!
//! 1. List the movable buffers, each by a brief exclusive lease: concurrent requests wait for the check, where a shared lease would refuse a writer.
//! 2. Start the pool's compaction, which lists the free parts of the slabs. Other threads allocate meanwhile; a part that they take is skipped.
//! 3. Visit the buffers from the last to the first. The part that a buffer leaves is then behind all buffers that follow, so that each moves at most once,
//!    and a second defragmentation copies nothing.
//! 4. Take a brief exclusive lease and check the buffer again: it may have been used, moved or replaced since step 1. Copy it.
//! 5. Put the new block into the buffer and end the lease, so that waiting requests continue; then give the old block, which nothing uses any more, to
//!    the pool.
//!
//! A failed or panicking copy leaves its buffer in the old block and gives the new one to the pool; the remaining buffers stay. The bytes of the budget do
//! not change, since old and new block have the same layout.

use std::sync::Arc;
use std::vec::Vec;

use super::entry::Entry;
use super::numbers::{Index, Slots};
use super::{MemoryManager, Store};
use crate::backend::{Block, Copy};
use crate::memory::Memory;
use crate::pool::Pool;
use crate::sys::panic::both;
use crate::{Error, Result};

/// A defragmentation's result.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::MemoryManager;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::Pool;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// let manager = MemoryManager::new(pool.clone());
/// let ids = (0..8).map(|_| Ok(manager.register(Buffer::<u8, _>::new(pool.clone(), 512 << 10)?)?)).collect::<ringmem::Result<Vec<_>>>()?;
/// for id in &ids[..6] {
///     manager.free(*id)?;
/// }
/// let relocated = manager.defragment()?;
/// println!("{} buffers moved, {} slabs freed", relocated.moved, relocated.slabs);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relocated {
    /// Buffers moved.
    pub moved: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Buffers that stayed: leased (in any pool), or in use by queued work.
    pub kept: u64,
    /// Slabs freed.
    pub slabs: u64,
    /// Their bytes.
    pub slab_bytes: u64,
}

impl<M: Memory> MemoryManager<Pool<M>> {
    /// Moves this manager's buffers within its pool together, so that the pool's free bytes are contiguous, and frees emptied slabs.
    ///
    /// Moves only buffers without leases or queued operations; they keep their ids. A move is not a use. A concurrent request for a lease waits for at
    /// most one copy. Buffers move only towards the front: a second call copies nothing. Registered buffers of other pools stay.
    ///
    /// # Errors
    ///
    /// A failed copy's error: that buffer and the remaining ones stay.
    pub fn defragment(&self) -> Result<Relocated> {
        let (table, pool) = (&self.table, &self.store().memory);
        table.here()?;
        let mut done = Relocated::default();
        let mut found: Vec<(Index, u64)> = Vec::new();
        for index in table.indices() {
            match movable(table, index, pool) {
                Ok(Some(tag)) => found.push((index, tag)),
                Err(Error::Busy { .. }) => done.kept += 1,
                // In another pool, without bytes, too large for a slab, or freed.
                Ok(None) | Err(_) => {}
            }
        }
        let mut compaction = pool.compaction(found.iter().map(|&(_, tag)| tag))?;
        found.sort_unstable_by_key(|&(_, tag)| core::cmp::Reverse(compaction.position(tag)));
        let mut outcome = Ok(());
        for (index, tag) in found {
            let mut value = match table.briefly(index) {
                Ok(value) if value.buffer().block().tag != tag => continue,
                Ok(value) if !value.counted.is_in_use() => value,
                Ok(_) | Err(Error::Busy { .. }) => {
                    done.kept += 1;
                    continue;
                }
                Err(_) => continue,
            };
            let Some(to) = compaction.nearer(&value.buffer().block()) else { continue };
            let mut copied = Ok(());
            // SAFETY: `to` is as long as the block, and used by nothing else. The block has no lease, and no queued operation uses it.
            let copy = || copied = unsafe { copy(pool, &value.buffer().block(), &to) };
            both(copy, |has_panicked| {
                if has_panicked {
                    compaction.free(&to);
                }
            });
            if let Err(error) = copied {
                compaction.free(&to);
                outcome = Err(error);
                break;
            }
            done.moved += 1;
            done.copied_bytes += to.layout.size() as u64;
            // SAFETY: this function owns the block, of the same pool and layout, ready, with the other block's bytes.
            let from = unsafe { value.buffer_mut().put_in(to) };
            drop(value);
            compaction.free(&from);
        }
        (done.slabs, done.slab_bytes) = compaction.finish();
        outcome.map(|()| done)
    }
}

type Table<M> = Arc<Slots<Entry<M>, Store<M>>>;

/// Returns the tag of a buffer's block; `None` for a buffer that cannot move.
fn movable<M: Memory>(table: &Table<Pool<M>>, index: Index, pool: &Pool<M>) -> Result<Option<u64>> {
    let value = table.briefly(index)?;
    let buffer = value.buffer();
    if !buffer.memory().is(pool) || !Pool::<M>::is_in_a_slab(&buffer.block()) {
        return Ok(None);
    }
    if value.counted.is_in_use() { Err(Error::Busy { what: "a queued operation uses the buffer" }) } else { Ok(Some(buffer.block().tag)) }
}

/// # Safety
///
/// Both have the length of `from`'s layout and do not overlap. Meanwhile, nothing writes `from` or uses `to`.
unsafe fn copy(memory: &impl Memory, from: &Block, to: &Block) -> Result<()> {
    // SAFETY: the beginning is within the block.
    let source = unsafe { from.address_at(0) };
    // SAFETY: the beginning is within the block.
    let target = unsafe { to.address_at(0) };
    let (Some(from_place), Some(to_place)) = (source, target) else { return Ok(()) };
    let (backend, bytes) = (memory.backend(), from.layout.size() as u64);
    // SAFETY: the caller promises that both blocks have so many bytes and do not overlap, and that nothing writes `from` or uses `to`;
    // blocks are writable.
    let copy = || unsafe { backend.copy_now(&Copy { to: to_place, from: from_place, bytes }) };
    // Invalid contents stay invalid.
    backend.taints().map_or_else(copy, |taints| taints.carry(from_place, to_place, bytes, copy))
}
