use ringmem::backend::host::Tally;
use ringmem::backend::{MemoryInfo, Uses};
use ringmem::memory::{Device, GpuBuffer};

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn devices_have_memories_of_their_own_size() {
    let backend = build(HostBackend::builder().device_memories([4096, MIB, 64]));
    assert_eq!(backend.devices(), 3);
    for (device, bytes) in [(0, 4096), (1, MIB), (2, 64)] {
        assert_eq!(backend.memory_info(device).expect("a device"), Some(MemoryInfo { total: bytes, free: bytes }));
        let block = give(&backend, MemoryLocation::Device, device, bytes as usize).expect("all of it");
        assert_eq!(block.device, device);
        assert!(matches!(
            give(&backend, MemoryLocation::Device, device, 1),
            Err(Error::OutOfMemory { requested: 1, free: 0, largest: 0, limit: None, .. })
        ));
    }
    assert!(matches!(backend.memory_info(3), Err(Error::NoDevice { asked: 3, devices: 3 })));
    assert!(matches!(HostBackend::builder().devices(2).peer(0, 2).build(), Err(Error::NoDevice { asked: 2, devices: 2 })));
}

#[test]
fn a_buffer_reduces_the_free_memory_by_its_size() {
    let backend = build(HostBackend::builder());
    let info = || backend.memory_info(0).expect("a device").expect("known");
    let before = info();
    let buffer = GpuBuffer::<f32>::new(Device::new(&backend, 0), 10_000_000).expect("room");
    assert_eq!((before.free - info().free, info().used(), info().total), (40_000_000, 40_000_000, before.total));
    drop(buffer);
    assert_eq!(info(), before);
}

#[test]
fn unknown_memory_info_is_none() {
    let backend = build(HostBackend::builder().unknown_memory_info(true));
    assert_eq!(backend.memory_info(0).expect("a device"), None);
    assert!(matches!(backend.memory_info(1), Err(Error::NoDevice { .. })));
}

#[test]
fn capabilities_are_those_of_the_builder() {
    let all = build(HostBackend::builder()).capabilities(0).expect("a device");
    assert!(all.unified && all.concurrent_managed_access && all.system_scope && all.host_native_atomics && !all.shared_memory);
    let builder = HostBackend::builder().unified(false).concurrent_managed_access(false).system_scope(false);
    let backend = build(builder.host_native_atomics(false).shared_memory(true));
    let none = backend.capabilities(0).expect("a device");
    assert!(!none.unified && !none.concurrent_managed_access && !none.system_scope && !none.host_native_atomics && none.shared_memory);
    let error = give(&backend, MemoryLocation::Unified, 0, 64).expect_err("it has none");
    assert!(matches!(error, Error::Unsupported { what: "managed memory" }), "{error:?}");
    assert_eq!(backend.counters().unified_allocations.count, 0);
}

#[test]
fn a_peer_is_enabled_once_per_direction() {
    let backend = build(HostBackend::builder().devices(3).peer(0, 1).peer(2, 0).peer(2, 1));
    let peers = |device| backend.capabilities(device).expect("a device").peers;
    assert_eq!((peers(0), peers(1), peers(2)), (vec![1], vec![], vec![0, 1]));
    for (enabled, disabled) in [(1, 0), (1, 1), (2, 1), (2, 2)] {
        for _ in 0..3 {
            backend.set_peer(0, 1, enabled > disabled).expect("it can, and again does nothing");
            let counters = backend.counters();
            assert_eq!((counters.peer_enables, counters.peer_disables), (enabled, disabled));
        }
    }
    for verb in [true, false].map(|enabled| move |backend: &HostBackend, device, peer| backend.set_peer(device, peer, enabled)) {
        for (device, peer) in [(1, 0), (1, 2), (0, 2)] {
            assert!(matches!(verb(&backend, device, peer), Err(Error::Unsupported { .. })), "{device} to {peer}");
        }
        verb(&backend, 1, 1).expect("itself is never far");
        assert!(matches!(verb(&backend, 0, 3), Err(Error::NoDevice { asked: 3, devices: 3 })));
    }
    assert_eq!((backend.counters().peer_enables, backend.counters().peer_disables), (2, 2));
}

#[test]
fn copies_between_devices_use_the_host_without_a_peer() {
    const BYTES: usize = 50_001;
    let backend = build(HostBackend::builder().devices(2).peer(0, 1));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 31 + i / 256) as u8).collect();
    let blocks = [0, 1].map(|device| give(&backend, MemoryLocation::Device, device, BYTES).expect("room"));
    let tally = |count| Tally { count, bytes: count * BYTES as u64 };
    for (peer, steps) in [(false, 1), (true, 2), (false, 3)] {
        backend.set_peer(0, 1, peer).expect("it can");
        for (from, to) in [(&blocks[0], &blocks[1]), (&blocks[1], &blocks[0])] {
            write(&backend, &bytes, from).expect("an upload");
            write(&backend, &vec![0; BYTES], to).expect("an upload");
            let before = backend.counters();
            if steps == 2 {
                // SAFETY: equally long, unused before the wait.
                let copy = Copy { to: start(to), from: start(from), bytes: BYTES as u64 };
                // SAFETY: equally long, unused before the wait.
                let ticket = unsafe { backend.copy(&copy, stream.id()) }.expect("it is queued");
                assert!(backend.wait(ticket, Some(LIMIT)).expect("it succeeds"));
            } else {
                copy(&backend, from, to, BYTES as u64).expect("a copy");
            }
            let after = backend.counters();
            let counted = |tally: Tally, before: Tally| Tally { count: tally.count - before.count, bytes: tally.bytes - before.bytes };
            let hosts = [counted(after.downloads, before.downloads), counted(after.uploads, before.uploads)];
            assert_eq!(hosts, [tally(u64::from(!peer)); 2], "over the host, twice the bytes");
            assert_eq!(counted(after.peer_copies, before.peer_copies), tally(u64::from(peer)));
            assert_eq!(after.device_copies.count + after.staged.count, before.device_copies.count + before.staged.count);
            assert!(read(&backend, to, BYTES) == bytes, "the bytes arrive");
        }
    }
}

#[test]
fn a_kernel_accesses_peer_memory_only_while_enabled() {
    let backend = build(HostBackend::builder().devices(2).peer(0, 1).peer(1, 0));
    let streams = [0, 1].map(|device| Stream::new(&backend, device).expect("a stream"));
    let blocks = [0, 1].map(|device| give(&backend, MemoryLocation::Device, device, 64).expect("room"));
    let result = PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 1).expect("room");
    let sees = |device: usize, block: usize| {
        let [address, word] = [blocks[block].device_address, result.device_address()].map(|address| address.expect("it has bytes").get());
        // SAFETY: the kernel only writes the result, unread until the end.
        done(unsafe { streams[device].launch(&load(&backend), "place", &[address, 64, word]) }.expect("a launch"));
        result.as_slice().expect("idle")[0] == 1
    };
    assert_eq!([sees(0, 0), sees(1, 1), sees(0, 1), sees(1, 0)], [true, true, false, false]);
    backend.set_peer(0, 1, true).expect("it can");
    assert_eq!([sees(0, 1), sees(1, 0)], [true, false], "one direction");
    backend.set_peer(0, 1, false).expect("it can");
    assert_eq!([sees(0, 1), sees(1, 0)], [false, false]);
}

#[test]
fn pageable_transfers_are_staged_and_pinned_ones_are_not() {
    let backend = build(HostBackend::builder());
    let device = give(&backend, MemoryLocation::Device, 0, 4096).expect("room");
    let pinned = give(&backend, MemoryLocation::Pinned, 0, 4096).expect("room");
    copy(&backend, &pinned, &device, 4096).expect("an upload");
    copy(&backend, &device, &pinned, 4096).expect("a download");
    let counters = backend.counters();
    assert_eq!((counters.uploads.count, counters.downloads.count, counters.staged.count), (1, 1, 0));
    write(&backend, &[1; 4096], &device).expect("an upload");
    read(&backend, &device, 96);
    let counters = backend.counters();
    assert_eq!((counters.uploads.count, counters.downloads.count), (2, 2), "each is one transfer");
    assert_eq!(counters.staged, Tally { count: 2, bytes: 4096 + 96 }, "and a copy more");
    // SAFETY: unused.
    unsafe { backend.free(&pinned, &Uses::NONE) }.expect("it is live");
}

#[test]
fn bytes_arrive_between_any_two_of_four_devices() {
    let builder =
        (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).fold(HostBackend::builder().devices(4), |b, (from, to)| b.peer(from, to));
    let backend = build(builder.device_memory(4096));
    let blocks = [0, 1, 2, 3].map(|device| give(&backend, MemoryLocation::Device, device, 4096).expect("room"));
    for is_direct in [false, true] {
        for from in 0..4_u32 {
            for to in (0..4).filter(|&to| to != from) {
                if is_direct {
                    backend.set_peer(from, to, true).expect("it can");
                }
                let bytes = [(from * 16 + to) as u8; 4096];
                write(&backend, &bytes, &blocks[from as usize]).expect("an upload");
                copy(&backend, &blocks[from as usize], &blocks[to as usize], 4096).expect("a copy");
                assert!(read(&backend, &blocks[to as usize], 4096) == bytes, "{from} to {to}, directly: {is_direct}");
            }
        }
    }
    let counters = backend.counters();
    assert_eq!((counters.peer_copies.count, counters.peer_enables), (12, 12));
    assert_eq!((counters.uploads.count, counters.downloads.count), (24 + 12, 24 + 12));
}
