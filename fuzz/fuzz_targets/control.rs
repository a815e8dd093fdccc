//! A control block and telemetry with a peer that writes anything.

#![no_main]

use std::ptr::NonNull;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::control::{
    Capabilities, Command, DeviceSide, Fault, HostSide, Launch, RingHeaders, SecondHeader, Shared, State, snapshot,
};
use ringmem_layouts::telemetry::{self, Recorder};
use ringmem_layouts::{HostWord, Word};
use zerocopy::FromZeros;

#[derive(Arbitrary, Debug)]
struct Input {
    block: [u64; 16],
    telemetry: [u64; 8],
    launch: [u64; 7],
    epoch: u32,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Prepare,
    Attach(u32),
    Command(u32),
    Abandon,
    Look,
    Agree(u64),
    Enter(u8),
    Acknowledge(u32),
    Note(u8),
    Take(u64),
    Answered(u64),
    Beat(u64),
    Count(u64, u64, u64),
    Publish(u32, u32, u64),
    Reset,
    Write(u8, Number),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Epoch(u32, u8),
    Any(u64),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Self::Small(value) => value.into(),
            Self::Epoch(high, low) => u64::from(high) << 32 | u64::from(low),
            Self::Any(value) => value,
        }
    }
}

fn words(block: &Shared<HostWord>) -> &[HostWord; 16] {
    // SAFETY: a block is 16 words.
    unsafe { NonNull::from(block).cast().as_ref() }
}

fn telemetry_words(buffer: &telemetry::Shared<HostWord>) -> &[HostWord; 8] {
    // SAFETY: a buffer is 8 words.
    unsafe { NonNull::from(buffer).cast().as_ref() }
}

/// The headers of a ring, by the words of its address and of its second header.
fn headers(ring: u64, second: u64) -> RingHeaders {
    match (second, second & !1) {
        (0, _) => RingHeaders { ring, own: ring, peer: ring },
        (word, address) if word % 2 == 1 => RingHeaders { ring, own: address, peer: ring },
        (_, address) => RingHeaders { ring, own: ring, peer: address },
    }
}

fn look(block: &Shared<HostWord>) {
    let seen = snapshot(block);
    let at_rest = words(block).each_ref().map(Word::load);
    assert_eq!(seen.state, at_rest[8]);
    assert_eq!(seen.kernel_state().map(|state| state as u64), (seen.state as u32 <= 6).then_some(seen.state & 0xffff_ffff));
    let (count, fault) = seen.faults();
    assert_eq!(u64::from(count), seen.error >> 32);
    assert_eq!(fault.map(|fault| fault as u64), (1..=9).contains(&(seen.error as u32)).then_some(seen.error & 0xffff_ffff));
    if let Some(fault) = fault {
        assert!(!fault.to_string().is_empty());
    }
    assert_eq!(Command::from_bits(seen.command as u32).is_some(), seen.command as u32 <= 15);
    assert_eq!(Capabilities::from_bits(seen.capabilities).is_some(), seen.capabilities <= 7);
}

fn look_at_telemetry(buffer: &telemetry::Shared<HostWord>) {
    match buffer.snapshot() {
        Ok(seen) => {
            assert_eq!(seen.sequence % 2, 0);
            assert_eq!((seen.latency_min().is_none(), seen.latency_mean().is_none()), (seen.processed == 0, seen.processed == 0));
            assert_eq!(u64::from(seen.output_depth()) << 32 | u64::from(seen.input_depth()), seen.depths);
        }
        Err(_) => assert_eq!(buffer.sequence.load() % 2, 1),
    }
}

fuzz_target!(|input: Input| {
    let block = Shared::<HostWord>::new_zeroed();
    words(&block).iter().zip(input.block).for_each(|(word, value)| Word::store(word, value));
    let buffer = telemetry::Shared::<HostWord>::new_zeroed();
    telemetry_words(&buffer).iter().zip(input.telemetry).for_each(|(word, value)| Word::store(word, value));
    let [abi, capabilities, input_ring, output_ring, telemetry, seconds @ ..] = input.launch;
    let capabilities = Capabilities::from_bits_truncate(capabilities);
    let second_headers = seconds.map(SecondHeader::from_word);
    let launch = Launch { abi, capabilities, epoch: input.epoch, input_ring, output_ring, second_headers, telemetry };

    let mut host = None;
    // SAFETY: one thread; peers write between operations.
    let mut device = unsafe { DeviceSide::attach(&block, launch.epoch) };
    // SAFETY: one thread; peers write between operations.
    let mut recorder = unsafe { Recorder::new(&buffer) };
    let (mut state, mut epoch) = (State::Created, launch.epoch);
    for step in input.steps {
        let before = words(&block).each_ref().map(Word::load);
        let lines = |changed: std::ops::Range<usize>| {
            let after = words(&block).each_ref().map(Word::load);
            assert!((0..16).all(|word| changed.contains(&word) || before[word] == after[word]), "a word of the other line");
        };
        match step {
            Step::Prepare => {
                // SAFETY: one thread; peers write between operations.
                host = Some(unsafe { HostSide::prepare(&block, &launch) });
                assert_eq!(snapshot(&block).kernel_state(), Some(State::Created));
                assert_eq!(snapshot(&block).faults(), (0, None));
            }
            Step::Attach(other) => {
                epoch = other;
                // SAFETY: one thread; peers write between operations.
                device = unsafe { DeviceSide::attach(&block, epoch) };
                state = State::Created;
                lines(0..0);
            }
            Step::Command(bits) => {
                let Some(host) = &mut host else { continue };
                let sequence = host.command(Command::from_bits_retain(bits));
                assert!(sequence != 0 && device.command() == (sequence, bits));
                assert_eq!(host.acknowledged(), before[9] == u64::from(sequence));
                lines(2..3);
            }
            Step::Abandon => {
                let Some(host) = &mut host else { continue };
                host.abandon();
                lines(3..4);
            }
            Step::Look => {
                if let Some(host) = &host {
                    assert_eq!(host.snapshot(), snapshot(&block));
                    assert_eq!(host.state(), snapshot(&block).kernel_state());
                }
                assert_eq!(device.is_current(), before[3] == u64::from(epoch));
                let addresses = device.addresses();
                assert_eq!(addresses.input, headers(before[4], before[7]));
                assert_eq!(addresses.output, headers(before[5], before[13]));
                assert_eq!(addresses.telemetry, before[6]);
                look(&block);
                look_at_telemetry(&buffer);
                lines(0..0);
            }
            Step::Agree(abi) => {
                assert_eq!(device.agree(abi), abi == before[0]);
                lines(15..16);
            }
            Step::Enter(next) => {
                let next = State::ALL[usize::from(next) % State::ALL.len()];
                let legal = state.may_become(next);
                assert_eq!(device.enter(next), legal);
                if legal {
                    state = next;
                    assert_eq!(snapshot(&block).kernel_state(), Some(next));
                }
                assert_eq!(device.state(), state);
                lines(if legal { 8..9 } else { 0..0 });
            }
            Step::Acknowledge(sequence) => {
                device.acknowledge(sequence);
                lines(9..10);
            }
            Step::Note(number) => {
                let Some(fault) = Fault::from_word(u64::from(number % 10)) else { continue };
                device.note(fault);
                assert_eq!(snapshot(&block).faults().1, Some(fault));
                lines(10..11);
            }
            Step::Take(count) => {
                device.take(count);
                lines(12..13);
            }
            Step::Answered(count) => {
                device.answered(count);
                lines(11..14);
            }
            Step::Beat(rounds) => {
                device.beat(rounds);
                assert_eq!(snapshot(&block).heartbeat, rounds);
                lines(14..15);
            }
            Step::Count(messages, refused, latency_ns) => recorder.count(messages, refused, latency_ns),
            Step::Publish(input_depth, output_depth, now_ns) => {
                recorder.publish(input_depth, output_depth, now_ns);
                let seen = buffer.snapshot().expect("nobody is writing");
                assert_eq!((seen.input_depth(), seen.output_depth(), seen.updated_ns), (input_depth, output_depth, now_ns));
            }
            Step::Reset => {
                // SAFETY: one thread; peers write between operations, and `recorder` is idle.
                unsafe { buffer.reset() };
                let [sequence, record @ ..] = telemetry_words(&buffer).each_ref().map(Word::load);
                assert_eq!((sequence % 2, record), (0, [0; 7]), "a record like any other");
            }
            Step::Write(place, number) => match usize::from(place) % 24 {
                place @ ..16 => Word::store(&words(&block)[place], number.value()),
                place => Word::store(&telemetry_words(&buffer)[place - 16], number.value()),
            },
        }
    }
    look(&block);
    look_at_telemetry(&buffer);
});
