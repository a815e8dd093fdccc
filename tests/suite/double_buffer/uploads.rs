use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Phase, Verb};
use ringmem::double_buffer::Uploads;
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::Buffer;

use super::*;

type Sends = Uploads<u32, Pinned>;
type Target = GpuBuffer<u32>;

fn uploads(wait: Duration) -> (Clean, Stream, [Target; 2], Sends) {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).log(true));
    let uploads = Uploads::new(Pinned::new(&backend, 0), 2, wait).expect("a stream");
    let targets = [0; 2].map(|_| Buffer::new(Device::new(&backend, 0), LEN).expect("room"));
    let work = Stream::new(&backend, 0).expect("a stream");
    (backend, work, targets, uploads)
}

#[test]
fn uploads_arrive_intact_while_slots_are_reused() {
    let (backend, work, mut targets, mut uploads) = uploads(LIMIT);
    let mut results = Vec::new();
    for number in 0..100 {
        let target = &mut targets[number as usize % 2];
        assert_eq!(uploads.send(target, .., |elements| elements.fill(number)).expect("in time"), u64::from(number) + 1);
        let result = GpuBuffer::<u32>::new(Device::new(&backend, 0), LEN).expect("room");
        let target = mem::replace(target, Buffer::new(Device::new(&backend, 0), LEN).expect("room"));
        let (target, result) = work.copy(target, result).expect("queued").detach();
        targets[number as usize % 2] = target;
        results.push(result);
    }
    uploads.settle().expect("no fault");
    work.synchronize().expect("no fault");
    for (number, result) in (0..).zip(&results) {
        assert_eq!(result.to_vec().expect("live"), [number; LEN]);
    }
    let counters = backend.counters();
    assert_eq!((counters.pinned_allocations.count, counters.uploads.count, counters.host_copies.count), (2, 100, 0));
}

#[test]
fn an_upload_writes_only_its_range() {
    let (_backend, _work, [mut target, _other], mut uploads) = uploads(LIMIT);
    target.fill(1).expect("live");
    uploads.send(&mut target, 10..20, |elements| elements.fill(2)).expect("in time");
    uploads.send(&mut target, 5..5, |elements| assert!(elements.is_empty())).expect("in time");
    uploads.settle().expect("no fault");
    let expected: Vec<u32> = (0..LEN).map(|index| if (10..20).contains(&index) { 2 } else { 1 }).collect();
    assert_eq!(target.to_vec().expect("live"), expected);
}

#[test]
fn an_upload_follows_the_uses_of_its_target() {
    let (backend, work, [mut target, mut other], mut uploads) = uploads(Duration::from_millis(20));
    let held = Held::new(&backend, &work);
    target.used_by(&work).expect("a live stream");
    for value in 1..=2 {
        uploads.send(&mut target, .., |elements| elements.fill(value)).expect("a slot");
    }
    let refused = uploads.send(&mut other, .., |_| panic!("no slot is free")).expect_err("both are in flight");
    assert!(matches!(refused, Failed { sequence: 3, error: Error::Busy { .. } }), "{refused}");
    let refused = uploads.settle().expect_err("a kernel is in front of them");
    assert!(matches!(refused, Failed { sequence: 1, error: Error::Busy { .. } }), "{refused}");
    held.let_go();
    assert_eq!(target.to_vec().expect("live"), [2; LEN]);
    assert_eq!(uploads.send(&mut other, .., |elements| elements.fill(3)).expect("a slot"), 3);
    uploads.settle().expect("no fault");
    assert_eq!(other.to_vec().expect("live"), [3; LEN]);
    let log = backend.call_log();
    let left = log.iter().position(|call| call.verb == Verb::Launch && call.phase == Phase::Executed).expect("it has left");
    let first = log.iter().position(|call| call.verb == Verb::Copy && call.phase == Phase::Executed).expect("it is over");
    assert!(left < first);
}

#[test]
fn a_failed_upload_is_reported_once_and_others_arrive() {
    for number in 1..=6 {
        let (backend, _work, mut targets, mut uploads) = uploads(LIMIT);
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(number).when_executed()));
        let mut failed = Vec::new();
        for value in 1..=6 {
            let mut send = || uploads.send(&mut targets[value as usize % 2], .., |elements| elements.fill(value));
            let sent = send().or_else(|error| {
                failed.push(error.sequence);
                send()
            });
            assert_eq!(sent.expect("told once"), u64::from(value));
        }
        while let Err(error) = uploads.settle() {
            assert!(matches!(error.error, Error::Injected { call: "copy", .. }), "{error}");
            failed.push(error.sequence);
        }
        assert_eq!(failed, [number]);
        backend.set_faults(&Faults::new());
        for (last, target) in [6, 5].into_iter().zip(&targets) {
            if last != number {
                assert_eq!(target.to_vec().expect("nobody else is told"), [last as u32; LEN]);
            }
        }
    }
}

#[test]
fn after_any_failed_call_the_next_attempt_succeeds() {
    for verb in [Verb::Allocate, Verb::Copy, Verb::StreamWait, Verb::RecordPosition, Verb::Wait] {
        let (mut struck, mut number) = (true, 0);
        while struck {
            number += 1;
            let (backend, work, [mut target, _other], mut uploads) = uploads(LIMIT);
            backend.set_faults(&Faults::new().on(verb, Fault::nth(number)));
            let before = backend.calls(verb).expect("watched");
            let mut told = 0;
            for value in 1..=4 {
                if target.used_by(&work).is_err() {
                    target.used_by(&work).expect("struck once");
                }
                while let Err(failed) = uploads.send(&mut target, .., |elements| elements.fill(value)) {
                    assert!(matches!(failed.error, Error::Injected { .. } | Error::Map { .. }), "{failed}");
                    told += 1;
                }
            }
            while uploads.settle().is_err() {
                told += 1;
            }
            assert!(told <= 1, "{verb:?} {number}: {told}");
            struck = backend.calls(verb).expect("watched") - before >= number;
            backend.set_faults(&Faults::new());
            assert_eq!(target.to_vec().expect("live"), [4; LEN]);
        }
        assert!(number > 1, "{verb:?} is called");
    }
}

#[test]
fn a_rejected_upload_fills_no_slot() {
    let (backend, _work, [mut target, _other], mut uploads) = uploads(LIMIT);
    let elsewhere = Clean::build(HostBackend::builder());
    let mut theirs = Target::new(Device::new(&elsewhere, 0), LEN).expect("room");
    let manager = MemoryManager::new(Device::new(&backend, 0));
    let named = manager.create::<u32>("a", LEN, BufferConfig::new()).expect("room");
    let refused = uploads.send(&mut target, ..=LEN, |_| panic!("out of range")).expect_err("past the end");
    assert!(matches!(refused, Failed { sequence: 1, error: Error::Range { .. } }), "{refused}");
    let refused = uploads.send(&mut manager.lease_mut(named).expect("nobody else"), .., |_| panic!("not so")).expect_err("not configured");
    assert!(matches!(refused, Failed { sequence: 1, error: Error::Unsupported { .. } }), "{refused}");
    let refused = uploads.send(&mut theirs, .., |elements| elements.fill(1)).expect_err("another backend's");
    assert!(matches!(refused, Failed { sequence: 1, error: Error::OtherBackend { .. } }), "{refused}");
    assert_eq!(uploads.send(&mut target, .., |elements| elements.fill(2)).expect("a slot"), 1);
    assert_eq!(target.to_vec().expect("live"), [2; LEN]);
}

#[test]
fn a_panicking_fill_uploads_nothing() {
    let (_backend, _work, [mut target, _other], mut uploads) = uploads(LIMIT);
    target.fill(7).expect("live");
    for _ in 0..5 {
        let panicking = AssertUnwindSafe(|| uploads.send(&mut target, .., |_| panic!("a panic that a test asked for")));
        catch_unwind(panicking).map(drop).expect_err("it panics");
    }
    assert_eq!(target.to_vec().expect("live"), [7; LEN]);
    assert_eq!(uploads.send(&mut target, .., |elements| elements.fill(8)).expect("a slot"), 1);
    assert_eq!(target.to_vec().expect("live"), [8; LEN]);
}

#[test]
fn dropped_or_forgotten_uploads_complete_safely() {
    for forgets in [false, true] {
        let (backend, work, [mut target, other], mut uploads) = uploads(LIMIT);
        let held = Held::new(&backend, &work);
        target.used_by(&work).expect("a live stream");
        uploads.send(&mut target, .., |elements| elements.fill(1)).expect("a slot");
        uploads.send(&mut target, .., |elements| elements.fill(2)).expect("a slot");
        if forgets {
            mem::forget(uploads);
            (0..2).for_each(|_| backend.forgets());
        } else {
            drop(uploads);
        }
        assert_eq!(backend.counters().pinned_live.bytes, 2 * BYTES + 8, "transfers read them");
        held.let_go();
        assert_eq!(target.to_vec().expect("live"), [2; LEN]);
        drop((target, other, work));
    }
}

#[test]
fn a_dropped_target_is_freed_after_its_upload() {
    let (backend, work, [mut target, other], mut uploads) = uploads(LIMIT);
    drop(other);
    let held = Held::new(&backend, &work);
    target.used_by(&work).expect("a live stream");
    uploads.send(&mut target, .., |elements| elements.fill(1)).expect("a slot");
    drop(target);
    assert_eq!(backend.counters().device_live.bytes, BYTES, "a transfer writes it");
    held.let_go();
    uploads.settle().expect("it was live");
    eventually("it is freed", || backend.counters().device_live.bytes == 0);
}
