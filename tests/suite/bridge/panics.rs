use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::bridge::Stopped;
use ringmem::ring::End;
use ringmem::wait::{RecvError, SendError, WaitStrategy, Waiting};

use super::*;

fn panicking(name: &'static str, left: &Arc<AtomicI64>) -> Clean {
    let left = Arc::clone(left);
    let clock = move || {
        if thread::current().name() == Some(name) && left.fetch_sub(1, Relaxed) == 1 {
            resume_unwind(Box::new("a clock that a test asked for"));
        }
        0
    };
    Clean::build(HostBackend::builder().device_memory(1 << 20).log(true).clock(Arc::new(clock)))
}

const MOVED: [TransferStrategy; 3] =
    [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }];

#[test]
fn a_panic_during_a_flush_loses_no_message() {
    const COUNT: u64 = 30;
    const PLANS: u64 = 14 * crate::DEPTH;
    let work = || {
        for strategy in MOVED {
            let mut panics = 0;
            for nth in 0..PLANS {
                let left = Arc::new(AtomicI64::new(0));
                let backend = panicking("polls", &left);
                let mut rig = rig(&backend, &options(strategy, Placement::DEVICE, 4), COUNT);
                let mut faults = Faults::new();
                for verb in [Verb::Copy, Verb::Publish, Verb::Wait] {
                    faults = faults.on(verb, Fault::random(0.2, nth).when_executed());
                }
                backend.set_faults(&faults);
                let (mut sent, mut received, mut flushes) = (0, 0, 0_u64);
                eventually("all are answered", || {
                    while sent < COUNT && rig.sender.push(message(sent)).is_ok() {
                        sent += 1;
                    }
                    flushes += 1;
                    left.store(if (flushes + nth) % 3 == 0 { 1 + ((flushes + nth) / 3 % 5) as i64 } else { 0 }, Relaxed);
                    panics += u64::from(catch_unwind(AssertUnwindSafe(|| rig.bridge.poll())).is_err());
                    left.store(0, Relaxed);
                    while let Ok(got) = rig.receiver.pop() {
                        assert_eq!(got, message(received), "{strategy:?}: the next in order");
                        received += 1;
                    }
                    received == COUNT
                });
                backend.set_faults(&Faults::new());
                eventually("the kernel has left", || rig.kernel.is_done());
                assert_eq!(rig.receiver.pop(), Err(PopError::Empty), "{strategy:?}: none twice");
            }
            assert!(panics > 2 * PLANS, "{strategy:?}: {panics}");
        }
    };
    thread::Builder::new().name("polls".into()).spawn(work).expect("a thread").join().expect("no other panic");
}

#[test]
fn a_panicking_pump_thread_disconnects_both_ends() {
    for strategy in MOVED {
        for reading in [1, 2, 3, 4, 5, 6, 7, 8, 50] {
            for stops in [false, true] {
                let left = Arc::new(AtomicI64::new(0));
                let backend = panicking("ringmem-pump", &left);
                let Opened { sender, receiver, bridge } = open(&backend, &options(strategy, Placement::DEVICE, 1));
                let words = [sender.wait_words().ours, receiver.wait_words().ours].map(std::ptr::from_ref);
                let asleep = WaitStrategy::Sleep { polls: 0 };
                // Joined only after the end: otherwise the test would hang.
                let sends = thread::spawn(move || {
                    let mut sender = <Waiting<_>>::sender(sender, asleep);
                    (0..).find_map(|number| sender.send(message(number)).err())
                });
                let receives = thread::spawn(move || <Waiting<_>>::receiver(receiver, asleep).recv());
                let pump = bridge.pump().expect("a thread");
                for word in words {
                    // SAFETY: the sleeper keeps its end until the bridge's drop.
                    eventually("it sleeps", || unsafe { &*word }.load(Acquire) as u32 != 0);
                }
                left.store(reading, Relaxed);
                eventually("both are awake", || sends.is_finished() && receives.is_finished());
                assert!(matches!(sends.join().expect("no panic"), Some(SendError::Disconnected(_))), "{strategy:?}");
                assert_eq!(receives.join().expect("no panic"), Err(RecvError::Disconnected), "{strategy:?}");
                eventually("it has ended", || pump.has_given_up());
                if stops {
                    assert!(
                        matches!(pump.stop(LIMIT), Err(Error::System { call: "join of the pump's thread", .. })),
                        "{strategy:?}: there is no bridge any more"
                    );
                } else {
                    drop(pump);
                }
            }
        }
    }
}

#[test]
fn stop_returns_the_panic_of_the_pump_thread() {
    for strategy in MOVED {
        let left = Arc::new(AtomicI64::new(0));
        let backend = panicking("ringmem-pump", &left);
        let Opened { mut sender, bridge, .. } = open(&backend, &options(strategy, Placement::DEVICE, 1));
        let pump = bridge.pump().expect("a thread");
        let mut sent = 0;
        eventually("it cannot get everything through", || {
            sent += u64::from(sender.push(message(sent)).is_ok());
            sent == 2
        });
        let panics = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            left.store(3, Relaxed);
        });
        let stopped: Result<Stopped<Echo, Echo>, _> = pump.stop(LIMIT);
        assert!(matches!(stopped, Err(Error::System { call: "join of the pump's thread", .. })), "{strategy:?}: {stopped:?}");
        assert!(sender.is_disconnected());
        panics.join().expect("no panic");
    }
}
