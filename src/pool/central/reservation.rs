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
        if returned > 0 {
            self.transit.0.note_return();
        }
    }
}

impl<M: Memory> Central<M> {
    /// Reserves bytes of the limit, if so many are left.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation<'_, M>> {
        let begun = Instant::now();
        let mut state = self.lock();
        let sum = state.reserved.checked_add(bytes).filter(|&sum| sum <= self.options.limit)?;
        state.reserved = sum;
        state.in_transit += 1;
        let number = state.growths;
        state.growths += 1;
        state.growing.push(Growth { number, bytes, begun });
        GROWING.set(GROWING.get() + 1);
        Some(Reservation { bytes, sum, number, kept: 0, transit: InTransit(self) })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::backend::host::HostBackend;
    use crate::memory::Device;
    use crate::pool::Pool;

    #[test]
    fn bytes_of_a_refused_growth_return() {
        let backend = HostBackend::builder().device_memory(4096).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 16).limit(1024).build().expect("a pool");
        let central = &*pool.shared;
        let seen = central.progress_by_others(None);
        let refused = || drop(central.reserve(1024).expect("within the limit"));
        thread::scope(|scope| scope.spawn(refused).join().expect("no panic"));
        let look = || panic!("a look does not reserve");
        let found = central.wait(None, seen, &|| Ok(central.reserve(1024)), &look).expect("no error");
        assert!(found.is_some_and(|reservation| reservation.bytes == 1024));
    }
}
