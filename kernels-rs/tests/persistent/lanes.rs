//! The kernels with thirty-two lanes as threads, on the host only.

use ringmem_kernels::echo::{self, Echo};
use ringmem_kernels::histogram::{self, Chunk, Counted};
use ringmem_kernels::reduce::{self, Number, Reduce, Reduced, Rows};
use ringmem_kernels::transform::{self, Applied, Apply, Operation};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, Simulated, persistent};
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::ring::spsc::Producer;
use ringmem_layouts::{Host, Machine};

use crate::echo::message;
use crate::histogram::{Ground, noise, slow};
use crate::memory::{Bytes, Device};
use crate::reduce::{slow as reduced, words};
use crate::rig::{Rig, Shape};
use crate::simulated_warp::{Lane, WIDTH, on_a_warp, with_a_warp};
use crate::transform::bytes;

fn echo(machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch) {
    // SAFETY: the rig outlives it and is the only peer.
    unsafe { persistent(machine, lanes, launch, &mut echo::Handle::<true>) }
}

#[test]
fn a_warp_answers_every_message_in_order() {
    for (batch, capacity) in [(1, 4), (8, 8), (32, 64), (128, 256), (40, 1)] {
        let shape = Shape { batch, input: capacity, output: capacity, start: u64::MAX - 9 };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let count = if batch == 128 { 300 } else { 40 };
        let panicked = with_a_warp(&mut rig, &Device::new([memory.range()]), echo, |rig| {
            let mut sent = 0;
            let mut fill = |sender: &mut Producer<'_, Echo, Host>| {
                while sent < count && sender.push(message(sent)).is_ok() {
                    sent += 1;
                }
            };
            fill(&mut rig.sender);
            rig.command(Command::ACTIVATE);
            for answered in 0..count {
                assert_eq!(rig.receive_sending(&mut fill), message(answered), "batch {batch}, answer {answered}");
            }
            rig.command(Command::DRAIN);
            rig.until_state(State::Terminated);
        });
        assert_eq!((panicked, rig.end(), rig.received()), (0, (State::Terminated, 0, None), vec![]));
        let seen = rig.telemetry.snapshot().expect("nobody writes any more");
        assert_eq!((seen.processed, rig.snapshot().processed), (count, count));
    }
}

#[test]
fn lanes_that_read_different_times_stay_in_step() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let panicked = with_a_warp(&mut rig, &Device::with_manual_clock([memory.range()]), echo, |rig| {
        rig.command(Command::ACTIVATE);
        for id in 0..5 {
            rig.send(message(id));
            assert_eq!(rig.receive(), message(id));
            rig.until_beats(40);
        }
        rig.command(Command::DRAIN);
        rig.until_state(State::Terminated);
    });
    assert_eq!((panicked, rig.end()), (0, (State::Terminated, 0, None)));
}

#[test]
fn histogram_on_a_warp_matches_the_scalar_model() {
    let data = noise(20_011, 8);
    let mut chunks: Vec<Chunk> = [(0, 0), (0, 1), (8, 7), (16, 255), (264, 256), (520, 257), (1024, 4096), (5120, 14_891)]
        .into_iter()
        .enumerate()
        .map(|(id, (offset, length))| Chunk { id: id as u64, offset, length, first_word: offset / 8 })
        .collect();
    chunks.insert(3, Chunk { id: 70, offset: 4, length: 8, first_word: 0 });
    chunks.insert(5, Chunk { id: 71, offset: 20_008, length: 8, first_word: 0 });
    chunks.push(Chunk { id: 72, offset: u64::MAX - 7, length: 8, first_word: 0 });
    let mut expected = Vec::new();
    let (mut counts, mut checksum, mut bytes) = (vec![0; 256], 0_u64, 0);
    for chunk in &chunks {
        let status = u64::from(chunk.id >= 70);
        if status == 0 {
            let (more, sum) = slow(&data[chunk.offset as usize..][..chunk.length as usize], chunk.first_word);
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
            checksum = checksum.wrapping_add(sum);
            bytes += chunk.length;
        }
        expected.push(Counted { id: chunk.id, status, bytes, checksum });
    }

    for batch in [1, 8] {
        let mut ground = Ground::new(&data);
        let [data_at, length, work] = ground.arguments();
        let shape = Shape { batch, ..Shape::default() };
        let memory = shape.memory::<Chunk, Counted>();
        let device = Device::new([memory.range(), ground.data.range(), ground.work.range()]);
        let mut rig = Rig::<Chunk, Counted>::new(&memory, shape);
        let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
            // SAFETY: all outlive it; no other use.
            unsafe { histogram::histogram(machine, lanes, launch, DevicePointer::new(data_at), length, DevicePointer::new(work)) }
        };
        let panicked = with_a_warp(&mut rig, &device, kernel, |rig| {
            for &chunk in &chunks {
                rig.send(chunk);
            }
            rig.command(Command::DRAIN);
            rig.until_state(State::Terminated);
        });
        assert_eq!((panicked, rig.end()), (0, (State::Terminated, 0, None)));
        assert_eq!((rig.received(), ground.totals()), (expected.clone(), counts.clone()), "batches of {batch}");
        assert_eq!(rig.telemetry.snapshot().expect("nobody writes any more").dropped, 3);
    }
}

#[test]
fn transform_on_a_warp_matches_the_scalar_model() {
    let data = noise(5000, 3);
    let chunks = [(0, 0), (16, 1), (32, 15), (48, 16), (64, 17), (96, 511), (608, 512), (1120, 3880)];
    let shape = Shape::default();
    let (memory, ground) = (shape.memory::<Apply, Applied>(), Bytes::of(&data));
    let device = Device::new([memory.range(), ground.range()]);
    let mut rig = Rig::<Apply, Applied>::new(&memory, shape);
    let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
        // SAFETY: memory and data outlive the kernel; nothing else accesses the data, and the chunks do not overlap.
        unsafe { transform::transform(machine, lanes, launch, DevicePointer::new(ground.address()), 5000) }
    };
    let panicked = with_a_warp(&mut rig, &device, kernel, |rig| {
        for (id, &(offset, length)) in chunks.iter().enumerate() {
            rig.send(Apply { id: id as u64, offset, length, operation: Operation::Add(200).word() });
        }
        rig.command(Command::DRAIN);
        rig.until_state(State::Terminated);
    });
    assert_eq!((panicked, rig.end()), (0, (State::Terminated, 0, None)));
    assert!(rig.received().iter().enumerate().all(|(id, answer)| *answer == Applied { id: id as u64, status: 0 }));
    let within = |place: u64| chunks.iter().any(|&(offset, length)| (offset..offset + length).contains(&place));
    let expected: Vec<u8> = (0..).zip(&data).map(|(place, byte)| if within(place) { byte.wrapping_add(200) } else { *byte }).collect();
    assert!(bytes(&ground, 5000) == expected);
}

#[test]
fn reduce_on_a_warp_matches_the_scalar_model() {
    for number in [Number::Whole, Number::Float] {
        let data = words(1000, number);
        let lengths = [0, 1, 31, 32, 33, 64, 999, 1000];
        let all: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
        let shape = Shape::default();
        let (memory, ground, rows) = (shape.memory::<Reduce, Reduced>(), Bytes::of(&all), Bytes::zeroed(size_of::<Rows>()));
        let device = Device::new([memory.range(), ground.range(), rows.range()]);
        let mut rig = Rig::<Reduce, Reduced>::new(&memory, shape);
        let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
            // SAFETY: all outlive it; no other use.
            unsafe {
                reduce::reduce(machine, lanes, launch, DevicePointer::new(ground.address()), 8000, DevicePointer::new(rows.address()))
            }
        };
        let panicked = with_a_warp(&mut rig, &device, kernel, |rig| {
            for (id, &length) in lengths.iter().enumerate() {
                rig.send(Reduce { id: id as u64, offset: 0, length: length as u64 * 8, number: number as u64 });
            }
            rig.command(Command::DRAIN);
            rig.until_state(State::Terminated);
        });
        assert_eq!((panicked, rig.end()), (0, (State::Terminated, 0, None)));
        let expected: Vec<Reduced> = (0..).zip(lengths).map(|(id, length)| Reduced { id, ..reduced(&data[..length], number) }).collect();
        assert_eq!(rig.received(), expected, "{number:?}: the same bits");
    }
}

#[test]
fn every_lane_exits_on_a_fault() {
    type Spoil = fn(&mut Rig<'_, Echo, Echo>);
    let spoils: [(Spoil, Fault); 3] = [
        (|rig| rig.block.abi.store(0, std::sync::atomic::Ordering::Relaxed), Fault::Abi),
        (|rig| rig.block.output_ring.store(8, std::sync::atomic::Ordering::Relaxed), Fault::Address),
        (|rig| rig.launch.idle_ns = 0, Fault::Deadline),
    ];
    for (spoil, fault) in spoils {
        let shape = Shape::default();
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        spoil(&mut rig);
        let panicked = with_a_warp(&mut rig, &Device::new([memory.range()]), echo, |_| {});
        assert_eq!((panicked, rig.end()), (0, (State::Faulted, 1, Some(fault))));
    }
}

#[test]
fn every_lane_exits_on_abandon_and_corruption() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::new([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let panicked = with_a_warp(&mut rig, &device, echo, |rig| {
        rig.command(Command::ACTIVATE);
        rig.control.abandon();
    });
    assert_eq!((panicked, rig.end()), (0, (State::Active, 0, None)));

    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let panicked = with_a_warp(&mut rig, &device, echo, |rig| {
        rig.command(Command::ACTIVATE);
        rig.input.producer.tail.store(1 << 20, std::sync::atomic::Ordering::Release);
    });
    assert_eq!((panicked, rig.end()), (0, (State::Faulted, 1, Some(Fault::Corrupt))));
}

struct Fragile;

impl<M: Machine> Handler<M, Lane<'_>> for Fragile {
    type Input = Echo;
    type Output = Echo;

    unsafe fn answer(&mut self, lanes: &Lane<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        for index in (u64::from(lanes.lane())..batch.len()).step_by(WIDTH) {
            // SAFETY: below the length; one lane's index.
            unsafe {
                batch.exchange(index, |message, answer| {
                    assert!(message.words[0] != u64::MAX, "the test's handler panics");
                    *answer = *message;
                });
            }
        }
        0
    }
}

#[test]
fn a_panic_of_one_lane_ends_the_warp() {
    for unlucky in [0, 1, 31] {
        let shape = Shape { batch: 32, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
            // SAFETY: the rig outlives it and is the only peer.
            unsafe { persistent(machine, lanes, launch, &mut Fragile) }
        };
        let panicked = with_a_warp(&mut rig, &Device::new([memory.range()]), kernel, |rig| {
            for id in 0..32 {
                rig.send(if id == unlucky { Echo { words: [u64::MAX; 8] } } else { message(id) });
            }
            rig.command(Command::ACTIVATE);
        });
        assert_eq!((panicked, rig.end()), (1, (State::Faulted, 1, Some(Fault::Panic))), "lane {unlucky}");
        assert_eq!(rig.received(), [], "nothing of the broken batch is published");
    }
}

struct Picky;

impl<M: Machine> Handler<M, Lane<'_>> for Picky {
    type Input = Echo;
    type Output = Echo;

    unsafe fn answer(&mut self, lanes: &Lane<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        let mut refused = 0;
        for index in (u64::from(lanes.lane())..batch.len()).step_by(WIDTH) {
            // SAFETY: below the length.
            refused += unsafe { batch.message(index, |message| message.words[0] % 2) };
        }
        refused
    }
}

#[test]
fn messages_rejected_by_all_lanes_are_summed() {
    let shape = Shape { batch: 40, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
        // SAFETY: the rig outlives it and is the only peer.
        unsafe { persistent(machine, lanes, launch, &mut Picky) }
    };
    let panicked = with_a_warp(&mut rig, &Device::new([memory.range()]), kernel, |rig| {
        (0..50).for_each(|id| rig.send(Echo { words: [id; 8] }));
        rig.command(Command::DRAIN);
    });
    let seen = rig.telemetry.snapshot().expect("nobody writes any more");
    assert_eq!((panicked, seen.processed, seen.dropped), (0, 50, 25));
}

#[test]
fn each_group_uses_its_own_control_block() {
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let device = Device::new([memory.range()]);
    rig.launch.controls -= 2 * 128;
    let launch = rig.launch;
    let lanes = |group| {
        let device = &device;
        move || {
            on_a_warp(device, [group, group + 1], |machine, lanes| echo(machine, lanes, &launch));
        }
    };
    let ((), ended) = rig.run(lanes(1), |_| {});
    ended.expect("no panic");
    assert_eq!(rig.state(), Some(State::Created), "group 1 found no block and left");

    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let ((), ended) = rig.run(lanes(2), |rig| {
        rig.command(Command::ACTIVATE);
        rig.send(message(4));
        assert_eq!(rig.receive(), message(4));
        rig.command(Command::TERMINATE);
    });
    ended.expect("no panic");
    assert_eq!(rig.end(), (State::Terminated, 0, None));
}

/// A handler that sends one message for each of so many lanes, with a number for which each lane counts.
struct Chorus(u64);

impl<M: Machine> Handler<M, Lane<'_>> for Chorus {
    type Input = Echo;
    type Output = Echo;
    const INITIATES: bool = true;

    unsafe fn answer(&mut self, lanes: &Lane<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        let (lane, voices) = (u64::from(lanes.lane()), batch.room().min(20));
        if lane < voices {
            // SAFETY: below the room; each lane has its own slot.
            unsafe { batch.write(lane, message(self.0 + lane)) };
        }
        self.0 += voices;
        // Lane 0's last word counts, and at most the room.
        batch.send(1);
        batch.send(if lane == 0 { voices } else { 3 });
        batch.len()
    }
}

#[test]
fn a_warp_sends_what_its_lanes_write() {
    for (batch, capacity) in [(8, 4), (32, 64), (16, 64)] {
        let shape = Shape { batch, output: capacity, start: u64::MAX - 9, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
            // SAFETY: the rig outlives it and is the only peer.
            unsafe { persistent(machine, lanes, launch, &mut Chorus(0)) }
        };
        let panicked = with_a_warp(&mut rig, &Device::new([memory.range()]), kernel, |rig| {
            (0..3).for_each(|id| rig.send(message(id)));
            rig.command(Command::ACTIVATE);
            for number in 0..200 {
                assert_eq!(rig.receive(), message(number), "batch {batch}, message {number}");
            }
            rig.command(Command::TERMINATE);
            rig.until_state(State::Terminated);
        });
        assert_eq!((panicked, rig.end()), (0, (State::Terminated, 0, None)));
        let seen = rig.telemetry.snapshot().expect("nobody writes any more");
        assert_eq!((seen.processed, seen.dropped), (3, 3 * WIDTH as u64), "each lane refused each message");
    }
}
