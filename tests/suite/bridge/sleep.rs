use std::sync::atomic::Ordering::Acquire;

use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::bridge::{Pump, Stopped};
use ringmem::ring::End;
use ringmem::wait::{RecvError, SendError, WaitStrategy, Waiting};

use super::*;

#[test]
fn the_bridge_wakes_sleepers_at_both_ends() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        let backend = backend();
        let Rig { sender, receiver, bridge, kernel } = rig(&backend, &options(strategy, Placement::DEVICE, 4), 200);
        let pump = bridge.pump().expect("a thread");
        let asleep = WaitStrategy::Sleep { polls: 0 };
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = <Waiting<_>>::sender(sender, asleep);
                for number in 0..200 {
                    assert!(sender.send_timeout(message(number), LIMIT).is_ok(), "message {number} finds room in time");
                }
            });
            let mut receiver = <Waiting<_>>::receiver(receiver, asleep);
            for number in 0..200 {
                assert_eq!(receiver.recv_timeout(LIMIT).expect("in time"), message(number));
            }
        });
        drop(pump);
        eventually("the kernel has left", || kernel.is_done());
    }
}

type Goes = fn(&HostBackend, RingBufferBridge<Echo, Echo>) -> Option<Pump<Echo, Echo>>;

const ENDS: [Goes; 4] = [
    |_, bridge| {
        drop(bridge);
        None
    },
    |_, bridge| {
        drop(bridge.pump().expect("a thread"));
        None
    },
    |_, bridge| {
        let Stopped { bridge, .. } = bridge.pump().expect("a thread").stop(Duration::ZERO).expect("no panic");
        drop(bridge);
        None
    },
    |backend, bridge| {
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
        bridge.pump().ok()
    },
];

#[test]
fn ending_the_bridge_wakes_sleepers_at_both_ends() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        for goes in ENDS {
            let backend = backend();
            let Opened { sender, receiver, bridge } = open(&backend, &options(strategy, Placement::DEVICE, 1));
            let words = [sender.wait_words().ours, receiver.wait_words().ours].map(std::ptr::from_ref);
            let asleep = WaitStrategy::Sleep { polls: 0 };
            // Joined only after the end: otherwise the test would hang.
            let sends = thread::spawn(move || {
                let mut sender = <Waiting<_>>::sender(sender, asleep);
                (0..).find_map(|number| sender.send(message(number)).err())
            });
            let receives = thread::spawn(move || <Waiting<_>>::receiver(receiver, asleep).recv());
            for word in words {
                // SAFETY: the sleeper keeps its end until the bridge's drop.
                eventually("it sleeps", || unsafe { &*word }.load(Acquire) as u32 != 0);
            }
            let pump = goes(&backend, bridge);
            eventually("both are awake", || sends.is_finished() && receives.is_finished());
            let sent = sends.join().expect("no panic");
            assert!(matches!(sent, Some(SendError::Disconnected(_))), "{strategy:?}: {sent:?}");
            assert_eq!(receives.join().expect("no panic"), Err(RecvError::Disconnected));
            drop(pump);
        }
    }
}

#[test]
fn a_stopped_bridge_reconnects_when_pumped_again() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        let backend = backend();
        let Rig { sender, receiver, bridge, kernel } = rig(&backend, &options(strategy, Placement::DEVICE, 4), 3);
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
        let pump = bridge.pump().expect("a thread");
        eventually("both are told", || sender.is_disconnected() && receiver.is_disconnected());
        backend.set_faults(&Faults::new());
        let Stopped { bridge, outcome, .. } = pump.stop(LIMIT).expect("no panic");
        assert!(outcome.is_err() && sender.is_disconnected() && receiver.is_disconnected());
        let pump = bridge.pump().expect("a thread");
        eventually("both are told", || !sender.is_disconnected() && !receiver.is_disconnected());
        let (mut sender, mut receiver) =
            (<Waiting<_>>::sender(sender, WaitStrategy::default()), <Waiting<_>>::receiver(receiver, WaitStrategy::default()));
        for number in 0..3 {
            assert!(sender.send_timeout(message(number), LIMIT).is_ok());
            assert_eq!(receiver.recv_timeout(LIMIT), Ok(message(number)));
        }
        drop(pump);
        assert!(sender.end().is_disconnected() && receiver.end().is_disconnected());
        eventually("the kernel has left", || kernel.is_done());
    }
}
