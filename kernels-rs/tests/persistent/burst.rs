//! Messages that a kernel sends of its own.

use std::sync::atomic::Ordering::Relaxed;

use ringmem_kernels::burst::{Burst, Report};
use ringmem_layouts::control::{Command, Fault, State};

use crate::memory::{Bytes, Device};
use crate::rig::{Rig, Shape, until};

type Bursts<'a> = Rig<'a, Burst, Report>;

fn in_memory(shape: Shape) -> (Bytes, Device) {
    let memory = shape.memory::<Burst, Report>();
    let device = Device::with_manual_clock([memory.range()]);
    (memory, device)
}

fn numbers(range: std::ops::Range<u64>) -> Vec<Report> {
    range.map(|number| Report { number }).collect()
}

/// Asks for as many as there will ever be.
fn endless(rig: &mut Bursts<'_>) {
    rig.send(Burst { count: u64::MAX });
    rig.command(Command::ACTIVATE);
}

#[test]
fn reports_have_all_numbers_once_in_order() {
    for (batch, capacity) in [(1, 1), (1, 64), (8, 4), (8, 64), (128, 64)] {
        let shape = Shape { batch, input: 4, output: capacity, start: u64::MAX - 20 };
        let (memory, device) = in_memory(shape);
        let mut rig = Bursts::new(&memory, shape);
        rig.run_image("burst", &[], &device, |rig| {
            rig.command(Command::ACTIVATE);
            for burst in 0..6 {
                rig.send(Burst { count: 30 });
                rig.send(Burst { count: 0 });
                for number in 30 * burst..30 * (burst + 1) {
                    assert_eq!(rig.receive(), Report { number }, "batches of {batch}, {capacity} slots");
                }
            }
            rig.until_beats(2);
            rig.command(Command::DRAIN);
            rig.until_state(State::Terminated);
        });
        assert_eq!((rig.end(), rig.received()), ((State::Terminated, 0, None), vec![]));
        assert_eq!(rig.snapshot().processed, 12, "the host's messages, and no reports");
    }
}

#[test]
fn messages_are_taken_while_reports_are_sent() {
    let shape = Shape { batch: 2, input: 2, output: 8, start: 0 };
    let (memory, device) = in_memory(shape);
    let mut rig = Bursts::new(&memory, shape);
    rig.run_image("burst", &[], &device, |rig| {
        endless(rig);
        for taken in 1..50 {
            rig.send(Burst { count: 1 });
            let number = 2 * taken - 2;
            assert_eq!([rig.receive(), rig.receive()].to_vec(), numbers(number..number + 2));
        }
        until("all are taken", || {
            rig.receiver.pop().ok();
            rig.snapshot().processed == 50
        });
        rig.command(Command::TERMINATE);
    });
}

#[test]
fn a_paused_kernel_sends_nothing() {
    let shape = Shape { output: 4, ..Shape::default() };
    let (memory, device) = in_memory(shape);
    let mut rig = Bursts::new(&memory, shape);
    rig.run_image("burst", &[], &device, |rig| {
        rig.send(Burst { count: u64::MAX });
        rig.until_beats(40);
        assert_eq!((rig.received(), rig.snapshot().processed), (vec![], 0), "it is not active yet");
        rig.command(Command::ACTIVATE);
        let mut next = 0;
        for _ in 0..4 {
            assert_eq!(rig.receive(), Report { number: next });
            rig.command(Command::PAUSE);
            let left = rig.received();
            let after = next + 1 + left.len() as u64;
            assert_eq!(left, numbers(next + 1..after));
            rig.until_beats(40);
            assert_eq!(rig.received(), []);
            rig.command(Command::ACTIVATE);
            next = after;
        }
        rig.command(Command::TERMINATE);
    });
}

#[test]
fn a_drain_takes_all_messages_and_sends_no_more_reports() {
    let shape = Shape { batch: 2, output: 16, ..Shape::default() };
    let (memory, device) = in_memory(shape);
    let mut rig = Bursts::new(&memory, shape);
    rig.run_image("burst", &[], &device, |rig| {
        endless(rig);
        let first = rig.receive();
        rig.command(Command::PAUSE);
        (0..20).for_each(|count| rig.send(Burst { count }));
        let sent = rig.received();
        assert_eq!(([vec![first], sent].concat().len() as u64), rig.receiver.head());
        rig.command(Command::DRAIN);
        rig.until_state(State::Terminated);
    });
    assert_eq!((rig.end(), rig.received(), rig.snapshot().processed), ((State::Terminated, 0, None), vec![], 21));
}

#[test]
fn a_full_ring_keeps_reports_back_until_the_deadline() {
    let shape = Shape { output: 4, ..Shape::default() };
    let (memory, device) = in_memory(shape);
    let mut rig = Bursts::new(&memory, shape);
    rig.launch.idle_ns = 1_000;
    rig.run_image("burst", &[], &device, |rig| {
        endless(rig);
        let tail = &rig.output.producer.tail;
        for round in 1..=20 {
            until("the ring is full", || tail.load(Relaxed) == 4 * round);
            rig.until_beats(40);
            assert_eq!(tail.load(Relaxed), 4 * round);
            // What it sent counts as work.
            device.advance(900);
            assert_eq!((0..4).map(|_| rig.receive()).collect::<Vec<_>>(), numbers(4 * round - 4..4 * round));
        }
        until("the ring is full", || tail.load(Relaxed) == 84);
        until("the deadline expires", || {
            device.advance(1_001);
            rig.state() == Some(State::Faulted)
        });
    });
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
    assert_eq!(rig.received(), numbers(80..84));
}

#[test]
fn a_kernel_with_nothing_to_report_leaves_after_its_deadline() {
    let shape = Shape::default();
    let (memory, device) = in_memory(shape);
    let mut rig = Bursts::new(&memory, shape);
    rig.launch.idle_ns = 1_000;
    rig.run_image("burst", &[], &device, |rig| {
        rig.command(Command::ACTIVATE);
        rig.until_beats(2);
        device.advance(1_000);
        rig.until_beats(100);
        assert_eq!(rig.state(), Some(State::Active), "the deadline itself is not past it");
        device.advance(1);
        rig.until_state(State::Faulted);
    });
    assert_eq!((rig.end(), rig.received()), ((State::Faulted, 1, Some(Fault::Deadline)), vec![]));
}
