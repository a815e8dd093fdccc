use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;

use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::backend::{Backend, Block, Uses};
use ringmem::memory::{Buffer, Device, DeviceOnly, Memory};
use ringmem::pool::{Hygiene, Pool};
use ringmem::stream::Stream;

use super::{Bytes, KIB, LIMIT, MIB, backend, builder, give, pool};
use crate::rig::panicking_clock::broken;

#[test]
fn the_last_block_of_a_dropped_pool_frees_the_slabs() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    let mut last = give(&pool, KIB);
    drop(give(&pool, MIB));
    let held = pool.statistics().reserved_bytes;
    drop(pool);
    last.fill(1).unwrap();
    assert_eq!(backend.counters().device_live.bytes, held);
    drop(last);
    assert_eq!((backend.counters().device_live.bytes, backend.counters().unreported), (0, 0));
}

#[test]
fn a_pool_may_be_dropped_before_or_with_its_last_thread() {
    let backend = backend(64 * MIB);
    for threads_first in [false, true] {
        let pool = pool(&backend);
        let (leave, left) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel();
        let theirs = pool.clone();
        let thread = thread::spawn(move || {
            drop(give(&theirs, KIB));
            if !threads_first {
                drop(theirs);
                done.send(()).expect("the test waits");
                left.recv_timeout(LIMIT).expect("told to leave");
            }
        });
        if threads_first {
            drop(pool);
        } else {
            is_done.recv_timeout(LIMIT).expect("in time");
            drop(pool);
            assert_eq!(backend.counters().device_live.bytes, 0);
            leave.send(()).expect("the thread runs");
        }
        thread.join().expect("no panic");
        assert_eq!(backend.counters().device_live.bytes, 0);
    }
}

#[test]
fn a_failure_of_any_allocation_leaks_nothing() {
    for hygiene in [Hygiene::Leave, Hygiene::Zero] {
        let script = |nth: u64| {
            let backend = backend(64 * MIB);
            backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::nth(nth)).on(Verb::Fill, Fault::nth(nth * 3)));
            let pool = builder(&backend).slab(64 * KIB).hygiene(hygiene).build().unwrap();
            let mut failed = 0;
            let mut kept = Vec::new();
            for bytes in [100, 60 * KIB, 200 * KIB, MIB, 30, 64 * KIB, 3 * MIB].into_iter().cycle().take(21) {
                match Bytes::new(pool.clone(), bytes as usize) {
                    Ok(buffer) => kept.push(buffer),
                    Err(_) => failed += 1,
                }
                if kept.len() == 5 {
                    kept.drain(..3);
                    pool.trim_to(MIB);
                }
            }
            let _ = pool.prewarm(100 * KIB, 4);
            let statistics = pool.statistics();
            assert_eq!(statistics.live, kept.len() as u64);
            assert_eq!(statistics.reserved_bytes, backend.counters().device_live.bytes, "fault {nth}");
            drop((kept, pool));
            assert_eq!(backend.counters().device_live.bytes, 0, "fault {nth}");
            (failed, backend.counters().device_allocations.count)
        };
        let (_, calls) = script(u64::MAX / 4);
        assert!(calls > 5);
        for nth in 1..=calls {
            script(nth);
        }
    }
}

#[test]
fn out_of_memory_reports_the_free_bytes_of_the_memory() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(32 * MIB).build().unwrap();
    backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::from(1)));
    let (requested, free, largest) = super::shortage(Bytes::new(pool.clone(), 1000));
    assert_eq!((requested, free, largest), (1000, 64 * MIB, 64 * MIB), "what the memory says is free");
    let statistics = pool.statistics();
    assert_eq!((statistics.reserved_bytes, statistics.reserved_peak, statistics.acquires()), (0, 0, 0), "nothing was ever had");
    backend.set_faults(&Faults::new());
    drop(give(&pool, 1000));
    assert_eq!(pool.statistics().reserved_peak, 32 * MIB);
}

#[test]
fn a_panicking_clock_loses_no_slab() {
    let backend = backend(64 * MIB);
    let (clock, is_broken) = broken();
    let pool = builder(&backend).slab(32 * MIB).clock(clock).build().unwrap();
    is_broken.store(true, Relaxed);
    let given = catch_unwind(AssertUnwindSafe(|| give(&pool, KIB)));
    is_broken.store(false, Relaxed);
    drop(given);
    assert_eq!(pool.statistics().slabs * 32 * MIB, backend.counters().device_live.bytes);
    assert_eq!(pool.statistics().reserved_bytes, backend.counters().device_live.bytes);
    drop(pool);
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn a_panicking_clock_does_not_abort_a_drop_of_two_buffers() {
    let backend = backend(64 * MIB);
    let (clock, is_broken) = broken();
    let pool = builder(&backend).exact(true).slab(64 * KIB).clock(clock).build().unwrap();
    let buffers = (give(&pool, 64 * KIB), give(&pool, 64 * KIB));
    is_broken.store(true, Relaxed);
    catch_unwind(AssertUnwindSafe(|| drop(buffers))).expect_err("the first panic goes on");
    is_broken.store(false, Relaxed);
    assert_eq!((pool.statistics().live, pool.trim_to(0)), (0, 128 * KIB));
}

#[test]
fn a_panicking_clock_does_not_abort_a_thread_exit() {
    let backend = backend(64 * MIB);
    let (clock, is_broken) = broken();
    let pool = builder(&backend).slab(32 * MIB).clock(clock).build().unwrap();
    let (theirs, breaks) = (pool.clone(), Arc::clone(&is_broken));
    let work = move || {
        drop(give(&theirs, KIB));
        drop(theirs);
        breaks.store(true, Relaxed);
    };
    thread::spawn(work).join().expect("it has ended");
    is_broken.store(false, Relaxed);
    let statistics = pool.statistics();
    assert_eq!((statistics.acquires(), statistics.live, statistics.held_bytes, pool.trim_to(0)), (1, 0, 0, 32 * MIB));
    drop(pool);
    assert_eq!(backend.counters().device_live.bytes, 0);
}

/// Panics in each free. Once armed, the first call of `backend` waits for the test.
struct Interrupted {
    memory: Device,
    is_armed: Arc<AtomicBool>,
    asked: mpsc::Sender<mpsc::Sender<()>>,
}

// SAFETY: the device's blocks.
unsafe impl Memory for Interrupted {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> ringmem::Result<Block> {
        self.memory.alloc(layout, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
        unsafe { self.memory.free(block, uses) }.expect("a live block");
        panic!("a free that the test asked for");
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        if self.is_armed.swap(false, Relaxed) {
            let (answer, answered) = mpsc::channel();
            self.asked.send(answer).expect("the test receives");
            answered.recv_timeout(LIMIT).expect("in time");
        }
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.memory.device()
    }
}

#[test]
fn a_pool_dropped_by_an_ending_thread_may_panic() {
    let backend = backend(64 * MIB);
    let (is_armed, (asked, asks)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let memory = Interrupted { memory: Device::new(&backend, 0), is_armed: Arc::clone(&is_armed), asked };
    let pool = Pool::builder(memory).build().unwrap();
    let theirs = pool.clone();
    let ending = thread::spawn(move || {
        drop(Buffer::<u8, _>::new(theirs.clone(), 1000).unwrap());
        drop(theirs);
        is_armed.store(true, Relaxed);
    });
    // The thread returns its cached block.
    let answer = asks.recv_timeout(LIMIT).expect("a block is cached");
    drop(pool);
    assert!(backend.counters().device_live.bytes > 0, "the thread has the pool");
    answer.send(()).expect("it waits");
    ending.join().expect("the panic does not abort the process");
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn a_failed_free_is_counted_and_releases_the_bytes() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(32 * MIB).build().unwrap();
    drop(give(&pool, KIB));
    backend.set_faults(&Faults::new().on(Verb::Free, Fault::nth(1)));
    assert_eq!(pool.trim_to(0), 32 * MIB);
    assert_eq!((backend.counters().unreported, pool.statistics().reserved_bytes), (1, 0));
}

struct Nosy {
    memory: Device,
    ask: mpsc::SyncSender<mpsc::Sender<()>>,
    calls: Arc<AtomicU64>,
}

impl Nosy {
    fn probe(&self) {
        self.calls.fetch_add(1, Relaxed);
        let (answer, answered) = mpsc::channel();
        if self.ask.send(answer).is_ok() {
            answered.recv_timeout(LIMIT).expect("a lock is held while the memory is called");
        }
    }
}

// SAFETY: the blocks are the device's, unchanged.
unsafe impl Memory for Nosy {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> ringmem::Result<Block> {
        self.probe();
        self.memory.alloc(layout, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        self.probe();
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
        unsafe { self.memory.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.probe();
        self.memory.device()
    }
}

#[test]
fn no_lock_is_held_during_calls_to_memory_clock_or_callback() {
    let backend = backend(64 * MIB);
    let dynamic: Arc<dyn Backend> = backend.clone();
    let (ask, asked) = mpsc::sync_channel::<mpsc::Sender<()>>(0);
    let calls = Arc::new(AtomicU64::new(0));
    let nosy = || Nosy { memory: Device::new(&dynamic, 0), ask: ask.clone(), calls: Arc::clone(&calls) };
    let (clock, callback) = (nosy(), nosy());
    let builder = Pool::builder(nosy()).limit(4 * MIB).slab(2 * MIB);
    let builder = builder.clock(move || {
        clock.probe();
        0
    });
    let builder = builder.on_out_of_memory(move |_| {
        callback.probe();
        true
    });
    let built = Arc::new(OnceLock::<Weak<Pool<Nosy>>>::new());
    let theirs = Arc::clone(&built);
    let asker = thread::spawn(move || {
        for answer in asked {
            if let Some(pool) = theirs.get().and_then(Weak::upgrade) {
                let _ = (pool.statistics(), pool.snapshot());
            }
            let _ = answer.send(());
        }
    });
    drop(ask);
    let pool = Arc::new(builder.build().unwrap());
    assert!(built.set(Arc::downgrade(&pool)).is_ok());
    let give = |bytes| Buffer::<u8, _>::new((*pool).clone(), bytes).map(drop);
    let kept = Buffer::<u8, _>::new((*pool).clone(), 1 << 20).unwrap();
    for bytes in [1000, 1000, 3 << 20, 1 << 20, 100] {
        let _ = give(bytes);
    }
    drop(kept);
    pool.prewarm(1000, 3).unwrap();
    pool.trim_to(0);
    assert!(calls.load(Relaxed) >= 10, "{}", calls.load(Relaxed));
    drop(pool);
    asker.join().expect("no panic");
}

#[test]
fn concurrent_handles_keep_the_pool_and_the_last_frees_it() {
    const THREADS: usize = 4;
    let backend = backend(64 * MIB);
    for round in 0..60 {
        let first = builder(&backend).slab(2 * MIB).build().unwrap();
        let mut last = give(&first, KIB);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Bytes>()).unzip();
        thread::scope(|scope| {
            let each = receivers.into_iter().enumerate().map(|(number, receiver)| {
                let (pool, next) = (first.clone(), senders[(number + 1) % THREADS].clone());
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _ = next.send(give(&pool, KIB));
                        drop(pool.clone());
                        drop(receiver.try_recv());
                    }
                    drop((pool, next));
                    while let Ok(theirs) = receiver.recv_timeout(LIMIT) {
                        drop(theirs);
                    }
                })
            });
            let threads: Vec<_> = each.collect();
            drop(senders);
            (0..round * 200).for_each(|_| std::hint::spin_loop());
            drop(first);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
        last.fill(1).unwrap();
        assert_eq!(backend.counters().device_live.bytes, 2 * MIB, "its last buffer holds it");
        drop(last);
        assert_eq!(backend.counters().device_live.bytes, 0, "round {round}");
    }
}

#[cfg(target_os = "linux")]
mod forked {
    use super::*;
    use crate::rig::in_fork::fork;

    #[test]
    fn dropping_a_stream_in_a_fork_does_not_block() {
        let backend = backend(64 * MIB);
        let stream = Stream::new(&backend, 0).unwrap();
        stream.synchronize().unwrap();
        let has_gone = fork(|| {
            // SAFETY: the child exits without another drop.
            drop(unsafe { std::ptr::read(&raw const stream) });
            true
        });
        assert!(has_gone);
        let ticket = backend.record_position(stream.id()).expect("the parent's goes on");
        assert!(backend.wait(ticket, None).unwrap());
    }

    #[test]
    fn a_fork_gets_no_memory_and_frees_none() {
        let backend = backend(64 * MIB);
        let pool = pool(&backend);
        let mut mine = give(&pool, KIB);
        mine.fill(3).unwrap();
        drop(give(&pool, 2 * KIB));
        let before = (pool.statistics(), backend.counters());
        let stop = Arc::new(AtomicU64::new(0));
        let busy = {
            let (pool, stop) = (pool.clone(), Arc::clone(&stop));
            // Some forks happen while locks and biased locks are held.
            thread::spawn(move || {
                while stop.load(Relaxed) == 0 {
                    drop(give(&pool, 3 * KIB));
                    let _ = pool.statistics();
                }
            })
        };
        for _ in 0..20 {
            let is_left_alone = fork(|| {
                let asked = Bytes::new(pool.clone(), 2048);
                let is_refused = matches!(asked, Err(ringmem::Error::Unsupported { .. }));
                let is_quiet = pool.trim_to(0) == 0 && pool.statistics().acquires() == 0 && pool.snapshot().is_empty();
                // SAFETY: the child exits without another drop.
                drop(unsafe { std::ptr::read(&raw const mine) });
                // SAFETY: the child exits without another drop.
                drop(unsafe { std::ptr::read(&raw const pool) });
                is_refused && is_quiet && pool.prewarm(100, 1).is_err()
            });
            assert!(is_left_alone);
        }
        stop.store(1, Relaxed);
        busy.join().expect("no panic");
        assert!(mine.to_vec().unwrap().iter().all(|&byte| byte == 3));
        let after = pool.statistics();
        assert_eq!((after.live, after.reserved_bytes), (before.0.live, before.0.reserved_bytes));
        assert_eq!(backend.counters().device_frees, before.1.device_frees);
        drop((mine, pool));
        assert_eq!(backend.counters().device_live.bytes, 0);
    }
}
