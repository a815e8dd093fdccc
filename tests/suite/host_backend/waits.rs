use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::backend::Uses;
use ringmem::backend::host::{Fault, Faults, Link, Verb};
use ringmem::memory::{Buffer, Device, GpuBuffer, Limited, Unified, UnifiedBuffer};

use super::*;

fn gpu(backend: &Arc<HostBackend>, len: usize) -> GpuBuffer<u8> {
    GpuBuffer::new(Device::new(backend, 0), len).expect("room")
}

fn failing() -> Clean {
    build(HostBackend::builder().faults(Faults::new().on(Verb::Fill, Fault::nth(1).when_executed())))
}

#[test]
fn synchronize_does_not_report_failures_queued_after_it() {
    let backend = failing();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let synchronized = thread::spawn({
        let stream = stream.clone();
        move || stream.synchronize()
    });
    eventually("it is called", || backend.calls(Verb::Synchronize) == Some(1));
    thread::sleep(Duration::from_millis(100));
    let pending = stream.fill(gpu(&backend, 64), .., 1).expect("it is queued");
    held.word(1).store(1, Release);
    within(|| synchronized.join()).expect("no panic").expect("the launch did not fail");
    let rejected = pending.wait_timeout(LIMIT).expect("in time").expect_err("planned");
    assert!(matches!(rejected.error, Error::Injected { call: "fill", number: 1 }), "{rejected:?}");
}

#[test]
fn a_mark_does_not_consume_a_failure() {
    let backend = failing();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let pending = stream.fill(gpu(&backend, 64), .., 1).expect("it is queued");
    let mut other = gpu(&backend, 64);
    other.used_by(&stream).expect("a live stream");
    other.copy_from(&[1; 64]).expect("nothing of this buffer's failed");
    assert!(matches!(pending.wait_timeout(LIMIT).expect("in time"), Err(rejected) if matches!(rejected.error, Error::Injected { .. })));
}

#[test]
fn a_mark_is_reached_with_the_operations_before_it() {
    let backend = build(HostBackend::builder().link(Link::default()));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let mut buffer = gpu(&backend, 500_000);
    for round in 1..=2000 {
        let pending = stream.fill(buffer, ..1 + round % 64, 1).expect("it is queued");
        let mark = backend.record_position(stream.id()).expect("a live stream");
        buffer = done(pending);
        assert!(backend.is_complete(mark), "{mark:?}");
        assert_eq!(backend.model_end(mark), backend.model_now());
    }
    assert_eq!(backend.record_position(stream.id()).expect("a live stream").number, 4001, "each has a number");
}

#[test]
fn a_launch_that_panics_at_the_call_is_not_queued() {
    let link = Link { kernel_ns: Arc::new(|_, _| panic!("a model that a test asked for")), ..Link::default() };
    let backend = build(HostBackend::builder().concurrent_managed_access(false).link(link));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 64).expect("room");
    let address = managed.device_address().expect("it has bytes").get();
    // SAFETY: within the buffer, otherwise unused.
    let launch = || unsafe { stream.launch(&load(&backend), "increment", &[address, 64]) }.map(drop);
    catch_unwind(AssertUnwindSafe(launch)).expect_err("the model panics");
    assert_eq!(managed.as_slice().expect("no kernel is queued"), [0; 64]);
}

#[test]
fn a_panic_at_the_call_does_not_change_later_virtual_times() {
    let armed = Arc::new(AtomicBool::new(false));
    let clock = {
        let armed = Arc::clone(&armed);
        move || {
            assert!(!armed.swap(false, Relaxed), "a clock that a test asked for");
            0
        }
    };
    let backend = build(HostBackend::builder().log(true).clock(Arc::new(clock)).link(Link::default()));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let fill = |buffer| stream.fill(buffer, .., 1).expect("it is queued").detach();
    let (first, second) = (gpu(&backend, 1_000_000), gpu(&backend, 1_000_000));
    armed.store(true, Relaxed);
    catch_unwind(AssertUnwindSafe(|| fill(first))).expect_err("the clock panics");
    let buffer = fill(fill(second));
    let end = |number| backend.model_end(ringmem::backend::Ticket { stream: stream.id(), number });
    assert_eq!([1, 2].map(end), [Some(4000), Some(6000)]);
    synchronize(&stream);
    drop(buffer);
}

struct Slow(Arc<[AtomicBool; 2]>);

impl Drop for Slow {
    fn drop(&mut self) {
        self.0[0].store(true, Release);
        eventually("it may go", || self.0[1].load(Acquire));
    }
}

#[test]
fn memory_is_freed_without_waiting_for_a_kept_value() {
    let backend = build(HostBackend::builder().device_memory(1 << 20));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = gpu(&backend, 1 << 20);
    let held = Held::new(&backend, &stream);
    let ticket = backend.record_position(stream.id()).expect("a live stream");
    let slow = Arc::new([const { AtomicBool::new(false) }; 2]);
    backend.keep(Box::new(Slow(Arc::clone(&slow))), &Uses::of(ticket), None);
    let mut buffer = buffer;
    buffer.used_by(&stream).expect("a live stream");
    let mark = backend.record_position(stream.id()).expect("a live stream");
    drop(buffer);
    held.word(1).store(1, Release);
    eventually("the stream is through", || backend.is_complete(mark) && slow[0].load(Acquire));
    let again = GpuBuffer::<u8>::new(Device::new(&backend, 0), 1 << 20).map(drop);
    slow[1].store(true, Release);
    again.expect("its last use is over");
}

#[test]
fn a_mark_does_not_wait_for_values_kept_after_it() {
    let backend = build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let ticket = backend.record_position(stream.id()).expect("a live stream");
    let filled = stream.fill(gpu(&backend, 64), .., 1).expect("it is queued");
    let mark = backend.record_position(stream.id()).expect("a live stream");
    let slow = Arc::new([const { AtomicBool::new(false) }; 2]);
    backend.keep(Box::new(Slow(Arc::clone(&slow))), &Uses::of(ringmem::backend::Ticket { number: ticket.number + 1, ..ticket }), None);
    held.word(1).store(1, Release);
    drop(done(filled));
    let reached = backend.is_complete(mark);
    slow[1].store(true, Release);
    assert!(reached, "it has nothing else before it");
    drop(stream);
}

#[test]
fn synchronize_returns_memory_freed_before_it() {
    let backend = build(HostBackend::builder().device_memory(1 << 20).pinned_budget(1 << 20));
    let stream = Stream::new(&backend, 0).expect("a stream");
    for round in 0..2000 {
        let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 1 << 20);
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 1 << 20);
        let (Ok(buffer), Ok(pinned)) = (buffer, pinned) else { panic!("round {round}: short of memory that was freed") };
        drop(stream.fill(buffer, ..64, 1).expect("it is queued"));
        drop(stream.fill(pinned, ..64, 1).expect("it is queued"));
        stream.synchronize().expect("nothing failed");
    }
}

struct Greedy(Arc<HostBackend>);

impl Drop for Greedy {
    fn drop(&mut self) {
        assert!(matches!(give(&self.0, MemoryLocation::Device, 0, 2 << 20), Err(Error::OutOfMemory { .. })));
    }
}

#[test]
fn a_kept_value_that_allocates_on_drop_does_not_deadlock() {
    let backend = build(HostBackend::builder().device_memory(1 << 20));
    let streams = [0; 2].map(|device| Stream::new(&backend, device).expect("a stream"));
    for _ in 0..100 {
        for stream in &streams {
            let buffer = stream.fill(gpu(&backend, 200_000), .., 1).expect("it is queued").detach();
            backend.keep(
                Box::new(Greedy(Arc::clone(&backend))),
                &Uses::of(backend.record_position(stream.id()).expect("a live stream")),
                None,
            );
            drop(buffer);
        }
        streams.iter().for_each(synchronize);
    }
    assert_eq!(backend.counters().unreported, 0, "each was told that memory is short");
}

struct Asks(Limited<Device>);

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.0.used();
    }
}

#[test]
fn a_kept_value_that_reads_a_limit_does_not_deadlock() {
    within(|| {
        let backend = build(HostBackend::builder().device_memory(1 << 20));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let limited = Limited::new(Device::new(&backend, 0), 4096);
        let held = Held::new(&backend, &stream);
        backend.keep(Box::new(Asks(limited.clone())), &Uses::of(backend.record_position(stream.id()).expect("a live stream")), None);
        let mut buffer = Buffer::<u8, _>::new(limited.clone(), 4096).expect("the limit");
        buffer.used_by(&stream).expect("a live stream");
        drop(buffer);
        held.release(&stream);
        eventually("the limit has its bytes back", || limited.used() == 0);
    });
}
