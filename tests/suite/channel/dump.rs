use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use ringmem::Machine;
use ringmem::backend::host::{self, Faults, Verb};
use ringmem::control::{Command, State};
use ringmem::dump::{Conclusion, Indices, Twins};
use ringmem::image::{Entry, KernelHost};
use ringmem::watchdog::Verdict;
use ringmem_kernels::{Batch, Handler, Lanes, Launch, Simulated, Single, persistent};

use super::*;

static STUCK: AtomicBool = AtomicBool::new(true);
static STUCK_TOO: AtomicBool = AtomicBool::new(true);

struct LetGo(&'static AtomicBool);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

unsafe fn stuck_while(is_stuck: &'static AtomicBool, host: &dyn KernelHost, arguments: &[u64]) {
    struct Waits(&'static AtomicBool);
    impl<M: Machine, L: Lanes> Handler<M, L> for Waits {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &L, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            eventually("the handler is let go", || !self.0.load(Acquire));
            0
        }
    }
    let launch = Launch { controls: arguments[0], epoch: arguments[1] as u32, idle_ns: arguments[2], batch: arguments[3], abi: ABI.hash };
    // SAFETY: a channel launches this kernel: control block, rings and telemetry are live until it returns, with one host side and no other
    // kernel.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut Waits(is_stuck)) }
}

unsafe fn stuck(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: this is a channel's kernel: the channel promises live memory to it until it returns, shared by the kernel's protocol.
    unsafe { stuck_while(&STUCK, host, arguments) }
}

unsafe fn stuck_too(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: this is a channel's kernel: the channel promises live memory to it until it returns, shared by the kernel's protocol.
    unsafe { stuck_while(&STUCK_TOO, host, arguments) }
}

fn dumped(channel: &mut Channel<Echo, Echo>) -> (String, String) {
    let text = channel.dump().expect("no fault").to_string();
    (text.lines().last().expect("a dump has lines").to_owned(), text)
}

#[test]
fn a_dump_finds_a_kernel_stuck_in_its_handler() {
    let backend = backend();
    let module = load(&backend, &Image { host: &[Entry { name: "stuck", arguments: 4, run: stuck }], ..IMAGE });
    let options = Options { batch: 2, stuck_after: Duration::from_millis(5), ..Options::new("stuck") };
    // SAFETY: this kernel takes no own arguments.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &options) }.expect("a channel");
    let release = LetGo(&STUCK);
    for id in 0..5 {
        channel.try_send(message(id)).expect("room");
    }
    eventually("it has taken messages", || channel.control().in_flight > 0);
    eventually("it is stuck", || matches!(channel.watch(), Verdict::Stuck { .. }));
    let (conclusion, all) = dumped(&mut channel);
    assert!(conclusion.contains("stuck in its handler with"), "{all}");
    let dump = channel.dump().expect("no fault");
    let taken = dump.control.in_flight;
    assert!(taken > 0 && dump.input.fill() == Ok(5), "taken, and not released yet: {all}");
    assert!(all.contains("input ring   5 of 1024, producer at 5, consumer at 0"), "{all}");
    drop(release);
    eventually("it lives again", || channel.watch() == Verdict::Alive);
}

#[test]
fn a_dump_of_copied_rings_shows_both_halves() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }] {
        let backend = backend();
        let module = load(&backend, &Image { host: &[Entry { name: "stuck", arguments: 4, run: stuck_too }], ..IMAGE });
        let options = Options {
            batch: 2,
            stuck_after: Duration::from_millis(5),
            input_capacity: 4,
            strategy: Some(strategy),
            placement: Some([Placement::DEVICE; 2]),
            ..Options::new("stuck")
        };
        // SAFETY: this kernel takes no own arguments.
        let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &options) }.expect("a channel");
        STUCK_TOO.store(true, Release);
        let release = LetGo(&STUCK_TOO);
        let mut sent = 0;
        eventually("the kernel's ring is full, and the host's behind it", || {
            sent += u64::from(channel.try_send(message(sent)).is_ok());
            sent == 8 && channel.input_waiting().expect("no fault") == 8
        });
        eventually("it has taken messages", || channel.control().in_flight > 0);
        eventually("it is stuck", || matches!(channel.watch(), Verdict::Stuck { .. }));
        let pushed = backend.counters();
        let dump = channel.dump().expect("no fault");
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
            let looked = backend.counters();
            assert_eq!((looked.downloads.count - pushed.downloads.count, looked.uploads.count), (4, pushed.uploads.count), "a word each");
        }
        for _ in 0..50 {
            assert_eq!(channel.input_waiting().expect("no fault"), 8, "{strategy:?}");
            channel.dump().expect("no fault");
        }
        drop(release);
    }
}

#[test]
fn a_dump_shows_unmoved_messages_and_failed_reads() {
    let options = Options { strategy: Some(TransferStrategy::Sync), ..Options::new("echo") };
    let backend = backend();
    let mut channel = open(&backend, &options).expect("a channel");
    let mut batch = channel.send_batch(64);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    let dump = channel.dump().expect("no fault");
    assert_eq!(dump.conclusion(), Conclusion::Unmoved { waiting: 10 }, "{dump}");
    backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::nth(2)));
    let Rejected { error, value: dump } = channel.dump().expect_err("a fault");
    assert_eq!((dump.twins, dump.input.fill()), (Twins::Unseen, Ok(10)), "{dump}");
    assert!(matches!(error, Error::Injected { .. }), "and why");
    channel.flush().expect("no fault any more");
    assert_eq!(receive(&mut channel), message(0));
    let mut shared = open(&backend, &Options::new("echo")).expect("a channel");
    assert_eq!(shared.dump().expect("no fault").twins, Twins::Shared);
}

#[test]
fn a_dump_reads_the_kernel_s_indices_in_every_placement() {
    for way in ways().into_iter().skip(SHARED) {
        let backend = backend();
        let mut channel = open(&backend, &Options { start: u64::MAX - 3, ..way }).expect("a channel");
        for id in 0..10 {
            channel.try_send(message(id)).expect("room");
        }
        for id in 0..10 {
            assert_eq!(receive(&mut channel), message(id));
        }
        let there = Indices { head: 6, tail: 6, capacity: 1024 };
        eventually("both ends of both rings are there", || {
            channel.flush().expect("no fault");
            channel.dump().expect("no fault").twins == Twins::Seen([there; 2])
        });
    }
}

#[test]
fn a_dump_of_a_paused_kernel_names_command_and_queue() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    channel.command(Command::PAUSE).expect("paused");
    for id in 0..37 {
        channel.try_send(message(id)).expect("room");
    }
    let (conclusion, all) = dumped(&mut channel);
    assert!(conclusion.ends_with("paused by the host: input ring has 37 messages, command PAUSE seen"), "{all}");
    assert!(format!("{channel:?}").contains("command: Command(PAUSE)"), "{channel:?}");
}

#[test]
fn a_dump_of_a_faulted_kernel_names_the_fault() {
    let backend = backend();
    let module = load(&backend, &IMAGE);
    let options = Options { idle: Duration::from_secs(600), ..Options::new("echo") };
    let mut channel = open(&backend, &options).expect("a channel");
    assert!(channel.command(Command::from_bits_retain(0x40)).is_ok(), "it is seen");
    eventually("it has left", || channel.check().is_err());
    assert_eq!(channel.watch(), Verdict::Ended(State::Faulted));
    let (conclusion, all) = dumped(&mut channel);
    assert!(conclusion.ends_with("ended with a fault: an unknown command"), "{all}");
    assert!(all.contains("faults       1, the last: an unknown command"), "{all}");
    drop(module);
}
