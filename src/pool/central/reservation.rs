//! [`Reservation`]: bytes of the limit during an upstream allocation.
//!
//! They are reserved before the allocation, so that the allocations of two threads together stay within the limit. Until the allocation has ended, other
//! requests may wait for its memory; [`is_growing`] tells a thread that is in one itself.

use core::cell::Cell;
use std::time::Instant;

use super::{Central, Growth, InTransit};
use crate::memory::Memory;

thread_local! {
    /// Upstream allocations of pools that this thread is in.
    static GROWING: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread is in a pool's upstream allocation, for which another thread may wait.
pub(super) fn is_growing() -> bool {
    GROWING.get() > 0
}

/// Bytes that an upstream allocation reserves. They stay reserved if it succeeds, until the block is freed. While it lives, waiting requests wait.
pub(super) struct Reservation<'a, M: Memory> {
    pub bytes: u64,
    /// The reserved bytes of the pool with this reservation, for the high-water mark.
    sum: u64,
    /// Of its [`Growth`].
    number: u64,
    /// The refusals before it.
    refusals: u64,
    /// Bytes that are allocated.
    pub kept: u64,
    transit: InTransit<'a, M>,
}

impl<M: Memory> Drop for Reservation<'_, M> {
    fn drop(&mut self) {
        GROWING.set(GROWING.get() - 1);
        let mut state = self.transit.0.lock();
        state.growing.retain(|growth| growth.number != self.number);
        let returned = self.bytes - self.kept;
        state.peak = state.peak.max(if self.kept > 0 { self.sum - returned } else { 0 });
        state.reserved -= returned;
        // The bytes may have refused another request, which now succeeds.
        if returned > 0 && state.refusals != self.refusals {
            self.transit.0.note_progress();
        }
    }
}

impl<M: Memory> Central<M> {
    /// Reserves bytes of the limit, if so many are left.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation<'_, M>> {
        let begun = Instant::now();
        let mut state = self.lock();
        let Some(sum) = state.reserved.checked_add(bytes).filter(|&sum| sum <= self.options.limit) else {
            state.refusals += 1;
            return None;
        };
        state.reserved = sum;
        state.in_transit += 1;
        let number = state.growths;
        state.growths += 1;
        state.growing.push(Growth { number, bytes, begun });
        GROWING.set(GROWING.get() + 1);
        Some(Reservation { bytes, sum, number, refusals: state.refusals, kept: 0, transit: InTransit(self) })
    }
}
