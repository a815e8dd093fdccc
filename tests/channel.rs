//! A channel: messages there and back, commands, and what happens when a kernel does not do its part.
#![cfg(feature = "std")]

mod clean;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use clean::Clean;
use ringmem::backend::host::{self, Faults, HostBackend, Verb};
use ringmem::bridge::{Placement, TransferStrategy};
use ringmem::channel::{Channel, Options};
use ringmem::control::{Command, DeviceSide, Fault, Shared, State};
use ringmem::dump::{Conclusion, Indices, Twins};
use ringmem::image::{Entry, KernelHost};
use ringmem::ring::LayoutError;
use ringmem::ring::spsc::{PopError, PushError};
use ringmem::stream::Module;
use ringmem::watchdog::Verdict;
use ringmem::{Abi, ControlBlock, Error, HostWord, Image, LAYOUTS, Machine};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::histogram::{Chunk, Counted};
use ringmem_kernels::{ABI, Batch, Handler, IMAGE, Lanes, Launch, Simulated, Single, persistent};

/// No wait of this file is longer.
const LIMIT: Duration = Duration::from_secs(30);

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn load(backend: &Arc<HostBackend>, image: &Image) -> Module {
    Module::load(backend, image, &ABI).expect("our ABI")
}

/// A channel to `echo`.
fn open(backend: &Arc<HostBackend>, options: &Options<'_>) -> Result<Channel<Echo, Echo>, Error> {
    // SAFETY: `echo` takes no arguments of its own.
    unsafe { Channel::open(backend, 0, &load(backend, &IMAGE), options) }
}

fn message(id: u64) -> Echo {
    Echo { words: [id, !id, id << 7, 3, 4, 5, 6, id.wrapping_mul(id)] }
}

fn until(fact: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "waited in vain: {fact}");
        thread::yield_now();
    }
}

fn receive(channel: &mut Channel<Echo, Echo>) -> Echo {
    let mut answer = None;
    until("there is an answer", || match channel.receive() {
        Ok(value) => {
            answer = Some(value);
            true
        }
        Err(PopError::Empty) => false,
        Err(PopError::Corrupt(corrupt)) => panic!("{corrupt}"),
    });
    answer.expect("just received")
}

#[test]
fn an_open_channel_is_active_and_answers_in_order() {
    for (input, output, batch, start) in [(1024, 1024, 128, 0), (1, 1, 1, u64::MAX), (2, 8, 3, u64::MAX - 5)] {
        let options = Options { input_capacity: input, output_capacity: output, batch, start, ..Options::new("echo") };
        let backend = backend();
        let mut channel = open(&backend, &options).expect("a channel");
        assert_eq!(channel.state(), Some(State::Active));
        assert_eq!((channel.control().abi, channel.control().abi_seen), (ABI.hash, ABI.hash));
        assert_eq!(channel.indices(), (start, start), "both rings begin where they were told to");
        let (mut sent, mut received) = (0, 0);
        while received < 200 {
            while sent < 200 && channel.send(message(sent)).is_ok() {
                sent += 1;
            }
            assert_eq!(receive(&mut channel), message(received));
            received += 1;
        }
        assert_eq!(channel.receive(), Err(PopError::Empty));
        channel.check().expect("it runs");
        let closed = channel.close().expect("it ends as told");
        assert_eq!((closed.control.processed, closed.telemetry.processed, closed.telemetry.dropped), (200, 200, 0));
        assert_eq!((closed.control.kernel_state(), closed.control.faults()), (Some(State::Terminated), (0, None)));
    }
}

#[test]
fn a_full_ring_gives_the_message_back() {
    let options = Options { input_capacity: 2, output_capacity: 1, ..Options::new("echo") };
    let backend = backend();
    let mut channel = open(&backend, &options).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    assert!(channel.send(message(0)).is_ok() && channel.send(message(1)).is_ok());
    assert_eq!(channel.send(message(2)), Err(PushError::Full(message(2))));
    channel.command(Command::ACTIVATE).expect("it is acted on");
    assert_eq!((receive(&mut channel), receive(&mut channel)), (message(0), message(1)));
}

#[test]
fn batches_publish_together_and_what_waits_is_counted() {
    let backend = backend();
    let mut channel = open(&backend, &Options { output_capacity: 16, ..Options::new("echo") }).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    let mut batch = channel.send_batch(8);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    assert_eq!((channel.input_waiting(), channel.output_waiting()), (Ok(10), Ok(0)));
    channel.command(Command::ACTIVATE).expect("it is acted on");
    until("all are answered", || channel.output_waiting() == Ok(10));
    assert_eq!(channel.input_waiting(), Ok(0));
    let mut batch = channel.receive_batch(4);
    for id in 0..10 {
        assert_eq!(batch.pop(), Ok(message(id)));
    }
    assert_eq!(batch.pop(), Err(PopError::Empty));
    drop(batch);
    assert_eq!((channel.indices(), channel.output_waiting()), ((10, 10), Ok(0)));
}

#[test]
fn a_paused_channel_takes_nothing_until_it_is_active_again() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    assert_eq!(channel.state(), Some(State::Paused));
    channel.send(message(1)).expect("room");
    let beat = channel.control().heartbeat;
    until("the kernel has gone round a hundred times", || channel.control().heartbeat > beat + 100);
    assert_eq!((channel.receive(), channel.control().processed), (Err(PopError::Empty), 0));
    channel.command(Command::ACTIVATE).expect("it is acted on");
    assert_eq!(channel.state(), Some(State::Active));
    assert_eq!(receive(&mut channel), message(1));
    until("telemetry says so", || channel.telemetry().is_ok_and(|seen| seen.processed == 1));
}

#[test]
fn a_drain_leaves_all_answers_to_be_received() {
    for pause in [false, true] {
        let backend = backend();
        let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
        if pause {
            channel.command(Command::PAUSE).expect("it is acted on");
        }
        for id in 0..500 {
            channel.send(message(id)).expect("room");
        }
        channel.drain().expect("it leaves");
        assert_eq!(channel.state(), Some(State::Terminated));
        for id in 0..500 {
            assert_eq!(channel.receive(), Ok(message(id)));
        }
        assert_eq!(channel.receive(), Err(PopError::Empty));
        assert!(channel.check().is_err(), "it runs no more");
        let closed = channel.close().expect("closing what has drained is no failure");
        assert_eq!(closed.telemetry.processed, 500);
    }
}

#[test]
fn a_channel_that_was_told_to_end_has_ended() {
    let backend = backend();
    for _ in 0..200 {
        let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
        channel.command(Command::TERMINATE).expect("the last command is acknowledged too");
        channel.close().expect("it left as told");
    }
}

#[test]
fn a_command_to_a_kernel_that_has_left_is_an_error() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    channel.drain().expect("it leaves");
    let error = channel.command(Command::ACTIVATE).expect_err("nobody is there");
    assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), fault: None, .. }), "{error:?}");
}

#[test]
fn close_answers_what_was_sent() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    for id in 0..300 {
        channel.send(message(id)).expect("room");
    }
    let closed = channel.close().expect("it ends as told");
    assert_eq!((closed.control.processed, closed.control.in_flight, closed.telemetry.output_depth()), (300, 0, 300));
}

#[test]
fn channels_of_one_backend_have_an_epoch_each() {
    let backend = backend();
    let mut channels: Vec<_> = (0..3).map(|_| open(&backend, &Options::new("echo")).expect("a channel")).collect();
    let epochs: Vec<u64> = channels.iter().map(|channel| channel.control().epoch).collect();
    assert!(epochs[0] != 0 && epochs[0] < epochs[1] && epochs[1] < epochs[2], "{epochs:?}");
    for (id, channel) in channels.iter_mut().enumerate() {
        channel.send(message(id as u64)).expect("room");
    }
    for (id, channel) in channels.iter_mut().enumerate() {
        assert_eq!(receive(channel), message(id as u64));
    }
}

#[test]
fn dropping_a_channel_ends_its_kernel_and_frees_its_memory() {
    let backend = backend();
    for sent in [0, 1, 1000] {
        for command in [None, Some(Command::PAUSE)] {
            let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
            if let Some(command) = command {
                channel.command(command).expect("it is acted on");
            }
            for id in 0..sent {
                channel.send(message(id)).expect("room");
            }
            assert!(backend.counters().pinned_live.bytes > 0);
            drop(channel);
            assert_eq!(backend.counters().pinned_live.bytes, 0, "the kernel has left, so its memory is free");
        }
    }
    assert_eq!(backend.counters().kernel_panics, 0);
}

#[test]
fn what_cannot_be_opened_says_why_and_leaves_nothing() {
    let backend = backend();
    let fails = |options: Options<'_>| open(&backend, &options).expect_err("an error");
    let usual = || Options::new("echo");
    assert!(matches!(fails(Options { input_capacity: 0, ..usual() }), Error::Layout(LayoutError::NotAPowerOfTwo { capacity: 0 })));
    assert!(matches!(fails(Options { output_capacity: 3, ..usual() }), Error::Layout(LayoutError::NotAPowerOfTwo { capacity: 3 })));
    assert!(matches!(fails(Options { input_capacity: 1 << 60, ..usual() }), Error::Layout(LayoutError::TooLarge { .. })));
    assert!(matches!(fails(Options { input_capacity: 1 << 50, ..usual() }), Error::Map { .. }));
    assert!(matches!(fails(Options::new("ohce")), Error::UnknownKernel { .. }));
    assert!(matches!(fails(Options { arguments: &[1], ..usual() }), Error::Arguments { expected: 4, got: 5, .. }));
    assert_eq!(backend.counters().pinned_live.bytes, 0);

    let other = Image { abi: Abi::of(LAYOUTS), ..IMAGE };
    assert!(matches!(Module::load(&backend, &other, &ABI), Err(Error::Abi { .. })));
}

#[test]
fn a_kernel_that_cannot_start_says_which_fault() {
    let backend = backend();
    let module = load(&backend, &IMAGE);
    // SAFETY: `echo` takes no arguments of its own.
    let error =
        unsafe { Channel::<Chunk, Counted>::open(&backend, 0, &module, &Options::new("echo")) }.expect_err("rings of other messages");
    assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Ring), faults: 1, .. }), "{error:?}");

    let options = Options { arguments: &[0, 8, 0], ..Options::new("histogram") };
    // SAFETY: nothing is mapped at null, and the kernel looks before it reads.
    let error = unsafe { Channel::<Chunk, Counted>::open(&backend, 0, &module, &options) }.expect_err("no data");
    assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Address), .. }), "{error:?}");
    assert_eq!(backend.counters().pinned_live.bytes, 0);
}

#[test]
fn a_kernel_that_was_told_not_to_wait_leaves_and_check_says_so() {
    let options = Options { idle: Duration::from_millis(5), ..Options::new("echo") };
    let backend = backend();
    let mut channel = match open(&backend, &options) {
        Ok(channel) => channel,
        // On a busy machine it may have left before it was active.
        Err(error) => return assert!(matches!(error, Error::Kernel { fault: Some(Fault::Deadline), .. }), "{error:?}"),
    };
    until("the kernel has left", || channel.check().is_err());
    let error = channel.check().expect_err("just seen");
    assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Deadline), .. }), "{error:?}");
    assert!(matches!(channel.close(), Err(Error::Kernel { fault: Some(Fault::Deadline), .. })));
}

// Kernels that do not do their part.

unsafe fn returns(_: &dyn KernelHost, _: &[u64]) {}

unsafe fn panics(_: &dyn KernelHost, _: &[u64]) {
    panic!("a kernel of the test panics");
}

/// Says that it is ready, and leaves.
unsafe fn ready_and_gone(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped; the channel keeps it while this runs, and this is the only kernel on it.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    control.enter(State::Ready);
}

/// Writes a state that there is none of, and leaves.
unsafe fn speaks_nonsense(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<ControlBlock<HostWord>>();
    // SAFETY: as above, by nobody's hand.
    unsafe { block.as_ref() }.state.store(arguments[1] << 32 | 99, Release);
}

/// Whether `deaf` may leave, and whether it is about to.
static DISMISSED: AtomicBool = AtomicBool::new(false);
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Says nothing and obeys nothing until its epoch ends, and writes to its block even after that.
unsafe fn deaf(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: as above.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    let mut times = 0;
    while control.is_current() || !DISMISSED.load(Acquire) {
        control.beat(u64::from(times) + 1);
        host.pause(times);
        times += 1;
    }
    LEAVING.store(true, Release);
}

const BROKEN: Image = Image {
    host: &[
        Entry { name: "returns", arguments: 4, run: returns },
        Entry { name: "panics", arguments: 4, run: panics },
        Entry { name: "ready and gone", arguments: 4, run: ready_and_gone },
        Entry { name: "speaks nonsense", arguments: 4, run: speaks_nonsense },
        Entry { name: "deaf", arguments: 4, run: deaf },
    ],
    ..IMAGE
};

#[test]
fn a_kernel_that_leaves_before_it_is_active_is_an_error_at_once() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    for (kernel, expected) in [
        ("returns", Some(State::Created)),
        ("panics", Some(State::Created)),
        ("ready and gone", Some(State::Ready)),
        ("speaks nonsense", None),
    ] {
        // SAFETY: these kernels take no arguments of their own.
        let error = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &Options::new(kernel)) }.expect_err("no channel");
        let Error::Kernel { state, fault: None, waited, .. } = error else { panic!("{kernel}: {error:?}") };
        assert_eq!(state, expected, "{kernel}");
        // It is not patience that ran out: that would be ten seconds.
        assert!(waited < Duration::from_secs(10), "{kernel}: {waited:?}");
        assert_eq!(backend.counters().pinned_live.bytes, 0, "{kernel}");
    }
}

#[test]
fn a_kernel_that_never_obeys_is_an_error_and_keeps_its_memory_until_it_has_left() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: this kernel takes no arguments of its own.
    let error = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &Options::new("deaf")) }.expect_err("no channel");
    assert!(matches!(error, Error::Kernel { state: Some(State::Created), fault: None, .. }), "{error:?}");
    assert!(backend.counters().pinned_live.bytes > 0, "its memory is never pulled away from under it");
    DISMISSED.store(true, Release);
    until("the kernel leaves, since its epoch is over", || LEAVING.load(Acquire));
}

/// Each test's own.
static STUCK: AtomicBool = AtomicBool::new(true);
static STUCK_TOO: AtomicBool = AtomicBool::new(true);

/// Lets go of a handler that is stuck, also of a test that fails.
struct LetGo(&'static AtomicBool);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// An echo whose handler does not come back.
unsafe fn stuck_while(is_stuck: &'static AtomicBool, host: &dyn KernelHost, arguments: &[u64]) {
    struct Waits(&'static AtomicBool);
    impl<M: Machine, L: Lanes> Handler<M, L> for Waits {
        type Input = Echo;
        type Output = Echo;
        fn answer(&mut self, _: &L, _: &Batch<'_, '_, Echo, Echo, M>) -> u64 {
            until("the handler is let go", || !self.0.load(Acquire));
            0
        }
    }
    let launch = Launch { controls: arguments[0], epoch: arguments[1] as u32, idle_ns: arguments[2], batch: arguments[3], split: None };
    // SAFETY: the channel's promise, which is that of a launch.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut Waits(is_stuck)) }
}

unsafe fn stuck(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the caller's promise.
    unsafe { stuck_while(&STUCK, host, arguments) }
}

unsafe fn stuck_too(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the caller's promise.
    unsafe { stuck_while(&STUCK_TOO, host, arguments) }
}

/// The last line of a channel's dump, and all of it.
fn dumped(channel: &mut Channel<Echo, Echo>) -> (String, String) {
    let text = channel.dump().to_string();
    (text.lines().last().expect("a dump has lines").to_owned(), text)
}

#[test]
fn a_kernel_that_is_stuck_in_its_handler_is_found_and_said_to_be() {
    let backend = backend();
    let module = load(&backend, &Image { host: &[Entry { name: "stuck", arguments: 4, run: stuck }], ..IMAGE });
    let options = Options { batch: 2, stuck_after: Duration::from_millis(5), ..Options::new("stuck") };
    // SAFETY: this kernel takes no arguments of its own.
    let mut channel = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &options) }.expect("a channel");
    let release = LetGo(&STUCK);
    for id in 0..5 {
        channel.send(message(id)).expect("room");
    }
    until("it has taken messages", || channel.control().in_flight > 0);
    until("it is stuck", || matches!(channel.watch(), Verdict::Stuck { .. }));
    let (conclusion, all) = dumped(&mut channel);
    assert!(conclusion.contains("stuck in its handler with"), "{all}");
    let dump = channel.dump();
    let taken = dump.control.in_flight;
    assert!(taken > 0 && dump.input.fill() == Ok(5), "taken, and not released yet: {all}");
    assert!(all.contains("input ring   5 of 1024, producer at 5, consumer at 0"), "{all}");
    drop(release);
    until("it lives again", || channel.watch() == Verdict::Alive);
}

#[test]
fn a_dump_of_moved_rings_shows_both_halves_also_of_a_kernel_that_is_stuck() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }] {
        let backend = backend();
        let module = load(&backend, &Image { host: &[Entry { name: "stuck", arguments: 4, run: stuck_too }], ..IMAGE });
        let options = Options {
            batch: 2,
            stuck_after: Duration::from_millis(5),
            input_capacity: 4,
            strategy: Some(strategy),
            ..Options::new("stuck")
        };
        // SAFETY: this kernel takes no arguments of its own.
        let mut channel = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &options) }.expect("a channel");
        STUCK_TOO.store(true, Release);
        let release = LetGo(&STUCK_TOO);
        let mut sent = 0;
        until("the kernel's ring is full, and the host's behind it", || {
            sent += u64::from(channel.send(message(sent)).is_ok());
            sent == 8 && channel.input_waiting() == Ok(8)
        });
        until("it has taken messages", || channel.control().in_flight > 0);
        until("it is stuck", || matches!(channel.watch(), Verdict::Stuck { .. }));
        let pushed = backend.counters();
        let dump = channel.dump();
        let all = dump.to_string();
        assert!(matches!(dump.conclusion(), Conclusion::StuckInHandler { .. }), "{all}");
        let Twins::Seen([input, output]) = dump.twins else { panic!("{all}") };
        assert_eq!((dump.input, input), (Indices { head: 4, tail: 8, capacity: 4 }, Indices { head: 0, tail: 4, capacity: 4 }), "{all}");
        assert_eq!(
            (dump.output, output),
            (Indices { head: 0, tail: 0, capacity: 1024 }, Indices { head: 0, tail: 0, capacity: 1024 }),
            "{all}"
        );
        assert!(
            all.contains("\ninput ring   4 of 4, producer at 8, consumer at 4\n  at kernel  4 of 4, producer at 4, consumer at 0\n"),
            "{all}"
        );
        if strategy == TransferStrategy::Sync {
            // Else a look that was queued before may end meanwhile.
            let looked = backend.counters();
            assert_eq!((looked.downloads.count - pushed.downloads.count, looked.uploads.count), (4, pushed.uploads.count), "a word each");
        }
        // Looks that are queued go on beside those of a dump.
        for _ in 0..50 {
            assert_eq!(channel.input_waiting(), Ok(8), "{strategy:?}");
            channel.dump();
        }
        drop(release);
    }
}

#[test]
fn a_dump_says_what_has_not_been_moved_and_where_it_cannot_look() {
    let options = Options { strategy: Some(TransferStrategy::Sync), ..Options::new("echo") };
    let backend = backend();
    let mut channel = open(&backend, &options).expect("a channel");
    let mut batch = channel.send_batch(64);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    assert_eq!(channel.dump().conclusion(), Conclusion::Unmoved { waiting: 10 }, "{}", channel.dump());
    backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::nth(2)));
    let dump = channel.dump();
    assert_eq!((dump.twins, dump.input.fill()), (Twins::Unseen, Ok(10)), "{dump}");
    assert!(matches!(channel.check(), Err(Error::Injected { .. })), "and why");
    channel.flush().expect("no fault any more");
    assert_eq!(receive(&mut channel), message(0));
    let mut shared = open(&backend, &Options::new("echo")).expect("a channel");
    assert_eq!(shared.dump().twins, Twins::Shared);
}

#[test]
fn a_dump_finds_the_kernel_s_indices_wherever_they_are() {
    for way in ways().into_iter().skip(SHARED) {
        let backend = backend();
        let mut channel = open(&backend, &Options { start: u64::MAX - 3, ..way }).expect("a channel");
        for id in 0..10 {
            channel.send(message(id)).expect("room");
        }
        for id in 0..10 {
            assert_eq!(receive(&mut channel), message(id));
        }
        let there = Indices { head: 6, tail: 6, capacity: 1024 };
        until("both ends of both rings are there", || {
            channel.flush().expect("no fault");
            channel.dump().twins == Twins::Seen([there; 2])
        });
    }
}

#[test]
fn a_paused_kernel_says_by_whom_and_what_waits() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    channel.command(Command::PAUSE).expect("paused");
    for id in 0..37 {
        channel.send(message(id)).expect("room");
    }
    let (conclusion, all) = dumped(&mut channel);
    assert!(conclusion.ends_with("paused by the host: input ring has 37 messages, command PAUSE seen"), "{all}");
    assert!(format!("{channel:?}").contains("command: Command(PAUSE)"), "{channel:?}");
}

#[test]
fn a_faulted_kernel_says_why() {
    let backend = backend();
    let module = load(&backend, &IMAGE);
    let options = Options { idle: Duration::from_secs(600), ..Options::new("echo") };
    let mut channel = open(&backend, &options).expect("a channel");
    assert!(channel.command(Command::from_bits_retain(0x40)).is_ok(), "it is seen");
    until("it has left", || channel.check().is_err());
    assert_eq!(channel.watch(), Verdict::Ended(State::Faulted));
    let (conclusion, all) = dumped(&mut channel);
    assert!(conclusion.ends_with("left with a fault: an unknown command"), "{all}");
    assert!(all.contains("faults       1, the last: an unknown command"), "{all}");
    drop(module);
}

#[test]
fn who_waits_for_an_answer_gets_it_or_is_told_why_none_will_come() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        for id in 0..20 {
            channel.send(message(id)).expect("room");
        }
        for id in 0..20 {
            assert_eq!(channel.receive_timeout(LIMIT).expect("in time"), message(id), "{way:?}");
        }
        let error = channel.receive_timeout(Duration::ZERO).expect_err("nothing was sent");
        assert!(matches!(error, Error::Kernel { state: Some(State::Active), fault: None, .. }), "{error:?}");
        for id in 20..40 {
            channel.send(message(id)).expect("room");
        }
        channel.drain().expect("it leaves");
        for id in 20..40 {
            assert_eq!(channel.receive_timeout(LIMIT).expect("it had answered"), message(id), "{way:?}");
        }
        let error = channel.receive_timeout(LIMIT).expect_err("it has left");
        assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), waited, .. } if waited < LIMIT), "{error:?}");
    }
}

#[test]
fn answers_that_are_on_their_way_when_the_kernel_leaves_are_waited_for() {
    // So long between two looks that none comes between the kernel's last answer and its end.
    let strategy = Some(TransferStrategy::DmaPolling { poll_interval_us: 5000 });
    let backend = backend();
    let mut channel = open(&backend, &Options { strategy, ..Options::new("echo") }).expect("a channel");
    for id in 0..10 {
        channel.send(message(id)).expect("room");
    }
    channel.drain().expect("it leaves");
    for id in 0..10 {
        assert_eq!(channel.receive_timeout(LIMIT).expect("it had answered"), message(id));
    }
}

#[test]
fn who_waits_without_end_is_told_when_nothing_can_come_any_more() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 500 }] {
        let backend = backend();
        let mut channel = open(&backend, &Options { strategy: Some(strategy), ..Options::new("echo") }).expect("a channel");
        for id in 0..10 {
            channel.send(message(id)).expect("room");
        }
        channel.drain().expect("it leaves");
        // The context is broken, say.
        backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::from(1)).on(Verb::Wait, host::Fault::from(1)));
        // Not joined before it has ended: else the test would wait without end too.
        let waits = thread::spawn(move || {
            loop {
                if let Err(error) = channel.receive_timeout(Duration::MAX) {
                    return error;
                }
            }
        });
        until("it is told", || waits.is_finished());
        let error = waits.join().expect("no panic");
        assert!(matches!(error, Error::Injected { .. }), "{strategy:?}: {error:?}");
    }
}

#[test]
fn who_asks_what_waits_causes_no_more_looks_than_the_interval_allows() {
    let strategy = TransferStrategy::DmaPolling { poll_interval_us: 2000 };
    let backend = backend();
    let mut channel = open(&backend, &Options { strategy: Some(strategy), ..Options::new("echo") }).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    for id in 0..3 {
        channel.send(message(id)).expect("room");
    }
    // From now on its calls are counted.
    backend.set_faults(&Faults::new());
    let (before, begun, mut calls) = (backend.calls(Verb::Copy).expect("counted"), Instant::now(), 0_u64);
    while calls < 1000 || begun.elapsed() < Duration::from_millis(30) {
        assert_eq!(channel.input_waiting(), Ok(3));
        calls += 1;
    }
    // Of each of two indices.
    let most = 2 * (begun.elapsed().as_micros() as u64 / 2000 + 1);
    let looks = backend.calls(Verb::Copy).expect("counted") - before;
    assert!((1..=most).contains(&looks), "{looks} looks in {calls} calls, {most} allowed");
}

#[test]
fn who_waits_for_an_answer_is_told_what_moving_it_fails_with() {
    let options = Options { strategy: Some(TransferStrategy::Sync), ..Options::new("echo") };
    let backend = backend();
    let mut channel = open(&backend, &options).expect("a channel");
    backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::from(1)));
    let error = channel.receive_timeout(Duration::from_millis(1)).expect_err("no look gets through");
    assert!(matches!(error, Error::Injected { .. }), "{error:?}");
    backend.set_faults(&Faults::new());
    channel.send(message(1)).expect("room");
    assert_eq!(channel.receive_timeout(LIMIT).expect("nothing is lost"), message(1));
}

/// So many of the ways move nothing.
const SHARED: usize = 2;

/// Every way to a kernel, and the kernel for it.
fn ways() -> Vec<Options<'static>> {
    let queued = [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }];
    let moved = queued.into_iter().flat_map(|strategy| {
        [("echo", Placement::DEVICE), ("echo_split", Placement::SPLIT)].map(|(kernel, placement)| Options {
            strategy: Some(strategy),
            placement: [placement; 2],
            ..Options::new(kernel)
        })
    });
    let flagged = Options { strategy: Some(TransferStrategy::Flagged), ..Options::new("echo_flagged") };
    [Options::new("echo"), flagged].into_iter().chain(moved).collect()
}

#[test]
fn every_way_to_a_kernel_carries_every_message_there_and_back() {
    for way in ways() {
        let options = Options { input_capacity: 16, output_capacity: 8, batch: 4, start: u64::MAX - 20, ..way };
        let backend = backend();
        let mut channel = open(&backend, &options).expect("a channel");
        let (mut sent, mut received) = (0, 0);
        until("all have come back", || {
            if sent < 500 && channel.send(message(sent)).is_ok() {
                sent += 1;
            }
            channel.check().expect("it runs");
            while let Ok(answer) = channel.receive() {
                assert_eq!(answer.words[0], message(received).words[0], "{options:?}");
                received += 1;
            }
            received == 500
        });
        let closed = channel.close().expect("it leaves");
        assert_eq!(closed.control.processed, 500, "{options:?}");
    }
}

/// A channel to which ten messages were sent, that nobody has moved yet.
fn with_a_batch(way: &Options<'_>) -> (Clean, Channel<Echo, Echo>) {
    let backend = backend();
    let mut channel = open(&backend, way).expect("a channel");
    let mut batch = channel.send_batch(64);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    (backend, channel)
}

#[test]
fn what_waits_in_a_shared_ring_is_counted_and_dumped_whatever_its_kind() {
    for way in ways().into_iter().take(SHARED) {
        let backend = backend();
        let mut channel = open(&backend, &Options { output_capacity: 16, start: u64::MAX - 3, ..way }).expect("a channel");
        channel.command(Command::PAUSE).expect("it is acted on");
        let mut batch = channel.send_batch(8);
        for id in 0..10 {
            batch.push(message(id)).expect("room");
        }
        drop(batch);
        let input = |channel: &mut Channel<Echo, Echo>| (channel.input_waiting(), channel.dump().input.fill(), channel.dump().input.tail);
        assert_eq!(input(&mut channel), (Ok(10), Ok(10), 6));
        channel.command(Command::ACTIVATE).expect("it is acted on");
        until("all are answered", || channel.output_waiting() == Ok(10));
        until("all slots are given back", || input(&mut channel) == (Ok(0), Ok(0), 6));
        let mut batch = channel.receive_batch(4);
        for id in 0..3 {
            assert_eq!(batch.pop(), Ok(message(id)));
        }
        drop(batch);
        assert_eq!((channel.dump().output, channel.dump().twins), (Indices { head: u64::MAX, tail: 6, capacity: 16 }, Twins::Shared));
    }
}

#[test]
fn a_kernel_refuses_rings_of_the_other_kind() {
    for (kernel, strategy) in [("echo", TransferStrategy::Flagged), ("echo_flagged", TransferStrategy::Unified)] {
        let refused = open(&backend(), &Options { strategy: Some(strategy), ..Options::new(kernel) });
        let fault = |error: &Error| matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Ring), .. });
        assert!(refused.as_ref().is_err_and(fault), "{kernel}: {refused:?}");
    }
}

#[test]
fn a_batch_goes_when_it_is_flushed() {
    for way in ways() {
        let (_backend, mut channel) = with_a_batch(&way);
        let mut received = 0;
        until("all have come back", || {
            channel.flush().expect("no fault");
            let mut answers = channel.receive_batch(4);
            while let Ok(answer) = answers.pop() {
                assert_eq!(answer.words[0], received);
                received += 1;
            }
            received == 10
        });
    }
}

#[test]
fn a_drain_takes_along_what_has_not_reached_the_kernel_s_ring() {
    for way in ways() {
        let (backend, mut channel) = with_a_batch(&way);
        // So the kernel has time to leave before the messages come, if it is let.
        backend.set_faults(&(1..=60).fold(Faults::new(), |faults, nth| faults.on(Verb::Copy, host::Fault::nth(nth))));
        channel.drain().expect("it leaves");
        for id in 0..10 {
            assert_eq!(receive(&mut channel).words[0], id, "{way:?}");
        }
    }
}

/// A channel to a paused kernel, with as much sent as fits; where rings are moved that is more than the kernel's own holds. How many.
fn paused_and_full(way: &Options<'static>) -> (Clean, Channel<Echo, Echo>, u64) {
    let backend = backend();
    let mut channel = open(&backend, &Options { input_capacity: 4, ..way.clone() }).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    let all = if matches!(way.strategy, None | Some(TransferStrategy::Flagged)) { 4 } else { 8 };
    let mut sent = 0;
    until("nothing more fits", || {
        sent += u64::from(channel.send(message(sent)).is_ok());
        sent == all
    });
    (backend, channel, all)
}

#[test]
fn a_drain_of_a_paused_kernel_answers_all_however_much_waits() {
    for way in ways() {
        let (_backend, mut channel, sent) = paused_and_full(&way);
        channel.drain().expect("it leaves");
        for id in 0..sent {
            assert_eq!(receive(&mut channel).words[0], id, "{way:?}");
        }
        let closed = channel.close().expect("it has ended");
        assert_eq!(closed.control.processed, sent);
    }
}

#[test]
fn closing_a_kernel_that_was_told_to_end_is_no_failure_whatever_it_left() {
    for way in ways() {
        let (_backend, mut channel, _) = paused_and_full(&way);
        channel.command(Command::TERMINATE).expect("it is acted on");
        let closed = channel.close().expect("it has ended as told");
        assert_eq!((closed.control.processed, closed.control.kernel_state()), (0, Some(State::Terminated)), "{way:?}");
    }
}

#[test]
fn a_channel_is_refused_at_once_where_its_control_block_could_not_be_seen() {
    let backend = HostBackend::builder().system_scope(false).device_memory(1 << 20).build().expect("a backend");
    for way in ways() {
        let refused = open(&backend, &way);
        assert!(matches!(&refused, Err(Error::Unsupported { what }) if what.contains("control block")), "{way:?}: {refused:?}");
    }
    assert_eq!((backend.counters().pinned_live.bytes, backend.counters().launches), (0, 0));
}

#[test]
fn a_kernel_that_has_ended_is_launched_again_and_goes_on_where_the_last_one_stopped() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        // SAFETY: `echo` takes no arguments of its own.
        assert!(matches!(unsafe { channel.restart() }, Err(Error::Busy { .. })), "it runs");
        let mut received = 0;
        for round in 0..3_u64 {
            for id in 0..10 {
                channel.send(message(round * 10 + id)).expect("room");
            }
            until("all have come back", || {
                while let Ok(answer) = channel.receive() {
                    assert_eq!(answer.words[0], received);
                    received += 1;
                }
                received == (round + 1) * 10
            });
            channel.drain().expect("it leaves");
            until("it has left", || channel.check().is_err());
            channel.send(message((round + 1) * 10)).expect("there is room while nobody takes it");
            // SAFETY: as above.
            until("it is launched again", || unsafe { channel.restart() }.is_ok());
            until("what was sent meanwhile is answered", || channel.receive().is_ok_and(|answer| answer.words[0] == (round + 1) * 10));
            received = (round + 1) * 10;
        }
    }
}
