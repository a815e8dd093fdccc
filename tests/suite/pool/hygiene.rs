use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{Buffer, Host, HostReadable, Memory, Pinned, Unified};
use ringmem::pool::{Builder, Classes, Hygiene, Pool};
use ringmem::stream::Stream;

use super::{Bytes, Held, MIB, backend, builder, give};
use crate::rig::leak_checked::Clean;
use crate::rig::panicking_clock::{clock, has_struck, strike};

#[test]
fn reused_blocks_are_kept_zeroed_or_poisoned_up_to_the_request() {
    for (hygiene, expected) in [(Hygiene::Leave, 7), (Hygiene::Zero, 0), (Hygiene::Poison(0xA5), 0xA5)] {
        let backend = backend(64 * MIB);
        let pool = builder(&backend).hygiene(hygiene).build().unwrap();
        let mut first = give(&pool, 1000);
        first.fill(7).unwrap();
        drop(first);
        let before = backend.counters().fills;
        let again = give(&pool, 900);
        let fills = backend.counters().fills;
        let cleaned = if hygiene == Hygiene::Leave { 0 } else { 900 };
        assert_eq!(fills.bytes - before.bytes, cleaned, "as much as was asked for, not as the class has");
        assert!(again.to_vec().unwrap().iter().all(|&byte| byte == expected), "{hygiene:?}");
    }
}

/// The bytes of a block's second owner, after the first has written 7.
fn reused<M: Memory<Visibility: HostReadable>>(memory: M, set: impl Fn(Builder<M>) -> Builder<M>) -> Vec<u8> {
    let pool = set(Pool::builder(memory)).build().expect("a pool");
    let mut first = Buffer::<u8, _>::new(pool.clone(), 1000).expect("memory");
    assert_eq!(first.as_slice().expect("host memory"), [0; 1000], "a new block keeps the bytes of the memory below");
    first.as_mut_slice().expect("host memory").fill(7);
    let at = first.as_ptr().expect("host memory");
    drop(first);
    let again = Buffer::<u8, _>::new(pool, 1000).expect("memory");
    assert_eq!(again.as_ptr().expect("host memory"), at);
    again.as_slice().expect("host memory").to_vec()
}

#[test]
fn debug_builds_poison_freed_host_blocks_by_default() {
    let backend = backend(64 * MIB);
    let freed = if cfg!(debug_assertions) { Hygiene::FREED } else { 7 };
    for is_exact in [false, true] {
        let (pinned, host) = (Pinned::new(&backend, 0), Host::new(&backend, 0));
        assert_eq!(reused(pinned.clone(), |builder| builder.exact(is_exact)), [freed; 1000]);
        assert_eq!(reused(host, |builder| builder.exact(is_exact)), [freed; 1000]);
        assert_eq!(reused(pinned, |builder| builder.exact(is_exact).hygiene(Hygiene::Leave)), [7; 1000]);
        assert_eq!(reused(Unified::new(&backend, 0), |builder| builder.exact(is_exact)), [7; 1000], "a kernel may run");
        let pool = builder(&backend).exact(is_exact).build().expect("a pool");
        drop(give(&pool, 1000));
        drop(give(&pool, 1000));
        assert_eq!(backend.counters().fills.count, 0, "device memory needs a fill");
    }
}

#[test]
fn a_block_freed_while_in_use_is_not_poisoned() {
    let backend = backend(64 * MIB);
    let pool = Pool::builder(Pinned::new(&backend, 0)).build().expect("a pool");
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let mut block = Buffer::<u8, _>::new(pool.clone(), 1000).expect("memory");
    block.as_mut_slice().expect("host memory").fill(7);
    block.used_by(&stream).expect("a live stream");
    drop(block);
    held.release();
    let again = Buffer::<u8, _>::new_on(pool, 1000, &stream).expect("memory");
    stream.synchronize().expect("nothing failed");
    assert_eq!(again.to_vec().expect("a copy"), [7; 1000]);
}

#[test]
fn direct_and_new_blocks_are_zeroed() {
    let backend = backend(64 * MIB);
    let mut dirty = Buffer::<u8, _>::new(ringmem::memory::Device::new(&backend, 0), 8 << 20).unwrap();
    dirty.fill(9).unwrap();
    drop(dirty);
    let pool = builder(&backend).hygiene(Hygiene::Zero).classes(Classes::new(4096, 9, 1).unwrap()).build().unwrap();
    for bytes in [1000, 3 * MIB] {
        assert!(give(&pool, bytes).to_vec().unwrap().iter().all(|&byte| byte == 0), "{bytes}");
    }
}

#[test]
fn a_block_allocated_on_a_stream_is_zeroed() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).hygiene(Hygiene::Zero).build().unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    let buffer = Bytes::new_on(pool.clone(), 1000, &stream).unwrap();
    let (buffer, _) = (stream.fill(buffer, .., 3).unwrap().detach(), ());
    drop(buffer);
    let again = Bytes::new_on(pool.clone(), 1000, &stream).unwrap();
    assert!(again.to_vec().unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(pool.statistics().hits, 1);
}

#[test]
fn a_block_with_failed_zeroing_is_neither_returned_nor_lost() {
    let classes = Classes::new(4096, 9, 1).unwrap();
    for bytes in [1000, 3 * MIB] {
        let backend = backend(64 * MIB);
        let pool = builder(&backend).hygiene(Hygiene::Zero).classes(classes).build().unwrap();
        drop(give(&pool, bytes));
        backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1)));
        assert!(matches!(Bytes::new(pool.clone(), bytes as usize), Err(Error::Injected { .. })));
        let statistics = pool.statistics();
        assert_eq!((statistics.live, statistics.requested_bytes, statistics.held_bytes), (0, 0, 0), "{bytes}");
        assert_eq!(statistics.acquires(), statistics.returns);
        drop(give(&pool, bytes));
        drop(pool);
        assert_eq!(backend.counters().device_live.bytes, 0);
    }
}

#[test]
fn a_block_with_panicked_zeroing_is_not_lost() {
    let classes = Classes::new(4096, 9, 1).expect("powers of two");
    for (bytes, is_queued) in [(1000, false), (1000, true), (3 * MIB, false), (3 * MIB, true)] {
        let panicked = (1..).find(|&number| {
            let backend = Clean::build(HostBackend::builder().device_memory(64 * MIB).log(true).clock(clock()));
            let pool = builder(&backend).hygiene(Hygiene::Zero).classes(classes).build().expect("a pool");
            let stream = Stream::new(&backend, 0).expect("a stream");
            drop(give(&pool, bytes));
            strike(number);
            let given = catch_unwind(AssertUnwindSafe(|| {
                let bytes = bytes as usize;
                if is_queued { Bytes::new_on(pool.clone(), bytes, &stream) } else { Bytes::new(pool.clone(), bytes) }
            }));
            let has_struck = has_struck();
            assert_eq!(given.is_err(), has_struck);
            drop(given);
            stream.synchronize().expect("no fault");
            let _ = pool.trim_to(0);
            let statistics = pool.statistics();
            let held = (statistics.live, statistics.requested_bytes, statistics.held_bytes, statistics.reserved_bytes);
            assert_eq!(held, (0, 0, 0, 0), "{bytes} bytes, call {number}");
            let counted = 1 + u64::from(!has_struck);
            assert_eq!((statistics.acquires(), statistics.returns), (counted, counted), "{bytes} bytes, call {number}");
            drop(give(&pool, bytes));
            !has_struck
        });
        assert!(panicked > Some(1), "the fill at least");
    }
}
