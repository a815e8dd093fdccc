use std::sync::atomic::Ordering::Relaxed;

use ringmem_kernels::echo::Echo;
use ringmem_kernels::{Batch, Handler, Single};
use ringmem_layouts::control::{Command, State};
use ringmem_layouts::{ControlBlock, HostWord, Machine};

use crate::echo::message;
use crate::machine::SLEEPS_IN_EACH_DRY_ROUND;
use crate::memory::Device;
use crate::rig::{Rig, Shape, until};
use crate::traced::{handled, trace};

const BEAT_ROUNDS: u64 = 16;

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
    let shape = Shape::default();
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| rig.command(Command::DRAIN));
    let seen = rig.telemetry.snapshot().expect("nobody writes any more");
    assert_eq!((seen.processed, seen.latency_min(), seen.latency_max_ns), (0, None, 0));
    assert!(seen.sequence.is_multiple_of(2) && seen.sequence > 0, "it was written all the same");
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

#[test]
fn the_logical_clock_advances_while_time_stands_still() {
    let shape = Shape { batch: 1, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    device.advance(5_000_000);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.run_image("echo", &[], &device, |rig| {
        rig.command(Command::ACTIVATE);
        let mut last = 0;
        for id in 0..100 {
            rig.send(message(id));
            assert_eq!(rig.receive(), message(id));
            let clock = || rig.snapshot().clock;
            until("the batch is stamped", || clock() > last);
            assert_eq!(clock() >> ringmem_layouts::clock::COUNTER_BITS, 5_001, "microseconds of the kernel's clock");
            last = clock();
        }
        rig.command(Command::TERMINATE);
    });
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
    let shape = Shape { batch: 1, input: 1024, output: 1024, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let device = Device::with_manual_clock([memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let firsts = std::sync::Mutex::new(Vec::new());
    let handler = Slow(rig.block, &device, &firsts, 0);
    trace(&mut rig, &device, handled(handler), |rig| {
        for id in 0..700 {
            rig.send(message(id));
        }
        rig.command(Command::DRAIN);
        rig.until_state(State::Terminated);
    });
    let firsts = firsts.into_inner().expect("no panic");
    assert!((16..=128).contains(&firsts[1]) && firsts[1..].windows(2).all(|two| two[1] == two[0] + 128), "{firsts:?}");
    let told = rig.telemetry.snapshot().expect("nobody writes any more");
    let whole = if firsts[1] == 128 { 1 } else { 2 };
    let each = (firsts[whole] - whole as u64) * 500 + whole as u64 * 10;
    assert_eq!((told.processed, told.latency_min_ns, told.latency_max_ns), (700, 10, 500));
    assert_eq!(told.latency_total_ns, each + (700 - firsts[whole]) * 10, "{firsts:?}");
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
