//! Each way of making room: a request succeeds only with it.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, Tracked};
use ringmem::pool::Builder;
use ringmem::stream::Stream;

use super::{Bytes, DevicePool, Held, KIB, LIMIT, MIB, backend, builder, give, shortage};

fn one_slab(backend: &Arc<HostBackend>) -> Builder<Device> {
    builder(backend).limit(4 * MIB).slab(4 * MIB).patience(Duration::ZERO)
}

fn quarters(pool: &DevicePool) -> Vec<Bytes> {
    (0..4).map(|_| give(pool, MIB)).collect()
}

#[test]
fn a_shortage_reclaims_the_cache_of_this_thread() {
    let backend = backend(64 * MIB);
    let pool = one_slab(&backend).build().unwrap();
    let mut blocks = quarters(&pool);
    assert_eq!(shortage(Bytes::new(pool.clone(), 2 << 20)), (2 * MIB, 0, 0));
    blocks.truncate(2);
    assert_eq!(pool.statistics().free_bytes, 0, "both are cached");
    assert_eq!(give(&pool, 2 * MIB).len() as u64, 2 * MIB);
    assert_eq!(pool.statistics().memory_allocations, 1);
}

#[test]
fn a_shorter_free_block_is_used_before_caches_are_emptied() {
    let backend = backend(64 * MIB);
    let pool = one_slab(&backend).build().unwrap();
    let (whole, cached) = (give(&pool, 3 * MIB - 100), give(&pool, 64 * KIB));
    drop(cached);
    // 960 KiB remain: less than a class of 1 MiB, more than one of 896 KiB.
    let rest = give(&pool, 950 << 10);
    assert_eq!(pool.statistics().hits, 0);
    let cached = give(&pool, 64 * KIB);
    assert_eq!((pool.statistics().hits, pool.statistics().memory_allocations), (1, 1), "it was still cached");
    drop(rest);
    assert_eq!(shortage(Bytes::new(pool.clone(), 1 << 20)).0, MIB, "the short block serves no request of the longer class");
    drop((whole, cached));
}

#[test]
fn a_shortage_reclaims_the_cache_of_an_idle_thread() {
    let backend = backend(64 * MIB);
    let pool = one_slab(&backend).build().unwrap();
    let (sender, receiver) = mpsc::channel::<Vec<Bytes>>();
    let (leave, left) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    let idle = thread::spawn(move || {
        drop(receiver.recv_timeout(LIMIT).expect("blocks"));
        done.send(()).expect("the test waits");
        let _ = left.recv_timeout(LIMIT);
    });
    let blocks = quarters(&pool);
    shortage(Bytes::new(pool.clone(), 4 << 20));
    sender.send(blocks).expect("the thread runs");
    is_done.recv_timeout(LIMIT).expect("dropped in time");
    assert_eq!(pool.statistics().free_bytes, 0, "all are cached there");
    drop(give(&pool, 4 * MIB));
    assert_eq!(pool.statistics().memory_allocations, 1);
    leave.send(()).expect("the thread runs");
    idle.join().expect("no panic");
}

#[test]
fn a_shortage_below_frees_empty_slabs() {
    let backend = backend(8 * MIB);
    let pool = builder(&backend).slab(2 * MIB).patience(Duration::ZERO).build().unwrap();
    let mut blocks: Vec<_> = (0..4).map(|_| give(&pool, 2 * MIB)).collect();
    shortage(Bytes::new(pool.clone(), 4 << 20));
    blocks.truncate(2);
    assert_eq!(give(&pool, 4 * MIB).len() as u64, 4 * MIB);
    assert_eq!(pool.statistics().memory_frees, 2);
    assert_eq!(backend.counters().device_live.bytes, 8 * MIB);
}

#[test]
fn a_shortage_waits_for_pending_frees_up_to_the_patience() {
    let backend = backend(64 * MIB);
    let (short, long) = (one_slab(&backend).build().unwrap(), one_slab(&backend).patience(LIMIT).build().unwrap());
    for (pool, waits) in [(short, false), (long, true)] {
        let stream = Stream::new(&backend, 0).unwrap();
        let held = Held::new(&backend, &stream);
        drop(stream.fill(give(&pool, 4 * MIB), .., 1).expect("queued"));
        if waits {
            let released = thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                held.release();
            });
            drop(give(&pool, 3 * MIB));
            released.join().expect("no panic");
        } else {
            assert_eq!(shortage(Bytes::new(pool.clone(), 3 << 20)), (3 * MIB, 0, 0));
            assert_eq!(pool.statistics().pending, 1);
            held.release();
            drop(give(&pool, 3 * MIB));
        }
        assert_eq!(pool.statistics().pending, 0);
    }
}

#[test]
fn a_waiting_request_finds_an_ordinary_free_of_another_thread() {
    let backend = backend(64 * MIB);
    for is_exact in [false, true] {
        let pool = builder(&backend).limit(8 * MIB).slab(8 * MIB).exact(is_exact).patience(LIMIT).build().unwrap();
        let stream = Stream::new(&backend, 0).unwrap();
        let held = Held::new(&backend, &stream);
        drop(stream.fill(give(&pool, 4 * MIB), .., 1).expect("queued"));
        let other = give(&pool, 4 * MIB);
        let (sender, receiver) = mpsc::channel();
        let theirs = pool.clone();
        let waiter = thread::spawn(move || sender.send(Bytes::new(theirs, 4 << 20)));
        thread::sleep(Duration::from_millis(20));
        drop(other);
        let got = receiver.recv_timeout(2 * LIMIT).expect("in time").expect("the block that was freed");
        assert_eq!(pool.statistics().pending, 1, "the other free is still pending");
        held.release();
        drop(got);
        waiter.join().expect("no panic").expect("it was received");
    }
}

#[test]
fn a_shortage_uses_blocks_freed_by_the_callback() {
    let backend = backend(64 * MIB);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (asked, theirs) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&kept));
    let heard = Arc::clone(&asked);
    let free = move |bytes| {
        heard.lock().unwrap().push(bytes);
        let mut kept = theirs.lock().unwrap();
        let had: usize = kept.len();
        kept.clear();
        had > 0
    };
    let pool = one_slab(&backend).on_out_of_memory(free).build().unwrap();
    kept.lock().unwrap().extend(quarters(&pool));
    let whole = give(&pool, 4 * MIB);
    assert_eq!(*asked.lock().unwrap(), [4 * MIB]);
    shortage(Bytes::new(pool.clone(), 1000));
    assert_eq!(*asked.lock().unwrap(), [4 * MIB, 1000], "it had nothing more");
    drop(whole);
}

#[test]
fn an_allocation_of_the_callback_is_reported_with_its_own_line() {
    let backend = backend(64 * MIB);
    let other = Tracked::new(Device::new(&backend, 0));
    let (theirs, spilled) = (other.clone(), Arc::new(Mutex::new(None)));
    let kept = Arc::clone(&spilled);
    let spill = move |_| {
        *kept.lock().unwrap() = Some((Buffer::<u8, _>::new(theirs.clone(), 100).unwrap(), line!()));
        false
    };
    let pool = one_slab(&backend).on_out_of_memory(spill).build().unwrap();
    let _whole = give(&pool, 4 * MIB);
    shortage(Bytes::new(pool.clone(), 1000));
    let spilled = spilled.lock().unwrap();
    let (_, line) = spilled.as_ref().expect("it was asked");
    let lines: Vec<u32> = other.leaks().iter().map(|leak| leak.caller.line()).collect();
    assert_eq!(lines, [*line]);
}

#[test]
fn out_of_memory_reports_free_bytes_and_the_largest_block() {
    let backend = backend(64 * MIB);
    let pool = one_slab(&backend).build().unwrap();
    let mut blocks = quarters(&pool);
    drop((blocks.remove(3), blocks.remove(1)));
    assert_eq!(shortage(Bytes::new(pool.clone(), 2 << 20)), (2 * MIB, 2 * MIB, MIB));
    assert_eq!(pool.statistics().live, 2);
}

#[test]
fn a_direct_request_frees_idle_slabs_and_waits_for_frees() {
    let backend = backend(64 * MIB);
    let classes = ringmem::pool::Classes::new(4096, 9, 1).unwrap();
    let pool = one_slab(&backend).classes(classes).slab(2 * MIB).build().unwrap();
    let slabs: Vec<_> = (0..4).map(|_| give(&pool, MIB)).collect();
    assert_eq!(shortage(Bytes::new(pool.clone(), 3 << 20)), (3 * MIB, 0, 0));
    drop(slabs);
    let direct = give(&pool, 3 * MIB);
    assert_eq!(pool.statistics().reserved_bytes, 3 * MIB);
    let stream = Stream::new(&backend, 0).unwrap();
    let held = Held::new(&backend, &stream);
    drop(stream.fill(direct, .., 1).expect("queued"));
    assert_eq!(pool.statistics().reserved_bytes, 3 * MIB);
    shortage(Bytes::new(pool.clone(), 3 << 20));
    held.release();
    super::eventually("the backend has freed it", || backend.counters().device_live.bytes == 0);
    drop(give(&pool, 3 * MIB));
    assert!(backend.counters().device_live.peak <= 4 * MIB);
}

#[test]
fn a_shortage_waits_for_frees_queued_by_the_callback() {
    let backend = backend(64 * MIB);
    let classes = ringmem::pool::Classes::new(4096, 9, 1).unwrap();
    for builder in [one_slab(&backend), one_slab(&backend).classes(classes)] {
        let kept: Arc<Mutex<Option<(Bytes, Stream, Held)>>> = Arc::default();
        let theirs = Arc::clone(&kept);
        let free = move |_| {
            let Some((block, stream, held)) = theirs.lock().unwrap().take() else { return false };
            drop(stream.fill(block, .., 1).expect("queued"));
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                held.release();
            });
            true
        };
        let pool = builder.patience(LIMIT).on_out_of_memory(free).build().unwrap();
        let stream = Stream::new(&backend, 0).unwrap();
        let held = Held::new(&backend, &stream);
        *kept.lock().unwrap() = Some((give(&pool, 4 * MIB), stream, held));
        drop(give(&pool, 3 * MIB));
        assert!(kept.lock().unwrap().is_none());
    }
}

#[test]
fn the_callback_is_not_called_recursively() {
    let backend = backend(64 * MIB);
    let (built, asked) = (Arc::new(Mutex::new(None::<DevicePool>)), Arc::new(Mutex::new(Vec::new())));
    let (theirs, heard) = (Arc::clone(&built), Arc::clone(&asked));
    let callback = move |bytes| {
        heard.lock().unwrap().push(bytes);
        assert!(heard.lock().unwrap().len() < 9, "without end");
        let pool = theirs.lock().unwrap().clone().expect("it is built");
        Bytes::new(pool, 2000).is_ok()
    };
    let pool = one_slab(&backend).on_out_of_memory(callback).build().unwrap();
    *built.lock().unwrap() = Some(pool.clone());
    let whole = give(&pool, 4 * MIB);
    for times in 1..=2 {
        shortage(Bytes::new(pool.clone(), 1000));
        assert_eq!(*asked.lock().unwrap(), [1000].repeat(times), "each time once");
    }
    drop(whole);
    built.lock().unwrap().take();
}

#[test]
fn out_of_memory_reports_the_rest_of_the_limit() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(8 * MIB).slab(MIB).build().unwrap();
    let kept = give(&pool, 5 * MIB);
    let left = 8 * MIB - pool.statistics().reserved_bytes;
    let (requested, free, largest) = shortage(Bytes::new(pool.clone(), 4 << 20));
    assert_eq!((requested, free, largest), (4 * MIB, left, left));
    let rest = give(&pool, largest);
    assert_eq!(pool.statistics().reserved_bytes, 8 * MIB);
    let error = Bytes::new(pool.clone(), 64 << 10).expect_err("the limit is reached").to_string();
    assert!(error.starts_with("out of memory: requested 64 KiB, free 0 bytes, "), "{error}");
    assert!(error.ends_with("; limit of the pool reached: 8 MiB of 8 MiB in use"), "{error}");
    drop((kept, rest));
}

#[test]
fn out_of_memory_of_the_device_names_no_limit() {
    let backend = backend(2 * MIB);
    for is_enabled in [true, false] {
        let pool = builder(&backend).enabled(is_enabled).limit(64 * MIB).slab(MIB).build().unwrap();
        let error = Bytes::new(pool, 4 << 20).expect_err("a small device");
        assert!(matches!(error, Error::OutOfMemory { limit: None, .. }), "{error}");
    }
}

#[test]
fn out_of_memory_of_a_disabled_pool_names_its_limit() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).enabled(false).limit(4 * MIB).patience(Duration::ZERO).build().unwrap();
    let kept = give(&pool, 3 * MIB);
    let error = Bytes::new(pool, 2 << 20).expect_err("the limit is reached").to_string();
    assert!(error.ends_with("; limit of the pool reached: 3 MiB of 4 MiB in use"), "{error}");
    drop(kept);
}
