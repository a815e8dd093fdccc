use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::bridge::Stopped;

use super::*;

#[test]
fn a_pump_brings_everything_through_and_gives_the_bridge_back() {
    for strategy in STRATEGIES {
        let backend = backend();
        let placement = if strategy == TransferStrategy::Unified { Placement::PINNED } else { Placement::DEVICE };
        let Rig { mut sender, mut receiver, bridge, kernel } = rig(&backend, &options(strategy, placement, 16), 1000);
        let pump = bridge.pump().expect("a thread");
        let (mut sent, mut received) = (0, 0);
        until("all have come back", || {
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
        until("the kernel has left", || kernel.is_done());
    }
}

#[test]
fn a_pump_whose_calls_keep_failing_gives_up_and_loses_nothing() {
    let backend = backend();
    let Rig { mut sender, mut receiver, bridge, kernel } = rig(&backend, &options(TransferStrategy::Async, Placement::DEVICE, 16), 10);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
    for number in 0..10 {
        sender.push(message(number)).expect("room");
    }
    let pump = bridge.pump().expect("a thread");
    until("it has given up", || pump.has_given_up());
    let Stopped { bridge, outcome, left } = pump.stop(LIMIT).expect("no panic");
    assert!(matches!(outcome, Err(ringmem::Error::Injected { call: "copy", .. })), "{outcome:?}");
    assert_eq!(left, [10, 0]);

    backend.set_faults(&Faults::new());
    let pump = bridge.pump().expect("a thread");
    let mut received = 0;
    until("all have come back", || {
        while let Ok(got) = receiver.pop() {
            assert_eq!(got, message(received));
            received += 1;
        }
        received == 10
    });
    drop(pump);
    assert!(sender.is_disconnected() && receiver.is_disconnected());
    until("the kernel has left", || kernel.is_done());
}

#[test]
fn a_pump_gives_up_where_every_look_fails_however_seldom_it_looks() {
    let backend = backend();
    let strategy = TransferStrategy::DmaPolling { poll_interval_us: 2000 };
    let Opened { bridge, .. } = open(&backend, &options(strategy, Placement::DEVICE, 4));
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
    let pump = bridge.pump().expect("a thread");
    until("it has given up", || pump.has_given_up());
    assert_eq!(pump.failing(), 64);
    assert!(matches!(pump.stop(LIMIT).expect("no panic").outcome, Err(ringmem::Error::Injected { call: "copy", .. })));
}

#[test]
fn a_pump_has_nothing_to_do_where_both_sides_share_what_waits() {
    let backend = backend();
    let Opened { mut sender, bridge, .. } = open(&backend, &options(TransferStrategy::Unified, Placement::PINNED, 4));
    sender.push(message(0)).expect("room");
    let begun = Instant::now();
    let pump = bridge.pump().expect("a thread");
    until("it is done with looking", || pump.metrics()[0].fences > 1000);
    thread::sleep(Duration::from_millis(20));
    let fences = pump.metrics()[0].fences;
    // It sleeps 50 us between two, when it has looked a thousand times.
    let most = 1001 + begun.elapsed().as_micros() as u64 / 50;
    assert!(fences <= most, "{fences} fences, {most} allowed");
}

#[test]
fn a_pump_that_is_told_to_stop_waits_no_longer_than_it_may_for_a_kernel_that_takes_nothing() {
    let backend = backend();
    let Opened { mut sender, bridge, .. } = open(&backend, &options(TransferStrategy::Async, Placement::SPLIT, 4));
    let pump = bridge.pump().expect("a thread");
    let mut sent = 0;
    until("both rings are full", || {
        sent += u64::from(sender.push(message(sent)).is_ok());
        sent == 8
    });
    let Stopped { left, outcome, .. } = pump.stop(Duration::from_millis(5)).expect("no panic");
    outcome.expect("no fault");
    assert_eq!(left, [4, 0]);
}
