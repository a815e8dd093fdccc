use std::sync::Arc;
use std::vec::Vec;

use super::Registry;
use super::lease::Leased;
use super::slots::{Index, Slots};
use crate::backend::panic::both;
use crate::backend::{Block, Copy};
use crate::memory::{Buffer, Memory};
use crate::pool::Pool;
use crate::{Error, Result};

/// A defragmentation's result.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device};
/// use ringmem::pool::Pool;
/// use ringmem::registry::Registry;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
/// let registry = Registry::new();
/// let ids = (0..8).map(|_| Ok(registry.register(Buffer::<u8, _>::new(pool.clone(), 512 << 10)?)?)).collect::<ringmem::Result<Vec<_>>>()?;
/// for id in &ids[..6] {
///     registry.release(*id)?;
/// }
/// let relocated = registry.defragment(&pool)?;
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

impl<M: Memory> Registry<Pool<M>> {
    /// Moves this registry's buffers in a pool together, so that its free bytes are contiguous, and frees emptied slabs.
    ///
    /// Moves only buffers without leases or queued operations; they keep their ids. A concurrent request for a lease waits for at most one copy.
    /// Buffers move only towards the front: a second call copies nothing.
    ///
    /// # Errors
    ///
    /// A failed copy's error: that buffer and the remaining ones stay.
    pub fn defragment(&self, pool: &Pool<M>) -> Result<Relocated> {
        relocate(&self.slots, pool)
    }
}

pub(crate) fn relocate<V: Leased<Memory = Pool<M>>, M: Memory>(slots: &Arc<Slots<V>>, pool: &Pool<M>) -> Result<Relocated> {
    slots.here()?;
    let mut done = Relocated::default();
    let mut found: Vec<(Index, u64)> = Vec::new();
    for index in slots.indices() {
        match movable(slots, index, pool) {
            Ok(Some(tag)) => found.push((index, tag)),
            Err(Error::Busy { .. }) => done.kept += 1,
            // In another pool, without bytes, too large for a slab, or freed.
            Ok(None) | Err(_) => {}
        }
    }
    let mut compaction = pool.compaction(found.iter().map(|&(_, tag)| tag))?;
    // The last first: the space that they leave is behind all that follow.
    found.sort_unstable_by_key(|&(_, tag)| core::cmp::Reverse(compaction.place(tag)));
    let mut outcome = Ok(());
    for (index, tag) in found {
        let mut value = match slots.briefly(index) {
            Ok(value) if value.buffer().block().tag != tag => continue,
            Ok(value) if is_idle(value.buffer()) => value,
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
                compaction.give(&to);
            }
        });
        if let Err(error) = copied {
            compaction.give(&to);
            outcome = Err(error);
            break;
        }
        done.moved += 1;
        done.copied_bytes += to.layout.size() as u64;
        // SAFETY: this function owns the block, of the same pool and layout, ready, with the other block's bytes.
        let from = unsafe { value.put_in(to) };
        drop(value);
        compaction.give(&from);
    }
    (done.slabs, done.slab_bytes) = compaction.finish();
    outcome.map(|()| done)
}

fn movable<V: Leased<Memory = Pool<M>>, M: Memory>(slots: &Arc<Slots<V>>, index: Index, pool: &Pool<M>) -> Result<Option<u64>> {
    // Concurrent requests wait. A shared lease would refuse a writer.
    let value = slots.briefly(index)?;
    let buffer = value.buffer();
    if !buffer.memory().is(pool) || !Pool::<M>::is_in_a_slab(&buffer.block()) {
        return Ok(None);
    }
    if is_idle(buffer) { Ok(Some(buffer.block().tag)) } else { Err(Error::Busy { what: "a queued operation uses the buffer" }) }
}

fn is_idle<M: Memory>(buffer: &Buffer<u8, M>) -> bool {
    let backend = buffer.memory().backend();
    buffer.uses().iter().all(|ticket| backend.reached(ticket))
}

/// # Safety
///
/// Both have the length of `from`'s layout and do not overlap. Meanwhile, nothing writes `from` or uses `to`.
unsafe fn copy(memory: &impl Memory, from: &Block, to: &Block) -> Result<()> {
    // SAFETY: the beginning is within the block.
    let source = unsafe { from.place(0) };
    // SAFETY: as above.
    let target = unsafe { to.place(0) };
    let (Some(from_place), Some(to_place)) = (source, target) else { return Ok(()) };
    // SAFETY: the caller's promise.
    let (backend, bytes) = (memory.backend(), from.layout.size() as u64);
    // SAFETY: the caller's promise.
    let copy = || unsafe { backend.copy_now(&Copy { to: to_place, from: from_place, bytes }) };
    // Invalid contents stay invalid.
    backend.taints().map_or_else(copy, |taints| taints.carry(from_place, to_place, bytes, copy))
}
