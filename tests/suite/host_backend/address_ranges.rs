//! Reserved addresses and memory mapped there.
#![cfg(target_os = "linux")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::backend::host::{Fault, Faults, Live, Phase, Verb};
use ringmem::backend::{AddressRange, DeviceAddress, Fill};
use ringmem::memory::{Unified, UnifiedBuffer};

use super::*;

const PAGE: u64 = 4096;

fn small(pages: u64) -> Builder {
    HostBackend::builder().device_memory(pages * PAGE).page_size(PAGE).mapping_granularity(Some(PAGE))
}

fn reserve(backend: &Arc<HostBackend>, pages: u64) -> AddressRange {
    backend.reserve(0, pages * PAGE).expect("addresses")
}

fn map(backend: &Arc<HostBackend>, range: &AddressRange, at: u64, pages: u64) -> Result<Given, Error> {
    Ok(Given { block: backend.map(range, at * PAGE, pages * PAGE)?, backend: Arc::clone(backend) })
}

#[test]
fn mapped_memory_shares_the_capacity_with_allocations_and_pages() {
    let backend = build(small(6).log(true));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 6 * PAGE as usize).expect("managed memory");
    let address = buffer.device_address().expect("it has bytes").get();
    // SAFETY: within the buffer, unused before the wait.
    done(unsafe { stream.launch(&load(&backend), "increment", &[address, 6 * PAGE]) }.expect("a launch"));
    let info = || backend.memory_info(0).expect("a device").expect("known");
    let evicted = || backend.call_log().iter().filter(|call| call.phase == Phase::Evicted).map(|call| call.verb).collect::<Vec<_>>();
    assert_eq!((info().free, evicted()), (0, vec![]));
    let range = reserve(&backend, 100);
    let first = map(&backend, &range, 90, 3).expect("pages give way");
    assert_eq!((info().free, evicted()), (0, vec![Verb::Map; 3]));
    let block = give(&backend, MemoryLocation::Device, 0, 2 * PAGE as usize).expect("pages give way");
    assert_eq!(evicted(), [vec![Verb::Map; 3], vec![Verb::Allocate; 2]].concat());
    let second = map(&backend, &range, 0, 1).expect("the last page gives way");
    for error in [map(&backend, &range, 1, 1).expect_err("full"), give(&backend, MemoryLocation::Device, 0, 1).expect_err("full")] {
        assert!(matches!(error, Error::OutOfMemory { free: 0, largest: 0, limit: None, .. }), "{error:?}");
    }
    assert_eq!(backend.occupied(0).expect("a device"), Live { bytes: 6 * PAGE, peak: 6 * PAGE });
    drop(first);
    assert_eq!((info().free, backend.largest_free(0, &[])), (3 * PAGE, Some(3 * PAGE)));
    let part = |given: &Given| (given.device_address.expect("device memory"), given.layout.size() as u64);
    assert_eq!(backend.largest_free(0, &[part(&second)]), Some(4 * PAGE), "as long as the arena's own free range");
    assert_eq!(backend.largest_free(0, &[part(&block), part(&second)]), Some(6 * PAGE));
    drop((block, second));
    assert_eq!((info().free, backend.largest_free(0, &[])), (6 * PAGE, Some(6 * PAGE)));
}

#[test]
fn fragmented_memory_serves_a_mapping() {
    let backend = build(small(4));
    let mut blocks: Vec<Given> = (0..4).map(|_| give(&backend, MemoryLocation::Device, 0, PAGE as usize).expect("room")).collect();
    drop((blocks.remove(2), blocks.remove(0)));
    let error = give(&backend, MemoryLocation::Device, 0, 2 * PAGE as usize).expect_err("two holes");
    assert!(matches!(error, Error::OutOfMemory { free, largest, .. } if (free, largest) == (2 * PAGE, PAGE)), "{error:?}");
    let range = reserve(&backend, 4);
    let mapped = map(&backend, &range, 2, 2).expect("any pages do");
    write(&backend, &[7; 8192], &mapped).expect("a copy");
    assert_eq!(backend.largest_free(0, &[]), Some(0), "the holes have no memory left");
    let part = (mapped.device_address.expect("device memory"), 2 * PAGE);
    assert_eq!(backend.largest_free(0, &[part]), Some(PAGE), "its memory is of the holes");
    assert_eq!(read(&backend, &mapped, 8192), [7; 8192]);
}

#[test]
fn granularities_are_validated() {
    for bytes in [0, 1, 2048, 5000, 3 << 20, 4 << 20] {
        let error = HostBackend::builder().mapping_granularity(Some(bytes)).build().expect_err("no granularity");
        assert!(matches!(error, Error::Align { asked, most: 0x20_0000 } if asked == bytes), "{bytes}: {error:?}");
    }
    let backend = build(HostBackend::builder().mapping_granularity(None));
    assert_eq!(backend.capabilities(0).expect("a device").mapping_granularity, None);
    let error = backend.reserve(0, PAGE).expect_err("it has none");
    assert!(matches!(error, Error::Unsupported { what: "an address range" }), "{error:?}");
}

#[test]
fn ranges_of_another_backend_are_rejected() {
    let [one, other] = [build(small(4)), build(small(4))];
    let range = reserve(&one, 4);
    let error = other.map(&range, 0, PAGE).expect_err("of the other");
    assert!(matches!(error, Error::OtherBackend { expected, got } if (expected, got) == (other.id(), one.id())), "{error:?}");
    let mut block = one.map(&range, 0, PAGE).expect("room");
    // SAFETY: nothing uses it.
    let error = unsafe { other.remap(&mut block, PAGE) }.expect_err("of the other");
    assert!(matches!(error, Error::Foreign { call: "remap", .. }), "{error:?}");
    // SAFETY: freed once, without uses.
    unsafe { one.free(&block, &Uses::NONE) }.expect("a live block");
    // SAFETY: it is refused.
    let error = unsafe { one.remap(&mut block, PAGE) }.expect_err("it is freed");
    assert!(matches!(error, Error::Foreign { call: "remap", .. }), "{error:?}");
}

#[test]
fn a_failing_call_changes_nothing() {
    let faults = [Verb::Reserve, Verb::Map, Verb::Remap].into_iter().fold(Faults::new(), |faults, verb| faults.on(verb, Fault::nth(1)));
    let backend = build(small(4).faults(faults));
    let is_injected = |error: &Error| matches!(error, Error::Injected { number: 1, .. });
    assert!(is_injected(&backend.reserve(0, PAGE).expect_err("a fault")));
    let range = reserve(&backend, 4);
    assert!(is_injected(&map(&backend, &range, 0, 1).expect_err("a fault")));
    assert_eq!((backend.occupied(0).expect("a device").bytes, backend.counters().device_live.bytes), (0, 0));
    let mut mapped = map(&backend, &range, 0, 1).expect("the place is vacant");
    write(&backend, b"kept", &mapped).expect("a copy");
    // SAFETY: nothing uses it.
    assert!(is_injected(&unsafe { backend.remap(&mut mapped.block, PAGE) }.expect_err("a fault")));
    assert_eq!(read(&backend, &mapped, 4), b"kept");
    // SAFETY: nothing uses it.
    unsafe { backend.remap(&mut mapped.block, PAGE) }.expect("the place is vacant");
    assert_eq!(read(&backend, &mapped, 4), b"kept");
    assert_eq!([Verb::Reserve, Verb::Map, Verb::Remap].map(|verb| backend.calls(verb)), [Some(2); 3]);
}

#[test]
fn a_panicking_clock_leaves_no_mapping() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_broken);
    let clock = move || if seen.load(Relaxed) { panic!("the clock of a test") } else { 1 };
    let backend = build(small(4).log(true).clock(Arc::new(clock)));
    let range = reserve(&backend, 4);
    let mut moving = backend.map(&range, 3 * PAGE, PAGE).expect("room");
    let panics = |run: &mut dyn FnMut()| {
        is_broken.store(true, Relaxed);
        catch_unwind(AssertUnwindSafe(run)).expect_err("the clock panics");
        is_broken.store(false, Relaxed);
    };
    panics(&mut || drop(map(&backend, &range, 0, 1)));
    assert_eq!(backend.counters().device_live.bytes, PAGE, "the caller has no block");
    // SAFETY: nothing uses it.
    panics(&mut || drop(unsafe { backend.remap(&mut moving, PAGE) }));
    assert_eq!(moving.device_address, range.address().offset(PAGE), "it was moved before");
    drop(Given { block: moving, backend: Arc::clone(&backend) });
    map(&backend, &range, 0, 4).expect("every place is vacant");
}

#[test]
fn invalid_bytes_move_with_their_block() {
    let backend = build(small(4).faults(Faults::new().on(Verb::Fill, Fault::nth(1).when_executed())));
    let (range, stream) = (reserve(&backend, 4), Stream::new(&backend, 0).expect("a stream"));
    let mut part = map(&backend, &range, 0, 1).expect("room");
    // SAFETY: memory of the test, unused until the wait.
    let ticket = unsafe { backend.fill(&Fill::of(start(&part), 1_u8, 16), stream.id()) }.expect("queued");
    backend.wait(ticket, None).expect_err("a fault");
    let is_tainted =
        |at: u64, bytes: u64| backend.taints().is_some_and(|taints| taints.check(Address::Device(DeviceAddress::new(at)), bytes).is_err());
    let [from, to] = [0, 2].map(|at| range.address().get() + at * PAGE);
    assert!(is_tainted(from, 1) && !is_tainted(from + 16, 16));
    // SAFETY: nothing uses it.
    unsafe { backend.remap(&mut part.block, 2 * PAGE) }.expect("it is vacant");
    assert!(is_tainted(to, 1) && !is_tainted(to + 16, 16) && !is_tainted(from, PAGE));
    drop(part);
    assert!(!is_tainted(to, PAGE));
}

#[test]
fn only_a_peer_sees_mapped_memory_of_another_device() {
    let backend = build(HostBackend::builder().device_memories([1 << 20, 1 << 20]).mapping_granularity(Some(PAGE)).peer(1, 0));
    let range = reserve(&backend, 2);
    let (_first, second) = (map(&backend, &range, 0, 1).expect("room"), map(&backend, &range, 1, 1).expect("room"));
    let (stream, module) = (Stream::new(&backend, 1).expect("a stream"), load(&backend));
    let word = PinnedBuffer::<u64>::new(Pinned::new(&backend, 1), 1).expect("pinned memory");
    let over_the_border = second.device_address.expect("device memory").get() - 8;
    let sees = || {
        let arguments = [over_the_border, 16, word.device_address().expect("it has bytes").get()];
        // SAFETY: the word lives until the wait, and is accessed as an atomic.
        done(unsafe { stream.launch(&module, "place", &arguments) }.expect("a launch"));
        word.as_slice().expect("idle")[0] == 1
    };
    assert!(!sees());
    backend.set_peer(1, 0, true).expect("they are peers");
    assert!(sees());
    drop(second);
    assert!(!sees(), "the memory beyond the border is gone");
}

/// A free that unmaps late would take the memory that another thread has mapped there since.
#[test]
fn threads_map_and_free_the_same_places() {
    let backend = build(small(64));
    let range = reserve(&backend, 8);
    let mapped: u64 = thread::scope(|scope| {
        let threads = [1, 2, 3, 4].map(|thread: u8| {
            let (backend, range) = (&backend, &range);
            scope.spawn(move || {
                let mut mapped = 0;
                for round in 0..2000_u64 {
                    let at = (round * 7 + u64::from(thread)) % 8;
                    let part = match map(backend, range, at, 1) {
                        Ok(part) => part,
                        Err(Error::Busy { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    write(backend, &[thread; 64], &part).expect("a copy");
                    assert_eq!(read(backend, &part, 64), [thread; 64]);
                    mapped += 1;
                }
                mapped
            })
        });
        threads.map(|thread| thread.join().expect("no panic")).into_iter().sum()
    });
    assert!(mapped > 2000, "{mapped}");
    assert_eq!(backend.occupied(0).expect("a device").bytes, 0);
}
