use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::Error;
use ringmem::backend::DeviceAddress;
use ringmem::backend::host::HostBackend;
use ringmem::bridge::TransferStrategy;
use ringmem::channel::Options;
use ringmem::control::Command;
use ringmem::memory::{Arena, Device};
use ringmem::stream::Module;
use ringmem::streaming::{Cause, Chunk, Dialogue, InOrder, Job, Persistent, Sequential, Streamer, Through};
use ringmem_kernels::reduce::{self, Number, Reduce, Reduced, Rows};
use ringmem_kernels::transform::{Applied, Apply, Operation};
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::leak_checked::Clean;
use crate::rig::panicking_clock;
use crate::streaming::rig::{backend, build, noise, streamer};

pub struct Change {
    operation: Operation,
    broken: u64,
}

impl Dialogue for Change {
    type Question = Apply;
    type Answer = Applied;

    fn ask(&mut self, chunk: &Chunk) -> Apply {
        let operation = if chunk.index < self.broken { self.operation.word() } else { 0 };
        Apply { id: chunk.index, offset: chunk.place, length: chunk.length, operation }
    }

    fn number(answer: &Applied) -> u64 {
        answer.id
    }

    fn answered(&mut self, chunk: &Chunk, answer: Applied) -> Result<(), Cause> {
        if answer.status == 0 { Ok(()) } else { Err(chunk.refused()) }
    }
}

pub fn changing(backend: &Clean, streamer: &Streamer, ring: u64, broken: u64) -> Persistent<Change> {
    let module = Module::load(backend, &IMAGE, &ABI).expect("our ABI");
    let arguments = [streamer.address(), streamer.size()];
    let mut options = Options::new("transform");
    (options.arguments, options.input_capacity, options.output_capacity) = (&arguments, ring, ring);
    // SAFETY: the kernel accesses only announced chunks of the streamer.
    unsafe { Persistent::open(streamer, &module, &options, Change { operation: Operation::Add(7), broken }) }.expect("it starts")
}

#[test]
fn chunks_return_in_order_from_a_persistent_kernel() {
    for (chunk, depth, staging, ring) in [(4096, 1, 1, 1), (4096, 3, 3, 1024), (1000, 4, 2, 2), (65_536, 3, 1, 4)] {
        let backend = backend();
        let bytes = noise(200_003);
        let mut streamer = Streamer::builder(&backend, 0).chunk(chunk).depth(depth).staging(staging).build().expect("room");
        let mut stage = changing(&backend, &streamer, ring, u64::MAX);
        let mut sink = Vec::new();
        let streamed = streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut stage).expect("no fault");
        let (closed, _) = stage.close().expect("it ends");
        assert!(sink.iter().zip(&bytes).all(|(after, before)| *after == before.wrapping_add(7)) && sink.len() == bytes.len());
        assert_eq!((streamed.chunks, closed.telemetry.processed), (200_003_u64.div_ceil(chunk), streamed.chunks));
        assert!(streamed.max_in_flight <= depth as usize);
    }
}

#[test]
fn a_persistent_kernel_runs_consecutive_jobs_from_a_pipe() {
    let backend = backend();
    let mut streamer = streamer(&backend, 1000, 3);
    let mut stage = changing(&backend, &streamer, 8, u64::MAX);
    for length in [3500, 10, 0, 2000] {
        let (bytes, mut sink) = (noise(length), Vec::new());
        streamer.run(Job::new(&mut Sequential::new(&bytes[..])).to(&mut sink), &mut stage).expect("no fault");
        assert!(sink == bytes.iter().map(|byte| byte.wrapping_add(7)).collect::<Vec<_>>());
    }
    stage.close().expect("it ends");
}

#[test]
fn a_place_held_by_a_kernel_is_not_reused() {
    let backend = backend();
    let patience = Duration::from_secs(3);
    let mut streamer = Streamer::builder(&backend, 0).chunk(1000).depth(1).patience(patience).build().expect("room");
    let bytes = noise(5000);
    let mut stage = changing(&backend, &streamer, 8, 2);
    let mut sink = Vec::new();
    let stopped = streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut stage).expect_err("it is refused");
    assert!(matches!(stopped.cause, Cause::Refused { chunk: 2, place: 0, length: 1000 }), "{stopped:?}");
    assert_eq!((stopped.done, sink.len()), (2000, 2000));
    streamer.run(Job::new(&mut &bytes[..]), &mut Through).expect("the place is free");
    stage.command(Command::PAUSE).expect("it answers nothing from here on");
    stage.dialogue.broken = u64::MAX;
    let stopped_too = streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("there is no answer");
    assert!(matches!(stopped_too.cause, Cause::Stalled { working: 1, .. }), "{stopped_too:?}");
    let again = streamer.run(Job::new(&mut &bytes[..]), &mut Through).expect_err("there was but one place");
    assert!(matches!(again.cause, Cause::Device(Error::Busy { .. })), "{again:?}");
    drop(stage);
    let mut streamer = self::streamer(&backend, 1000, 2);
    let mut stage = changing(&backend, &streamer, 8, u64::MAX);
    streamer.run(Job::new(&mut &bytes[..]).from(stopped.done).to(&mut sink), &mut stage).expect("no fault");
    stage.close().expect("it ends");
    assert!(sink == bytes.iter().map(|byte| byte.wrapping_add(7)).collect::<Vec<_>>());
}

#[test]
fn run_rejects_a_kernel_opened_for_another_streamer() {
    let backend = backend();
    let (first, mut second) = (streamer(&backend, 1000, 2), streamer(&backend, 1000, 2));
    let mut stage = changing(&backend, &first, 8, u64::MAX);
    let bytes = noise(5000);
    let stopped = second.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("not its memory");
    assert!(matches!(stopped.cause, Cause::Device(Error::Foreign { call: "stream", layouts: None, .. })), "{stopped:?}");
    stage.close().expect("it ends");
}

fn reduce(backend: &Clean, device: u32, bytes: &[u8], range: std::ops::Range<u64>, number: Number, take: impl FnMut(Chunk, Reduced)) {
    struct Give<F>(Number, F);
    impl<F: FnMut(Chunk, Reduced)> Dialogue for Give<F> {
        type Question = Reduce;
        type Answer = Reduced;

        fn ask(&mut self, chunk: &Chunk) -> Reduce {
            Reduce { id: chunk.index, offset: chunk.place, length: chunk.length, number: self.0 as u64 }
        }

        fn number(answer: &Reduced) -> u64 {
            answer.id
        }

        fn answered(&mut self, chunk: &Chunk, answer: Reduced) -> Result<(), Cause> {
            (self.1)(*chunk, answer);
            if answer.status == 0 { Ok(()) } else { Err(chunk.refused()) }
        }
    }
    let mut streamer = Streamer::builder(backend, device).chunk(64_000).element(8).build().expect("room");
    let module = Module::load(backend, &IMAGE, &ABI).expect("our ABI");
    let rows = Arena::new(Device::new(backend, device), size_of::<Rows>(), align_of::<Rows>()).expect("room");
    let arguments = [streamer.address(), streamer.size(), rows.device_address().map_or(0, DeviceAddress::get)];
    let mut options = Options::new("reduce");
    options.arguments = &arguments;
    // SAFETY: the kernel reads announced chunks of the streamer, and the rows, which are kept.
    let mut stage = unsafe { Persistent::open(&streamer, &module, &options, Give(number, take)) }.expect("it starts");
    stage.keep_alive(rows);
    let mut source = bytes;
    streamer.run(Job::new(&mut source).from(range.start).until(range.end), &mut stage).expect("no fault");
    stage.close().expect("it ends");
}

#[test]
fn a_reduction_is_bit_identical_on_one_and_two_devices() {
    const COUNT: usize = 10_000_003;
    for number in [Number::Whole, Number::Float] {
        let words: Vec<u64> = (0..COUNT as u64)
            .map(|i| {
                let chance = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                if number == Number::Whole { chance } else { ((chance as i64 >> 16) as f64 / 3.0).to_bits() }
            })
            .collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let end = bytes.len() as u64;
        let fold = || InOrder::new(Reduced::NONE, move |all: &mut Reduced, part| *all = all.join(number, part));

        let one = build(HostBackend::builder().device_memory(1 << 20));
        let mut parts = fold();
        reduce(&one, 0, &bytes, 0..end, number, |chunk, part| parts.push(&chunk, part));
        let one = parts.finish(end).expect("all of it");

        let two = build(HostBackend::builder().device_memory(1 << 20).devices(2));
        let half = 64_000 * (end / 128_000);
        let mut parts = fold();
        reduce(&two, 1, &bytes, half..end, number, |chunk, part| parts.push(&chunk, part));
        reduce(&two, 0, &bytes, 0..half, number, |chunk, part| parts.push(&chunk, part));
        let two = parts.finish(end).expect("all of it");
        assert_eq!(one, two, "{number:?}: bit for bit");

        let host = words.chunks(8000).fold(Reduced::NONE, |all, part| all.join(number, reduce::reference(part, number)));
        assert_eq!(Reduced { id: 0, ..one }, Reduced { id: 0, ..host });
        assert_eq!(one.count, COUNT as u64);
        if number == Number::Whole {
            assert_eq!(one.sum, words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
            assert_eq!((Some(&one.least), Some(&one.greatest)), (words.iter().min(), words.iter().max()));
        } else {
            let plain: f64 = words.iter().map(|word| f64::from_bits(*word)).sum();
            assert!((f64::from_bits(one.sum) - plain).abs() <= 1e-6 * words.iter().map(|word| f64::from_bits(*word).abs()).sum::<f64>());
        }
    }
}

#[test]
fn a_fold_with_a_gap_or_duplicate_has_no_result() {
    let sum = || InOrder::new(0, |all: &mut u64, part: u64| *all += part);
    let mut gap = sum();
    gap.push_at(0, 10, 1);
    gap.push_at(20, 10, 3);
    assert_eq!(gap.clone().finish(30), None);
    assert_eq!(gap.clone().finish(10), None);
    gap.push_at(10, 10, 2);
    assert_eq!((gap.clone().finish(31), gap.clone().finish(30)), (None, Some(6)));
    gap.push_at(10, 10, 2);
    assert_eq!(gap.finish(30), None, "it came again");
    let mut twice = sum();
    for (offset, part) in [(10, 2), (10, 3), (0, 1)] {
        twice.push_at(offset, 10, part);
    }
    assert_eq!(twice.finish(20), None, "it came again before its turn");
    assert_eq!(sum().finish(0), Some(0));
}

struct Panics;

impl Dialogue for Panics {
    type Question = Apply;
    type Answer = Applied;

    fn ask(&mut self, chunk: &Chunk) -> Apply {
        assert_eq!(chunk.index, 0, "the test's dialogue panics");
        Apply { id: 0, offset: chunk.place, length: chunk.length, operation: Operation::Add(7).word() }
    }

    fn number(answer: &Applied) -> u64 {
        answer.id
    }

    fn answered(&mut self, _: &Chunk, _: Applied) -> Result<(), Cause> {
        Ok(())
    }
}

#[test]
fn a_late_answer_does_not_count_for_another_chunk() {
    let backend = backend();
    let mut streamer = streamer(&backend, 1000, 2);
    let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
    let arguments = [streamer.address(), streamer.size()];
    let mut options = Options::new("transform");
    options.arguments = &arguments;
    // SAFETY: the kernel accesses only announced chunks of the streamer.
    let mut stage = unsafe { Persistent::open(&streamer, &module, &options, Panics) }.expect("it starts");
    stage.command(Command::PAUSE).expect("it answers nothing from here on");
    let bytes = noise(2000);
    let panicked = catch_unwind(AssertUnwindSafe(|| streamer.run(Job::new(&mut &bytes[..]), &mut stage).map(drop)));
    assert!(panicked.is_err(), "the first chunk is with the kernel");
    stage.command(Command::ACTIVATE).expect("it goes on");
    let stopped = streamer.run(Job::new(&mut &bytes[..1000]), &mut stage).expect_err("the first answer is still to come");
    assert!(matches!(stopped.cause, Cause::Device(Error::Busy { .. })) && stopped.done == 0, "{stopped:?}");
    drop(stage);
    streamer.run(Job::new(&mut &bytes[..]), &mut Through).expect("there is another place");
}

#[test]
fn an_unexpected_answer_does_not_count_for_the_next_job() {
    let backend = backend();
    let mut streamer = streamer(&backend, 1000, 2);
    let mut stage = changing(&backend, &streamer, 8, u64::MAX);
    let bytes = noise(1000);
    streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect("no fault");
    let once_more = Apply { id: 0, offset: 0, length: 0, operation: Operation::Add(0).word() };
    // SAFETY: the channel stays in place; no bytes are accessed.
    let channel = unsafe { stage.channel_mut() };
    assert!(channel.try_send(once_more).is_ok());
    let begun = Instant::now();
    while channel.output_waiting().expect("no fault") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "no answer");
        thread::yield_now();
    }
    let stopped = streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("one answer too many");
    assert!(matches!(stopped.cause, Cause::Order { got: 0, expected: None }) && stopped.done == 0, "{stopped:?}");
    let mut sink = Vec::new();
    streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut stage).expect("it was one");
    assert!(sink == bytes.iter().map(|byte| byte.wrapping_add(7)).collect::<Vec<_>>());
    stage.close().expect("it ends");
}

#[test]
fn an_unsent_chunk_is_not_sent_in_the_next_job() {
    let backend = backend();
    let patience = Duration::from_secs(3);
    let mut streamer = Streamer::builder(&backend, 0).chunk(1000).depth(1).patience(patience).build().expect("room");
    let (mut stage, bytes) = (changing(&backend, &streamer, 1, u64::MAX), noise(1000));
    stage.command(Command::PAUSE).expect("it takes nothing from here on");
    let nothing = Apply { id: 9, offset: 0, length: 0, operation: Operation::Add(0).word() };
    // SAFETY: the channel stays in place; no bytes are accessed.
    unsafe { stage.channel_mut() }.try_send(nothing).expect("room for one");
    let stopped = streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("no room for another");
    assert!(matches!(stopped.cause, Cause::Stalled { working: 0, .. }), "{stopped:?}");
    stage.command(Command::ACTIVATE).expect("it goes on");
    // SAFETY: the channel stays in place; no bytes are accessed.
    unsafe { stage.channel_mut() }.recv_timeout(Duration::from_secs(30)).expect("the answer to that");
    stage.dialogue.operation = Operation::Add(100);
    let mut sink = Vec::new();
    streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut stage).expect("no fault");
    assert!(sink.iter().zip(&bytes).all(|(after, before)| *after == before.wrapping_add(100)));
    stage.close().expect("it ends");
}

struct Strikes(bool);

impl Dialogue for Strikes {
    type Question = Apply;
    type Answer = Applied;

    fn ask(&mut self, chunk: &Chunk) -> Apply {
        if replace(&mut self.0, false) {
            panicking_clock::strike(1);
        }
        Apply { id: chunk.index, offset: chunk.place, length: chunk.length, operation: Operation::Add(7).word() }
    }

    fn number(answer: &Applied) -> u64 {
        answer.id
    }

    fn answered(&mut self, _: &Chunk, _: Applied) -> Result<(), Cause> {
        Ok(())
    }
}

#[test]
fn a_sent_chunk_keeps_its_place_after_a_panic() {
    let backend = build(HostBackend::builder().device_memory(1 << 20).log(true).clock(panicking_clock::clock()));
    let mut streamer = streamer(&backend, 1000, 1);
    let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
    let arguments = [streamer.address(), streamer.size()];
    let mut options = Options::new("transform");
    (options.arguments, options.strategy) = (&arguments, Some(TransferStrategy::Async));
    // SAFETY: the kernel accesses only announced chunks of the streamer.
    let mut stage = unsafe { Persistent::open(&streamer, &module, &options, Strikes(true)) }.expect("it starts");
    let bytes = noise(1000);
    let panicked = catch_unwind(AssertUnwindSafe(|| streamer.run(Job::new(&mut &bytes[..]), &mut stage).map(drop)));
    assert!(panicked.is_err() && panicking_clock::has_struck(), "the question is on its way");
    let stopped = streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("it may have the chunk");
    assert!(matches!(stopped.cause, Cause::Device(Error::Busy { .. })), "{stopped:?}");
    let stopped = streamer.run(Job::new(&mut &bytes[..]), &mut Through).expect_err("and that place");
    assert!(matches!(stopped.cause, Cause::Device(Error::Busy { .. })), "{stopped:?}");
}
