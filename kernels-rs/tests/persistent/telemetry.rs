use std::sync::atomic::Ordering::Relaxed;

use ringmem_kernels::echo::Echo;
use ringmem_layouts::control::{Command, State};

use crate::echo::message;
use crate::machine::SLEEPS_IN_EACH_DRY_ROUND;
use crate::memory::Device;
use crate::rig::{Rig, Shape, until};

pub const BEAT_ROUNDS: u64 = 16;

#[test]
fn telemetry_of_an_ended_kernel_matches_the_messages() {
    for ending in [Command::DRAIN, Command::TERMINATE] {
        let shape = Shape { batch: 3, input: 32, output: 64, start: u64::MAX - 7 };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| {
            rig.command(Command::ACTIVATE);
            for id in 0..50 {
                rig.send(message(id));
            }
            until("all are answered", || rig.snapshot().processed == 50);
            rig.command(Command::PAUSE);
            for id in 50..55 {
                rig.send(message(id));
            }
            rig.command(ending);
        });
        let drained = ending == Command::DRAIN;
        let answered = if drained { 55 } else { 50 };
        let seen = rig.telemetry.snapshot().expect("nobody writes any more");
        assert_eq!((seen.processed, seen.dropped), (answered, 0));
        assert_eq!(seen.output_depth() as u64, answered, "nobody has received");
        if drained {
            assert_eq!(seen.input_depth(), 0);
        }
        let (least, mean) = (seen.latency_min().expect("a minimum"), seen.latency_mean().expect("a mean"));
        assert!(least <= mean && mean <= seen.latency_max_ns, "{seen:?}");
        assert!(seen.sequence.is_multiple_of(2) && seen.sequence > 0 && seen.updated_ns > 0, "{seen:?}");
        let block = rig.snapshot();
        assert_eq!((block.processed, block.in_flight), (answered, 0));
        assert_eq!(rig.received().len() as u64, answered);
    }
}

/// The kernel polls that index otherwise only if slots are short.
#[test]
fn the_output_depth_falls_when_the_host_pops_the_answers() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| {
        rig.command(Command::ACTIVATE);
        for id in 0..20 {
            rig.send(message(id));
        }
        let depth = |rig: &Rig<'_, Echo, Echo>| rig.telemetry.snapshot().map(|seen| (seen.processed, seen.output_depth()));
        until("an idle record counts the answers", || depth(rig) == Ok((20, 20)));
        for id in 0..20 {
            assert_eq!(rig.receive(), message(id));
        }
        until("a later record has none", || depth(rig) == Ok((20, 0)));
        rig.command(Command::TERMINATE);
    });
}

#[test]
fn telemetry_without_messages_has_no_latency_minimum() {
    for ending in [Command::DRAIN, Command::TERMINATE, Command::from_bits_retain(16)] {
        let shape = Shape::default();
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        // Before the launch: the first idle record comes later.
        rig.control.command(ending);
        rig.run_image("echo", &[], &Device::new([memory.range()]), |_| {});
        let seen = rig.telemetry.snapshot().expect("nobody writes any more");
        assert_eq!((seen.processed, seen.latency_min(), seen.latency_max_ns), (0, None, 0));
        assert!(seen.sequence.is_multiple_of(2) && seen.sequence > 0, "it was written all the same");
    }
}

#[test]
fn an_idle_kernel_publishes_its_telemetry() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let device = Device::with_manual_clock([memory.range()]);
    rig.run_image("echo", &[], &device, |rig| {
        rig.command(Command::ACTIVATE);
        for id in 0..20 {
            rig.send(message(id));
        }
        until("telemetry counts twenty", || rig.telemetry.snapshot().is_ok_and(|seen| seen.processed == 20));
        rig.command(Command::TERMINATE);
    });
}

#[test]
fn the_heartbeat_counts_idle_rounds_and_batches() {
    let shape = Shape { batch: 1, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::new([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.run_image("echo", &[], &device, |rig| {
        rig.until_state(State::Ready);
        rig.until_beats(20);
        rig.command(Command::ACTIVATE);
        rig.until_beats(20);
        rig.command(Command::PAUSE);
        rig.until_beats(20);
        for id in 0..60 {
            rig.send(message(id));
        }
        rig.command(Command::DRAIN);
    });
    let rounds = device.pauses.load(Relaxed) + 1 + 60;
    let heartbeat = rig.snapshot().heartbeat;
    assert!(heartbeat + BEAT_ROUNDS >= rounds, "{heartbeat}, {rounds}");
    assert!(heartbeat <= rounds || !SLEEPS_IN_EACH_DRY_ROUND, "{heartbeat}, {rounds}");
}
