//! Handlers of the tests, which exist on the host only.

use std::sync::atomic::Ordering::Relaxed;

use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, Actor, Batch, Handler, Lanes, Launch, Single, WarpLanes, persistent};
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::telemetry::Shared;
use ringmem_layouts::{ControlBlock, HostWord, Machine};

use crate::echo::message;
use crate::memory::Device;
use crate::rig::{Rig, Shape, until};
use crate::telemetry::BEAT_ROUNDS;
use crate::traced::{Traced, handled, trace};

struct Foreign;

impl<M: Machine> Handler<M, Single<'_>> for Foreign {
    type Input = Echo;
    type Output = Echo;

    unsafe fn answer(&mut self, _: &Single<'_>, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        unreachable!("it is sent nothing")
    }
}

#[test]
fn a_handler_abi_replaces_the_default_abi() {
    for (asked, end) in [(!ABI.hash, (State::Terminated, 0, None)), (ABI.hash, (State::Faulted, 1, Some(Fault::Abi)))] {
        let shape = Shape::default();
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        rig.block.abi.store(asked, Relaxed);
        trace(
            &mut rig,
            &Device::new([memory.range()]),
            |machine: &Traced<'_>, lanes: &Single<'_>, launch: &Launch| {
                // SAFETY: the rig outlives it and is the only peer.
                unsafe { persistent(machine, lanes, &Launch { abi: !ABI.hash, ..*launch }, &mut Foreign) }
            },
            |rig| {
                rig.control.command(Command::TERMINATE);
            },
        );
        assert_eq!((rig.end(), rig.snapshot().abi_seen), (end, !ABI.hash));
    }
}

struct Fragile;

impl<M: Machine> Handler<M, Single<'_>> for Fragile {
    type Input = Echo;
    type Output = Echo;

    unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        for index in 0..batch.len() {
            // SAFETY: below the length, and there is one lane.
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
fn a_panicking_handler_leaves_a_panic_fault() {
    let shape = Shape { batch: 1, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let (states, panicked) = trace(&mut rig, &Device::new([memory.range()]), handled(Fragile), |rig| {
        rig.command(Command::ACTIVATE);
        rig.send(message(1));
        assert_eq!(rig.receive(), message(1));
        until("it is counted", || rig.snapshot().processed == 1);
        rig.send(Echo { words: [u64::MAX; 8] });
        rig.until_state(State::Faulted);
    });
    assert!(panicked);
    assert_eq!(states, [State::Ready, State::Active, State::Faulted]);
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Panic)));
    assert_eq!((rig.snapshot().processed, rig.received()), (1, vec![]), "the message that broke it was not answered");
}

#[test]
fn a_single_thread_is_a_one_lane_warp() {
    let device = Device::new([]);
    let lanes = Single(&device);
    assert_eq!((Single::WIDTH, lanes.width(), lanes.lane(), lanes.group()), (1, 1, 0, 0));
    assert_eq!((lanes.broadcast(5), lanes.sum(5), lanes.ballot(true), lanes.ballot(false)), (5, 5, 1, 0));
    assert!(lanes.barrier_and(true) && !lanes.barrier_and(false));
}

#[test]
fn a_kernel_ended_while_busy_publishes_counts() {
    struct Told<'b>(&'b ControlBlock<HostWord>, u64);
    impl<M: Machine> Handler<M, Single<'_>> for Told<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            self.0.command.store(2 << 32 | self.1, Relaxed);
            0
        }
    }
    for (bits, end) in [(8, State::Terminated), (16, State::Faulted)] {
        let shape = Shape { batch: 1, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let handler = Told(rig.block, bits);
        let device = Device::with_manual_clock([memory.range()]);
        trace(&mut rig, &device, handled(handler), |rig| {
            for id in 0..64 {
                rig.send(message(id));
            }
            rig.control.command(Command::ACTIVATE);
            rig.until_state(end);
        });
        let (block, seen) = (rig.snapshot(), rig.telemetry.snapshot().expect("nobody writes any more"));
        assert!((1..64).contains(&block.processed), "{}", block.processed);
        assert_eq!((seen.processed, u64::from(seen.output_depth())), (block.processed, block.processed));
    }
}

#[test]
fn latencies_use_the_clock_of_the_kernel() {
    struct Slow<'d>(&'d Device);
    impl<M: Machine> Handler<M, Single<'_>> for Slow<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            // SAFETY: a batch has at least one message; one lane.
            let first = unsafe {
                batch.exchange(0, |message, answer| {
                    *answer = *message;
                    message.words[0]
                })
            };
            self.0.advance(if first == 0 { 70 } else { 10 });
            0
        }
    }
    let shape = Shape { batch: 1, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    trace(&mut rig, &device, handled(Slow(&device)), |rig| {
        for id in 0..4 {
            rig.send(Echo { words: [id; 8] });
        }
        rig.command(Command::DRAIN);
        rig.until_state(State::Terminated);
    });
    let seen = rig.telemetry.snapshot().expect("nobody writes any more");
    assert_eq!((seen.latency_min(), seen.latency_max_ns, seen.latency_total_ns), (Some(10), 70, 100));
    assert_eq!(seen.updated_ns, 1_100);
}

#[test]
fn a_rejected_message_counts_as_dropped() {
    struct Refuse;
    impl<M: Machine> Handler<M, Single<'_>> for Refuse {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            batch.len().min(2)
        }
    }
    let shape = Shape { batch: 5, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    trace(&mut rig, &Device::new([memory.range()]), handled(Refuse), |rig| {
        for id in 0..10 {
            rig.send(message(id));
        }
        rig.command(Command::DRAIN);
    });
    let seen = rig.telemetry.snapshot().expect("nobody writes any more");
    assert_eq!((seen.processed, seen.dropped), (10, 4));
}

#[test]
fn consumed_unanswered_messages_are_in_flight() {
    struct Watch<'b>(&'b ControlBlock<HostWord>, &'b std::sync::Mutex<Vec<(u64, u64)>>);
    impl<M: Machine> Handler<M, Single<'_>> for Watch<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            self.1.lock().expect("no panic").push((batch.len(), self.0.in_flight.load(Relaxed)));
            0
        }
    }
    let shape = Shape { batch: 4, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let seen = std::sync::Mutex::new(Vec::new());
    let handler = Watch(rig.block, &seen);
    trace(&mut rig, &Device::new([memory.range()]), handled(handler), |rig| {
        for id in 0..10 {
            rig.send(message(id));
        }
        rig.command(Command::DRAIN);
    });
    assert_eq!(*seen.lock().expect("no panic"), [(4, 4), (4, 4), (2, 2)]);
    assert_eq!(rig.snapshot().in_flight, 0);
}

#[test]
fn records_combine_batches_for_at_most_a_millisecond() {
    struct Slow<'b>(&'b ControlBlock<HostWord>, &'b Device, u64, &'b std::sync::Mutex<Vec<u64>>);
    impl<M: Machine> Handler<M, Single<'_>> for Slow<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            self.3.lock().expect("no panic").push(self.0.processed.load(Relaxed));
            self.1.advance(self.2);
            0
        }
    }
    for (took, expected) in [(199_999, [0; 5]), (333_334, [0, 0, 0, 6, 6]), (1_000_000, [0, 2, 4, 6, 8]), (5_000_000_000, [0, 2, 4, 6, 8])]
    {
        let shape = Shape { batch: 2, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let device = Device::with_manual_clock([memory.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let seen = std::sync::Mutex::new(Vec::new());
        let handler = Slow(rig.block, &device, took, &seen);
        trace(&mut rig, &device, handled(handler), |rig| {
            for id in 0..10 {
                rig.send(message(id));
            }
            rig.command(Command::DRAIN);
        });
        assert_eq!(*seen.lock().expect("no panic"), expected, "{took} ns");
        let told = rig.telemetry.snapshot().expect("nobody writes any more");
        let each = took.min(u32::MAX.into());
        assert_eq!((told.processed, told.latency_min_ns, told.latency_max_ns, told.latency_total_ns), (10, each, each, 10 * each));
        let rounds = 5 + 1 + device.pauses.load(Relaxed);
        let behind = rounds.checked_sub(rig.snapshot().heartbeat);
        assert!(behind.is_some_and(|behind| behind <= BEAT_ROUNDS), "{behind:?} of {rounds} rounds");
    }
}

#[test]
fn a_busy_kernel_times_one_batch_per_record() {
    struct Slow<'b>(&'b ControlBlock<HostWord>, &'b Device, &'b std::sync::Mutex<Vec<u64>>, u64);
    impl<M: Machine> Handler<M, Single<'_>> for Slow<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            let is_first = self.0.processed.load(Relaxed) == self.3;
            if is_first {
                self.2.lock().expect("no panic").push(self.3);
            }
            self.1.advance(if is_first { 10 } else { 500 });
            self.3 += 1;
            0
        }
    }
    // The kernel obeys in the second of each 16 rounds, and accounts in each 128th.
    for polls in 1..=8 {
        let shape = Shape { batch: 1, input: 1024, output: 1024, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let device = Device::with_manual_clock([memory.range()]).stops_at(16 * polls);
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let firsts = std::sync::Mutex::new(Vec::new());
        let handler = Slow(rig.block, &device, &firsts, 0);
        trace(&mut rig, &device, handled(handler), |rig| {
            for id in 0..700 {
                rig.send(message(id));
            }
            device.while_stopped(|| rig.control.command(Command::DRAIN));
            rig.until_state(State::Terminated);
        });
        let first = if polls == 8 { 127 } else { 127 - 16 * polls };
        let records: Vec<u64> = (0..).map(|record| first + 128 * record).take_while(|&record| record < 700).collect();
        assert_eq!(firsts.into_inner().expect("no panic"), [&[0], &*records].concat(), "after {polls} polls");
        let told = rig.telemetry.snapshot().expect("nobody writes any more");
        assert_eq!((told.processed, told.latency_min_ns, told.latency_max_ns), (700, 10, 500));
        // Each batch until the second record, the first one of each record after it.
        assert_eq!(told.latency_total_ns, (records[1] - 2) * 500 + 2 * 10 + (700 - records[1]) * 10, "after {polls} polls");
    }
}

#[test]
fn a_kernel_that_becomes_slow_records_each_batch() {
    struct Slow<'b>(&'b ControlBlock<HostWord>, &'b Device, &'b std::sync::Mutex<Vec<[u64; 2]>>, u64);
    impl<M: Machine> Handler<M, Single<'_>> for Slow<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            if self.3 >= 300 {
                self.1.advance(2_000_000);
            }
            self.3 += 1;
            let beats = self.0.heartbeat.load(Relaxed);
            self.2.lock().expect("no panic").push([self.0.processed.load(Relaxed), beats]);
            0
        }
    }
    let shape = Shape { batch: 1, input: 1024, output: 1024, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let seen = std::sync::Mutex::new(Vec::new());
    let handler = Slow(rig.block, &device, &seen, 0);
    trace(&mut rig, &device, handled(handler), |rig| {
        for id in 0..310 {
            rig.send(message(id));
        }
        rig.command(Command::DRAIN);
        rig.until_state(State::Terminated);
    });
    let seen = seen.into_inner().expect("no panic");
    for at in 301..310 {
        assert_eq!(seen[at][0], at as u64, "processed, when message {at} is answered");
        assert!(seen[at][1] > seen[at - 1][1], "the heart beats after each");
    }
    let told = rig.telemetry.snapshot().expect("nobody writes any more");
    assert_eq!(told.latency_max_ns, 2_000_000);
}

#[test]
fn answers_before_a_corrupt_index_are_counted() {
    struct Spoils<'b>(&'b ringmem_layouts::RingHeader<HostWord>);
    impl<M: Machine> Handler<M, Single<'_>> for Spoils<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            self.0.producer.tail.store(1 << 40, Relaxed);
            0
        }
    }
    let shape = Shape { batch: 3, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let handler = Spoils(rig.input);
    trace(&mut rig, &Device::new([memory.range()]), handled(handler), |rig| {
        for id in 0..3 {
            rig.send(message(id));
        }
        rig.command(Command::ACTIVATE);
        rig.until_state(State::Faulted);
    });
    let (block, told) = (rig.snapshot(), rig.telemetry.snapshot().expect("nobody writes any more"));
    assert_eq!((block.processed, block.in_flight, told.processed), (3, 0, 3));
}

#[test]
fn a_handler_sends_at_most_its_room() {
    struct Greedy(u64);
    impl<M: Machine> Handler<M, Single<'_>> for Greedy {
        type Input = Echo;
        type Output = Echo;
        const INITIATES: bool = true;
        unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            for index in 0..batch.room().min(8) {
                // SAFETY: below the room; one lane.
                unsafe { batch.write(index, message(self.0 + index)) };
            }
            self.0 += batch.room();
            batch.send(u64::MAX);
            0
        }
    }
    let shape = Shape { batch: 3, output: 8, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    trace(&mut rig, &Device::new([memory.range()]), handled(Greedy(0)), |rig| {
        rig.command(Command::ACTIVATE);
        (0..100).for_each(|number| assert_eq!(rig.receive(), message(number)));
        rig.command(Command::TERMINATE);
    });
    assert_eq!(rig.end(), (State::Terminated, 0, None));
}

/// Without a dry round, and without a message that would be counted.
#[test]
fn telemetry_is_written_while_a_handler_sends_without_messages() {
    struct Steady<'a>(&'a Device, &'a Shared<HostWord>, &'a std::sync::Mutex<Vec<u64>>);
    impl<M: Machine> Handler<M, Single<'_>> for Steady<'_> {
        type Input = Echo;
        type Output = Echo;
        const INITIATES: bool = true;
        unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            // SAFETY: there is room for one; one lane.
            unsafe { batch.write(0, message(0)) };
            batch.send(1);
            self.0.advance(100_000);
            self.2.lock().expect("no panic").push(self.1.sequence.load());
            0
        }
    }
    let shape = Shape { output: 128, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let seen = std::sync::Mutex::new(Vec::new());
    let handler = Steady(&device, rig.telemetry, &seen);
    trace(&mut rig, &device, handled(handler), |rig| {
        rig.command(Command::ACTIVATE);
        until("the ring is full", || rig.output.producer.tail.load(Relaxed) == 128);
        rig.command(Command::TERMINATE);
    });
    let sequences = seen.into_inner().expect("no panic");
    assert_eq!(sequences.len(), 128);
    // A record, two changes of its sequence number, each millisecond, which ten rounds take.
    for at in 1..11 {
        assert!(sequences[11 * at] >= sequences[11 * (at - 1)] + 2, "{sequences:?}");
    }
}

/// With as few slots as messages in a batch.
#[test]
fn messages_without_an_answer_leave_their_slots_to_own_messages() {
    for (batch, output) in [(1, 1), (8, 4), (128, 64)] {
        let shape = Shape { batch, output, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        let actor = Actor::new(|calls: &mut [u64; 2], message: Option<&Echo>| {
            let Some(_) = message else {
                calls[1] += u64::from(calls[0] > 0);
                return None;
            };
            calls[0] += 1;
            (calls[0] == 64).then(|| Echo { words: [calls[1]; 8] })
        });
        (0..64).for_each(|id| rig.send(message(id)));
        trace(&mut rig, &Device::new([memory.range()]), handled(actor), |rig| {
            rig.command(Command::ACTIVATE);
            let before_the_last = 64_u64.div_ceil(batch.min(output)) - 1;
            assert!(rig.receive().words[0] >= before_the_last, "a call without a message in each round");
            rig.command(Command::TERMINATE);
        });
    }
}
