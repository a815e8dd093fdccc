use ringmem::Error;
use ringmem::attach::AttachError;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::backend::{Address, Backend, DeviceAddress};

use super::*;

const TAIL: u64 = 0;
const HEAD: u64 = 128;
const START: u64 = u64::MAX - 2;

pub fn write(backend: &HostBackend, word: u64, value: u64) {
    // SAFETY: an index in a live ring's header, accessed as a word.
    unsafe { backend.publish_now(Address::Device(DeviceAddress::new(word)), value) }.expect("live");
}

fn is_corrupt<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Attach(AttachError::Corrupt(_))))
}

const QUEUED_OR_NOT: [TransferStrategy; 2] = [TransferStrategy::Sync, TransferStrategy::Async];
const PLACEMENTS: [Placement; 4] = [Placement::DEVICE, Placement::SPLIT, Placement::PINNED, Placement::UNIFIED];

#[test]
fn an_impossible_index_is_corrupt_and_recoverable() {
    for (strategy, placement) in QUEUED_OR_NOT.into_iter().flat_map(|strategy| PLACEMENTS.map(|placement| (strategy, placement))) {
        for lie in [START.wrapping_sub(1), START.wrapping_add(5), START ^ 1 << 63, 0x5555_5555] {
            let backend = backend();
            let Opened { mut sender, mut receiver, mut bridge } =
                open(&backend, &Options { start: START, ..options(strategy, placement, 4) });
            let [up, down] = bridge.addresses().expect("addresses");
            let mut sent = 0;
            eventually("both rings are full", || {
                sent += u64::from(sender.push(message(sent)).is_ok());
                bridge.flush_to_device().expect("no fault");
                sent == 8 && bridge.pending()[0] == 4
            });
            let before = bridge.metrics();
            write(&backend, up.peer + HEAD, lie);
            write(&backend, down.peer + TAIL, lie);
            eventually("the one lie is found", || is_corrupt(&bridge.flush_to_device()));
            eventually("the other lie is found", || is_corrupt(&bridge.flush_to_host()));
            assert_eq!(bridge.pending(), [4, 0]);
            let after = bridge.metrics();
            assert_eq!([after[0].copies, after[1].copies], [before[0].copies, 0], "{strategy:?} {placement:?}");
            assert_eq!((receiver.pop(), sender.push(message(8))), (Err(PopError::Empty), Err(PushError::Full(message(8)))));

            write(&backend, up.peer + HEAD, START.wrapping_add(2));
            write(&backend, down.peer + TAIL, START.wrapping_add(4));
            let mut received = 0;
            eventually("both directions go on", || {
                let _ = bridge.poll();
                received += u64::from(receiver.pop().is_ok());
                received == 4 && bridge.pending() == [2, 0]
            });
        }
    }
}

#[test]
fn a_failed_flush_does_not_trust_an_impossible_tail() {
    for strategy in QUEUED_OR_NOT {
        let backend = backend();
        let Opened { mut sender, mut bridge, .. } = open(&backend, &Options { start: START, ..options(strategy, Placement::SPLIT, 4) });
        let [up, _] = bridge.addresses().expect("addresses");
        for number in 0..2 {
            sender.push(message(number)).expect("room");
        }
        backend.set_faults(&Faults::new().on(Verb::Publish, Fault::nth(1)));
        assert!(bridge.flush_to_device().is_err());
        for lie in [START.wrapping_add(3), START.wrapping_add(5), START.wrapping_sub(1)] {
            write(&backend, up.own + TAIL, lie);
            for _ in 0..3 {
                assert!(is_corrupt(&bridge.flush_to_device()), "{strategy:?} {lie:#x}: {bridge:?}");
            }
        }
        assert_eq!(bridge.pending()[0], 2);
        write(&backend, up.own + TAIL, START);
        assert_eq!(bridge.flush_to_device().expect("no fault"), 2);
    }
}

#[test]
fn a_failed_release_does_not_trust_an_impossible_head() {
    let backend = backend();
    let options = Options { start: START, ..options(TransferStrategy::Sync, Placement::SPLIT, 4) };
    let Opened { mut receiver, mut bridge, .. } = open(&backend, &options);
    let [_, down] = bridge.addresses().expect("addresses");
    write(&backend, down.peer + TAIL, START.wrapping_add(4));
    backend.set_faults(&Faults::new().on(Verb::Publish, Fault::nth(1)));
    assert!(bridge.flush_to_host().is_err());
    for lie in [START.wrapping_add(1), START.wrapping_add(3), START.wrapping_add(5), START.wrapping_sub(1)] {
        write(&backend, down.own + HEAD, lie);
        for _ in 0..3 {
            assert!(is_corrupt(&bridge.flush_to_host()), "{lie:#x}: {bridge:?}");
        }
    }
    assert_eq!((receiver.pop(), bridge.pending()), (Err(PopError::Empty), [0, 4]));
    write(&backend, down.own + HEAD, START);
    assert_eq!(bridge.flush_to_host().expect("no fault"), 4);
    assert!(receiver.pop().is_ok());
}

#[test]
fn a_pump_stops_on_a_corrupt_index_and_returns_the_error() {
    let backend = backend();
    let Opened { bridge, .. } = open(&backend, &Options { start: START, ..options(TransferStrategy::Async, Placement::SPLIT, 4) });
    let [_, down] = bridge.addresses().expect("addresses");
    write(&backend, down.peer + TAIL, START.wrapping_add(5));
    let pump = bridge.pump().expect("a thread");
    eventually("it has given up", || pump.has_given_up());
    assert!(is_corrupt(&pump.stop(LIMIT).expect("no panic").outcome));
}

#[test]
fn a_stopping_pump_delivers_published_answers() {
    for strategy in [TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 2000 }] {
        for placement in [Placement::DEVICE, Placement::SPLIT] {
            let backend = backend();
            let Opened { mut receiver, bridge, .. } = open(&backend, &Options { start: START, ..options(strategy, placement, 4) });
            let [_, down] = bridge.addresses().expect("addresses");
            let pump = bridge.pump().expect("a thread");
            eventually("it has looked", || pump.metrics()[1].polls > 0);
            write(&backend, down.peer + TAIL, START.wrapping_add(3));
            assert_eq!(pump.stop(LIMIT).expect("no panic").left, [0; 2]);
            assert_eq!(receiver.refresh(), Ok(3), "{strategy:?} {placement:?}");
            let _ = receiver.pop();
        }
    }
}
