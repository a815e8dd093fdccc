use std::thread;
use std::time::{Duration, Instant};
use std::vec::Vec;

use zerocopy::FromZeros;

use super::*;
use crate::HostWord;

const LAUNCH: Launch = Launch {
    abi: 0xabcd,
    capabilities: Capabilities::SYSTEM_SCOPE,
    epoch: 3,
    input_ring: 128,
    output_ring: 256,
    second_headers: [None, Some(SecondHeader { address: 512, is_polled: false })],
    telemetry: 384,
};

fn block() -> Shared<HostWord> {
    Shared::new_zeroed()
}

fn hands(block: &Shared<HostWord>) -> (HostSide<'_, HostWord>, DeviceSide<'_, HostWord>) {
    // SAFETY: only this test uses the block.
    unsafe { (HostSide::prepare(block, &LAUNCH), DeviceSide::attach(block, LAUNCH.epoch)) }
}

fn until(fact: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited in vain: {fact}");
        thread::yield_now();
    }
}

#[test]
fn an_error_word_holds_count_and_last_fault() {
    let block = block();
    let (host, mut device) = hands(&block);
    device.note(Fault::Message);
    device.note(Fault::Corrupt);
    assert_eq!(host.snapshot().faults(), (2, Some(Fault::Corrupt)));
}

#[test]
fn illegal_state_transitions_write_nothing() {
    let mut taken = 0;
    for from in State::ALL {
        for to in State::ALL {
            let block = block();
            let (host, mut device) = hands(&block);
            device.state = from;
            let before = host.snapshot();
            let legal = from.may_become(to);
            assert_eq!(device.enter(to), legal, "{from} -> {to}");
            let expected = if legal { ControlBlock { state: 3 << 32 | to as u64, ..before } } else { before };
            assert_eq!((host.snapshot(), device.state()), (expected, if legal { to } else { from }), "{from} -> {to}");
            taken += u32::from(legal);
        }
    }
    assert_eq!(taken, 9 + 7, "nine steps, and any state may become Faulted");
}

#[test]
fn host_and_device_write_only_their_own_line() {
    let block = block();
    let (mut host, mut device) = hands(&block);
    let prepared = host.snapshot();
    host.command(Command::PAUSE);
    host.abandon();
    let told = host.snapshot();
    assert_eq!(told, ControlBlock { command: 1 << 32 | 2, epoch: 0, ..prepared });

    device.agree(5);
    device.enter(State::Ready);
    device.acknowledge(1);
    device.note(Fault::Ring);
    device.answered(4);
    device.take(2);
    device.beat(1);
    let lived = host.snapshot();
    let ControlBlock { abi, capabilities, command, epoch, input_ring, output_ring, telemetry, input_second, output_second, .. } = told;
    let host_words =
        ControlBlock { abi, capabilities, command, epoch, input_ring, output_ring, telemetry, input_second, output_second, ..lived };
    assert_eq!(lived, host_words);
    assert_eq!((lived.processed, lived.in_flight, lived.heartbeat, lived.command_seen, lived.abi_seen), (4, 2, 1, 1, 5));
    assert_eq!((lived.faults(), lived.kernel_state(), lived.kernel_epoch()), ((1, Some(Fault::Ring)), Some(State::Ready), 3));
}

#[test]
fn a_second_header_is_polled_or_published_to() {
    let block = block();
    let (_, device) = hands(&block);
    let one = RingHeaders { ring: 128, own: 128, peer: 128 };
    let two = RingHeaders { ring: 256, own: 256, peer: 512 };
    assert_eq!(device.addresses(), Addresses { input: one, output: two, telemetry: 384 });
    let polled = Launch { second_headers: [Some(SecondHeader { address: 640, is_polled: true }), None], ..LAUNCH };
    // SAFETY: only this test uses the block.
    unsafe { HostSide::prepare(&block, &polled) };
    assert_eq!(device.addresses().input, RingHeaders { ring: 128, own: 640, peer: 128 });
    assert_eq!(device.addresses().output, RingHeaders { ring: 256, own: 256, peer: 256 });
}

#[test]
fn a_new_launch_resets_the_block() {
    let block = block();
    let (mut host, mut device) = hands(&block);
    host.command(Command::DRAIN);
    device.enter(State::Faulted);
    device.note(Fault::Panic);
    device.beat(1);
    device.answered(1);
    device.take(2);
    device.acknowledge(1);
    let (again, _) = hands(&block);
    let zeroed = ControlBlock::new_zeroed();
    let Launch { abi, input_ring, output_ring, telemetry, .. } = LAUNCH;
    let expected =
        ControlBlock { abi, capabilities: 1, epoch: 3, input_ring, output_ring, telemetry, output_second: 512, state: 3 << 32, ..zeroed };
    assert_eq!(again.snapshot(), expected);
    assert!(again.acknowledged(), "no command was given yet");
}

#[test]
fn awaited_commands_stay_in_order_across_wrap() {
    const COMMANDS: u32 = 2_000;
    let block = block();
    let (mut host, mut device) = hands(&block);
    host.sequence = u32::MAX - COMMANDS / 2;
    let seen = thread::scope(|scope| {
        let kernel = scope.spawn(move || {
            let (mut seen, mut acted) = (Vec::new(), 0);
            until("a command to end", || {
                let (sequence, bits) = device.command();
                if sequence != acted {
                    acted = sequence;
                    seen.push((sequence, bits));
                    device.acknowledge(sequence);
                }
                bits == Command::TERMINATE.bits()
            });
            seen
        });
        let mut given = Vec::new();
        for number in 1..=COMMANDS {
            // Consecutive commands differ.
            let command = if number == COMMANDS { Command::TERMINATE } else { Command::from_bits_retain(number << 4) };
            given.push((host.command(command), command.bits()));
            until("the command is acknowledged", || host.acknowledged());
        }
        (kernel.join().unwrap(), given)
    });
    assert_eq!(seen.0, seen.1);
    let after_the_wrap = seen.1.iter().position(|&(sequence, _)| sequence == 1);
    assert_eq!(after_the_wrap, Some(COMMANDS as usize / 2), "the sequence wraps to 1: 0 is no command");
}

#[test]
fn a_replaced_command_does_not_acknowledge_its_successor() {
    let block = block();
    let (mut host, mut device) = hands(&block);
    let first = host.command(Command::PAUSE);
    let second = host.command(Command::DRAIN);
    assert_eq!(device.command(), (second, Command::DRAIN.bits()));
    device.acknowledge(first);
    assert!(!host.acknowledged());
    device.acknowledge(second);
    assert!(host.acknowledged());
}

#[test]
fn panicked_of_an_earlier_launch_writes_nothing() {
    let block = block();
    let (mut host, _) = hands(&block);
    // SAFETY: the only kernel.
    unsafe { panicked(&block, 2) };
    assert_eq!(host.state(), Some(State::Created), "a kernel of another launch has nothing to say");
    // SAFETY: the only kernel.
    unsafe { panicked(&block, 3) };
    assert_eq!((host.state(), host.snapshot().faults()), (Some(State::Faulted), (1, Some(Fault::Panic))));
    host.abandon();
}

#[test]
fn a_panic_adds_to_the_fault_count() {
    let block = block();
    let (mut host, mut device) = hands(&block);
    device.note(Fault::RefusedCommand);
    device.note(Fault::Corrupt);
    // SAFETY: the only kernel.
    unsafe { panicked(&block, 3) };
    assert_eq!(host.snapshot().faults(), (3, Some(Fault::Panic)));
    host.abandon();
}

#[test]
fn debug_output_decodes_packed_words() {
    let block = block();
    let (mut host, mut device) = hands(&block);
    host.command(Command::from_bits_retain(2 | 0x40));
    device.enter(State::Ready);
    device.note(Fault::Corrupt);
    for text in [std::format!("{:?}", host.snapshot()), std::format!("{block:?}"), std::format!("{host:?}"), std::format!("{device:?}")] {
        for part in [
            "abi: 0xabcd",
            "capabilities: Capabilities(SYSTEM_SCOPE)",
            "command: {sequence: 1, command: Command(PAUSE | 0x40)}",
            "state: {epoch: 3, state: Ready}",
            "error: {count: 1, last: Corrupt}",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
    let odd = ControlBlock { state: 3 << 32 | 99, ..host.snapshot() };
    assert!(std::format!("{odd:?}").contains("state: {epoch: 3, state: 99}"));
}
