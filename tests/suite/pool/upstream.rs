use std::alloc::Layout;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::backend::{Backend, Block, MemoryLocation, Uses};
use ringmem::memory::{Buffer, Device, DeviceOnly, Limited, Memory, Pinned, Statistics, Trace, Tracked};
use ringmem::pool::{Builder, Classes, Hygiene, Pool};
use ringmem::stream::Stream;

use super::{Clean, DevicePool, Held, KIB, LIMIT, MIB, backend, builder, shortage};

fn give<M: Memory>(pool: &Pool<M>, bytes: u64) -> Buffer<u8, Pool<M>> {
    Buffer::new(pool.clone(), bytes as usize).expect("memory")
}

fn direct<M: Memory>(memory: impl Fn() -> M) -> [Pool<M>; 2] {
    let small = Classes::new(4 * KIB, 1, 1).unwrap();
    let build = |builder: Builder<M>| builder.build().unwrap();
    [build(Pool::builder(memory()).enabled(false)), build(Pool::builder(memory()).classes(small))]
}

#[test]
fn direct_blocks_are_removed_from_a_tracker_below() {
    let backend = backend(64 * MIB);
    for hygiene in [Hygiene::Leave, Hygiene::Zero] {
        let tracked = Tracked::new(Device::new(&backend, 0));
        for pool in direct(|| tracked.clone()) {
            let (first, second) = (give(&pool, 5 * KIB), give(&pool, 6 * KIB));
            assert_eq!(tracked.leaks().len(), 2);
            drop(first);
            assert_eq!(tracked.leaks().iter().map(|leak| leak.bytes).collect::<Vec<_>>(), [6 * KIB]);
            drop(second);
            assert_eq!(tracked.leaks().len(), 0);
        }
        let pool = Pool::builder(tracked.clone()).enabled(false).hygiene(hygiene).build().unwrap();
        backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1)));
        let is_given = Buffer::<u8, _>::new(pool, 5000).is_ok();
        backend.set_faults(&Faults::new());
        assert_eq!((is_given, tracked.leaks().len()), (hygiene == Hygiene::Leave, 0));
    }
}

/// The device addresses its blocks 4096 bytes apart from the host, and so aligned alike up to this.
struct Apart(Pinned);

// SAFETY: pinned memory; tests do not use the device addresses.
unsafe impl Memory for Apart {
    type Visibility = ringmem::memory::Both;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> ringmem::Result<Block> {
        let block = self.0.alloc(layout, on)?;
        Ok(Block { device_address: block.device_address.and_then(|address| address.offset(4096)), ..block })
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        let device_address = block.device_address.map(|address| ringmem::backend::DeviceAddress::new(address.get() - 4096));
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; its address is the pinned memory's again.
        unsafe { self.0.free(&Block { device_address, ready: None, ..*block }, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.0.backend()
    }
    fn device(&self) -> u32 {
        self.0.device()
    }
}

#[test]
fn an_alignment_that_host_and_device_addresses_cannot_share_is_an_error() {
    let backend = backend(64 * MIB);
    for slab in [64 * KIB, 8 * MIB] {
        let pool = Pool::builder(Apart(Pinned::new(&backend, 0))).slab(slab).patience(Duration::from_millis(10)).build().unwrap();
        let alloc = |align: u64| pool.alloc(Layout::from_size_align(1000, align as usize).unwrap(), None);
        let kept = alloc(4096).expect("both addresses can have it");
        let before = pool.statistics();
        let error = alloc(8192).map(drop).expect_err("one of the addresses cannot");
        assert!(matches!(error, Error::Align { asked: 8192, most: 4096 }), "{error}");
        let after = pool.statistics();
        assert_eq!(after.reserved_bytes, before.reserved_bytes, "the slab went back");
        assert!(after.memory_allocations - before.memory_allocations <= 2, "no search goes on: {after:?}");
        // SAFETY: this pool's block, freed once, unused.
        unsafe { pool.free(&kept, &Uses::NONE) }.unwrap();
    }
}

#[test]
fn a_pool_below_gets_its_blocks_back() {
    let backend = backend(64 * MIB);
    for below in [builder(&backend).slab(32 * MIB), builder(&backend).slab(32 * MIB).exact(true)].map(|builder| builder.build().unwrap()) {
        for above in direct(|| below.clone()) {
            let mut live: Vec<Buffer<u8, Pool<DevicePool>>> = Vec::new();
            for round in 0..100_u64 {
                let mut buffer = give(&above, 5 * KIB + round);
                buffer.fill(round as u8).unwrap();
                live.push(buffer);
                if live.len() == 5 {
                    live.swap_remove(round as usize % 5);
                }
                assert_eq!(below.statistics().live, live.len() as u64);
            }
            for buffer in &live {
                let round = (buffer.len() as u64 - 5 * KIB) as u8;
                assert!(buffer.to_vec().unwrap().iter().all(|&byte| byte == round), "somebody else has it, too");
            }
            drop(live);
            assert_eq!((below.statistics().live, above.statistics().reserved_bytes), (0, 0));
        }
        assert_eq!((below.trim_to(0), backend.counters().unreported), (32 * MIB, 0));
    }
}

fn makes_room<M: Memory>(memory: impl Fn() -> M) {
    let classes = Classes::new(4 * KIB, 10, 1).unwrap();
    for bytes in [2 * MIB, 3 * MIB] {
        let pool = Pool::builder(memory()).slab(MIB).classes(classes).build().unwrap();
        let quarters: Vec<_> = (0..4).map(|_| give(&pool, MIB)).collect();
        assert_eq!(shortage(Buffer::<u8, _>::new(pool.clone(), bytes as usize)), (bytes, 0, 0));
        drop(quarters);
        assert_eq!(give(&pool, bytes).len() as u64, bytes);
        assert!(matches!(Buffer::<u8, _>::new(pool.clone(), 5 << 20), Err(Error::OutOfMemory { .. })));
    }
}

#[test]
fn a_pool_frees_slabs_for_a_limit_below() {
    let backend = backend(64 * MIB);
    makes_room(|| Limited::new(Device::new(&backend, 0), 4 * MIB));
}

#[test]
fn a_pool_frees_slabs_for_a_pinned_budget() {
    let backend = Clean::build(HostBackend::builder().pinned_budget(4 * MIB));
    makes_room(|| Pinned::new(&backend, 0));
}

#[test]
fn an_exhausted_pool_below_is_retried_a_bounded_number_of_times() {
    let backend = backend(64 * MIB);
    let below = builder(&backend).limit(4 * MIB).slab(4 * MIB).build().unwrap();
    let counted = Statistics::new(below.clone());
    let above = Pool::builder(counted.clone()).slab(MIB).patience(LIMIT).build().unwrap();
    let kept = give(&below, 4 * MIB);
    shortage(Buffer::<u8, _>::new(above.clone(), 1 << 20));
    assert!(counted.scope().refused < 20, "{}", counted.scope().refused);
    drop(kept);
    drop(give(&above, MIB));
}

struct Slow(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.send(());
        let _ = self.1.recv_timeout(LIMIT);
    }
}

#[test]
fn a_pool_waits_for_a_pending_free_of_a_limit_below() {
    let backend = backend(64 * MIB);
    let stream = Stream::new(&backend, 0).unwrap();
    let limited = Limited::new(Device::new(&backend, 0), MIB);
    let small = Classes::new(4 * KIB, 1, 1).unwrap();
    for builder in [Pool::builder(limited.clone()).enabled(false), Pool::builder(limited.clone()).classes(small).slab(64 * KIB)] {
        let pool = builder.patience(LIMIT).build().unwrap();
        let held = Held::new(&backend, &stream);
        let mut whole = give(&pool, MIB);
        whole.used_by(&stream).unwrap();
        let (begun, has_begun) = mpsc::channel();
        let (go, told) = mpsc::channel();
        backend.keep(
            Box::new(Slow(begun, told)),
            &Uses::of(backend.record_position(stream.id()).unwrap()),
            Some(&Block::empty(MemoryLocation::Device, 1)),
        );
        drop(whole);
        held.release_only();
        has_begun.recv_timeout(LIMIT).expect("its use is over");
        let teller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            go.send(()).expect("it waits");
        });
        drop(give(&pool, MIB));
        teller.join().expect("no panic");
        assert_eq!(limited.used(), 0);
    }
}

struct Late {
    memory: Device,
    stream: Stream,
    freed: Arc<Mutex<Vec<usize>>>,
    has_given: Arc<AtomicBool>,
}

// SAFETY: the blocks are the device's, ready later.
unsafe impl Memory for Late {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, _: Option<&Stream>) -> ringmem::Result<Block> {
        let mut block = self.memory.alloc(layout, None)?;
        block.ready = Some(self.stream.backend().record_position(self.stream.id())?);
        self.has_given.store(true, Relaxed);
        Ok(block)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        self.freed.lock().unwrap().push(uses.iter().count());
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, apart from
        // `ready`.
        unsafe { self.memory.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.memory.device()
    }
}

#[test]
fn a_slab_with_a_failed_wait_is_freed_after_it_is_ready() {
    let backend = backend(64 * MIB);
    let stream = Stream::new(&backend, 0).unwrap();
    let freed = Arc::new(Mutex::new(Vec::new()));
    let memory = Late { memory: Device::new(&backend, 0), stream, freed: Arc::clone(&freed), has_given: Arc::default() };
    let pool = Pool::builder(memory).build().unwrap();
    backend.set_faults(&Faults::new().on(Verb::Wait, Fault::nth(1)));
    assert!(matches!(Buffer::<u8, _>::new(pool.clone(), 1000), Err(Error::Injected { .. })));
    backend.set_faults(&Faults::new());
    assert_eq!((&**freed.lock().unwrap(), pool.statistics().reserved_bytes), (&[1][..], 0));
    drop(give(&pool, KIB));
    assert_eq!(pool.statistics().reserved_bytes, 32 * MIB);
}

#[test]
fn a_slab_with_a_panicked_wait_is_freed() {
    let has_given = Arc::new(AtomicBool::new(false));
    let clock = {
        let has_given = Arc::clone(&has_given);
        move || {
            assert!(!has_given.swap(false, Relaxed), "a clock that a test asked for");
            0
        }
    };
    let backend = Clean::build(HostBackend::builder().device_memory(64 * MIB).log(true).clock(Arc::new(clock)));
    let stream = Stream::new(&backend, 0).unwrap();
    let pool = Pool::builder(Late { memory: Device::new(&backend, 0), stream, freed: Arc::default(), has_given }).build().unwrap();
    catch_unwind(AssertUnwindSafe(|| Buffer::<u8, _>::new(pool.clone(), 1000))).expect_err("the clock panics in the wait");
    assert_eq!((pool.statistics().reserved_bytes, backend.counters().device_live.bytes), (0, 0));
}

#[derive(Clone)]
struct Panicking(Device, Arc<AtomicBool>);

// SAFETY: the device's blocks.
unsafe impl Memory for Panicking {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> ringmem::Result<Block> {
        assert!(!self.1.load(Relaxed), "told to");
        self.0.alloc(layout, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
        let outcome = unsafe { self.0.free(block, uses) };
        assert!(!self.1.load(Relaxed), "told to");
        outcome
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.0.backend()
    }
    fn device(&self) -> u32 {
        self.0.device()
    }
}

#[test]
fn a_panicking_allocation_is_not_counted() {
    let backend = backend(64 * MIB);
    let panics = Arc::new(AtomicBool::new(true));
    for pool in direct(|| Panicking(Device::new(&backend, 0), Arc::clone(&panics))) {
        panics.store(true, Relaxed);
        for bytes in [KIB, 5 * KIB] {
            assert!(catch_unwind(AssertUnwindSafe(|| give(&pool, bytes))).is_err());
        }
        assert_eq!(pool.statistics().reserved_bytes, 0);
        panics.store(false, Relaxed);
        drop((give(&pool, KIB), give(&pool, 5 * KIB)));
        pool.trim_to(0);
        assert_eq!(pool.statistics().reserved_bytes, 0);
    }
}

#[test]
fn a_replay_frees_the_rest_although_each_free_panics() {
    let backend = backend(64 * MIB);
    let panics = Arc::new(AtomicBool::new(false));
    let memory = Panicking(Device::new(&backend, 0), Arc::clone(&panics));
    let trace = Trace::parse("alloc 0 4096 1\nalloc 1 4096 1\nalloc 2 4096 1\n").expect("a trace");
    for panics_too in [false, true] {
        let mut seen = 0;
        let after = |_| {
            seen += 1;
            if seen == 3 {
                panics.store(true, Relaxed);
                assert!(!panics_too, "the caller's");
            }
        };
        assert!(catch_unwind(AssertUnwindSafe(|| trace.replay_with(&memory, &[], after))).is_err());
        panics.store(false, Relaxed);
        assert_eq!(backend.counters().device_live.bytes, 0, "{panics_too}");
    }
}

#[test]
fn a_memory_that_panics_at_every_free_leaks_nothing() {
    let backend = backend(64 * MIB);
    let panics = Arc::new(AtomicBool::new(false));
    let told = |panic: &dyn Fn()| {
        panics.store(true, Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(panic)).is_err());
        panics.store(false, Relaxed);
    };
    let memory = || Panicking(Device::new(&backend, 0), Arc::clone(&panics));
    let live = || backend.counters().device_live.bytes;
    let is_empty = |pool: &Pool<Panicking>, frees: u64| {
        let statistics = pool.statistics();
        assert_eq!((statistics.reserved_bytes, statistics.live, statistics.memory_frees, live()), (0, 0, frees, 0));
    };
    for pool in direct(memory) {
        let block = Cell::new(Some(give(&pool, 5 * KIB)));
        told(&|| drop(block.take()));
        is_empty(&pool, 1);
    }
    let filled = || {
        let pool = Pool::builder(memory()).slab(MIB).build().unwrap();
        drop([(); 3].map(|()| give(&pool, MIB)));
        pool
    };
    let pool = filled();
    told(&|| {
        pool.trim_to(0);
    });
    is_empty(&pool, 3);
    let going = Cell::new(Some(filled()));
    told(&|| drop(going.take()));
    assert_eq!(live(), 0);
}

struct Empty {
    memory: Device,
    meanwhile: mpsc::Sender<mpsc::Sender<()>>,
    asked: Arc<AtomicU64>,
}

// SAFETY: allocates no block.
unsafe impl Memory for Empty {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, _: Option<&Stream>) -> ringmem::Result<Block> {
        assert!(self.asked.fetch_add(1, Relaxed) < 20, "asked without end");
        let (answer, answered) = mpsc::channel();
        self.meanwhile.send(answer).expect("the thread runs");
        answered.recv_timeout(LIMIT).expect("in time");
        Err(Error::OutOfMemory { requested: layout.size() as u64, free: 0, largest: 0, limit: None, unavailable: None })
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        // SAFETY: the caller promises a block of this memory; there is none, because `alloc` always fails.
        unsafe { self.memory.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.memory.device()
    }
}

#[test]
fn a_futile_trim_by_another_thread_does_not_extend_the_search() {
    let backend = backend(64 * MIB);
    let (meanwhile, asked) = mpsc::channel::<mpsc::Sender<()>>();
    let times = Arc::new(AtomicU64::new(0));
    let memory = Empty { memory: Device::new(&backend, 0), meanwhile, asked: Arc::clone(&times) };
    let pool = Pool::builder(memory).limit(4 * MIB).slab(MIB).patience(LIMIT).build().unwrap();
    let theirs = pool.clone();
    let (leave, left) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        while left.try_recv().is_err() {
            if let Ok(answer) = asked.recv_timeout(Duration::from_millis(1)) {
                theirs.trim_to(0);
                let _ = answer.send(());
            }
        }
    });
    for bytes in [1000, 3 << 20] {
        shortage(Buffer::<u8, _>::new(pool.clone(), bytes));
    }
    assert!(times.load(Relaxed) >= 2);
    leave.send(()).expect("the thread runs");
    other.join().expect("no panic");
}
