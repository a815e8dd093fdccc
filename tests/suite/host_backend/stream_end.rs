use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

use ringmem::backend::{Fill, Ticket, Uses};
use ringmem::memory::{Device, GpuBuffer};

use super::setup::setup;
use super::*;
#[cfg(target_os = "linux")]
use crate::rig::in_fork::fork;
use crate::rig::panicking_clock::broken;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor that a test asked for");
    }
}

fn gpu(backend: &Arc<HostBackend>, len: usize) -> GpuBuffer<u8> {
    GpuBuffer::new(Device::new(backend, 0), len).expect("room")
}

#[test]
fn a_stream_dropped_on_another_stream_s_thread_does_not_block() {
    let backend = build(HostBackend::builder());
    within(move || {
        let (first, second) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
        let long = first.fill(gpu(&backend, 64 << 20), .., 7).expect("it is queued");
        let ticket = backend.record_position(first.id()).expect("a live stream");
        let last = first.fill(gpu(&backend, 4), .., 7).expect("it is queued");
        second.wait_for(&first).expect("it is queued");
        backend.keep(Box::new(second), &Uses::of(ticket), None);
        drop(done(long));
        drop(done(last));
    });
}

#[test]
fn a_kept_value_that_panics_on_drop_is_counted() {
    let backend = build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let ticket = backend.record_position(stream.id()).expect("a live stream");
    let alive = Arc::new(());
    backend.keep(Box::new(Bomb), &Uses::of(ticket), None);
    backend.keep(Box::new(Arc::clone(&alive)), &Uses::of(ticket), None);
    drop(stream.fill(gpu(&backend, 4096), .., 1).expect("it is queued"));
    held.release(&stream);
    drop(done(stream.fill(gpu(&backend, 64), .., 1).expect("it is queued")));
    eventually("the other value has gone", || Arc::strong_count(&alive) == 1);
    eventually("all bytes are back", || backend.counters().device_live.bytes == 0);
    assert_eq!(backend.counters().unreported, 1, "the panic is counted");
}

#[test]
fn a_panicking_clock_fails_the_rest_of_its_stream() {
    let armed = Arc::new(AtomicBool::new(false));
    let clock = {
        let armed = Arc::clone(&armed);
        move || {
            let is_stream = thread::current().name().is_some_and(|name| name.starts_with("ringmem"));
            assert!(!(is_stream && armed.swap(false, Relaxed)), "a clock that a test asked for");
            0
        }
    };
    let backend = build(HostBackend::builder().log(true).clock(Arc::new(clock)));
    let (stream, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let held = Held::new(&backend, &stream);
    let pending = [1, 2].map(|value| stream.fill(gpu(&backend, 64), .., value).expect("it is queued"));
    armed.store(true, Relaxed);
    held.word(1).store(1, Release);
    for pending in pending {
        let outcome = pending.wait_timeout(LIMIT).map_err(mem::forget).expect("whoever waits is told");
        assert!(matches!(outcome, Err(rejected) if matches!(rejected.error, Error::Closed { what: "stream" })));
    }
    drop(held);
    drop(done(other.fill(gpu(&backend, 64), .., 1).expect("it is queued")));
    within(move || drop(stream));
    let counters = backend.counters();
    assert_eq!((counters.fills.count, counters.device_live.bytes, counters.pinned_live.bytes), (1, 0, 0));
}

#[test]
fn a_panicking_clock_in_the_call_log_loses_no_block() {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let clock = {
        let left = Arc::clone(&left);
        move || {
            assert!(left.fetch_sub(1, Relaxed) > 0, "a clock that a test asked for");
            0
        }
    };
    let backend = build(HostBackend::builder().device_memory(1 << 20).log(true).clock(Arc::new(clock)));
    let mut panics = 0;
    for kind in [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified, MemoryLocation::Host] {
        let give = || {
            let block = backend.allocate(&request(kind, 0, 1 << 19), None).expect("room");
            // SAFETY: just allocated, unused.
            unsafe { backend.free(&block, &Uses::NONE) }.expect("it is ours");
        };
        for time in 0.. {
            left.store(time, Relaxed);
            let is_through = catch_unwind(AssertUnwindSafe(give)).is_ok();
            left.store(usize::MAX, Relaxed);
            let counters = backend.counters();
            let live = [counters.device_live, counters.pinned_live, counters.unified_live, counters.host_live].map(|live| live.bytes);
            assert_eq!(live, [0; 4], "{kind:?}, the clock's reading {time}");
            if is_through {
                break;
            }
            panics += 1;
        }
        drop(gpu(&backend, 1 << 20));
    }
    assert!(panics >= 12, "{panics}: each allocation, each free, and what goes are written down");
}

#[test]
fn a_panicking_clock_does_not_abort_a_drop_of_many_buffers() {
    let (clock, is_broken) = broken();
    let backend = build(HostBackend::builder().log(true).clock(Arc::new(clock)));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let queued = done(stream.fill(gpu(&backend, 64), .., 1).expect("it is queued"));
    let buffers = (gpu(&backend, 64), queued, PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 64).expect("room"), stream);
    is_broken.store(true, Relaxed);
    catch_unwind(AssertUnwindSafe(|| drop(buffers))).expect_err("the first panic goes on");
    is_broken.store(false, Relaxed);
    let counters = backend.counters();
    assert_eq!((counters.device_live.bytes, counters.pinned_live.bytes), (0, 0));
    assert!(backend.call_log().iter().all(|call| call.at_ns == 7), "what could not be timed has the time before");
}

#[test]
fn a_panicking_clock_while_opening_a_stream_leaves_none() {
    let (clock, is_broken) = broken();
    let backend = build(HostBackend::builder().log(true).clock(Arc::new(clock)));
    is_broken.store(true, Relaxed);
    catch_unwind(AssertUnwindSafe(|| backend.open_stream(0))).expect_err("the clock panics");
    is_broken.store(false, Relaxed);
    assert_eq!(backend.counters().streams, 1);
    drop(backend);
    eventually("no thread has the backend, nor its clock", || Arc::strong_count(&is_broken) == 1);
}

#[test]
fn dropping_a_stream_does_not_wait_for_another_s_kernel() {
    let backend = build(HostBackend::builder());
    let [first, second, third] = [0; 3].map(|device| Stream::new(&backend, device).expect("a stream"));
    let held = Held::new(&backend, &first);
    second.wait_for(&first).expect("it is queued");
    let buffer = second.fill(gpu(&backend, 64), .., 1).expect("it is queued").detach();
    third.wait_for(&second).expect("it is queued");
    let buffer = third.fill(buffer, ..32, 2).expect("it is queued").detach();
    within(move || drop((second, third)));
    held.release(&first);
    assert_eq!(buffer.to_vec().expect("a download"), [[2; 32], [1; 32]].concat(), "what was queued was executed");
}

#[test]
fn counters_exclude_memory_that_a_stream_is_freeing() {
    let clock = || {
        if thread::current().name().is_some_and(|name| name.starts_with("ringmem-")) {
            thread::sleep(Duration::from_millis(20));
        }
        0
    };
    let backend = build(HostBackend::builder().log(true).clock(Arc::new(clock)));
    let free = || backend.memory_info(0).expect("a device").expect("it is known").free;
    let (stream, all) = (Stream::new(&backend, 0).expect("a stream"), free());
    let fill = || {
        drop(stream.fill(gpu(&backend, 4096), .., 7).expect("it is queued"));
        stream.synchronize().expect("it does not fail");
    };
    fill();
    assert_eq!(backend.counters().device_live.bytes, 0);
    fill();
    assert_eq!(free(), all);
}

#[cfg(target_os = "linux")]
#[test]
fn counters_can_be_read_in_a_fork() {
    // The stream waits at its second log line: it has executed a kernel, and frees memory.
    let gate = Arc::new(Mutex::new(()));
    let lines = Arc::new(AtomicUsize::new(0));
    let clock = {
        let (gate, lines) = (Arc::clone(&gate), Arc::clone(&lines));
        move || {
            let is_stream = thread::current().name().is_some_and(|name| name.starts_with("ringmem-"));
            if is_stream && lines.fetch_add(1, Relaxed) == 1 {
                drop(gate.lock());
            }
            0
        }
    };
    let backend = build(HostBackend::builder().log(true).clock(Arc::new(clock)));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let ticket = backend.record_position(stream.id()).expect("a live stream");
    let block = backend.allocate(&request(MemoryLocation::Device, 0, 64), None).expect("room");
    // SAFETY: just allocated, unused.
    unsafe { backend.free(&block, &Uses::of(ticket)) }.expect("it is ours");
    let shut = gate.lock().expect("nobody panicked");
    held.word(1).store(1, Release);
    eventually("the stream gives memory back", || lines.load(Relaxed) == 2);
    let is_read = fork(|| backend.counters().device_live.bytes == 64 && backend.memory_info(0).is_ok());
    drop(shut);
    drop(held);
    assert!(is_read, "in a fork figures are others, or wait");
}

#[test]
fn a_closed_stream_rejects_further_operations() {
    let setup = setup(4096);
    let id = setup.backend.open_stream(0).expect("a stream");
    let ticket = setup.backend.record_position(id).expect("it is open");
    setup.backend.close_stream(id);
    eventually("it has ended", || matches!(setup.backend.record_position(id), Err(Error::Closed { what: "stream" })));
    let memory = setup.device(8);
    let fill = Fill { to: Address::Device(memory.device_address().expect("bytes")), pattern: 0, size: 1, count: 8 };
    // SAFETY: otherwise unused memory.
    let refused = unsafe { setup.backend.fill(&fill, id) };
    assert!(matches!(refused, Err(Error::Closed { what: "stream" })), "{refused:?}");
    assert!(matches!(setup.backend.synchronize(id), Err(Error::Closed { what: "stream" })));
    assert!(matches!(setup.backend.stream_wait(ticket, setup.stream.id()), Ok(())), "what has ended is waited for already");
    let never = Ticket { number: 1000, ..ticket };
    assert!(setup.backend.is_complete(never) && setup.backend.wait(never, None).expect("no error"), "it will execute no more");
}
