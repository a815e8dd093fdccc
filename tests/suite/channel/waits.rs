use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ringmem::backend::host::{self, Faults, Verb};
use ringmem::control::{Command, State};

use super::*;

#[test]
fn recv_timeout_returns_every_answer_then_the_kernel_state() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        for id in 0..20 {
            channel.try_send(message(id)).expect("room");
        }
        for id in 0..20 {
            assert_eq!(channel.recv_timeout(LIMIT).expect("in time"), message(id), "{way:?}");
        }
        let error = channel.recv_timeout(Duration::ZERO).expect_err("nothing was sent");
        assert!(matches!(error, Error::Kernel { state: Some(State::Active), fault: None, .. }), "{error:?}");
        for id in 20..40 {
            channel.try_send(message(id)).expect("room");
        }
        channel.drain().expect("it leaves");
        for id in 20..40 {
            assert_eq!(channel.recv_timeout(LIMIT).expect("it had answered"), message(id), "{way:?}");
        }
        let error = channel.recv_timeout(LIMIT).expect_err("it has left");
        assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), waited, .. } if waited < LIMIT), "{error:?}");
    }
}

#[test]
fn recv_waits_for_answers_in_flight_when_the_kernel_exits() {
    let strategy = Some(TransferStrategy::DmaPolling { poll_interval_us: 5000 });
    let backend = backend();
    // In device memory: the host learns of answers by a copy of the index.
    let placement = Some([Placement::DEVICE; 2]);
    let mut channel = open(&backend, &Options { strategy, placement, ..Options::new("echo") }).expect("a channel");
    for id in 0..10 {
        channel.try_send(message(id)).expect("room");
    }
    channel.drain().expect("it leaves");
    for id in 0..10 {
        assert_eq!(channel.recv_timeout(LIMIT).expect("it had answered"), message(id));
    }
}

#[test]
fn an_unbounded_recv_returns_when_no_answer_can_arrive() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 500 }] {
        let backend = backend();
        let mut channel =
            open(&backend, &Options { strategy: Some(strategy), placement: Some([Placement::DEVICE; 2]), ..Options::new("echo") })
                .expect("a channel");
        for id in 0..10 {
            channel.try_send(message(id)).expect("room");
        }
        channel.drain().expect("it leaves");
        backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::from(1)).on(Verb::Wait, host::Fault::from(1)));
        // Joined only after the end: otherwise the test would hang.
        let waits = thread::spawn(move || {
            loop {
                if let Err(error) = channel.recv_timeout(Duration::MAX) {
                    return error;
                }
            }
        });
        eventually("it is told", || waits.is_finished());
        let error = waits.join().expect("no panic");
        assert!(matches!(error, Error::Injected { .. }), "{strategy:?}: {error:?}");
    }
}

#[test]
fn recv_returns_the_error_of_a_failed_transfer() {
    let options = Options { strategy: Some(TransferStrategy::Sync), placement: Some([Placement::DEVICE; 2]), ..Options::new("echo") };
    let backend = backend();
    let mut channel = open(&backend, &options).expect("a channel");
    backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::from(1)));
    let error = channel.recv_timeout(Duration::from_millis(1)).expect_err("no look gets through");
    assert!(matches!(error, Error::Injected { .. }), "{error:?}");
    backend.set_faults(&Faults::new());
    channel.try_send(message(1)).expect("room");
    assert_eq!(channel.recv_timeout(LIMIT).expect("nothing is lost"), message(1));
}

#[test]
fn a_command_seen_after_its_deadline_still_succeeds() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let (slept, left, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let (this, begun) = (thread::current().id(), Instant::now());
    let clock = {
        let (slept, left, calls) = (Arc::clone(&slept), Arc::clone(&left), Arc::clone(&calls));
        move || {
            if thread::current().id() == this {
                calls.fetch_add(1, Relaxed);
                if left.fetch_sub(1, Relaxed) == 1 {
                    slept.store(true, Release);
                    thread::sleep(TIMEOUT + Duration::from_millis(500));
                }
            } else {
                eventually("the host's thread sleeps", || slept.load(Acquire));
            }
            begun.elapsed().as_nanos() as u64
        }
    };
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).log(true).clock(Arc::new(clock)));
    let options = Options {
        strategy: Some(TransferStrategy::Sync),
        placement: Some([Placement::DEVICE; 2]),
        timeout: TIMEOUT,
        ..Options::new("echo")
    };
    let mut channel = open(&backend, &options).expect("a channel");
    let before = calls.load(Relaxed);
    channel.flush().expect("no fault");
    left.store(calls.load(Relaxed) - before + 1, Relaxed);
    slept.store(false, Release);
    channel.command(Command::PAUSE).expect("it was acted on, however late that is seen");
    assert!(slept.load(Acquire), "it has slept meanwhile");
}
