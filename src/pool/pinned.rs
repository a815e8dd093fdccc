use core::alloc::Layout;
use core::fmt;
use core::time::Duration;
use std::vec::Vec;

use super::{Builder, Classes, Pool, SlabView, Statistics};
use crate::backend::{Block, Uses};
use crate::error::LimitOf;
use crate::memory::{Both, Limited, Memory, Pinned};
use crate::stream::Stream;
use crate::{Error, Result};

/// A shared slab's unusable tail is less than a sixteenth of it.
const SLAB: u64 = 1 << 20;
const MOST_SHARED: u64 = 64 << 10;

/// A pool of page-locked memory. It reserves and rounds up less than a [`Pool`]: the rest of the machine misses locked pages.
///
/// 1. Sizes have eight classes per octave: a block exceeds its request by less than an eighth of it plus 256 bytes.
/// 2. A block of more than 64 KiB has a slab of its own size; shorter ones share slabs of 1 MiB. For live blocks of `n` requested bytes, none
///    freed, the locked bytes are less than `9/8 * 16/15 * n`, plus 256 bytes per block, plus one slab.
/// 3. The locked bytes never exceed the budget. Before a request fails, the pool frees all idle memory.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::error::LimitOf;
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Pinned};
/// use ringmem::pool::PinnedPool;
///
/// let backend = HostBackend::builder().build()?;
/// let pool = PinnedPool::new(Pinned::new(&backend, 0), 4 << 20)?;
/// for _ in 0..100 {
///     Buffer::<u8, _>::new(pool.clone(), 3_000_000)?.as_mut_slice()?.fill(1);
/// }
/// assert_eq!(backend.counters().pinned_allocations.count, 1);
/// assert!(pool.locked() < 3_000_000 / 8 * 9);
/// assert!(matches!(Buffer::<u8, _>::new(pool, 5 << 20), Err(Error::Limit { of: LimitOf::Pinned, .. })));
/// # Ok(())
/// # }
/// ```
pub struct PinnedPool {
    budget: Limited<Pinned>,
    shared: Rationed,
    own: Rationed,
}

type Rationed = Pool<Limited<Pinned>>;

impl PinnedPool {
    /// Creates a pool that locks at most `budget` bytes.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn new(memory: Pinned, budget: u64) -> Result<Self> {
        Self::with(memory, budget, |builder| builder)
    }

    pub(super) fn with(memory: Pinned, budget: u64, set: impl Fn(Builder<Limited<Pinned>>) -> Builder<Limited<Pinned>>) -> Result<Self> {
        let memory = Limited::new(memory, budget);
        let eighths = Classes::new(4 << 10, 21, 8)?;
        let pool = |slab| set(Pool::builder(memory.clone())).limit(budget).slab(slab).classes(eighths).build();
        // A longer block gets its own slab.
        Ok(Self { shared: pool(SLAB)?, own: pool(MOST_SHARED)?, budget: memory })
    }

    /// Returns the maximum of locked bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget.limit()
    }

    /// Returns the locked bytes, live or idle.
    #[must_use]
    pub fn locked(&self) -> u64 {
        self.budget.used()
    }

    /// Returns the bytes that live blocks leave of the budget.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.budget().saturating_sub(self.statistics().held_bytes)
    }

    /// Returns the sums of both inner pools. `reserved_bytes` is [`locked`](Self::locked). `reserved_peak` is at least the true peak: the sum of two peaks,
    /// or that of the budget if it is lower.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let [shared, own] = [&self.shared, &self.own].map(Pool::statistics);
        // Not the sum of two figures of different moments, which may exceed the budget.
        let locked = self.locked();
        Statistics {
            hits: shared.hits + own.hits,
            misses: shared.misses + own.misses,
            returns: shared.returns + own.returns,
            live: shared.live + own.live,
            requested_bytes: shared.requested_bytes + own.requested_bytes,
            held_bytes: shared.held_bytes + own.held_bytes,
            reserved_bytes: locked,
            reserved_peak: (shared.reserved_peak + own.reserved_peak).min(self.budget.peak()).max(locked),
            slabs: shared.slabs + own.slabs,
            free_bytes: shared.free_bytes + own.free_bytes,
            movable_bytes: shared.movable_bytes + own.movable_bytes,
            free_blocks: shared.free_blocks + own.free_blocks,
            largest_free: shared.largest_free.max(own.largest_free),
            cached_bytes: shared.cached_bytes + own.cached_bytes,
            largest_cached: shared.largest_cached.max(own.largest_cached),
            pending: shared.pending + own.pending,
            memory_allocations: shared.memory_allocations + own.memory_allocations,
            memory_frees: shared.memory_frees + own.memory_frees,
            memory_moves: shared.memory_moves + own.memory_moves,
        }
    }

    /// Returns every slab of both inner pools, numbered from 0, for [`Snapshot::slabs`](crate::snapshot::Snapshot::slabs).
    #[must_use]
    pub fn snapshot(&self) -> Vec<SlabView> {
        let slabs = [&self.shared, &self.own].into_iter().flat_map(Pool::snapshot);
        (0..).zip(slabs).map(|(number, slab)| SlabView { number, ..slab }).collect()
    }

    /// Unlocks memory that has been idle for at least `age`, as [`Pool::trim_older_than`]; returns its bytes. While a kernel runs, memory stays
    /// locked if the driver would wait for it.
    pub fn trim_older_than(&self, age: Duration) -> u64 {
        self.shared.trim_older_than(age) + self.own.trim_older_than(age)
    }

    pub(super) fn idle_since(&self) -> Option<u64> {
        [&self.shared, &self.own].into_iter().filter_map(Pool::idle_since).min()
    }

    fn pools(&self, layout: Layout) -> (&Rationed, &Rationed) {
        if layout.size() as u64 <= MOST_SHARED { (&self.shared, &self.own) } else { (&self.own, &self.shared) }
    }
}

/// Allocates after trimming the other pool, or waits for frees to either.
#[cold]
fn reclaim_from_other(pool: &Rationed, other: &Rationed, layout: Layout, on: Option<&Stream>) -> Result<Block> {
    let seen = pool.shared.progress_by_others(Some(&other.shared));
    let again = || {
        other.trim_to(0);
        match pool.allocate_block(layout, on, false) {
            Err(Error::OutOfMemory { .. }) => Ok(None),
            outcome => outcome.map(Some),
        }
    };
    let found = again()?;
    let found = found.map_or_else(|| pool.shared.wait(Some(&other.shared), seen, &again, &again), |block| Ok(Some(block)))?;
    found.map_or_else(|| pool.allocate_block(layout, on, false), Ok)
}

// SAFETY: a block's inner pool, by its layout, allocates and frees it.
unsafe impl Memory for PinnedPool {
    type Visibility = Both;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let ((pool, other), asked, budget) = (self.pools(layout), layout.size() as u64, self.budget());
        let outcome = match pool.allocate_block(layout, on, false) {
            Err(Error::OutOfMemory { .. }) if asked <= budget => reclaim_from_other(pool, other, layout, on),
            outcome => outcome,
        };
        outcome.map_err(|error| match (error, self.locked()) {
            (Error::OutOfMemory { unavailable: None, .. } | Error::Limit { .. }, used) if asked > budget.saturating_sub(used) => {
                Error::Limit { of: LimitOf::Pinned, requested: asked, used, limit: budget }
            }
            (error, _) => error,
        })
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller gives up a block of this pool, in use by `uses` at most; the layout selects the same inner pool as in `alloc`.
        unsafe { self.pools(block.layout).0.free(block, uses) }
    }

    crate::memory::of_upstream!(budget);
}

impl Clone for PinnedPool {
    fn clone(&self) -> Self {
        Self { budget: self.budget.clone(), shared: self.shared.clone(), own: self.own.clone() }
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPool").field("budget", &self.budget()).field("statistics", &self.statistics()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::backend::Backend;
    use crate::backend::Ticket;
    use crate::backend::host::HostBackend;

    const MIB: usize = 1 << 20;

    /// A pool whose requests wait for an hour, and a stream whose operations wait for the first one on another.
    fn waiting(budget: u64) -> (PinnedPool, Stream, Stream) {
        let backend = HostBackend::builder().build().expect("a backend");
        let patient = |builder: Builder<_>| builder.patience(Duration::from_secs(3600));
        let pool = PinnedPool::with(Pinned::new(&backend, 0), budget, patient).expect("a pool");
        let [used, other] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
        backend.stream_wait(Ticket { stream: other.id(), number: 1 }, used.id()).expect("two streams");
        (pool, used, other)
    }

    fn block(pool: &PinnedPool, bytes: usize) -> Result<Block> {
        pool.alloc(Layout::from_size_align(bytes, 1).expect("a layout"), None)
    }

    /// Only `uses` use the block.
    fn free(pool: &PinnedPool, block: &Block, uses: &Uses) {
        // SAFETY: each block is freed once; no other operation uses it.
        unsafe { pool.free(block, uses) }.expect("its own");
    }

    fn requested(pool: &PinnedPool, bytes: usize) -> mpsc::Receiver<Result<Block>> {
        let ((sender, receiver), pool) = (mpsc::channel(), pool.clone());
        thread::spawn(move || sender.send(block(&pool, bytes)));
        receiver
    }

    /// Each inner pool has all kinds of blocks, in other numbers than the other one.
    #[test]
    fn statistics_sum_both_inner_pools_and_take_the_larger_of_the_largest() {
        let (pool, used, other) = waiting(64 << 20);
        for (inner, bytes, live) in [(&pool.shared, 5000, 3), (&pool.own, 100_000, 2)] {
            free(&pool, &block(&pool, bytes).expect("the budget"), &Uses::NONE);
            inner.trim_to(0);
            assert_eq!(inner.statistics().memory_frees, 1);
            free(&pool, &block(&pool, bytes).expect("the budget"), &Uses::of(used.record_position().expect("a stream")));
            inner.trim_to(0);
            for _ in 0..live {
                block(&pool, bytes).expect("the budget");
            }
            for freed in [(); 2].map(|()| block(&pool, bytes + 8000).expect("the budget")) {
                free(&pool, &freed, &Uses::NONE);
            }
            free(&pool, &block(&pool, bytes + 8000).expect("the budget"), &Uses::NONE);
        }
        let [shared, own, sums] = [pool.shared.statistics(), pool.own.statistics(), pool.statistics()];
        other.record_position().expect("a stream");
        used.synchronize().expect("both are executed");
        macro_rules! check {
            ($combine:expr; $($field:ident)*) => {$(
                assert_eq!(sums.$field, $combine(shared.$field, own.$field), stringify!($field));
                assert!(shared.$field > 0 && own.$field > 0, "{}: {shared:?}, {own:?}", stringify!($field));
            )*};
        }
        check!(|a: u64, b: u64| a + b; hits misses returns live requested_bytes held_bytes reserved_bytes reserved_peak slabs
            cached_bytes pending memory_allocations memory_frees);
        check!(u64::max; largest_cached);
        assert!(sums.requested_bytes < sums.held_bytes && pool.left() == pool.budget() - sums.held_bytes, "{sums:?}");
        assert!(own.largest_cached > shared.largest_cached, "{shared:?}, {own:?}");
        let pieces = [shared, own, sums].map(|one| [one.free_bytes, one.free_blocks, one.largest_free]);
        assert_eq!((pieces[1], pieces[2]), ([0; 3], pieces[0]), "a longer block fills its slab");
        assert!(pieces[0].iter().all(|&figure| figure > 0));
        // A slab of its own is free once its block is flushed from the cache.
        let backend = HostBackend::builder().build().expect("a backend");
        let pool = PinnedPool::new(Pinned::new(&backend, 0), 64 << 20).expect("a pool");
        free(&pool, &block(&pool, 200_000).expect("the budget"), &Uses::NONE);
        pool.own.trim_to(1 << 20);
        let [shared, own] = [pool.shared.statistics(), pool.own.statistics()];
        assert!(own.largest_free >= 200_000 && shared.largest_free == 0, "{shared:?}, {own:?}");
        assert_eq!(pool.statistics().largest_free, own.largest_free);
    }

    /// A slab counts before its pool has it, and after: two reads of both pools need not fit together.
    #[test]
    fn reserved_bytes_are_those_of_the_budget() {
        let backend = HostBackend::builder().build().expect("a backend");
        let pool = PinnedPool::new(Pinned::new(&backend, 0), 64 << 20).expect("a pool");
        for bytes in [5000, 100_000] {
            block(&pool, bytes).expect("the budget");
        }
        let slab = pool.budget.alloc(Layout::from_size_align(MIB, 1).expect("a layout"), None).expect("the budget");
        let statistics = pool.statistics();
        assert_eq!(statistics.reserved_bytes, pool.locked());
        assert!(statistics.reserved_bytes <= statistics.reserved_peak, "{statistics:?}");
        // SAFETY: freed once; nothing uses it.
        unsafe { pool.budget.free(&slab, &Uses::NONE) }.expect("its own");
        assert_eq!(pool.statistics().reserved_bytes, pool.shared.statistics().reserved_bytes + pool.own.statistics().reserved_bytes);
    }

    #[test]
    fn idle_blocks_are_freed_before_pending_frees_are_awaited() {
        let (pool, used, other) = waiting(2 << 20);
        let [short, long] = [1000, MIB].map(|bytes| block(&pool, bytes).expect("the budget"));
        free(&pool, &short, &Uses::NONE);
        free(&pool, &long, &Uses::of(used.record_position().expect("a stream")));
        let got = requested(&pool, MIB).recv_timeout(Duration::from_secs(60));
        other.record_position().expect("a stream");
        used.synchronize().expect("both are executed");
        free(&pool, &got.expect("nobody is waited for").expect("what the other kind had"), &Uses::NONE);
    }

    #[test]
    fn each_pool_waits_for_pending_frees_of_the_other() {
        for (first, second) in [(1000, MIB), (MIB, 1000)] {
            let (pool, used, other) = waiting(1 << 20);
            let given = block(&pool, first).expect("the budget");
            free(&pool, &given, &Uses::of(used.record_position().expect("a stream")));
            let receiver = requested(&pool, second);
            let early = receiver.recv_timeout(Duration::from_millis(50));
            other.record_position().expect("a stream");
            let got = early.unwrap_or_else(|_| receiver.recv_timeout(Duration::from_secs(60)).expect("in time"));
            free(&pool, &got.expect("what the other kind had"), &Uses::NONE);
        }
    }
}
