use std::time::Duration;

use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Role, StreamSet};

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

#[test]
fn next_cycles_through_the_streams_and_each_role_has_one() {
    let backend = backend();
    let streams = StreamSet::new(&backend, 0, 3).expect("streams");
    let order: Vec<_> = streams.iter().map(|stream| stream.id()).collect();
    let roles = Role::ALL.map(|role| streams.role(role).id());
    assert_eq!(order[..3], roles);
    for round in 0..100 {
        for expected in &order[3..] {
            assert_eq!(streams.next().id(), *expected, "round {round}");
        }
    }
    let alone = StreamSet::new(&backend, 0, 0).expect("streams");
    assert_eq!(alone.next().id(), alone.role(Role::Compute).id());
}

#[test]
fn ten_copies_need_one_synchronization() {
    let backend = backend();
    let streams = StreamSet::new(&backend, 0, 0).expect("streams");
    let before = backend.counters();
    let mut target = GpuBuffer::<u8>::new(Device::new(&backend, 0), 4096).expect("room");
    let mut source = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 4096).expect("room");
    source.as_mut_slice().expect("idle").fill(7);
    let stream = streams.role(Role::Memory);
    for _ in 0..10 {
        (source, target) = stream.copy(source, target).expect("queued").detach();
    }
    stream.synchronize().expect("no fault");
    let after = backend.counters();
    assert_eq!((after.uploads.count - before.uploads.count, after.synchronizations - before.synchronizations), (10, 1));
    assert!(target.to_vec().expect("no fault").iter().all(|&byte| byte == 7));
}

#[test]
fn synchronize_waits_for_all_streams_and_lists_failures() {
    let backend = backend();
    let streams = StreamSet::new(&backend, 0, 2).expect("streams");
    let mut buffers = Vec::new();
    backend.set_faults(&Faults::new().on(Verb::Fill, Fault::from(2).when_executed()));
    for stream in streams.iter() {
        let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 64).expect("room");
        buffers.push(stream.fill(buffer, .., 1).expect("queued").detach());
    }
    let failures = streams.synchronize().expect_err("four of five failed");
    let said: Vec<_> = failures.iter().map(|(index, error)| (index, matches!(error, Error::Injected { call: "fill", .. }))).collect();
    assert_eq!(said, [(1, true), (2, true), (3, true), (4, true)]);
    let source = std::error::Error::source(&failures).expect("the first").to_string();
    assert!(
        failures.to_string().contains("of the set failed") && source.contains("number 2 failed: injected fault"),
        "{failures}: {source}"
    );
    assert!(matches!(Error::from(failures), Error::Injected { number: 2, .. }));
    streams.synchronize().expect("each was told once");
}

#[test]
fn a_timeout_is_for_all_streams_and_keeps_the_errors_of_the_incomplete() {
    let backend = backend();
    let streams = StreamSet::new(&backend, 0, 1).expect("streams");
    assert!(streams.synchronize_timeout(Duration::MAX).expect("idle"));
    let held = streams.role(Role::Analysis);
    let kernel = Held::new(&backend, held);
    backend.set_faults(&Faults::new().on(Verb::Fill, Fault::from(1).when_executed()));
    let buffers = [streams.role(Role::Memory), held].map(|stream| {
        let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 64).expect("room");
        stream.fill(buffer, .., 1).expect("queued").detach()
    });
    let mut failed = Vec::new();
    eventually("the fill behind no kernel fails", || match streams.synchronize_timeout(Duration::from_millis(1)) {
        Ok(are_complete) => {
            assert!(!are_complete, "the kernel runs");
            false
        }
        Err(failures) => {
            failed = failures.iter().map(|(index, _)| index).collect();
            true
        }
    });
    assert_eq!(failed, [1]);
    assert!(!streams.synchronize_timeout(Duration::from_millis(1)).expect("told once"), "the kernel runs");
    kernel.let_go();
    let failures = streams.synchronize_timeout(LIMIT).expect_err("the fill behind the kernel");
    assert!(failures.iter().map(|(index, _)| index).eq([2]), "{failures}");
    assert!(streams.synchronize_timeout(LIMIT).expect("all are told"));
    drop(buffers);
}

#[test]
fn join_orders_a_stream_after_all_others() {
    let backend = backend();
    let streams = StreamSet::new(&backend, 0, 2).expect("streams");
    let last = streams.role(Role::Analysis);
    let held: Vec<_> = streams.iter().filter(|stream| stream.id() != last.id()).map(|stream| Held::new(&backend, stream)).collect();
    assert_eq!(held.len(), 4);
    streams.join(last).expect("same backend");
    let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 64).expect("room");
    let mut filled = last.fill(buffer, .., 2).expect("queued");
    for held in held {
        filled = filled.wait_timeout(Duration::from_millis(10)).expect_err("a kernel is in front of it");
        held.let_go();
    }
    let buffer = filled.wait_timeout(Duration::from_secs(30)).expect("all have left").expect("no fault");
    assert_eq!(buffer.to_vec().expect("no fault"), [2; 64]);
    streams.synchronize().expect("no fault");
}

#[test]
fn join_waits_for_each_stream_of_the_set() {
    let backend = backend();
    let streams = StreamSet::new(&backend, 0, 2).expect("streams");
    for last in streams.iter() {
        for other in streams.iter().filter(|other| other.id() != last.id()) {
            let held = Held::new(&backend, other);
            streams.join(last).expect("same backend");
            let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 64).expect("room");
            let filled = last.fill(buffer, .., 2).expect("queued");
            let filled = filled.wait_timeout(Duration::from_millis(10)).expect_err("a kernel precedes it");
            held.let_go();
            filled.wait_timeout(Duration::from_secs(30)).expect("the kernel has ended").expect("no fault");
        }
    }
    streams.synchronize().expect("no fault");
}
