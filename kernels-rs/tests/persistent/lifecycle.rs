use ringmem_kernels::echo::Echo;
use ringmem_layouts::control::{Command, Fault, State};

use crate::echo::message;
use crate::memory::{Bytes, Device};
use crate::rig::{EPOCH, Rig, Shape, until};
use crate::traced::{echo, trace};

use State::{Active, Draining, Faulted, Paused, Ready, Terminated};

fn life(shape: Shape, host: impl FnOnce(&mut Rig<'_, Echo, Echo>)) -> (Vec<State>, (State, u32, Option<Fault>)) {
    let memory: Bytes = shape.memory::<Echo, Echo>();
    let device = Device::new([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let (states, panicked) = trace(&mut rig, &device, echo(), host);
    assert!(!panicked);
    (states, rig.end())
}

fn commands(all: &[Command]) -> impl FnOnce(&mut Rig<'_, Echo, Echo>) {
    move |rig| {
        rig.until_state(Ready);
        for &command in all {
            rig.command(command);
        }
    }
}

const ACTIVATE: Command = Command::ACTIVATE;
const PAUSE: Command = Command::PAUSE;
const DRAIN: Command = Command::DRAIN;
const TERMINATE: Command = Command::TERMINATE;

#[test]
fn commands_drive_the_kernel_through_its_states() {
    for (given, expected) in [
        (&[ACTIVATE, PAUSE, ACTIVATE, DRAIN][..], &[Ready, Active, Paused, Active, Draining, Terminated][..]),
        (&[ACTIVATE, PAUSE, DRAIN], &[Ready, Active, Paused, Draining, Terminated]),
        (&[ACTIVATE, TERMINATE], &[Ready, Active, Terminated]),
        (&[ACTIVATE, PAUSE, TERMINATE], &[Ready, Active, Paused, Terminated]),
        (&[TERMINATE], &[Ready, Active, Terminated]),
        (&[DRAIN], &[Ready, Active, Draining, Terminated]),
    ] {
        let (states, end) = life(Shape::default(), commands(given));
        assert_eq!(states, expected, "{given:?}");
        assert_eq!(end, (Terminated, 0, None));
    }
}

#[test]
fn the_strongest_bit_of_a_command_wins() {
    for (first, expected) in [
        (ACTIVATE | PAUSE | DRAIN | TERMINATE, &[Ready, Active, Terminated][..]),
        (PAUSE | TERMINATE, &[Ready, Active, Terminated]),
        (ACTIVATE | PAUSE | DRAIN, &[Ready, Active, Draining, Terminated]),
    ] {
        let (states, _) = life(Shape::default(), commands(&[first]));
        assert_eq!(states, expected, "{first:?}");
    }
    let (states, _) = life(Shape::default(), commands(&[ACTIVATE, ACTIVATE | PAUSE, TERMINATE]));
    assert_eq!(states, [Ready, Active, Paused, Terminated]);
}

#[test]
fn every_command_is_acknowledged_by_its_sequence_number() {
    let (_, end) = life(Shape::default(), |rig| {
        rig.until_state(Ready);
        assert_eq!(rig.snapshot().command_seen, 0, "none was given");
        for (number, command) in [ACTIVATE, PAUSE, PAUSE, ACTIVATE, Command::empty(), ACTIVATE, PAUSE, TERMINATE].into_iter().enumerate() {
            let sequence = rig.control.command(command);
            assert_eq!(sequence as usize, number + 1);
            until("it is acknowledged", || rig.snapshot().command_seen == u64::from(sequence));
        }
    });
    assert_eq!(end, (Terminated, 0, None));
}

#[test]
fn empty_and_repeated_commands_change_no_state() {
    let (states, end) =
        life(Shape::default(), commands(&[Command::empty(), ACTIVATE, ACTIVATE, Command::empty(), PAUSE, PAUSE, TERMINATE]));
    assert_eq!(states, [Ready, Active, Paused, Terminated]);
    assert_eq!(end, (Terminated, 0, None));
}

#[test]
fn an_unknown_command_bit_is_a_fault() {
    for bits in [16, 1 << 31, 16 | 8, u32::MAX] {
        for before in [&[][..], &[ACTIVATE], &[ACTIVATE, PAUSE]] {
            let (states, end) = life(Shape::default(), |rig| {
                commands(before)(rig);
                rig.command(Command::from_bits_retain(bits));
            });
            assert_eq!(end, (Faulted, 1, Some(Fault::UnknownCommand)), "{bits:#x}");
            assert_eq!(states.last(), Some(&Faulted));
        }
    }
}

#[test]
fn a_pause_before_activation_is_refused_and_counted() {
    let (states, end) = life(Shape::default(), |rig| {
        commands(&[PAUSE])(rig);
        assert_eq!((rig.state(), rig.snapshot().faults()), (Some(Ready), (1, Some(Fault::RefusedCommand))));
        rig.command(ACTIVATE);
        rig.send(message(1));
        assert_eq!(rig.receive(), message(1), "and it works all the same");
        rig.command(TERMINATE);
    });
    assert_eq!((states, end), (vec![Ready, Active, Terminated], (Terminated, 1, Some(Fault::RefusedCommand))));
}

#[test]
fn a_drain_refuses_pause_and_activate() {
    let (states, end) = life(Shape { output: 1, ..Shape::default() }, |rig| {
        for id in 0..3 {
            rig.send(message(id));
        }
        commands(&[DRAIN, PAUSE, ACTIVATE])(rig);
        assert_eq!((rig.state(), rig.snapshot().faults()), (Some(Draining), (2, Some(Fault::RefusedCommand))));
        for id in 0..3 {
            assert_eq!(rig.receive(), message(id));
        }
    });
    assert_eq!((states, end), (vec![Ready, Active, Draining, Terminated], (Terminated, 2, Some(Fault::RefusedCommand))));
}

#[test]
fn terminate_ends_a_drain_early() {
    let (states, end) = life(Shape { output: 1, ..Shape::default() }, |rig| {
        for id in 0..3 {
            rig.send(message(id));
        }
        commands(&[DRAIN, TERMINATE])(rig);
    });
    assert_eq!((states, end), (vec![Ready, Active, Draining, Terminated], (Terminated, 0, None)));
}

#[test]
fn a_ready_or_paused_kernel_consumes_no_message() {
    life(Shape::default(), |rig| {
        rig.until_state(Ready);
        rig.send(message(0));
        rig.until_beats(100);
        assert_eq!((rig.snapshot().processed, rig.received().len()), (0, 0));
        rig.command(ACTIVATE);
        assert_eq!(rig.receive(), message(0));
        rig.command(PAUSE);
        for id in 1..4 {
            rig.send(message(id));
        }
        rig.until_beats(100);
        assert_eq!((rig.snapshot().processed, rig.received().len()), (1, 0));
        assert_eq!(rig.sender.refresh(), Ok(64 - 3), "they are still in the ring");
        rig.command(ACTIVATE);
        for id in 1..4 {
            assert_eq!(rig.receive(), message(id));
        }
        rig.command(TERMINATE);
    });
}

#[test]
fn a_drain_answers_all_queued_messages() {
    for before in [&[][..], &[ACTIVATE, PAUSE]] {
        let (_, end) = life(Shape { batch: 3, ..Shape::default() }, |rig| {
            commands(before)(rig);
            for id in 0..64 {
                rig.send(message(id));
            }
            rig.command(DRAIN);
            rig.until_state(Terminated);
            assert_eq!(rig.received(), (0..64).map(message).collect::<Vec<_>>());
            assert_eq!(rig.snapshot().processed, 64);
        });
        assert_eq!(end, (Terminated, 0, None));
    }
}

#[test]
fn terminate_leaves_unconsumed_messages_in_the_ring() {
    life(Shape::default(), |rig| {
        commands(&[ACTIVATE, PAUSE])(rig);
        rig.send(message(1));
        rig.command(TERMINATE);
        assert_eq!((rig.received(), rig.sender.refresh()), (vec![], Ok(63)));
    });
}

#[test]
fn a_busy_kernel_acknowledges_a_command() {
    let (_, end) = life(Shape { batch: 1, ..Shape::default() }, |rig| {
        commands(&[ACTIVATE])(rig);
        let sequence = rig.control.command(PAUSE);
        let (mut sent, mut received) = (0, 0);
        until("the command is seen while messages flow", || {
            while rig.sender.push(message(sent)).is_ok() {
                sent += 1;
            }
            received += rig.received().len();
            rig.snapshot().command_seen == u64::from(sequence)
        });
        rig.command(TERMINATE);
    });
    assert_eq!(end, (Terminated, 0, None));
}

#[test]
fn an_abandoned_kernel_exits_without_changing_its_state() {
    for before in [&[][..], &[ACTIVATE], &[ACTIVATE, PAUSE]] {
        let (states, (state, faults, _)) = life(Shape::default(), |rig| {
            commands(before)(rig);
            rig.control.abandon();
        });
        assert_eq!(states.len(), before.len() + 1, "no state after the last command's: {states:?}");
        assert_eq!((Some(&state), faults), (states.last(), 0));
    }
}

#[test]
fn a_kernel_of_another_epoch_writes_nothing() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let prepared = rig.snapshot();
    rig.launch.epoch = EPOCH - 1;
    let (states, _) = trace(&mut rig, &Device::new([memory.range()]), echo(), |_| {});
    assert_eq!(states, []);
    assert_eq!(rig.snapshot(), ringmem_layouts::ControlBlock { epoch: 0, ..prepared }, "the block is as it was, but for the rig's own end");
}
