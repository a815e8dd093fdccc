//! Moves of memory between upstream memory, heap and caches, counted so that a waiting thread searches again.

use core::cell::Cell;
use core::mem;
use core::sync::atomic::Ordering::Relaxed;

use super::Central;
use super::state::State;
use crate::memory::Memory;

thread_local! {
    static MOVES: Cell<u64> = const { Cell::new(0) };
}

pub(in crate::pool) struct Moving<'a, M: Memory>(pub(super) &'a Central<M>);

impl<M: Memory> Central<M> {
    /// This thread may move memory; it counts moves with [`moved`](Self::moved) before the guard's drop.
    pub fn moving(&self) -> Moving<'_, M> {
        self.lock().moving += 1;
        Moving(self)
    }

    /// What makes the moved memory visible also makes the count visible.
    pub(super) fn moved(&self) {
        self.moves.fetch_add(1, Relaxed);
        MOVES.set(MOVES.get().wrapping_add(1));
    }

    /// A number that changes only when another thread moves memory, here or in the other pool.
    pub fn moved_by_others(&self, other: Option<&Self>) -> u64 {
        let moves = |pool: &Self| pool.moves.load(Relaxed);
        moves(self).wrapping_add(other.map_or(0, moves)).wrapping_sub(MOVES.get())
    }

    /// If the upstream memory is a pool, its moves do not count here.
    pub(super) fn below<R>(&self, call: impl FnOnce(&M) -> R) -> R {
        let moves = MOVES.get();
        let result = call(&self.memory);
        MOVES.set(moves);
        result
    }
}

impl<M: Memory> Moving<'_, M> {
    pub(super) fn end(self, state: &mut State) {
        state.moving -= 1;
        mem::forget(self);
    }
}

impl<M: Memory> Drop for Moving<'_, M> {
    fn drop(&mut self) {
        self.0.lock().moving -= 1;
    }
}
