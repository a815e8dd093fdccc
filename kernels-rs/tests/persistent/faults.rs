use std::sync::atomic::Ordering::{Relaxed, Release};

use ringmem_kernels::ABI;
use ringmem_kernels::echo::Echo;
use ringmem_kernels::histogram::Chunk;
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::{ControlBlock, HostWord, RingHeader, RingLayout};

use crate::echo::message;
use crate::machine::{run_image, unmapped};
use crate::memory::Device;
use crate::rig::{IDLE, Rig, Shape, until};
use crate::traced::{echo, trace};

fn end_of(spoil: impl FnOnce(&Rig<'_, Echo, Echo>)) -> (State, u32, Option<Fault>) {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    spoil(&rig);
    rig.run_image("echo", &[], &Device::new([memory.range()]), |_| {});
    rig.end()
}

#[test]
fn an_abi_mismatch_faults_and_stores_both_hashes() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.block.abi.store(!ABI.hash, Relaxed);
    let (states, _) = trace(&mut rig, &Device::new([memory.range()]), echo(), |_| {});
    assert_eq!((states, rig.end()), (vec![State::Faulted], (State::Faulted, 1, Some(Fault::Abi))));
    assert_eq!((rig.snapshot().abi, rig.snapshot().abi_seen), (!ABI.hash, ABI.hash));
}

#[test]
fn a_matching_abi_is_copied_to_abi_seen() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| rig.command(Command::TERMINATE));
    assert_eq!((rig.snapshot().abi, rig.snapshot().abi_seen), (ABI.hash, ABI.hash));
}

#[test]
fn unmapped_and_misaligned_addresses_are_address_faults() {
    type Word = fn(&ControlBlock<HostWord>) -> &HostWord;
    let words: [Word; 3] = [|block| &block.input_ring, |block| &block.output_ring, |block| &block.telemetry];
    for word in words {
        let good = |rig: &Rig<'_, Echo, Echo>| word(rig.block).load(Relaxed);
        let wrong = [("null", (|_| 0) as fn(u64) -> u64), ("misaligned", |good| good + 8)];
        let outside = [("unmapped", (|good| good ^ (1 << 62)) as fn(u64) -> u64), ("at the end of all", |_| u64::MAX - 127)];
        for (what, bad) in wrong.into_iter().chain(unmapped(outside)) {
            let end = end_of(|rig| word(rig.block).store(bad(good(rig)), Relaxed));
            assert_eq!(end, (State::Faulted, 1, Some(Fault::Address)), "{what}");
        }
    }
}

fn header<'r>(rig: &Rig<'r, Echo, Echo>, output: bool) -> &'r RingHeader<HostWord> {
    if output { rig.output } else { rig.input }
}

#[test]
fn an_unmapped_ring_end_is_an_address_fault() {
    for output in unmapped([false, true]) {
        let end = end_of(|rig| header(rig, output).constants.capacity.store(1 << 30, Relaxed));
        assert_eq!(end, (State::Faulted, 1, Some(Fault::Address)));
    }
}

#[test]
fn another_ring_kind_or_geometry_is_a_fault() {
    for output in [false, true] {
        let ring_fault = (State::Faulted, 1, Some(Fault::Ring));
        let chunks = RingLayout::of::<Chunk>(8).expect("a geometry");
        // SAFETY: no kernel runs; the ends are not used again.
        assert_eq!(end_of(|rig| unsafe { header(rig, output).format::<Chunk>(&chunks, 0) }), ring_fault, "other messages");
        for (what, value, word) in [
            ("no magic", 0, 0),
            ("another ABI", 1, 1),
            ("no power of two", 3, 2),
            ("no capacity", 0, 2),
            ("other slots", 32, 3),
            ("slots elsewhere", 128, 4),
            ("no flags", 0, 5),
            ("unknown flags", 3, 5),
            ("another kind", 9, 6),
        ] {
            let end = end_of(|rig| {
                let constants = &header(rig, output).constants;
                [
                    &constants.magic,
                    &constants.abi,
                    &constants.capacity,
                    &constants.slot_size,
                    &constants.slots_offset,
                    &constants.flags,
                    &constants.message_kind,
                ][word]
                    .store(value, Relaxed);
            });
            assert_eq!(end, ring_fault, "{what}");
        }
        let end = end_of(|rig| header(rig, output).producer.tail.store(65, Relaxed));
        assert_eq!(end, ring_fault, "indices that cannot be");
    }
}

#[test]
fn a_kernel_without_a_control_block_writes_nothing() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let rig = Rig::<Echo, Echo>::new(&memory, shape);
    let prepared = rig.snapshot();
    let device = Device::new([memory.range()]);
    let outside = unmapped([rig.launch.controls ^ (1 << 62), u64::MAX - 127]);
    for controls in [0, rig.launch.controls + 8].into_iter().chain(outside) {
        run_image("echo", &[controls, 7, 1, 1], &device);
    }
    assert_eq!(rig.snapshot(), prepared);
}

#[test]
fn an_impossible_host_index_is_a_corrupt_fault() {
    type Spoil = fn(&mut Rig<'_, Echo, Echo>, u64);
    let more_sent_than_fit: Spoil = |rig, index| rig.input.producer.tail.store(index, Release);
    // The kernel uses this index, and polls it, only for an answer.
    let more_received_than_answered: Spoil = |rig, index| {
        rig.output.consumer.head.store(index, Release);
        rig.send(message(0));
    };
    for start in [0, u64::MAX - 1] {
        for (spoil, wrong) in [
            (more_sent_than_fit, 65),
            (more_sent_than_fit, 1 << 40),
            (more_sent_than_fit, u64::MAX),
            (more_received_than_answered, 1),
            (more_received_than_answered, 1 << 40),
            (more_received_than_answered, 65_u64.wrapping_neg()),
        ] {
            let shape = Shape { start, batch: 128, ..Shape::default() };
            let memory = shape.memory::<Echo, Echo>();
            let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
            let (states, _) = trace(&mut rig, &Device::new([memory.range()]), echo(), |rig| {
                rig.command(Command::ACTIVATE);
                spoil(rig, start.wrapping_add(wrong));
                rig.until_state(State::Faulted);
            });
            assert_eq!(states, [State::Ready, State::Active, State::Faulted]);
            assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Corrupt)), "{wrong} from {start}");
            assert_eq!(rig.snapshot().processed, 0);
        }
    }
}

#[test]
fn an_idle_kernel_faults_after_its_deadline() {
    for before in [&[][..], &[Command::ACTIVATE], &[Command::ACTIVATE, Command::PAUSE]] {
        let shape = Shape::default();
        let memory = shape.memory::<Echo, Echo>();
        let device = Device::with_manual_clock([memory.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        rig.launch.idle_ns = 1_000_000;
        let (states, _) = trace(&mut rig, &device, echo(), |rig| {
            rig.until_state(State::Ready);
            before.iter().for_each(|&command| rig.command(command));
            rig.until_beats(2);
            device.advance(1_000_000);
            rig.until_beats(100);
            assert!(!rig.state().expect("a known state").has_ended(), "the deadline itself is not past it");
            device.advance(1);
            rig.until_state(State::Faulted);
        });
        assert_eq!(states.len(), before.len() + 2, "{states:?}");
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
    }
}

#[test]
fn messages_and_commands_extend_the_deadline() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.launch.idle_ns = 1_000;
    trace(&mut rig, &device, echo(), |rig| {
        for round in 0..10 {
            rig.until_beats(2);
            device.advance(900);
            rig.until_beats(40);
            if round < 5 {
                rig.command(Command::ACTIVATE);
            } else {
                rig.send(message(round));
                assert_eq!(rig.receive(), message(round));
            }
        }
        rig.until_beats(2);
        device.advance(1_001);
        rig.until_state(State::Faulted);
    });
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
}

#[test]
fn a_full_output_ring_lets_the_deadline_expire() {
    let shape = Shape { output: 1, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.launch.idle_ns = 1_000;
    trace(&mut rig, &device, echo(), |rig| {
        rig.send(message(0));
        rig.send(message(1));
        rig.command(Command::DRAIN);
        rig.until_beats(2);
        // It may begin after these beats.
        until("the deadline expires", || {
            device.advance(1_001);
            rig.state() == Some(State::Faulted)
        });
        assert_eq!(rig.received(), [message(0)]);
    });
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
}

#[test]
fn a_deadline_beyond_u64_max_causes_no_fault() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    device.advance(u64::MAX - 1_000);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.launch.idle_ns = IDLE.as_nanos() as u64;
    trace(&mut rig, &device, echo(), |rig| {
        rig.command(Command::ACTIVATE);
        rig.send(message(3));
        assert_eq!(rig.receive(), message(3));
        rig.command(Command::TERMINATE);
    });
    assert_eq!(rig.end(), (State::Terminated, 0, None));
}
