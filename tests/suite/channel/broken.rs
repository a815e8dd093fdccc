use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use futures::executor::block_on;
use ringmem::attach::{AttachError, Corrupt};
use ringmem::control::{Command, DeviceSide, Fault, Shared, State};
use ringmem::image::{Entry, KernelHost};
use ringmem::{ControlBlock, HostWord, Machine, RingHeader, TelemetryBuffer};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, Simulated, Single, persistent};

#[cfg(target_os = "linux")]
use crate::rig::in_fork::fork;

use super::*;

#[test]
fn a_kernel_past_its_idle_deadline_exits_with_a_fault() {
    let options = Options { idle: Duration::from_millis(5), ..Options::new("echo") };
    let backend = backend();
    let mut channel = match open(&backend, &options) {
        Ok(channel) => channel,
        // On a busy machine it may have exited before.
        Err(error) => return assert!(matches!(error, Error::Kernel { fault: Some(Fault::Deadline), .. }), "{error:?}"),
    };
    eventually("the kernel has left", || channel.check().is_err());
    let error = channel.check().expect_err("just seen");
    assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Deadline), .. }), "{error:?}");
    assert!(matches!(channel.close(), Err(Error::Kernel { fault: Some(Fault::Deadline), .. })));
}

unsafe fn returns(_: &dyn KernelHost, _: &[u64]) {}

unsafe fn panics(_: &dyn KernelHost, _: &[u64]) {
    panic!("a kernel of the test panics");
}

unsafe fn ready_and_gone(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped, kept by the channel; the only kernel on it.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    control.enter(State::Ready);
}

unsafe fn active(host: &dyn KernelHost, arguments: &[u64], then: impl FnOnce(DeviceSide<'_, HostWord>)) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped, kept by the channel; the only kernel on it.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    control.enter(State::Ready);
    let mut times = 0;
    while control.command().0 < 2 {
        if control.command().0 == 1 && control.enter(State::Active) {
            control.acknowledge(1);
        }
        host.pause(times);
        times += 1;
    }
    then(control);
}

unsafe fn active_and_panics(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the channel launches this kernel with its control block, as `active` requires.
    unsafe { active(host, arguments, |_| panic!("a kernel of the test panics")) }
}

unsafe fn stops_writing(host: &dyn KernelHost, arguments: &[u64]) {
    let stop = |mut control: DeviceSide<'_, HostWord>| {
        let words = host.translate(control.addresses().telemetry, 64).expect("telemetry").cast::<[HostWord; 8]>();
        // SAFETY: mapped, kept by the channel; telemetry consists of words.
        unsafe { words.as_ref() }.iter().for_each(|word| word.store(9, Release));
        control.enter(State::Terminated);
    };
    // SAFETY: the channel launches this kernel with its control block, as `active` requires.
    unsafe { active(host, arguments, stop) }
}

static SENT_AWAY: AtomicBool = AtomicBool::new(false);

unsafe fn lingers(host: &dyn KernelHost, arguments: &[u64]) {
    let linger = |mut control: DeviceSide<'_, HostWord>| {
        control.enter(State::Terminated);
        eventually("it is sent away", || SENT_AWAY.load(Acquire));
    };
    // SAFETY: the channel launches this kernel with its control block, as `active` requires.
    unsafe { active(host, arguments, linger) }
}

/// Returns some time after it has obeyed.
unsafe fn terminates_late(host: &dyn KernelHost, arguments: &[u64]) {
    let linger = |mut control: DeviceSide<'_, HostWord>| {
        control.enter(State::Terminated);
        thread::sleep(Duration::from_millis(100));
    };
    // SAFETY: the channel launches this kernel with its control block, as `active` requires.
    unsafe { active(host, arguments, linger) }
}

static DEPARTS: AtomicBool = AtomicBool::new(false);

/// Returns some time after it has stored its last state.
unsafe fn returns_late(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped, kept by the channel; the only kernel on it.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    control.enter(State::Ready);
    let mut times = 0;
    while control.command().0 < 2 && !DEPARTS.swap(false, Acquire) {
        if control.command().0 == 1 && control.enter(State::Active) {
            control.acknowledge(1);
        }
        host.pause(times);
        times += 1;
    }
    control.note(Fault::Panic);
    control.enter(State::Faulted);
    thread::sleep(Duration::from_millis(100));
}

unsafe fn speaks_nonsense(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<ControlBlock<HostWord>>();
    // SAFETY: mapped, kept by the channel; a block consists of words.
    unsafe { block.as_ref() }.state.store(arguments[1] << 32 | 99, Release);
}

static DISMISSED: AtomicBool = AtomicBool::new(false);
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Ignores commands until its epoch ends, and writes to its block even later.
unsafe fn deaf(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped, kept by the channel, even after it fails; the only kernel on it.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    let mut times = 0;
    while control.is_current() || !DISMISSED.load(Acquire) {
        control.beat(u64::from(times) + 1);
        host.pause(times);
        times += 1;
    }
    LEAVING.store(true, Release);
}

/// Becomes active, and reports no end.
unsafe fn crashes(host: &dyn KernelHost, arguments: &[u64]) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped, kept by the channel; the only kernel on it.
    let mut control = unsafe { DeviceSide::attach(block.as_ref(), arguments[1] as u32) };
    control.enter(State::Ready);
    let mut times = 0;
    while control.command().0 != 1 {
        host.pause(times);
        times += 1;
    }
    assert!(control.enter(State::Active));
    control.acknowledge(1);
    panic!("a kernel of the test panics");
}

/// Stores an impossible index, and goes on until it is sent away.
unsafe fn miscounts(host: &dyn KernelHost, arguments: &[u64]) {
    let miscount = |mut control: DeviceSide<'_, HostWord>| {
        let address = control.addresses().output.peer;
        let header = host.translate(address, 384).expect("a header").cast::<RingHeader<HostWord>>();
        // SAFETY: mapped, kept by the channel; a header consists of words.
        unsafe { header.as_ref() }.producer.tail.store(77_777, Release);
        while control.command().0 < 3 && control.is_current() {
            thread::sleep(Duration::from_micros(50));
        }
        control.enter(State::Terminated);
    };
    // SAFETY: the channel launches this kernel with its control block, as `active` requires.
    unsafe { active(host, arguments, miscount) }
}

const BROKEN: Image = Image {
    host: &[
        Entry { name: "returns", arguments: 4, run: returns },
        Entry { name: "panics", arguments: 4, run: panics },
        Entry { name: "ready and gone", arguments: 4, run: ready_and_gone },
        Entry { name: "speaks nonsense", arguments: 4, run: speaks_nonsense },
        Entry { name: "active and panics", arguments: 4, run: active_and_panics },
        Entry { name: "stops writing", arguments: 4, run: stops_writing },
        Entry { name: "lingers", arguments: 4, run: lingers },
        Entry { name: "terminates late", arguments: 4, run: terminates_late },
        Entry { name: "handler panics", arguments: 4, run: handler_panics },
        Entry { name: "deaf", arguments: 4, run: deaf },
        Entry { name: "returns late", arguments: 4, run: returns_late },
        Entry { name: "miscounts", arguments: 4, run: miscounts },
        Entry { name: "crashes", arguments: 4, run: crashes },
    ],
    ..IMAGE
};

#[test]
fn a_kernel_that_exits_before_activation_fails_open() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    for (kernel, expected, words) in [
        ("returns", Some(State::Created), "the kernel returned without starting: Created"),
        ("ready and gone", Some(State::Ready), "the kernel returned without reporting its end; its last state is Ready"),
        ("speaks nonsense", None, " an unknown state"),
    ] {
        // SAFETY: these kernels take no own arguments.
        let error = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new(kernel)) }.expect_err("no channel");
        assert!(error.to_string().contains(words), "{kernel}: {error}");
        let Error::Kernel { state, fault: None, waited, .. } = error else { panic!("{kernel}: {error:?}") };
        assert_eq!(state, expected, "{kernel}");
        assert!(waited < Duration::from_secs(10), "{kernel}: {waited:?}");
        assert_eq!(backend.counters().pinned_live.bytes, 0, "{kernel}");
    }
}

#[test]
fn an_abrupt_exit_returns_the_error_of_the_launch() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: these kernels take no own arguments.
    let open = |kernel| unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new(kernel)) };
    let error = open("panics").expect_err("no channel");
    assert!(matches!(error, Error::KernelPanicked { name: "panics" }), "{error:?}");
    assert_eq!(backend.counters().pinned_live.bytes, 0);

    let mut channel = open("active and panics").expect("a channel");
    channel.check().expect("it runs");
    let error = channel.command(Command::PAUSE).expect_err("it obeys no more");
    assert!(matches!(error, Error::KernelPanicked { name: "active and panics" }), "{error:?}");
    let error = channel.check().expect_err("it is gone for good");
    assert!(matches!(error, Error::Kernel { state: Some(State::Active), is_over: true, fault: None, .. }), "{error:?}");

    let error = open("active and panics").expect("a channel").close().expect_err("it panics instead of draining");
    assert!(matches!(error, Error::KernelPanicked { name: "active and panics" }), "{error:?}");
}

#[test]
fn a_corrupt_index_of_a_living_kernel_ends_a_receive() {
    for way in ways().into_iter().filter(|way| way.kernel == "echo") {
        let backend = backend();
        let options = Options { kernel: "miscounts", timeout: Duration::from_millis(300), ..way };
        // SAFETY: this kernel takes no own arguments.
        let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &load(&backend, &BROKEN), &options) }.expect("a channel");
        let refused = channel.command(Command::PAUSE);
        assert!(refused.is_err(), "{options:?}: it acknowledges nothing");
        let begun = Instant::now();
        for received in [channel.recv_timeout(2 * LIMIT), block_on(channel.recv_async())] {
            let error = received.expect_err("no answer");
            assert!(matches!(error, Error::Attach(AttachError::Corrupt(Corrupt { tail: 77_777, .. }))), "{options:?}: {error:?}");
        }
        assert!(begun.elapsed() < LIMIT, "{options:?}: it is not the limit that ends it");
    }
}

#[test]
fn a_send_finds_out_that_the_kernel_has_crashed() {
    let backend = backend();
    // A full ring asks, too: not to be reached in the seconds that a thread may need to end.
    let options = Options { input_capacity: 1 << 17, ..Options::new("crashes") };
    // SAFETY: this kernel takes no own arguments.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &load(&backend, &BROKEN), &options) }.expect("a channel");
    let (mut failed, mut accepted) = (None, 0);
    eventually("a send fails", || {
        failed = channel.send(message(7)).err();
        accepted += u32::from(failed.is_none());
        failed.is_some()
    });
    assert!(accepted < 1 << 17, "only the full ring ended it");
    let error = match failed {
        Some(SendError::Kernel { error, message: back }) if back == message(7) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error, Error::KernelPanicked { name: "crashes" }), "{error:?}");
    // From then on without a question to the backend.
    for _ in 0..3 {
        let sent = channel.send(message(8));
        assert!(matches!(sent, Err(SendError::Kernel { error: Error::Kernel { is_over: true, .. }, .. })), "{sent:?}");
    }
}

struct Panics;

impl<M: Machine, L: Lanes> Handler<M, L> for Panics {
    type Input = Echo;
    type Output = Echo;
    unsafe fn answer(&mut self, _: &L, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        panic!("a handler of the test panics");
    }
}

unsafe fn handler_panics(host: &dyn KernelHost, arguments: &[u64]) {
    let launch = Launch { controls: arguments[0], epoch: arguments[1] as u32, idle_ns: arguments[2], batch: arguments[3], abi: ABI.hash };
    // SAFETY: a channel launches this kernel: control block, rings and telemetry are live until it returns, with one host side and no other
    // kernel.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut Panics) }
}

#[test]
fn a_reported_fault_takes_precedence_over_the_launch_error() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    for panics in 1..=5 {
        // SAFETY: this kernel takes no own arguments.
        let mut channel =
            unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("handler panics")) }.expect("a channel");
        channel.try_send(message(0)).expect("room");
        eventually("it has panicked", || backend.counters().kernel_panics == panics);
        thread::sleep(Duration::from_millis(panics));
        for _ in 0..2 {
            let error = channel.check().expect_err("it has left");
            assert!(matches!(error, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Panic), .. }), "{error:?}");
        }
    }
}

#[test]
fn a_terminated_kernel_has_ended_when_its_launch_completes() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: this kernel takes no own arguments.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("lingers")) }.expect("a channel");
    channel.drain().expect("it says so");
    assert_eq!(channel.check().expect_err("it takes no more").to_string(), "the kernel is Terminated but has not returned after 0 ms");
    SENT_AWAY.store(true, Release);
    eventually("it has left", || channel.check().expect_err("as before").to_string() == "the kernel has ended: Terminated");
}

#[test]
fn a_kernel_can_be_restarted_once_a_wait_for_it_has_failed() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: this kernel takes no own arguments.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("returns late")) }.expect("a channel");
    type Wait = fn(&mut Channel<Echo, Echo>) -> Error;
    let waits: [Wait; 4] = [
        |channel| channel.recv().expect_err("no answer"),
        |channel| block_on(channel.recv_async()).expect_err("no answer"),
        |channel| channel.command(Command::PAUSE).expect_err("it obeys no more"),
        |channel| match channel.send(message(0)) {
            Err(SendError::Kernel { error, .. }) => error,
            sent => panic!("{sent:?}"),
        },
    ];
    for wait in waits {
        DEPARTS.store(true, Release);
        eventually("it reports its end", || channel.state() == Some(State::Faulted));
        let error = wait(&mut channel);
        let faulted = matches!(error, Error::Kernel { state: Some(State::Faulted), is_over: true, fault: Some(Fault::Panic), .. });
        assert!(faulted, "{error:?}");
        // SAFETY: this kernel takes no own arguments.
        unsafe { channel.restart_raw() }.expect("it has returned");
    }
}

#[test]
fn restart_resets_the_telemetry_of_a_kernel_that_left_within_a_record() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: this kernel takes no own arguments.
    let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("stops writing")) }.expect("a channel");
    channel.drain().expect("it says so");
    assert!(channel.telemetry().is_err(), "its sequence is odd");
    // SAFETY: this kernel takes no own arguments.
    unsafe { channel.restart_raw() }.expect("it has ended");
    let telemetry = channel.telemetry().expect("no record is being written");
    let TelemetryBuffer { processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns, .. } = telemetry;
    assert_eq!([processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns], [0; 7]);
}

#[test]
fn restart_waits_for_the_return_of_an_ended_kernel() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: this kernel takes no own arguments.
    let mut channel =
        unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("terminates late")) }.expect("a channel");
    for _ in 0..3 {
        channel.drain().expect("it says so");
        // SAFETY: this kernel takes no own arguments.
        unsafe { channel.restart_raw() }.expect("it has ended");
    }
}

/// The time limit of the channel is that of the test: a child that waits for it is killed.
#[cfg(target_os = "linux")]
#[test]
fn a_channel_in_a_forked_process_waits_for_nothing() {
    let backend = backend();
    let mut channel = open(&backend, &Options { timeout: 2 * LIMIT, ..Options::new("echo") }).expect("a channel");
    let is_refused = |error: &Error| matches!(error, Error::Unsupported { .. });
    let answered = fork(|| {
        [
            channel.recv().is_err_and(|error| is_refused(&error)),
            channel.drain().is_err_and(|error| is_refused(&error)),
            channel.command(Command::PAUSE).is_err_and(|error| is_refused(&error)),
            // SAFETY: `echo` takes no own arguments.
            unsafe { channel.restart_raw() }.is_err_and(|error| is_refused(&error)),
            matches!(channel.send(message(0)), Err(SendError::Kernel { error: Error::Unsupported { .. }, .. })),
        ] == [true; 5]
    });
    assert!(answered, "in a fork it waits, or does something");
    let mut channel = Some(channel);
    let dropped = fork(|| {
        drop(channel.take());
        true
    });
    assert!(dropped, "its drop waits for the kernel of the parent");
    let mut channel = channel.expect("the parent's own");
    channel.send(message(7)).expect("the kernel runs");
    assert_eq!(channel.recv().expect("an answer"), message(7));
}

#[test]
fn torn_telemetry_at_exit_is_an_error_of_close() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    // SAFETY: this kernel takes no own arguments.
    let channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &Options::new("stops writing")) }.expect("a channel");
    let error = channel.close().expect_err("there is no last record");
    assert!(matches!(error, Error::Busy { what } if what.contains("telemetry")), "{error:?}");
}

#[test]
fn an_unresponsive_kernel_is_an_error_and_keeps_its_memory() {
    let backend = backend();
    let module = load(&backend, &BROKEN);
    let options = Options { timeout: Duration::from_millis(300), ..Options::new("deaf") };
    // SAFETY: this kernel takes no own arguments.
    let error = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &options) }.expect_err("no channel");
    assert!(matches!(error, Error::Kernel { state: Some(State::Created), is_over: false, fault: None, .. }), "{error:?}");
    assert!(backend.counters().pinned_live.bytes > 0, "its memory is never pulled away from under it");
    DISMISSED.store(true, Release);
    eventually("the kernel leaves, since its epoch is over", || LEAVING.load(Acquire));
}
