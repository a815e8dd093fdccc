//! A clock that panics at each call: nothing in use is freed, and no slot is lost.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};

use ringmem::backend::host::{Clock, Phase, Verb};
use ringmem::double_buffer::Uploads;

use super::*;
use crate::rig::panicking_clock::{clock, has_struck, strike};

fn is_queued(backend: &HostBackend) -> bool {
    backend.call_log().iter().any(|call| (call.verb, call.phase, call.ok) == (Verb::Copy, Phase::Called, true))
}

fn each_call(mut run: impl FnMut(u64) -> bool) -> u64 {
    (1..).find(|&number| !run(number)).map_or(0, |number| number - 1)
}

#[test]
fn a_slot_outlives_its_transfer_if_start_panics() {
    let panicked = each_call(|number| {
        let mut rig = Rig::on(HostBackend::builder().clock(clock()), 2, EVERY);
        let held = Held::new(&rig.backend, &rig.work);
        rig.write(1);
        let (writer, source) = (&mut rig.writer, rig.source.as_mut().expect("it is there"));
        strike(number);
        let started = catch_unwind(AssertUnwindSafe(|| writer.start(source, ..)));
        let has_struck = has_struck();
        assert_eq!(started.is_err(), has_struck);
        let live = rig.backend.counters().pinned_live.bytes;
        assert!(!is_queued(&rig.backend) || live >= BYTES, "call {number}: a slot is freed under its transfer");
        held.let_go();
        rig.landed();
        while rig.next().is_some() {}
        for value in 2..4 {
            rig.start(value).expect("no slot is lost");
        }
        rig.landed();
        assert_eq!((rig.next().map(|(_, value)| value), rig.next().map(|(_, value)| value)), (Some(2), Some(3)));
        has_struck
    });
    assert!(panicked >= 3, "{panicked}: the wait, the copy and the mark at least");
}

#[test]
fn an_upload_slot_outlives_its_transfer_if_send_panics() {
    let panicked = each_call(|number| {
        let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).log(true).clock(clock()));
        let mut uploads = Uploads::<u32, _>::new(Pinned::new(&backend, 0), 2, LIMIT).expect("a stream");
        let mut target = GpuBuffer::<u32>::new(Device::new(&backend, 0), LEN).expect("room");
        let work = Stream::new(&backend, 0).expect("a stream");
        let held = Held::new(&backend, &work);
        target.used_by(&work).expect("a live stream");
        strike(number);
        let sent = catch_unwind(AssertUnwindSafe(|| uploads.send(&mut target, .., |elements| elements.fill(1))));
        let has_struck = has_struck();
        assert_eq!(sent.is_err(), has_struck);
        let live = backend.counters().pinned_live.bytes;
        assert!(!is_queued(&backend) || live >= BYTES, "call {number}: a slot is freed under its transfer");
        held.let_go();
        uploads.settle().expect("no fault");
        for value in 2..4 {
            uploads.send(&mut target, .., |elements| elements.fill(value)).expect("a slot");
        }
        assert_eq!(target.to_vec().expect("live"), [3; LEN]);
        has_struck
    });
    assert!(panicked >= 3, "{panicked}: the wait, the copy and the mark at least");
}

fn looks(slots: u32, frames: u32, mut look: impl FnMut(&mut Rig)) -> u64 {
    each_call(|number| {
        let mut rig = Rig::on(HostBackend::builder().clock(clock()), slots as usize, EVERY);
        for value in 1..=frames {
            rig.arrive(value);
        }
        strike(number);
        let looked = catch_unwind(AssertUnwindSafe(|| look(&mut rig)));
        let has_struck = has_struck();
        assert_eq!(looked.is_err(), has_struck);
        let (mut last, mut left) = (0, 0);
        while let Some((sequence, value)) = rig.next() {
            assert!(sequence > last && u64::from(value) == sequence, "call {number}: {sequence} after {last}");
            (last, left) = (sequence, left + 1);
        }
        assert!(!has_struck || left + 1 == frames, "call {number}: the one that was asked for is lost, and no other: {left}");
        for value in 0..slots {
            rig.start(value).expect("no slot is lost");
        }
        rig.landed();
        has_struck
    })
}

#[test]
fn a_panic_in_latest_keeps_the_frame_order() {
    let panicked = looks(4, 3, |rig| assert!(rig.latest().is_some()));
    assert!(panicked >= 3, "{panicked}: each frame is asked for");
}

#[test]
fn a_panic_in_next_loses_no_slot() {
    let panicked = looks(1, 1, |rig| assert!(rig.next().is_some()));
    assert!(panicked >= 1, "{panicked}: the frame is asked for");
}

thread_local! {
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

type Question = Arc<Mutex<Option<Box<dyn Fn() + Send>>>>;

#[test]
fn waiting_for_outcomes_does_not_block_the_other_half() {
    let (over, is_over) = mpsc::channel();
    thread::spawn(move || {
        for writes in [false, true] {
            let question = Question::default();
            let clock: Clock = {
                let question = Arc::clone(&question);
                Arc::new(move || {
                    if ASKS.get()
                        && let Ok(question) = question.try_lock()
                        && let Some(ask) = &*question
                    {
                        ask();
                    }
                    0
                })
            };
            let mut rig = Rig::on(HostBackend::builder().clock(clock), 2, Policy::Newest);
            rig.arrive(1);
            rig.arrive(2);
            let Rig { mut writer, mut reader, source, work, backend } = rig;
            let mut source = source.expect("it is there");
            let ask = |ask: Box<dyn Fn() + Send>| *question.lock().expect("nobody panics") = Some(ask);
            ASKS.set(true);
            if writes {
                ask(Box::new(move || assert!(!reader.is_over())));
                assert_eq!(writer.start(&mut source, ..).expect("the first gives way"), 3);
                drop(writer);
            } else {
                ask(Box::new(move || assert!(writer.has_reader())));
                assert_eq!(whole(reader.latest()), Some((2, 2)));
                drop(reader);
            }
            ASKS.set(false);
            let asked = question.lock().expect("nobody panics").take();
            drop((asked, source, work));
            drop(backend);
        }
        over.send(()).expect("somebody waits");
    });
    is_over.recv_timeout(LIMIT).expect("nobody waits for himself");
}
