use std::collections::BTreeMap;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Phase, Verb};

use super::*;

const FRAMES: u64 = 8;

#[derive(Debug, Default)]
struct Outcome {
    started: BTreeMap<u64, u32>,
    read: Vec<(u64, u32)>,
    failed: Vec<u64>,
    refused: u32,
}

impl Outcome {
    fn start(&mut self, rig: &mut Rig, value: u32) {
        let mut write = || {
            let source = rig.source.take().expect("it is there");
            let queued = rig.work.fill(source, .., value);
            let is_queued = queued.is_ok();
            rig.source = Some(queued.map_or_else(|rejected| rejected.value, |pending| pending.detach()));
            is_queued
        };
        assert!(write() || write(), "struck once");
        let sequence = rig.writer.start(rig.source.as_mut().expect("it is there"), ..).or_else(|_| {
            self.refused += 1;
            rig.writer.start(rig.source.as_mut().expect("it is there"), ..)
        });
        assert!(self.started.insert(sequence.expect("struck once"), value).is_none());
    }

    fn read(&mut self, rig: &mut Rig) -> bool {
        match rig.reader.next(LIMIT) {
            Err(Failed { sequence, error }) => {
                assert!(matches!(error, Error::Injected { .. } | Error::Tainted { .. }), "{error}");
                self.failed.push(sequence);
                false
            }
            frame => {
                self.read.extend(whole(frame));
                true
            }
        }
    }
}

fn run(faults: &Faults) -> (Rig, Outcome) {
    let (mut rig, mut outcome) = (Rig::new(2, EVERY), Outcome::default());
    rig.backend.set_faults(faults);
    for value in 0..FRAMES as u32 {
        outcome.start(&mut rig, 100 + value);
        if value > 0 {
            outcome.read(&mut rig);
        }
        rig.reader.release();
    }
    outcome.read(&mut rig);
    rig.backend.set_faults(&Faults::new());
    (rig, outcome)
}

#[test]
fn a_failed_call_loses_only_the_reported_frame() {
    let verbs = [Verb::Allocate, Verb::Copy, Verb::StreamWait, Verb::RecordPosition, Verb::Wait, Verb::Fill];
    let calls = {
        let (before, ..) = (Rig::new(2, EVERY), ());
        let (rig, outcome) = run(&Faults::new());
        assert_eq!((outcome.read.len(), outcome.refused, outcome.failed.len()), (FRAMES as usize, 0, 0));
        verbs.map(|verb| rig.backend.calls(verb).expect("watched") - before.backend.calls(verb).expect("watched"))
    };
    let mut told = 0;
    for (verb, calls) in verbs.into_iter().zip(calls) {
        assert!(calls > 0, "{verb:?}");
        for number in 1..=calls {
            for when_executed in [false, true] {
                let fault = Fault::nth(number);
                let fault = if when_executed { fault.when_executed() } else { fault };
                let (mut rig, mut outcome) = run(&Faults::new().on(verb, fault));
                let what = format!("{verb:?} {number}, executed: {when_executed}: {outcome:?}");
                assert!(outcome.refused + outcome.failed.len() as u32 <= 1, "{what}");
                if verb == Verb::Copy || (verb, when_executed) == (Verb::Fill, true) {
                    assert_eq!((outcome.refused, outcome.failed.len()), if when_executed { (0, 1) } else { (1, 0) }, "{what}");
                }
                told += outcome.refused + outcome.failed.len() as u32;
                assert!(outcome.started.keys().copied().eq(1..=FRAMES), "{what}");
                let expected = outcome.started.iter().filter(|(sequence, _)| !outcome.failed.contains(sequence));
                assert!(expected.map(|(&sequence, &value)| (sequence, value)).eq(outcome.read.iter().copied()), "{what}");
                outcome.start(&mut rig, 7);
                assert!(outcome.read(&mut rig), "{what}");
                assert_eq!(outcome.read.last(), Some(&(FRAMES + 1, 7)), "{what}");
            }
        }
    }
    assert!(told > 30, "{told} calls");
}

#[test]
fn a_transfer_error_is_reported_to_the_reader_only() {
    for latest in [false, true] {
        let mut rig = Rig::new(2, EVERY);
        rig.arrive(1);
        rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
        rig.start(2).expect("it fails later");
        let source = rig.source.as_mut().expect("it is there");
        source.settle().expect("nothing of its own failed");
        source.copy_from(&[3; LEN]).expect("nor now");
        assert_eq!(source.to_vec().expect("live"), [3; LEN]);
        rig.writer.start(source, ..).expect_err("two are unread");
        let failed = if latest {
            rig.reader.latest().expect_err("the reader is told first")
        } else {
            assert_eq!(rig.next(), Some((1, 1)));
            rig.reader.next(LIMIT).expect_err("in its place")
        };
        assert!(matches!(failed, Failed { sequence: 2, error: Error::Injected { call: "copy", .. } }), "{failed}");
        assert_eq!((failed.to_string(), std::error::Error::source(&failed).is_some()), (format!("frame 2: {}", failed.error), true));
        if latest {
            assert_eq!(rig.latest(), Some((1, 1)), "and only once");
        }
        assert_eq!(rig.arrive(4), 3);
        assert_eq!(rig.latest(), Some((3, 4)));
    }
}

#[test]
fn a_failed_frame_is_overwritten_like_an_unread_one() {
    let mut rig = Rig::new(2, Policy::Newest);
    rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
    rig.start(1).expect("it fails later");
    rig.landed();
    rig.arrive(2);
    assert_eq!(rig.arrive(3), 3, "in the place of the first");
    assert_eq!(rig.backend.counters().unreported, 1, "whose error nobody was there to be told of");
    assert_eq!(rig.latest(), Some((3, 3)));
}

#[test]
fn frames_stay_whole_and_ordered_with_random_failures() {
    for (seed, slots) in [(1, 2), (2, 3), (3, 4)] {
        let mut rig = Rig::new(slots, Policy::Newest);
        rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::random(0.2, seed).when_executed()));
        let (mut started, mut failed, mut last) = (BTreeMap::new(), Vec::new(), 0);
        for value in 1..=300 {
            if let Ok(sequence) = rig.start(value) {
                started.insert(sequence, value);
            }
            if value % 2 == 0 {
                rig.landed();
            }
            match rig.reader.latest() {
                Err(Failed { sequence, .. }) => failed.push(sequence),
                frame => {
                    if let Some((sequence, value)) = whole(frame) {
                        assert!(sequence >= last && !failed.contains(&sequence));
                        assert_eq!(started[&sequence], value);
                        last = sequence;
                    }
                }
            }
        }
        assert!(failed.len() > 10 && last > 100, "{failed:?}, {last}");
        rig.backend.set_faults(&Faults::new());
    }
}

#[test]
fn every_failure_is_reported_during_concurrent_arrivals() {
    for round in 0..100 {
        let mut rig = Rig::new(64, EVERY);
        rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::random(0.5, round).when_executed()));
        let held = Held::new(&rig.backend, &rig.work);
        for value in 1..=64 {
            rig.start(value).expect("a slot");
        }
        rig.source.as_ref().expect("it is there").ready_on(&rig.work).expect("a live stream");
        let all = rig.work.record().expect("a live stream");
        held.let_go();
        let (mut told, mut is_last) = (0, false);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT);
            let is_over = all.is_done();
            match rig.reader.latest() {
                Err(Failed { .. }) => told += 1,
                Ok(_) if is_last => break,
                Ok(_) => is_last = is_over,
            }
        }
        let log = rig.backend.call_log();
        let failed = log.iter().filter(|call| (call.verb, call.phase, call.ok) == (Verb::Copy, Phase::Executed, false)).count();
        assert!(failed > 0 && told == failed, "round {round}: {told} told of {failed}");
        rig.backend.set_faults(&Faults::new());
    }
}

type Refused = fn(&mut Rig) -> Error;

/// Each start is refused by another call, the last two only once the frame that it would overwrite is taken.
const REFUSED: [Refused; 4] = [
    |rig| {
        let other = Clean::build(HostBackend::builder().device_memory(1 << 20));
        let mut foreign = GpuBuffer::<u32>::new(Device::new(&other, 0), LEN).expect("room");
        rig.writer.start(&mut foreign, ..).expect_err("another backend")
    },
    |rig| refused_by(rig, Verb::Allocate, LEN / 2),
    |rig| refused_by(rig, Verb::Copy, LEN),
    |rig| refused_by(rig, Verb::Copy, LEN / 2),
];

fn refused_by(rig: &mut Rig, verb: Verb, len: usize) -> Error {
    rig.backend.set_faults(&Faults::new().on(verb, Fault::nth(1)));
    let error = rig.writer.start(rig.source.as_mut().expect("it is there"), ..len).expect_err("planned");
    rig.backend.set_faults(&Faults::new());
    error
}

#[test]
fn a_refused_start_overwrites_no_frame() {
    for refused in REFUSED {
        let mut rig = Rig::new(2, Policy::Newest);
        rig.arrive(1);
        rig.arrive(2);
        let error = refused(&mut rig);
        assert!(matches!(error, Error::OtherBackend { .. } | Error::Map { .. } | Error::Injected { .. }), "{error}");
        assert_eq!([rig.next(), rig.next(), rig.next()], [Some((1, 1)), Some((2, 2)), None], "{error}");
        assert_eq!(rig.arrive(3), 3, "{error}");
        assert_eq!(rig.backend.counters().pinned_live.bytes, 2 * BYTES, "{error}");
    }
}

#[test]
fn a_refused_start_keeps_a_failure_for_the_reader() {
    for refused in REFUSED {
        let mut rig = Rig::new(2, Policy::Newest);
        rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
        rig.start(1).expect("it fails later");
        rig.landed();
        rig.arrive(2);
        let error = refused(&mut rig);
        let failed = rig.reader.next(LIMIT).expect_err("in its place");
        assert!(matches!(failed, Failed { sequence: 1, error: Error::Injected { call: "copy", .. } }), "{error}: {failed}");
        assert_eq!((rig.next(), rig.backend.counters().unreported), (Some((2, 2)), 0), "{error}");
    }
}

#[test]
fn a_frame_of_another_length_overwrites_the_oldest_frame() {
    let mut rig = Rig::new(2, Policy::Newest);
    rig.backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
    rig.start(1).expect("it fails later");
    rig.landed();
    rig.arrive(2);
    rig.write(3);
    rig.writer.start(rig.source.as_mut().expect("it is there"), ..LEN / 2).expect("in the place of the first");
    rig.landed();
    assert_eq!(rig.backend.counters().unreported, 1);
    assert_eq!([rig.next(), rig.next(), rig.next()], [Some((2, 2)), Some((3, 3)), None]);
    assert_eq!(rig.backend.counters().pinned_live.bytes, BYTES + BYTES / 2, "the slot of the first is freed");
}
