use std::sync::atomic::Ordering::Relaxed;

use ringmem::backend::host::{Call, Phase, Verb};
use ringmem::memory::{Device, GpuBuffer, Unified, UnifiedBuffer};

use super::*;

fn happened(calls: &[Call]) -> Vec<(Verb, Phase)> {
    calls.iter().map(|call| (call.verb, call.phase)).collect()
}

#[test]
fn the_log_lists_calls_in_execution_order() {
    let ticks = Arc::new(AtomicU64::new(0));
    let clock = Arc::new({
        let ticks = Arc::clone(&ticks);
        move || ticks.fetch_add(10, Relaxed)
    });
    let backend = build(HostBackend::builder().log(true).clock(clock));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[3; 100]).expect("room");
    let address = buffer.device_address().map(|address| address.get());
    let held = Held::new(&backend, &stream);
    let pending = stream.fill(buffer, 10..30, 1).expect("it is queued");
    drop(pending);
    held.release(&stream);
    eventually("the buffer is freed", || backend.counters().device_live.bytes == 0);
    let calls = backend.call_log();
    let of_buffer: Vec<_> =
        calls.iter().filter(|call| call.from.or(call.to).is_some_and(|at| Some(at & !63) == address.map(|a| a & !63))).collect();
    assert_eq!(
        happened(&of_buffer.iter().map(|call| **call).collect::<Vec<_>>()),
        [
            (Verb::Allocate, Phase::Called),
            (Verb::Fill, Phase::Called),
            (Verb::Free, Phase::Called),
            (Verb::Fill, Phase::Executed),
            (Verb::Free, Phase::Freed)
        ],
        "the fill that was queued comes before the memory goes"
    );
    let fill = of_buffer[1];
    assert_eq!((fill.stream, fill.ticket, fill.bytes, fill.to, fill.ok), (Some(stream.id()), Some(2), 20, address.map(|at| at + 10), true));
    assert_eq!((of_buffer[3].ticket, of_buffer[0].bytes, of_buffer[0].ticket), (Some(2), 100, None));
    let upload = calls.iter().find(|call| call.verb == Verb::Copy).expect("the upload");
    assert_eq!((upload.phase, upload.bytes, upload.to, upload.stream), (Phase::Called, 100, address, None));
    for (call, number) in calls.iter().zip(1..) {
        assert_eq!(call.number, number);
    }
    assert!(calls.windows(2).all(|two| two[0].at_ns < two[1].at_ns) && calls.iter().all(|call| call.at_ns % 10 == 0), "the clock is ours");
}

#[test]
fn dropped_memory_is_freed_after_its_last_use() {
    let backend = build(HostBackend::builder().log(true));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let gpu = || GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[3; 256]).expect("room");
    let managed = || UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 256).expect("room");
    let (source, target, filled, prefetched, mut launched) = (gpu(), gpu(), gpu(), managed(), gpu());
    let addresses = [&source, &target, &filled, &launched].map(|buffer| buffer.device_address());
    let [source_at, target_at, filled_at, launched_at] = addresses.map(|address| address.expect("it has bytes").get());
    let prefetched_at = prefetched.device_address().expect("it has bytes").get();
    let held = Held::new(&backend, &stream);
    let before = backend.call_log().len();
    drop(stream.copy(source, target).expect("it is queued"));
    drop(stream.fill(filled, .., 1).expect("it is queued"));
    drop(stream.prefetch(prefetched, Some(0)).expect("it is queued"));
    // SAFETY: the buffer records the launch, otherwise unused.
    drop(unsafe { stream.launch(&load(&backend), "increment", &[launched_at, 256]) }.expect("it is queued"));
    launched.used_by(&stream).expect("its own backend");
    drop(launched);
    held.release(&stream);
    eventually("all is freed", || backend.counters().device_live.bytes + backend.counters().unified_live.bytes == 0);
    let calls = backend.call_log().split_off(before);
    let freed = |at| calls.iter().position(|call| call.phase == Phase::Freed && call.from == Some(at)).expect("it is freed");
    let executed =
        |verb| calls.iter().position(|call| (call.phase, call.verb) == (Phase::Executed, verb) && call.stream == Some(stream.id()));
    let last = |verb| calls.iter().rposition(|call| (call.phase, call.verb) == (Phase::Executed, verb));
    for (verb, at) in [(Verb::Copy, source_at), (Verb::Copy, target_at), (Verb::Fill, filled_at), (Verb::Prefetch, prefetched_at)] {
        assert!(executed(verb).expect("it is executed") < freed(at), "{verb:?}: freed before it was executed");
    }
    assert!(last(Verb::Launch).expect("it is executed") < freed(launched_at), "freed before the launch was over");
    assert!(calls.iter().all(|call| call.ok), "{calls:?}");
}

#[test]
fn rejected_calls_are_logged_as_failed() {
    let backend = build(HostBackend::builder().device_memory(4096).log(true));
    give(&backend, MemoryLocation::Device, 0, 8192).expect_err("too much");
    let [call] = backend.call_log().try_into().expect("one call");
    assert_eq!((call.verb, call.phase, call.bytes, call.to, call.ok), (Verb::Allocate, Phase::Called, 8192, None, false));
}

#[test]
fn nothing_is_logged_by_default() {
    let backend = build(HostBackend::builder());
    give(&backend, MemoryLocation::Device, 0, 64).expect("room");
    assert_eq!((backend.call_log().len(), backend.calls(Verb::Allocate)), (0, None));
}

#[test]
fn a_kernel_reads_the_configured_clock() {
    let backend = build(HostBackend::builder().clock(Arc::new(|| 1234)));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let result = PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 1).expect("pinned memory");
    let word = result.device_address().expect("it has bytes").get();
    // SAFETY: the kernel only writes the result, unread until the end.
    done(unsafe { stream.launch(&load(&backend), "now", &[word]) }.expect("a launch"));
    assert_eq!(result.as_slice().expect("idle"), [1234]);
}
