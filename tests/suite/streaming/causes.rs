use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;
use std::thread;
use std::time::Duration;

use ringmem::attach::Corrupt;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::channel::Options;
use ringmem::control::{Addresses, Command, DeviceSide, Shared, State};
use ringmem::image::{Entry, KernelHost};
use ringmem::stream::{Module, Stream};
use ringmem::streaming::{Cause, Chunk, Dialogue, Interrupted, Job, Persistent, Queued, Streamer};
use ringmem::{Error, HostWord, Image};
use ringmem_kernels::transform::{Applied, Apply, Operation};
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use crate::streaming::rig::{Increment, backend, build, noise, streamer};

struct Miscounts(u64);

impl Dialogue for Miscounts {
    type Question = Apply;
    type Answer = Applied;

    fn ask(&mut self, chunk: &Chunk) -> Apply {
        Apply { id: chunk.index + self.0, offset: chunk.place, length: chunk.length, operation: Operation::Add(7).word() }
    }

    fn number(answer: &Applied) -> u64 {
        answer.id
    }

    fn answered(&mut self, _: &Chunk, _: Applied) -> Result<(), Cause> {
        Ok(())
    }
}

fn open(backend: &Clean, streamer: &Streamer, image: &Image, options: Options<'_>, miscounts: u64) -> Persistent<Miscounts> {
    let module = Module::load(backend, image, &ABI).expect("our ABI");
    // SAFETY: the kernel accesses only announced chunks of the streamer.
    unsafe { Persistent::open(streamer, &module, &options, Miscounts(miscounts)) }.expect("it starts")
}

fn transforming(backend: &Clean, streamer: &Streamer, miscounts: u64) -> Persistent<Miscounts> {
    let arguments = [streamer.address(), streamer.size()];
    let idle = Duration::from_secs(10);
    open(backend, streamer, &IMAGE, Options { arguments: &arguments, idle, ..Options::new("transform") }, miscounts)
}

fn stopped(streamer: &mut Streamer, stage: &mut Persistent<Miscounts>) -> Interrupted {
    let bytes = noise(2000);
    streamer.run(Job::new(&mut &bytes[..]), stage).expect_err("it does not get far")
}

#[test]
fn the_error_of_a_stage_is_the_cause() {
    let backend = backend();
    let (mut streamer, increment, bytes) = (streamer(&backend, 100, 2), Increment::new(&backend), noise(950));
    let mut stage = Queued(|chunk: &Chunk, on: &Stream| match chunk.index {
        3 => Err(Cause::Stage(io::Error::other("the third is a test's").into())),
        _ => increment.at_once(chunk, on),
    });
    let stopped = streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("it fails");
    let Interrupted { done, cause: Cause::Stage(source) } = stopped else { panic!("{stopped:?}") };
    assert!(source.is::<io::Error>() && source.to_string() == "the third is a test's", "{source:?}");
    assert!(done <= 300 && done.is_multiple_of(100), "{done}");
}

#[test]
fn an_out_of_order_answer_is_an_error_with_both_chunks() {
    let backend = backend();
    let mut streamer = streamer(&backend, 1000, 2);
    let mut stage = transforming(&backend, &streamer, 5);
    let stopped = stopped(&mut streamer, &mut stage);
    assert!(matches!(stopped, Interrupted { done: 0, cause: Cause::Order { got: 5, expected: Some(0) } }), "{stopped:?}");
}

#[test]
fn close_reports_an_unexpected_answer() {
    let backend = backend();
    let streamer = streamer(&backend, 1000, 2);
    let mut stage = transforming(&backend, &streamer, 0);
    let unasked = Apply { id: 9, offset: 0, length: 0, operation: Operation::Add(7).word() };
    // SAFETY: the channel stays in place; no bytes are accessed.
    unsafe { stage.channel_mut() }.try_send(unasked).expect("room");
    let refused = stage.close().map(drop);
    assert!(matches!(refused, Err(Cause::Order { got: 9, expected: None })), "{refused:?}");
}

const LIE: u64 = 77;
const LIES: Image = Image { host: &[Entry { name: "lies", arguments: 5, run: lies }], ..IMAGE };

unsafe fn lies(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped, the host's while this runs.
    let block = unsafe { block.as_ref() };
    // SAFETY: the only kernel on the block.
    let mut control = unsafe { DeviceSide::attach(block, arguments[1] as u32) };
    assert!(control.agree(ABI.hash));
    let Addresses { input, output, .. } = control.addresses();
    let word = if arguments[4] == 0 { input.ring + 128 } else { output.ring };
    let word = host.translate(word, 8).expect("a ring's index").cast::<AtomicU64>();
    // SAFETY: mapped, aligned, an atomic.
    unsafe { word.as_ref() }.store(LIE, Release);
    control.enter(State::Ready);
    let (mut acted, mut times) = (0, 0);
    while control.is_current() && control.state() != State::Terminated {
        let (sequence, bits) = control.command();
        if sequence != acted {
            acted = sequence;
            control.enter(if bits & Command::TERMINATE.bits() == 0 { State::Active } else { State::Terminated });
            control.acknowledge(sequence);
        }
        host.pause(times);
        times += 1;
    }
}

#[test]
fn a_corrupt_index_is_reported_with_its_ring() {
    for (which, ring, lie) in
        [(0, "input", Corrupt { head: LIE, tail: 1, capacity: 1 }), (1, "output", Corrupt { head: 0, tail: LIE, capacity: 8 })]
    {
        let backend = backend();
        let mut streamer = streamer(&backend, 1000, 2);
        let options = Options { arguments: &[which], input_capacity: 1, output_capacity: 8, ..Options::new("lies") };
        let mut stage = open(&backend, &streamer, &LIES, options, 0);
        let stopped = stopped(&mut streamer, &mut stage);
        let Interrupted { done: 0, cause: Cause::Ring { ring: named, corrupt } } = stopped else { panic!("{stopped:?}") };
        assert_eq!((named, corrupt), (ring, lie));
    }
}

#[test]
fn an_unanswered_chunk_stalls_after_the_patience() {
    for patience in [Duration::ZERO, Duration::from_millis(3)] {
        let backend = build(HostBackend::builder().device_memory(1 << 20));
        let mut streamer = Streamer::builder(&backend, 0).chunk(1000).depth(2).patience(patience).build().expect("room");
        let mut stage = transforming(&backend, &streamer, 0);
        stage.command(Command::PAUSE).expect("it answers nothing from here on");
        let stopped = stopped(&mut streamer, &mut stage);
        let Interrupted { done: 0, cause: Cause::Stalled { waited, read: 2, copying, working, done: 0 } } = stopped else {
            panic!("{stopped:?}")
        };
        assert_eq!((waited, copying + working), (patience, 2), "both chunks are under way");
    }
}

#[test]
fn a_failed_run_waits_for_work_on_the_stage_s_own_stream() {
    let backend = build(HostBackend::builder().device_memory(1 << 20).faults(Faults::new().on(Verb::StreamWait, Fault::nth(3))));
    let (mut streamer, increment, bytes) = (streamer(&backend, 100, 1), Increment::new(&backend), noise(100));
    let own = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &own);
    let stopped = thread::scope(|scope| {
        let (increment, own) = (&increment, &own);
        let runner = scope.spawn(|| {
            let mut stage = Queued(|chunk: &Chunk, on: &Stream| {
                own.wait_for(on)?;
                increment.at_once(chunk, own)
            });
            streamer.run(Job::new(&mut &bytes[..]), &mut stage)
        });
        while backend.calls(Verb::StreamWait) < Some(3) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        assert!(!runner.is_finished(), "the chunk's kernel is still to run");
        held.let_go();
        runner.join().expect("no panic")
    });
    let stopped = stopped.expect_err("the third is planned");
    assert!(matches!(stopped.cause, Cause::Device(Error::Injected { .. })), "{stopped:?}");
}
