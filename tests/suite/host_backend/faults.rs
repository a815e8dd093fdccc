use std::error::Error as _;

use ringmem::backend::Uses;
use ringmem::backend::host::{Fault, Faults, Link, Tally, Verb};
use ringmem::memory::{Device, GpuBuffer};

use super::*;

#[test]
fn only_the_nth_call_fails() {
    let backend = build(HostBackend::builder().faults(Faults::new().on(Verb::Copy, Fault::nth(2))));
    let block = give(&backend, MemoryLocation::Device, 0, 16).expect("room");
    write(&backend, &[1; 16], &block).expect("the first");
    let error = write(&backend, &[2; 16], &block).expect_err("the second");
    assert!(matches!(error, Error::Injected { call: "copy", number: 2 }), "{error:?}");
    assert_eq!(error.to_string(), "copy number 2 failed: injected fault");
    assert_eq!(read(&backend, &block, 16), [1; 16], "a call that fails does nothing");
    write(&backend, &[3; 16], &block).expect("the fourth");
    assert_eq!((backend.calls(Verb::Copy), backend.counters().uploads), (Some(4), Tally { count: 2, bytes: 32 }));
}

#[test]
fn a_new_fault_plan_counts_from_its_start() {
    let backend = build(HostBackend::builder().faults(Faults::new()));
    let block = give(&backend, MemoryLocation::Device, 0, 16).expect("room");
    write(&backend, &[1; 16], &block).expect("a plan of nothing");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(2)));
    write(&backend, &[1; 16], &block).expect("the first since");
    for number in [3, 4, 5] {
        assert!(matches!(write(&backend, &[1; 16], &block), Err(Error::Injected { number: n, .. }) if n == number));
    }
    backend.set_faults(&Faults::new());
    write(&backend, &[1; 16], &block).expect("no plan again");
}

#[test]
fn calls_are_counted_only_when_watched() {
    let backend = build(HostBackend::builder());
    let block = give(&backend, MemoryLocation::Device, 0, 16).expect("room");
    write(&backend, &[1; 16], &block).expect("nobody watches");
    assert_eq!(Verb::ALL.map(|verb| backend.calls(verb)), [None; Verb::ALL.len()]);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(2)));
    write(&backend, &[2; 16], &block).expect("the first that is counted");
    let error = write(&backend, &[3; 16], &block).expect_err("planned");
    assert!(matches!(error, Error::Injected { call: "copy", number: 2 }), "{error:?}");
    assert_eq!((backend.calls(Verb::Copy), backend.calls(Verb::Allocate)), (Some(2), Some(0)));
    for watched in [HostBackend::builder().log(true), HostBackend::builder().link(Link::default())] {
        let backend = build(watched);
        give(&backend, MemoryLocation::Device, 0, 16).expect("room");
        assert_eq!(backend.calls(Verb::Allocate), Some(1));
    }
}

#[test]
fn random_faults_are_reproducible_from_the_seed() {
    let run = |seed, probability| {
        let backend = build(HostBackend::builder().faults(Faults::new().on(Verb::RecordPosition, Fault::random(probability, seed))));
        let stream = backend.open_stream(0).expect("a stream");
        (0..1000).map(|_| backend.record_position(stream).is_err()).collect::<Vec<_>>()
    };
    let (first, again, other) = (run(7, 0.25), run(7, 0.25), run(8, 0.25));
    assert_eq!(first, again);
    assert_ne!(first, other);
    let struck = first.iter().filter(|&&struck| struck).count();
    assert!((200..300).contains(&struck), "{struck} of 1000 at a quarter");
    assert!(run(7, 0.0).iter().all(|&struck| !struck) && run(7, 1.0).iter().all(|&struck| struck));
}

#[test]
fn an_injected_out_of_memory_reports_the_real_free_bytes() {
    let backend = build(HostBackend::builder().device_memory(4096));
    let _first = give(&backend, MemoryLocation::Device, 0, 1024).expect("room");
    backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::from(1)));
    let error = give(&backend, MemoryLocation::Device, 0, 64).expect_err("planned");
    assert!(matches!(error, Error::OutOfMemory { requested: 64, free: 3072, largest: 3072, limit: None, .. }), "{error:?}");
    let error = give(&backend, MemoryLocation::Pinned, 0, 64).expect_err("planned");
    assert!(matches!(error, Error::Map { bytes: 64, .. }) && error.source().is_some(), "{error:?}");
    assert_eq!(backend.counters().device_allocations.count, 1);
    assert_eq!(backend.memory_info(0).expect("a device").expect("known").free, 3072, "nothing leaked");
}

#[test]
fn a_failed_free_still_frees_the_memory() {
    let backend = build(HostBackend::builder().device_memory(4096).faults(Faults::new().on(Verb::Free, Fault::from(1))));
    let block = give(&backend, MemoryLocation::Device, 0, 4096).expect("room");
    // SAFETY: unused.
    let error = unsafe { backend.free(&block, &Uses::NONE) }.expect_err("planned");
    assert!(matches!(error, Error::Injected { call: "free", number: 1 }), "{error:?}");
    assert_eq!(backend.counters().device_live.bytes, 0);
    drop(GpuBuffer::<u8>::new(Device::new(&backend, 0), 4096).expect("all of it again"));
    assert_eq!((backend.counters().unreported, backend.counters().device_live.bytes), (1, 0));
}

#[test]
fn a_fault_at_execution_is_reported_to_the_waiter() {
    let plan = Faults::new().on(Verb::Fill, Fault::nth(1).when_executed()).on(Verb::Launch, Fault::nth(1).when_executed());
    let backend = build(HostBackend::builder().faults(plan));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[7; 64]).expect("room");
    let address = buffer.device_address().expect("it has bytes").get();
    let pending = stream.fill(buffer, .., 1).expect("it is queued");
    let rejected = pending.wait_timeout(LIMIT).expect("in time").expect_err("planned");
    assert!(matches!(rejected.error, Error::Injected { call: "fill", number: 1 }), "{rejected:?}");
    let buffer = rejected.value;
    // SAFETY: the buffer is unused until the wait.
    let pending = unsafe { stream.launch(&load(&backend), "increment", &[address, 64]) }.expect("it is queued");
    let rejected = pending.wait_timeout(LIMIT).expect("in time").expect_err("planned");
    assert!(matches!(rejected.error, Error::Injected { call: "launch", number: 1 }), "{rejected:?}");
    let error = buffer.to_vec().expect_err("nothing was written since the fill failed");
    assert!(matches!(error, Error::Tainted { number: 1, .. }), "{error}");
    assert_eq!((backend.counters().fills.count, backend.counters().launches), (0, 0));
    let buffer = done(stream.fill(buffer, .., 1).expect("the second"));
    assert_eq!(buffer.to_vec().expect("a download"), [1; 64]);
}

#[test]
fn a_failed_wait_has_waited() {
    let backend = build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 1 << 20).expect("room");
    for (number, verb) in [(1, Verb::Wait), (2, Verb::Synchronize)] {
        backend.set_faults(&Faults::new().on(verb, Fault::nth(1)));
        let fill =
            ringmem::backend::Fill { to: Address::Device(buffer.device_address().expect("bytes")), pattern: 0, size: 1, count: 1 << 20 };
        // SAFETY: within the buffer, unused before the wait.
        let ticket = unsafe { backend.fill(&fill, stream.id()) }.expect("it is queued");
        let error = match verb {
            Verb::Wait => backend.wait(ticket, Some(LIMIT)).map(drop),
            _ => within({
                let (backend, stream) = (Arc::clone(&backend), stream.id());
                move || backend.synchronize(stream)
            }),
        };
        assert!(matches!(error, Err(Error::Injected { call, .. }) if call == verb.name()), "{error:?}");
        assert!(backend.is_complete(ticket));
        assert_eq!(backend.counters().fills.count, number);
    }
}

#[test]
fn a_fault_at_any_call_is_an_error_and_leaks_nothing() {
    let program = |backend: &Arc<HostBackend>| -> Result<Vec<u8>, Error> {
        let (stream, other) = (Stream::new(backend, 0)?, Stream::new(backend, 0)?);
        let module = Module::load(backend, &IMAGE, &Abi::of(LAYOUTS))?;
        let mut source = PinnedBuffer::<u8>::new(Pinned::new(backend, 0), 64)?;
        source.as_mut_slice()?.fill(5);
        let device = GpuBuffer::<u8>::new(Device::new(backend, 0), 64)?;
        let address = device.device_address().map_or(0, |address| address.get());
        let (source, device) = stream.copy(source, device)?.wait()?;
        // SAFETY: the buffer is unused until the wait.
        unsafe { stream.launch(&module, "increment", &[address, 32]) }?.wait()?;
        let device = other.fill(device, ..8, 1)?.detach();
        let (device, source) = stream.copy(device, source)?.wait()?;
        stream.wait_for(&other)?;
        other.synchronize()?;
        stream.synchronize()?;
        device.close()?;
        let bytes = source.to_vec()?;
        source.close()?;
        Ok(bytes)
    };
    let clean = build(HostBackend::builder().faults(Faults::new()));
    let run = |backend: &Arc<HostBackend>| {
        let backend = Arc::clone(backend);
        within(move || program(&backend))
    };
    let expected = run(&clean).expect("no fault");
    assert_eq!(expected, [&[1; 8][..], &[6; 24], &[5; 32]].concat());
    let mut struck = 0;
    for verb in Verb::ALL {
        for number in 1..=clean.calls(verb).expect("it has a plan") {
            for fault in [Fault::nth(number), Fault::nth(number).when_executed()] {
                let backend = build(HostBackend::builder().faults(Faults::new().on(verb, fault)));
                let Err(error) = run(&backend) else { panic!("{verb:?} {number}: a fault is never swallowed") };
                let injected = match &error {
                    Error::Injected { call, number: n } => (*call, *n) == (verb.name(), number),
                    Error::Tainted { cause, .. } => **cause == *format!("{} number {number} failed: injected fault", verb.name()),
                    _ => false,
                };
                assert!(injected || matches!(error, Error::OutOfMemory { .. } | Error::Map { .. }), "{verb:?} {number}: {error:?}");
                eventually("everything is freed", || {
                    let counters = backend.counters();
                    (counters.device_live.bytes, counters.pinned_live.bytes) == (0, 0)
                });
                struck += 1;
            }
        }
    }
    assert!(struck >= 40, "{struck} runs");
}

#[test]
fn a_failed_stream_wait_still_keeps_the_order() {
    let backend = build(HostBackend::builder().faults(Faults::new().on(Verb::StreamWait, Fault::nth(1).when_executed())));
    let (first, second) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let held = Held::new(&backend, &first);
    second.wait_for(&first).expect("it is queued");
    let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 64).expect("room");
    let pending = second.fill(buffer, .., 1).expect("it is queued");
    let pending = pending.wait_timeout(Duration::from_millis(20)).expect_err("the other stream is not through");
    held.release(&first);
    done(pending);
    let error = within(move || second.synchronize()).expect_err("nobody was told before");
    assert!(matches!(error, Error::Injected { call: "stream_wait", number: 1 }), "{error:?}");
}
