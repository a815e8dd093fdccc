//! Exact counters, of one thread and of eight.

use std::thread;

use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::host::{HostBackend, Live, Tally};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Stream};

use super::setup::*;

#[test]
fn counters_are_exact_after_a_script() {
    let setup = setup(1 << 20);
    let (mut a, mut b) = (setup.device(1000), setup.device(500));
    let mut pinned = PinnedBuffer::new(Pinned::new(&setup.backend, 0), 2000).expect("pinned memory");
    for len in [10, 20, 30] {
        (pinned, a) = done(setup.stream.copy_range(pinned, ..len, a, 0).expect("an upload"));
    }
    b.copy_to_at(0, &mut pinned.as_mut_slice().expect("nothing is queued")[..7]).expect("a download");
    b = done(setup.stream.fill(b, 1..3, 3).expect("a fill"));
    drop(a);
    let c = setup.device(300);
    drop(setup.launch("increment", &[address(&c), 0]));
    let Setup { backend, stream, .. } = setup;
    within(move || (stream.synchronize().expect("a live stream"), stream.synchronize().expect("a live stream")));
    drop((b, c, pinned));
    let counters = backend.counters();
    assert_eq!(counters.device_allocations, Tally { count: 3, bytes: 1800 });
    assert_eq!(counters.device_frees, Tally { count: 3, bytes: 1800 });
    assert_eq!(counters.device_live, Live { bytes: 0, peak: 1500 });
    assert_eq!(counters.pinned_allocations, Tally { count: 1, bytes: 2000 });
    assert_eq!(counters.pinned_frees, Tally { count: 1, bytes: 2000 });
    assert_eq!(counters.pinned_live, Live { bytes: 0, peak: 2000 });
    assert_eq!(counters.uploads, Tally { count: 3, bytes: 60 });
    assert_eq!(counters.downloads, Tally { count: 1, bytes: 7 });
    assert_eq!(counters.fills, Tally { count: 1, bytes: 2 });
    assert_eq!((counters.launches, counters.kernel_panics, counters.synchronizations, counters.streams), (1, 0, 2, 1));
    assert_eq!(backend.memory_info(0).expect("device 0").map(|info| info.free), Some(1 << 20));
}

#[test]
fn eight_threads_allocate_and_copy_without_interference() {
    const { assert_shared::<(HostBackend, Stream, Module, GpuBuffer<u8>, Pending<PinnedBuffer<u8>>, Error)>() };
    let backend = &backend(8 << 20);
    let (device, pinned) = (&Device::new(backend, 0), &Pinned::new(backend, 0));
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let stream = Stream::new(backend, 0).expect("a stream");
                let mut random = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
                let mut kept: Vec<(GpuBuffer<u8>, u8)> = Vec::new();
                for round in 0..200_u64 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (bytes, byte) = (1 + (random >> 33) as usize % 50_000, (thread * 31 + round) as u8);
                    let source = PinnedBuffer::from_slice(pinned.clone(), &vec![byte; bytes]).expect("pinned memory");
                    let memory = GpuBuffer::new(device.clone(), bytes).expect("room");
                    let (_, memory) = done(stream.copy(source, memory).expect("an upload"));
                    kept.push((memory, byte));
                    if kept.len() > 8 {
                        let (memory, byte) = kept.swap_remove((random % 8) as usize);
                        let into = PinnedBuffer::new(pinned.clone(), memory.len()).expect("pinned memory");
                        let (_, into) = done(stream.copy(memory, into).expect("a download"));
                        let bytes = into.as_slice().expect("nothing is queued");
                        assert!(bytes.iter().all(|&found| found == byte), "another thread's bytes");
                    }
                }
            });
        }
    });
    let counters = backend.counters();
    assert_eq!((counters.device_live.bytes, counters.pinned_live.bytes), (0, 0));
    assert_eq!(backend.memory_info(0).expect("device 0").map(|info| info.free), Some(8 << 20));
    assert_eq!((counters.device_allocations, counters.pinned_allocations), (counters.device_frees, counters.pinned_frees));
    assert_eq!((counters.device_allocations.count, counters.streams), (1600, 8));
    assert!(counters.device_live.peak <= 8 << 20);
}

const fn assert_shared<T: Send + Sync + 'static>() {}
