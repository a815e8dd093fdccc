use core::alloc::Layout;
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::state::Growth;
use super::{Central, Moving};
use crate::backend::panic::both;
use crate::backend::{Block, Uses};
use crate::memory::Memory;
use crate::stream::Stream;
use crate::trace::span;
use crate::{Error, Result};

thread_local! {
    static GROWING: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is in a pool's upstream allocation, for which another thread may wait.
pub(super) fn is_growing() -> bool {
    GROWING.get() > 0
}

/// Returns the free bytes and the largest contiguous ones, if frees may help.
fn short(error: Error) -> Result<(u64, u64)> {
    match error {
        Error::OutOfMemory { free, largest, .. } => Ok((free, largest)),
        Error::Limit { used, limit, .. } => {
            let left = limit.saturating_sub(used);
            Ok((left, left))
        }
        Error::Map { .. } => Ok((0, 0)),
        error => Err(error),
    }
}

impl<M: Memory> Central<M> {
    /// Allocates a block, or sets `refused` to the free bytes. Other threads wait for the memory while the [`Reserved`] lives.
    pub(super) fn upstream(
        &self,
        bytes: u64,
        align: usize,
        on: Option<&Stream>,
        refused: &Cell<(u64, u64)>,
    ) -> Result<Option<(Block, Reserved<'_, M>)>> {
        let Some(mut reserved) = self.reserve(bytes) else {
            let left = self.options.limit - self.lock().reserved;
            refused.set((left, left));
            return Ok(None);
        };
        let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::from_size_align(bytes, align).ok());
        let layout = layout.ok_or(Error::Size { what: "size in bytes", asked: bytes, least: 1, most: isize::MAX as u64 })?;
        let _span = span!("upstream allocation", bytes = bytes);
        match self.below(|memory| memory.alloc(layout, on)) {
            Ok(block) => {
                reserved.is_had = true;
                self.counts.allocations.fetch_add(1, Relaxed);
                Ok(Some((block, reserved)))
            }
            Err(error) => {
                refused.set(short(error)?);
                Ok(None)
            }
        }
    }

    fn reserve(&self, bytes: u64) -> Option<Reserved<'_, M>> {
        let begun = Instant::now();
        let mut state = self.lock();
        let Some(sum) = state.reserved.checked_add(bytes).filter(|&sum| sum <= self.options.limit) else {
            state.refusals += 1;
            return None;
        };
        state.reserved = sum;
        state.moving += 1;
        let number = state.growths;
        state.growths += 1;
        state.growing.push(Growth { number, bytes, begun });
        GROWING.set(GROWING.get() + 1);
        Some(Reserved { bytes, sum, number, refusals: state.refusals, is_had: false, moving: Moving(self) })
    }

    /// # Safety
    ///
    /// As `Memory::free`.
    #[cold]
    pub unsafe fn free_direct(&self, block: &Block, uses: &Uses) -> Result<()> {
        self.counts.returns.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.forget_direct(Block { ..*block }, uses) }
    }

    /// As [`free_direct`](Self::free_direct), for a block that no caller received.
    ///
    /// # Safety
    ///
    /// As `Memory::free`.
    pub unsafe fn forget_direct(&self, mut block: Block, uses: &Uses) -> Result<()> {
        let bytes = block.layout.size() as u64;
        // First: after the free, another block may have this address.
        block.tag = self.lock().direct.remove(&block.address()).unwrap_or(block.tag);
        self.counts.requested.fetch_sub(bytes, Relaxed);
        // SAFETY: the caller's promise; the block has its upstream tag again.
        unsafe { self.free_below(block, uses) }
    }

    /// Updates the accounts even after a failure or panic.
    ///
    /// # Safety
    ///
    /// As `Memory::free`.
    unsafe fn free_below(&self, block: Block, uses: &Uses) -> Result<()> {
        let left = Block { ready: None, ..block };
        let mut outcome = Ok(());
        // SAFETY: the caller's promise.
        let free = || outcome = self.below(|memory| unsafe { memory.free(&block, uses) });
        both(free, |_| {
            self.counts.frees.fetch_add(1, Relaxed);
            self.left(left, uses);
        });
        outcome
    }

    pub(super) fn give_back(&self, block: Block, uses: &Uses) {
        // SAFETY: a slab of this memory, removed from the table, in use by `uses` at most.
        if let Err(error) = unsafe { self.free_below(block, uses) } {
            self.memory.backend().unreported(error);
        }
    }

    /// Releases a freed block's reservation; if it is in use or deferred, a later [`collect`](Self::collect) does so. The block serves queries.
    fn left(&self, block: Block, uses: &Uses) {
        let backend = self.memory.backend();
        let has_gone = uses.iter().all(|ticket| backend.is_complete(ticket)) && !backend.is_deferred(&block);
        let mut state = self.lock();
        if has_gone {
            state.reserved -= block.layout.size() as u64;
            self.moved();
        } else {
            state.leaving.push((*uses, block));
        }
    }
}

/// An allocation's reservation. Counts as a move: waiters wait for it.
pub(super) struct Reserved<'a, M: Memory> {
    bytes: u64,
    sum: u64,
    number: u64,
    refusals: u64,
    is_had: bool,
    moving: Moving<'a, M>,
}

impl<M: Memory> Drop for Reserved<'_, M> {
    fn drop(&mut self) {
        GROWING.set(GROWING.get() - 1);
        let mut state = self.moving.0.lock();
        state.growing.retain(|growth| growth.number != self.number);
        if self.is_had {
            state.peak = state.peak.max(self.sum);
            return;
        }
        state.reserved -= self.bytes;
        // They may have refused another request.
        if state.refusals != self.refusals {
            self.moving.0.moved();
        }
    }
}
