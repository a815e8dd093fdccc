use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::backend::Prefetch;
use ringmem::backend::host::{Counters, Phase, Tally, Verb};
use ringmem::memory::{Unified, UnifiedBuffer};

use super::*;

const PAGE: u64 = 4096;

fn tally(count: u64) -> Tally {
    Tally { count, bytes: count * PAGE }
}

struct Setup {
    backend: Clean,
    stream: Stream,
    module: Module,
}

fn setup(pages: u64) -> Setup {
    let backend = build(HostBackend::builder().device_memory(pages * PAGE).page_size(PAGE).log(true));
    Setup { stream: Stream::new(&backend, 0).expect("a stream"), module: load(&backend), backend }
}

impl Setup {
    fn managed(&self, bytes: u64) -> UnifiedBuffer<u8> {
        UnifiedBuffer::new(Unified::new(&self.backend, 0), bytes as usize).expect("managed memory")
    }

    fn touch(&self, buffer: &UnifiedBuffer<u8>, offset: u64, bytes: u64) {
        let address = address(buffer) + offset;
        // SAFETY: within the buffer, unused before the wait.
        done(unsafe { self.stream.launch(&self.module, "increment", &[address, bytes]) }.expect("a launch"));
    }

    fn held(&self) -> u64 {
        self.backend.occupied(0).expect("a device").bytes
    }

    fn pages(&self, phase: Phase, buffer: &UnifiedBuffer<u8>) -> Vec<u64> {
        let calls = self.backend.call_log();
        calls.iter().filter(|call| call.phase == phase).map(|call| (call.from.expect("a page") - address(buffer)) / PAGE).collect()
    }
}

fn address(buffer: &UnifiedBuffer<u8>) -> u64 {
    buffer.device_address().expect("it has bytes").get()
}

#[test]
fn managed_memory_is_shared_without_copies() {
    let setup = setup(16);
    let mut buffer = setup.managed(3 * PAGE);
    buffer.as_mut_slice().expect("idle").fill(5);
    setup.touch(&buffer, 0, 3 * PAGE);
    assert!(buffer.as_slice().expect("idle").iter().all(|&byte| byte == 6));
    drop(buffer);
    let counters = setup.backend.counters();
    assert_eq!((counters.uploads.count, counters.downloads.count, counters.device_copies.count, counters.host_copies.count), (0, 0, 0, 0));
    assert_eq!((counters.unified_live.bytes, setup.held()), (0, 0));
}

#[test]
fn oversubscribed_managed_memory_stays_within_the_device() {
    const ROOM: u64 = 8;
    let setup = setup(ROOM);
    let mut buffer = setup.managed(2 * ROOM * PAGE);
    for (i, byte) in buffer.as_mut_slice().expect("idle").iter_mut().enumerate() {
        *byte = (i / 64 % 250) as u8;
    }
    for _ in 0..2 {
        for chunk in 0..2 * ROOM / 4 {
            setup.touch(&buffer, chunk * 4 * PAGE, 4 * PAGE);
        }
    }
    setup.touch(&buffer, 0, 2 * ROOM * PAGE);
    let occupied = setup.backend.occupied(0).expect("a device");
    assert_eq!((occupied.bytes, occupied.peak), (ROOM * PAGE, ROOM * PAGE));
    assert!(buffer.as_slice().expect("idle").iter().enumerate().all(|(i, &byte)| byte == (i / 64 % 250) as u8 + 3));
    assert_eq!(setup.held(), 0, "the host has touched all of it");
    let counters = setup.backend.counters();
    assert_eq!((counters.pages_in, counters.pages_evicted, counters.pages_out), (tally(48), tally(40), tally(8)));
}

#[test]
fn the_least_recently_used_page_is_evicted() {
    let setup = setup(3);
    let buffer = setup.managed(6 * PAGE);
    for page in [0, 1, 2, 0, 3, 0, 1, 4] {
        setup.touch(&buffer, page * PAGE, 8);
    }
    assert_eq!(setup.pages(Phase::Evicted, &buffer), [1, 2, 3]);
    assert_eq!(setup.pages(Phase::PagedIn, &buffer), [0, 1, 2, 3, 1, 4]);
    let evicted = setup.backend.call_log().into_iter().find(|call| call.phase == Phase::Evicted).expect("there are");
    assert_eq!((evicted.verb, evicted.bytes, evicted.stream), (Verb::Launch, PAGE, Some(setup.stream.id())));
}

#[test]
fn the_peak_counts_what_was_held_at_once() {
    let backend = build(HostBackend::builder().device_memory(2 * PAGE + 1000).page_size(PAGE));
    let setup = Setup { stream: Stream::new(&backend, 0).expect("a stream"), module: load(&backend), backend };
    let buffer = setup.managed(2 * PAGE);
    setup.touch(&buffer, 0, 2 * PAGE);
    let block = give(&setup.backend, MemoryLocation::Device, 0, 1500).expect("a page gives way");
    let occupied = setup.backend.occupied(0).expect("a device");
    assert_eq!((occupied.bytes, occupied.peak), (PAGE + 1500, 2 * PAGE));
    drop(block);
}

#[test]
fn allocations_evict_pages_of_managed_memory() {
    let setup = setup(4);
    let Setup { backend, .. } = &setup;
    let buffer = setup.managed(4 * PAGE);
    setup.touch(&buffer, 0, 4 * PAGE);
    let info = || backend.memory_info(0).expect("a device").expect("known");
    assert_eq!((info().free, setup.held()), (0, 4 * PAGE));
    let two = give(backend, MemoryLocation::Device, 0, 2 * PAGE as usize).expect("two pages give way");
    assert_eq!((info().free, setup.pages(Phase::Evicted, &buffer)), (0, vec![0, 1]));
    let rest = give(backend, MemoryLocation::Device, 0, 2 * PAGE as usize).expect("the others do");
    setup.touch(&buffer, 0, 4 * PAGE);
    assert_eq!(backend.counters().pages_in, tally(4), "for a page nothing gives way that is no page");
    let error = give(backend, MemoryLocation::Device, 0, 1).expect_err("it is full");
    assert!(matches!(error, Error::OutOfMemory { requested: 1, free: 0, largest: 0, limit: None, .. }), "{error:?}");
    drop((two, rest));
    setup.touch(&buffer, PAGE - 1, 2);
    assert_eq!((setup.held(), backend.occupied(0).expect("a device").peak), (2 * PAGE, 4 * PAGE));
    drop(buffer);
    assert_eq!(setup.held(), 0, "pages go with their memory");
}

#[test]
fn a_copy_moves_pages_to_the_side_of_its_other_end() {
    let setup = setup(8);
    let (buffer, device) = (setup.managed(4 * PAGE), give(&setup.backend, MemoryLocation::Device, 0, 2 * PAGE as usize).expect("room"));
    // SAFETY: within the buffer.
    let inside = Address::Host(unsafe { buffer.as_ptr().expect("it has bytes").add(PAGE as usize) });
    // SAFETY: within their blocks, otherwise unused.
    unsafe { setup.backend.copy_now(&Copy { to: inside, from: start(&device), bytes: PAGE + 1 }) }.expect("a copy");
    assert_eq!((setup.pages(Phase::PagedIn, &buffer), setup.held()), (vec![1, 2], 4 * PAGE));
    assert_eq!(buffer.slice(PAGE as usize..).expect("within").as_slice().expect("idle")[0], ringmem::backend::host::POISON);
    assert_eq!(setup.pages(Phase::PagedOut, &buffer), [1, 2], "the host touched them");
    setup.touch(&buffer, 0, 4 * PAGE);
    buffer.copy_to_at(2 * PAGE as usize, &mut [0; 10]).expect("a copy to the host");
    assert_eq!(setup.pages(Phase::PagedOut, &buffer), [1, 2, 2]);
}

#[test]
fn a_prefetch_moves_the_pages_of_its_range() {
    let setup = setup(8);
    let Setup { backend, stream, .. } = &setup;
    let buffer = UnifiedBuffer::<f32>::new(Unified::new(backend, 0), 3000).expect("managed memory");
    let (address, bytes) = (buffer.device_address().expect("it has bytes"), buffer.size_bytes() as u64);
    let prefetch = |to| backend.prefetch(&Prefetch { address, bytes, to }, stream.id());
    for (to, held) in [(Some(0), 3 * PAGE), (None, 0)] {
        let ticket = prefetch(to).expect("it is queued");
        assert!(backend.wait(ticket, Some(LIMIT)).expect("it succeeds"));
        assert_eq!(setup.held(), held);
    }
    let counters = backend.counters();
    assert_eq!((counters.prefetches, counters.pages_in, counters.pages_out), (Tally { count: 2, bytes: 24_000 }, tally(3), tally(3)));
    assert!(matches!(prefetch(Some(1)), Err(Error::NoDevice { asked: 1, devices: 1 })));
    let block = give(backend, MemoryLocation::Device, 0, 64).expect("room");
    let device = block.device_address.expect("a device's");
    let error = backend.prefetch(&Prefetch { address: device, bytes: 64, to: None }, stream.id()).expect_err("not managed");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let error = backend.prefetch(&Prefetch { address, bytes: bytes + 1, to: None }, stream.id()).expect_err("too much");
    assert!(matches!(error, Error::Range { len: 12_001, size: 12_000, .. }), "{error:?}");
}

#[test]
fn a_page_is_resident_on_one_device_at_a_time() {
    let backend = build(HostBackend::builder().devices(2).device_memory(1 << 20).page_size(PAGE));
    let streams = [0, 1].map(|device| Stream::new(&backend, device).expect("a stream"));
    let (module, buffer) =
        (load(&backend), UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 2 * PAGE as usize).expect("managed memory"));
    for device in [0, 1, 0] {
        let arguments = [buffer.device_address().expect("it has bytes").get(), 2 * PAGE];
        // SAFETY: the buffer is unused before the wait.
        done(unsafe { streams[device].launch(&module, "increment", &arguments) }.expect("a launch"));
        let held = [0, 1].map(|device| backend.occupied(device).expect("a device").bytes);
        assert_eq!((held[device], held[1 - device]), (2 * PAGE, 0));
    }
}

#[test]
fn no_page_moves_when_host_and_device_share_memory() {
    let backend = build(HostBackend::builder().device_memory(PAGE).shared_memory(true));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let mut buffer = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 1 << 20).expect("managed memory");
    let arguments = [buffer.device_address().expect("it has bytes").get(), 1 << 20];
    // SAFETY: the buffer is unused before the wait.
    done(unsafe { stream.launch(&load(&backend), "increment", &arguments) }.expect("a launch"));
    assert!(buffer.as_mut_slice().expect("idle").iter().all(|&byte| byte == 1));
    let counters = backend.counters();
    let moved = [counters.uploads, counters.downloads, counters.host_copies, counters.pages_in, counters.pages_out];
    assert_eq!((moved, backend.occupied(0).expect("a device").peak), ([Tally::default(); 5], 0));
}

#[test]
fn managed_memory_is_busy_during_kernels_without_concurrency() {
    for concurrent in [true, false] {
        let backend = build(HostBackend::builder().concurrent_managed_access(concurrent));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut buffer = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 64).expect("managed memory");
        let mut pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 64).expect("pinned memory");
        let held = Held::new(&backend, &stream);
        assert_eq!(buffer.as_slice().is_ok(), concurrent, "also memory that the kernel does not use");
        let refused = buffer.as_mut_slice().err();
        assert_eq!(refused.is_none(), concurrent);
        assert!(refused.is_none_or(|error| matches!(error, Error::Busy { .. })));
        assert!(pinned.as_mut_slice().is_ok(), "pinned memory is always the host's");
        held.release(&stream);
        buffer.as_mut_slice().expect("no kernel runs").fill(1);
    }
}

#[test]
fn concurrent_paging_never_exceeds_the_device_memory() {
    const ROOM: u64 = 16;
    let setup = &setup(ROOM);
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            scope.spawn(move || {
                let stream = Stream::new(&setup.backend, 0).expect("a stream");
                let mut buffer = setup.managed(ROOM * PAGE);
                for round in 0..100 {
                    let arguments = [address(&buffer) + (thread * 7 + round * 5) % 12 * PAGE, 4 * PAGE];
                    // SAFETY: within the buffer, unused before the wait.
                    done(unsafe { stream.launch(&setup.module, "increment", &arguments) }.expect("a launch"));
                    if round % 10 == 0 {
                        buffer.as_mut_slice().expect("idle")[0] = 0;
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..300 {
                drop(give(&setup.backend, MemoryLocation::Device, 0, ((1 + round % 8) * PAGE) as usize).expect("pages give way"));
            }
        });
    });
    let occupied = setup.backend.occupied(0).expect("a device");
    assert!(occupied.peak <= ROOM * PAGE, "{occupied:?}");
    assert_eq!(occupied.bytes, 0, "nothing is left");
    let counters = setup.backend.counters();
    assert!(counters.pages_evicted.count > 0 && counters.pages_in.count >= counters.pages_out.count + counters.pages_evicted.count);
}

#[test]
fn page_accounting_holds_at_every_log_entry() {
    const ROOM: u64 = 16;
    // Under the log's lock, so other threads wait in any order.
    let slow = Arc::new(|| {
        thread::yield_now();
        0
    });
    let backend = &build(HostBackend::builder().devices(2).device_memory(ROOM * PAGE).page_size(PAGE).log(true).clock(slow));
    let managed = || UnifiedBuffer::<u8>::new(Unified::new(backend, 0), (ROOM * PAGE) as usize).expect("managed memory");
    let buffers = &[managed(), managed()];
    let streams = &[0, 1, 0, 1, 0, 1].map(|device| Stream::new(backend, device).expect("a stream"));
    let module = &load(backend);
    thread::scope(|scope| {
        for (number, stream) in (0_u64..).zip(streams) {
            scope.spawn(move || {
                let word = PinnedBuffer::<u64>::new(Pinned::new(backend, 0), 1).expect("room");
                let word = word.device_address().expect("it has bytes").get();
                for round in 0..60 {
                    let first = address(&buffers[(round / 3 % 2) as usize]) + (number * 5 + round * 7) % 12 * PAGE;
                    // SAFETY: the kernel only writes its word, which outlives the wait.
                    done(unsafe { stream.launch(module, "place", &[first, 4 * PAGE, word]) }.expect("a launch"));
                }
            });
        }
        for device in [0, 1] {
            scope.spawn(move || {
                for round in 0..200 {
                    drop(give(backend, MemoryLocation::Device, device, ((1 + round % 8) * PAGE) as usize).expect("pages give way"));
                }
            });
        }
        scope.spawn(|| {
            for round in 0..60 {
                assert!(buffers[round % 2].as_slice().is_ok(), "the host may");
            }
        });
    });
    assert!(buffers.iter().all(|buffer| buffer.as_slice().is_ok()));
    let device_of = |stream| streams.iter().find(|of| Some(of.id()) == stream).map(Stream::device);
    let mut resident = std::collections::HashMap::new();
    for call in backend.call_log() {
        let page = call.from.unwrap_or_default();
        match call.phase {
            Phase::PagedIn => {
                let device = device_of(call.stream).expect("of a launch");
                assert_eq!(resident.insert(page, device), None, "{call:?}: it was on a device");
                let held = resident.values().filter(|&&on| on == device).count() as u64;
                assert!(held <= ROOM, "{call:?}: {held} pages");
            }
            Phase::PagedOut | Phase::Evicted => assert!(resident.remove(&page).is_some(), "{call:?}: it was on no device"),
            _ => {}
        }
    }
    let Counters { pages_in, pages_out, pages_evicted, .. } = backend.counters();
    assert!(resident.is_empty() && pages_evicted.count > 0 && pages_out.count > 0);
    assert_eq!((pages_in.count, pages_in.bytes), (pages_out.count + pages_evicted.count, pages_in.count * PAGE));
    let occupied = [0, 1].map(|device| backend.occupied(device).expect("a device"));
    assert!(occupied.iter().all(|occupied| occupied.bytes == 0 && occupied.peak <= ROOM * PAGE), "{occupied:?}");
}

#[test]
fn a_panicking_clock_keeps_the_page_accounting() {
    const ROOM: u64 = 6;
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let clock = {
        let left = Arc::clone(&left);
        move || {
            assert!(left.fetch_sub(1, Relaxed) > 0, "a clock that a test asked for");
            0
        }
    };
    let backend = build(HostBackend::builder().device_memory(ROOM * PAGE).page_size(PAGE).log(true).clock(Arc::new(clock)));
    let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), (ROOM * PAGE) as usize).expect("managed memory");
    let device = give(&backend, MemoryLocation::Device, 0, PAGE as usize).expect("room");
    let bring = |page: u64| {
        // SAFETY: pages are within the buffer.
        let to = Address::Host(unsafe { managed.as_ptr().expect("it has bytes").add((page * PAGE) as usize) });
        // SAFETY: a page of each, otherwise unused.
        unsafe { backend.copy_now(&Copy { to, from: start(&device), bytes: PAGE }) }.expect("a copy");
    };
    let held = || backend.occupied(0).expect("a device").bytes;
    let books = || {
        let Counters { pages_in, pages_out, pages_evicted, device_live, .. } = backend.counters();
        device_live.bytes + pages_in.bytes - pages_out.bytes - pages_evicted.bytes
    };
    for time in 0.. {
        (0..ROOM - 1).for_each(bring);
        assert_eq!((held(), books()), (ROOM * PAGE, ROOM * PAGE));
        left.store(time, Relaxed);
        let moves = || {
            bring(ROOM - 1);
            drop(give(&backend, MemoryLocation::Device, 0, 2 * PAGE as usize).expect("pages give way"));
            managed.as_slice().expect("idle");
        };
        let is_through = catch_unwind(AssertUnwindSafe(moves)).is_ok();
        left.store(usize::MAX, Relaxed);
        assert_eq!(held(), books(), "the clock's reading {time}");
        managed.as_slice().expect("idle");
        assert_eq!((held(), books()), (PAGE, PAGE), "the clock's reading {time}");
        if is_through {
            assert!(time >= 12, "{time}: each page that moves is written down");
            return;
        }
    }
}

#[test]
fn pages_are_released_with_their_memory_under_concurrency() {
    const ROOM: u64 = 4;
    let backend = &build(HostBackend::builder().devices(2).device_memory(ROOM * PAGE).page_size(PAGE));
    let module = &load(backend);
    thread::scope(|scope| {
        for device in [0, 1] {
            scope.spawn(move || {
                let stream = Stream::new(backend, device).expect("a stream");
                for round in 0..150 {
                    let buffer = UnifiedBuffer::<u8>::new(Unified::new(backend, 0), (2 * PAGE) as usize).expect("managed memory");
                    // SAFETY: the buffer is unused before the wait.
                    done(unsafe { stream.launch(module, "increment", &[address(&buffer), (1 + round % 2) * PAGE]) }.expect("a launch"));
                }
            });
            scope.spawn(move || {
                for _ in 0..300 {
                    drop(give(backend, MemoryLocation::Device, device, (3 * PAGE) as usize).expect("pages give way"));
                }
            });
        }
    });
    for device in [0, 1] {
        let occupied = backend.occupied(device).expect("a device");
        assert!(occupied.bytes == 0 && occupied.peak <= ROOM * PAGE, "{device}: {occupied:?}");
    }
}
