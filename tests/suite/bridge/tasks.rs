use futures::FutureExt;
use ringmem::wait::{RecvError, SendError, WaitStrategy, Waiting};

use super::*;

fn placement(strategy: TransferStrategy) -> Placement {
    if matches!(strategy, TransferStrategy::Unified | TransferStrategy::Flagged) { Placement::PINNED } else { Placement::SPLIT }
}

fn leave<F: Future + Unpin>(mut future: F, forget: bool) {
    assert!((&mut future).now_or_never().is_none());
    if forget {
        std::mem::forget(future);
    }
}

#[test]
fn a_dropped_or_forgotten_future_loses_no_message() {
    const COUNT: u64 = 40;
    for strategy in STRATEGIES {
        for how in [WaitStrategy::SpinYield { polls: 0 }, WaitStrategy::Sleep { polls: 0 }] {
            let backend = backend();
            let Rig { sender, receiver, mut bridge, kernel } = rig(&backend, &options(strategy, placement(strategy), 2), COUNT);
            let (mut sender, mut receiver) = (<Waiting<_>>::sender(sender, how), <Waiting<_>>::receiver(receiver, how));
            let (mut sent, mut received) = (0, 0);
            eventually("all are answered", || {
                while sent < COUNT {
                    let mut sends = sender.send_async(message(sent));
                    let Some(outcome) = (&mut sends).now_or_never() else {
                        match sent % 3 {
                            0 => assert_eq!(sends.cancel(), Some(message(sent)), "it was not sent"),
                            1 => drop(sends),
                            _ => std::mem::forget(sends),
                        }
                        break;
                    };
                    outcome.expect("the bridge is there");
                    sent += 1;
                }
                bridge.poll().expect("no fault");
                loop {
                    let mut receives = receiver.recv_async();
                    match (&mut receives).now_or_never() {
                        Some(got) => assert_eq!(got, Ok(message(received)), "{strategy:?}: the next in order"),
                        None => {
                            if received % 2 == 0 {
                                std::mem::forget(receives);
                            }
                            break;
                        }
                    }
                    received += 1;
                }
                received == COUNT
            });
            assert!(receiver.recv_async().now_or_never().is_none(), "{strategy:?}: none twice");
            eventually("the kernel has left", || kernel.is_done());
        }
    }
}

#[test]
fn a_dropped_or_forgotten_kernel_future_keeps_no_ring() {
    for strategy in STRATEGIES {
        for forget in [false, true] {
            let backend = backend();
            let Rig { mut sender, mut bridge, mut receiver, kernel } = rig(&backend, &options(strategy, placement(strategy), 4), 4);
            leave(kernel.into_future(), forget);
            let (mut sent, mut received) = (0, 0);
            eventually("all are answered", || {
                sent += u64::from(sent < 4 && sender.push(message(sent)).is_ok());
                bridge.poll().expect("no fault");
                received += u64::from(receiver.pop().is_ok_and(|got| got == message(received)));
                received == 4
            });
        }
    }
}

#[test]
#[cfg(feature = "futures")]
fn a_forgotten_stream_or_sink_keeps_only_its_ring() {
    for strategy in STRATEGIES.into_iter().chain([TransferStrategy::Flagged]) {
        let backend = backend();
        let Opened { sender, receiver, bridge } = open(&backend, &options(strategy, placement(strategy), 2));
        let (sender, receiver) =
            (<Waiting<_>>::sender(sender, WaitStrategy::default()), <Waiting<_>>::receiver(receiver, WaitStrategy::default()));
        leave(futures::StreamExt::into_future(receiver.into_stream()), true);
        let mut sink = sender.into_sink();
        let mut sent = 0;
        while futures::SinkExt::send(&mut sink, message(sent)).now_or_never().is_some() {
            sent += 1;
        }
        assert_eq!(sent, 2, "{strategy:?}");
        std::mem::forget(sink);
        drop(bridge);
        (0..2).for_each(|_| backend.forgets());
        eventually("nothing else stays", || backend.counters().pinned_live.bytes == 2 * 4096 && backend.counters().device_live.bytes == 0);
    }
}

#[test]
fn a_forgotten_batch_is_sent_with_the_next_message() {
    for strategy in STRATEGIES {
        let backend = backend();
        let Rig { mut sender, mut receiver, mut bridge, kernel } = rig(&backend, &options(strategy, placement(strategy), 8), 8);
        let mut batch = sender.batch(100);
        for number in 0..4 {
            batch.push(message(number)).expect("room");
        }
        std::mem::forget(batch);
        for number in 4..8 {
            sender.push(message(number)).expect("room");
        }
        eventually("all are there", || bridge.poll().is_ok() && receiver.refresh() == Ok(8));
        let mut batch = receiver.batch(100);
        for number in 0..4 {
            assert_eq!(batch.pop(), Ok(message(number)), "{strategy:?}");
        }
        std::mem::forget(batch);
        for number in 4..8 {
            assert_eq!(receiver.pop(), Ok(message(number)), "{strategy:?}");
        }
        assert_eq!(receiver.pop(), Err(PopError::Empty), "{strategy:?}: none twice");
        eventually("the kernel has left", || kernel.is_done());
    }
}

#[test]
fn ending_the_bridge_ends_waiting_tasks() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        for goes in [false, true] {
            let backend = backend();
            let Opened { sender, receiver, bridge } = open(&backend, &options(strategy, Placement::SPLIT, 1));
            let (mut sender, mut receiver) =
                (<Waiting<_>>::sender(sender, WaitStrategy::default()), <Waiting<_>>::receiver(receiver, WaitStrategy::default()));
            eventually("there is no room", || sender.send_async(message(0)).now_or_never().is_none());
            let mut receives = receiver.recv_async();
            assert!((&mut receives).now_or_never().is_none());
            if goes {
                drop(bridge.pump().expect("a thread"));
            } else {
                drop(bridge);
            }
            let mut told = None;
            eventually("it is told", || {
                told = (&mut receives).now_or_never();
                told.is_some()
            });
            assert_eq!(told, Some(Err(RecvError::Disconnected)), "{strategy:?}");
            eventually("so is who sends", || matches!(sender.send_async(message(1)).now_or_never(), Some(Err(SendError::Disconnected(_)))));
        }
    }
}
