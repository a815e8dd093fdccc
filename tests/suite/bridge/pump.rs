use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::bridge::Stopped;

use super::hostile::write;
use super::*;

#[test]
fn a_pump_transfers_all_messages_and_returns_the_bridge() {
    for strategy in STRATEGIES {
        let backend = backend();
        let placement = if strategy == TransferStrategy::Unified { Placement::PINNED } else { Placement::DEVICE };
        let Rig { mut sender, mut receiver, bridge, kernel } = rig(&backend, &options(strategy, placement, 16), 1000);
        let pump = bridge.pump().expect("a thread");
        let (mut sent, mut received) = (0, 0);
        eventually("all are answered", || {
            sent += u64::from(sent < 1000 && sender.push(message(sent)).is_ok());
            while let Ok(got) = receiver.pop() {
                assert_eq!(got, message(received));
                received += 1;
            }
            received == 1000
        });
        let Stopped { outcome, left, .. } = pump.stop(LIMIT).expect("no panic");
        outcome.expect("no fault");
        assert_eq!(left, [0; 2]);
        eventually("the kernel has left", || kernel.is_done());
    }
}

#[test]
fn a_pump_stops_after_repeated_failures_without_loss() {
    let backend = backend();
    let Rig { mut sender, mut receiver, bridge, kernel } = rig(&backend, &options(TransferStrategy::Async, Placement::DEVICE, 16), 10);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
    for number in 0..10 {
        sender.push(message(number)).expect("room");
    }
    let pump = bridge.pump().expect("a thread");
    eventually("it has given up", || pump.has_given_up());
    let Stopped { bridge, outcome, left } = pump.stop(LIMIT).expect("no panic");
    assert!(matches!(outcome, Err(ringmem::Error::Injected { call: "copy", .. })), "{outcome:?}");
    assert_eq!(left, [10, 0]);

    backend.set_faults(&Faults::new());
    let pump = bridge.pump().expect("a thread");
    let mut received = 0;
    eventually("all are answered", || {
        while let Ok(got) = receiver.pop() {
            assert_eq!(got, message(received));
            received += 1;
        }
        received == 10
    });
    drop(pump);
    assert!(sender.is_disconnected() && receiver.is_disconnected());
    eventually("the kernel has left", || kernel.is_done());
}

#[test]
fn a_pump_stops_after_64_failed_polls() {
    let backend = backend();
    let strategy = TransferStrategy::DmaPolling { poll_interval_us: 2000 };
    let Opened { bridge, .. } = open(&backend, &options(strategy, Placement::DEVICE, 4));
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
    let pump = bridge.pump().expect("a thread");
    eventually("it has given up", || pump.has_given_up());
    assert_eq!(pump.failing(), 64);
    assert!(matches!(pump.stop(LIMIT).expect("no panic").outcome, Err(ringmem::Error::Injected { call: "copy", .. })));
}

#[test]
fn a_pump_stops_when_one_direction_keeps_failing() {
    let backend = backend();
    let Opened { mut sender, bridge, .. } = open(&backend, &options(TransferStrategy::Async, Placement::SPLIT, 4));
    backend.set_faults(&Faults::new().on(Verb::Publish, Fault::from(1).when_executed()));
    sender.push(message(0)).expect("room");
    let pump = bridge.pump().expect("a thread");
    eventually("it has given up", || pump.has_given_up());
    assert_eq!((pump.failing(), pump.stop(LIMIT).expect("no panic").left), (64, [1, 0]));
}

#[test]
fn a_pump_stops_when_no_answer_can_be_copied() {
    let backend = backend();
    let Opened { bridge, .. } = open(&backend, &options(TransferStrategy::Async, Placement::SPLIT, 4));
    let [_, down] = bridge.addresses().expect("addresses");
    write(&backend, down.peer, (u64::MAX - 100) + 2);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1).when_executed()));
    let pump = bridge.pump().expect("a thread");
    eventually("it has given up", || pump.has_given_up());
    assert_eq!((pump.failing(), pump.stop(LIMIT).expect("no panic").left), (64, [0, 2]));
}

#[test]
fn interrupted_failures_do_not_stop_a_pump() {
    for verb in [Verb::Copy, Verb::Publish, Verb::Wait] {
        for when_executed in [false, true] {
            let backend = backend();
            let Rig { mut sender, mut receiver, bridge, kernel } =
                rig(&backend, &options(TransferStrategy::Async, Placement::DEVICE, 4), 1000);
            let fault = Fault::random(0.2, 5);
            backend.set_faults(&Faults::new().on(verb, if when_executed { fault.when_executed() } else { fault }));
            let pump = bridge.pump().expect("a thread");
            let (mut sent, mut received) = (0, 0);
            eventually("all are answered", || {
                assert!(!pump.has_given_up(), "{verb:?} {when_executed}: {received} received, {pump:?}");
                sent += u64::from(sent < 1000 && sender.push(message(sent)).is_ok());
                while let Ok(got) = receiver.pop() {
                    assert_eq!(got, message(received));
                    received += 1;
                }
                received == 1000
            });
            let failures: u64 = pump.metrics().iter().map(|metrics| metrics.failures).sum();
            assert!(failures > 64, "{verb:?} {when_executed}: {failures}, of which no 64 are in a row");
            backend.set_faults(&Faults::new());
            eventually("the kernel has left", || kernel.is_done());
        }
    }
}

#[test]
fn a_pump_of_shared_rings_sleeps_between_polls() {
    let backend = backend();
    let Opened { mut sender, bridge, .. } = open(&backend, &options(TransferStrategy::Unified, Placement::PINNED, 4));
    sender.push(message(0)).expect("room");
    let begun = Instant::now();
    let pump = bridge.pump().expect("a thread");
    eventually("it is done with looking", || pump.metrics()[0].fences > 1000);
    thread::sleep(Duration::from_millis(20));
    let fences = pump.metrics()[0].fences;
    // It sleeps 50 us between polls after a thousand.
    let most = 1001 + begun.elapsed().as_micros() as u64 / 50;
    assert!(fences <= most, "{fences} fences, {most} allowed");
}

#[test]
fn stop_waits_at_most_its_timeout_for_a_full_ring() {
    let backend = backend();
    let Opened { mut sender, bridge, .. } = open(&backend, &options(TransferStrategy::Async, Placement::SPLIT, 4));
    let pump = bridge.pump().expect("a thread");
    let mut sent = 0;
    eventually("both rings are full", || {
        sent += u64::from(sender.push(message(sent)).is_ok());
        sent == 8
    });
    let Stopped { left, outcome, .. } = pump.stop(Duration::from_millis(5)).expect("no panic");
    outcome.expect("no fault");
    assert_eq!(left, [4, 0]);
}

#[test]
fn a_forgotten_pump_continues_under_backpressure() {
    for strategy in STRATEGIES {
        let backend = backend();
        let placement = if strategy == TransferStrategy::Unified { Placement::PINNED } else { Placement::DEVICE };
        let Rig { mut sender, mut receiver, bridge, kernel } = rig(&backend, &options(strategy, placement, 4), 200);
        std::mem::forget(bridge.pump().expect("a thread"));
        let mut sent = 0;
        let all = if strategy == TransferStrategy::Unified { 9 } else { 17 };
        eventually("everything is full", || {
            sent += u64::from(sent < all && sender.push(message(sent)).is_ok());
            sent == all
        });
        for _ in 0..100 {
            assert!(sender.push(message(sent)).is_err(), "{strategy:?}");
            thread::yield_now();
        }
        let mut received = 0;
        eventually("all are answered", || {
            sent += u64::from(sent < 200 && sender.push(message(sent)).is_ok());
            while let Ok(got) = receiver.pop() {
                assert_eq!(got, message(received), "{strategy:?}");
                received += 1;
            }
            received == 200
        });
        eventually("the kernel has left", || kernel.is_done());
        (0..if strategy == TransferStrategy::Unified { 2 } else { 6 }).for_each(|_| backend.forgets());
    }
}
