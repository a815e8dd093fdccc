use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rig::leak_checked::Clean;
use crate::rig::panicking_clock::{clock, has_struck, strike};
use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, GpuBuffer, Prefetching, Unified, UnifiedBuffer};
use ringmem::stream::Stream;

#[test]
fn a_prefetch_counts_bytes_not_elements() {
    let backend = Clean::build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let mut buffer = UnifiedBuffer::<f64>::new(Unified::new(&backend, 0), 1000).expect("room");
    buffer.as_mut_slice().expect("idle").fill(2.5);
    for to in [Some(0), None] {
        buffer = stream.prefetch(buffer, to).expect("queued").wait().expect("done");
    }
    assert!(buffer.as_slice().expect("idle").iter().all(|&value| value == 2.5));
    let prefetches = backend.counters().prefetches;
    assert_eq!((prefetches.count, prefetches.bytes), (2, 16_000));
}

#[test]
fn a_prefetch_of_device_memory_returns_the_buffer() {
    let backend = Clean::build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).expect("room");
    let rejected = stream.prefetch(buffer, Some(0)).expect_err("device memory");
    assert!(matches!(rejected.error, Error::Unsupported { .. }), "{rejected:?}");
    assert_eq!(rejected.value.len(), 16);
    assert_eq!(backend.counters().prefetches.count, 0);
}

#[test]
fn prefetching_memory_moves_blocks_before_their_use() {
    let backend = Clean::build(HostBackend::builder());
    let (own, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let memory = Prefetching::new(Unified::new(&backend, 0), own, Some(0));
    let mut here = Buffer::<u32, _>::new(memory.clone(), 100).expect("room");
    here.settle().expect("moved");
    assert_eq!(here.as_slice().expect("settled"), [0; 100]);
    let there = Buffer::<u32, _>::new_on(memory, 50, &other).expect("room");
    let filled = other.fill(there, .., 7).expect("queued").wait().expect("done");
    assert_eq!(filled.to_vec().expect("copied"), [7; 50]);
    assert_eq!(backend.counters().prefetches.bytes, 600);
    let device = Prefetching::new(Device::new(&backend, 0), other, Some(0));
    drop(Buffer::<u32, _>::new(device, 10).expect("room"));
    assert_eq!(backend.counters().prefetches.count, 2);
    drop((here, filled));
    assert_eq!(backend.counters().unified_live.bytes, 0);
}

#[test]
fn a_failed_prefetch_frees_the_block() {
    let backend = Clean::build(HostBackend::builder());
    let memory = Prefetching::new(Unified::new(&backend, 0), Stream::new(&backend, 0).expect("a stream"), Some(9));
    let error = Buffer::<u32, _>::new(memory, 100).expect_err("no such device");
    assert!(matches!(error, Error::NoDevice { asked: 9, devices: 1 }), "{error}");
    assert_eq!(backend.counters().unified_live.bytes, 0);
}

#[test]
fn unsupported_prefetches_leave_blocks_unmoved() {
    let backend = Clean::build(HostBackend::builder().concurrent_managed_access(false));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let rejected = stream.prefetch(UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 16).expect("room"), None).expect_err("in turns");
    assert!(matches!(rejected.error, Error::Unsupported { .. }), "{rejected:?}");
    let buffer = Buffer::<u32, _>::new(Prefetching::new(Unified::new(&backend, 0), stream, Some(0)), 100).expect("not moved");
    assert_eq!((buffer.as_slice().expect("nothing was queued"), backend.counters().prefetches.count), (&[0; 100][..], 0));
}

#[test]
fn a_panicking_prefetch_frees_the_block() {
    let struck = (1..).find(|&number| {
        let backend = Clean::build(HostBackend::builder().log(true).clock(clock()));
        let [own, other] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
        let memory = Prefetching::new(Prefetching::new(Unified::new(&backend, 0), own, Some(0)), other, None);
        strike(number);
        let made = catch_unwind(AssertUnwindSafe(|| Buffer::<u32, _>::new(memory, 100).map(drop)));
        let has_struck = has_struck();
        assert_eq!(made.is_err(), has_struck);
        !has_struck
    });
    assert!(struck > Some(4), "the allocation, a move, a wait and a move at least");
}
