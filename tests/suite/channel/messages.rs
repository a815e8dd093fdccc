use ringmem::backend::host::{Faults, Verb};
use ringmem::control::{Command, State};
use ringmem::dump::{Indices, Twins};

use super::*;

fn waiting(channel: &mut Channel<Echo, Echo>) -> (usize, usize) {
    (channel.input_waiting().expect("no fault"), channel.output_waiting().expect("no fault"))
}

#[test]
fn try_send_on_a_full_ring_returns_the_message() {
    let options = Options { input_capacity: 2, output_capacity: 1, ..Options::new("echo") };
    let backend = backend();
    let mut channel = open(&backend, &options).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    assert!(channel.try_send(message(0)).is_ok() && channel.try_send(message(1)).is_ok());
    assert!(matches!(channel.try_send(message(2)), Err(SendError::Full(back)) if back == message(2)));
    channel.command(Command::ACTIVATE).expect("it is acted on");
    assert_eq!((receive(&mut channel), receive(&mut channel)), (message(0), message(1)));
}

#[test]
fn batches_publish_together_and_waiting_messages_are_counted() {
    let backend = backend();
    let mut channel = open(&backend, &Options { output_capacity: 16, ..Options::new("echo") }).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    let mut batch = channel.send_batch(8);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    assert_eq!(waiting(&mut channel), (10, 0));
    channel.command(Command::ACTIVATE).expect("it is acted on");
    eventually("all are answered, and their slots are free", || waiting(&mut channel) == (0, 10));
    let mut batch = channel.recv_batch(4);
    for id in 0..10 {
        assert_eq!(batch.pop(), Ok(message(id)));
    }
    assert_eq!(batch.pop(), Err(PopError::Empty));
    drop(batch);
    assert_eq!((channel.indices(), waiting(&mut channel)), ((10, 10), (0, 0)));
}

#[test]
fn messages_are_sent_and_received_in_place() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &Options { input_capacity: 4, output_capacity: 4, ..way }).expect("a channel");
        let (mut sent, mut seen) = (0, Vec::new());
        eventually("twenty answers", || {
            let messages: Vec<_> = (sent..20).map(message).collect();
            sent += channel.try_send_slice(&messages).expect("valid indices") as u64;
            channel.flush().expect("no fault");
            let mut first = None;
            let kept = channel.try_recv_with(|answer| {
                first = Some(*answer);
                false
            });
            assert_eq!(kept, Ok(false));
            let popped = channel.try_recv_with(|answer| {
                assert!(first.is_none_or(|first| first == *answer), "an answer that is not popped stays");
                seen.push(*answer);
                true
            });
            assert!(popped == Ok(true) || first.is_none());
            seen.len() == 20
        });
        assert_eq!(seen, (0..20).map(message).collect::<Vec<_>>());
        assert_eq!(channel.try_recv_with(|_| true), Ok(false));
    }
}

#[test]
fn a_paused_channel_processes_nothing_until_activated() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    assert_eq!(channel.state(), Some(State::Paused));
    channel.try_send(message(1)).expect("room");
    let beat = channel.control().heartbeat;
    eventually("the kernel has gone round a hundred times", || channel.control().heartbeat > beat + 100);
    assert!(matches!((channel.try_recv(), channel.control().processed), (Err(ReceiveError::Empty), 0)));
    channel.command(Command::ACTIVATE).expect("it is acted on");
    assert_eq!(channel.state(), Some(State::Active));
    assert_eq!(receive(&mut channel), message(1));
    eventually("telemetry says so", || channel.telemetry().is_ok_and(|seen| seen.processed == 1));
}

#[test]
fn input_waiting_polls_once_per_interval() {
    // The longest interval is 71 minutes.
    for poll_interval_us in [u32::MAX, 1] {
        let strategy = TransferStrategy::DmaPolling { poll_interval_us };
        let backend = backend();
        let mut channel =
            open(&backend, &Options { strategy: Some(strategy), placement: Some([Placement::DEVICE; 2]), ..Options::new("echo") })
                .expect("a channel");
        channel.command(Command::PAUSE).expect("it is acted on");
        for id in 0..3 {
            channel.try_send(message(id)).expect("room");
        }
        backend.set_faults(&Faults::new());
        let before = backend.calls(Verb::Copy).expect("counted");
        let mut copies = || {
            assert_eq!(channel.input_waiting().expect("no fault"), 3);
            backend.calls(Verb::Copy).expect("counted") - before
        };
        if poll_interval_us == 1 {
            eventually("a hundred intervals are over", || copies() >= 100);
        } else {
            for _ in 0..30 {
                // Enough for a poll.
                thread::sleep(Duration::from_millis(1));
                assert!(copies() <= 2, "in one interval");
            }
        }
    }
}

#[test]
fn every_strategy_transfers_all_messages_both_ways() {
    for way in ways() {
        let options = Options { input_capacity: 16, output_capacity: 8, batch: 4, start: u64::MAX - 20, ..way };
        let backend = backend();
        let mut channel = open(&backend, &options).expect("a channel");
        let (mut sent, mut received) = (0, 0);
        eventually("all are answered", || {
            if sent < 500 && channel.try_send(message(sent)).is_ok() {
                sent += 1;
            }
            channel.check().expect("it runs");
            while let Ok(answer) = channel.try_recv() {
                assert_eq!(answer.words[0], message(received).words[0], "{options:?}");
                received += 1;
            }
            received == 500
        });
        let closed = channel.close().expect("it leaves");
        assert_eq!(closed.control.processed, 500, "{options:?}");
    }
}

#[test]
fn messages_in_a_shared_ring_are_counted_and_dumped() {
    for way in ways().into_iter().take(SHARED) {
        let backend = backend();
        let mut channel = open(&backend, &Options { output_capacity: 16, start: u64::MAX - 3, ..way }).expect("a channel");
        channel.command(Command::PAUSE).expect("it is acted on");
        let mut batch = channel.send_batch(8);
        for id in 0..10 {
            batch.push(message(id)).expect("room");
        }
        drop(batch);
        let input = |channel: &mut Channel<Echo, Echo>| {
            let (waiting, dump) = (waiting(channel).0, channel.dump().expect("no fault"));
            (waiting, dump.input.fill(), dump.input.tail)
        };
        assert_eq!(input(&mut channel), (10, Ok(10), 6));
        channel.command(Command::ACTIVATE).expect("it is acted on");
        eventually("all are answered", || waiting(&mut channel).1 == 10);
        eventually("all slots are given back", || input(&mut channel) == (0, Ok(0), 6));
        let mut batch = channel.recv_batch(4);
        for id in 0..3 {
            assert_eq!(batch.pop(), Ok(message(id)));
        }
        drop(batch);
        let dump = channel.dump().expect("no fault");
        assert_eq!((dump.output, dump.twins), (Indices { head: u64::MAX, tail: 6, capacity: 16 }, Twins::Shared));
    }
}

#[test]
fn flush_sends_a_batch() {
    for way in ways() {
        let (_backend, mut channel) = with_a_batch(&way);
        let mut received = 0;
        eventually("all are answered", || {
            channel.flush().expect("no fault");
            let mut answers = channel.recv_batch(4);
            while let Ok(answer) = answers.pop() {
                assert_eq!(answer.words[0], received);
                received += 1;
            }
            received == 10
        });
    }
}

#[test]
fn output_waiting_sends_a_batch() {
    for way in ways() {
        let (_backend, mut channel) = with_a_batch(&way);
        eventually("all are answered", || channel.output_waiting().expect("no fault") == 10);
        for id in 0..10 {
            assert_eq!(channel.try_recv().expect("an answer"), message(id), "{way:?}");
        }
    }
}

#[test]
fn a_channel_without_receiver_stalls_and_loses_nothing() {
    for way in ways() {
        let options = Options { input_capacity: 4, output_capacity: 4, batch: 2, start: u64::MAX - 3, ..way.clone() };
        let backend = backend();
        let mut channel = open(&backend, &options).expect("a channel");
        let all = if matches!(way.strategy, None | Some(TransferStrategy::Flagged)) { 8 } else { 16 };
        let mut sent = 0;
        eventually("everything is full", || {
            sent += u64::from(channel.try_send(message(sent)).is_ok());
            channel.check().expect("it runs");
            sent == all
        });
        let beat = channel.control().heartbeat;
        eventually("the kernel has gone round a hundred times", || {
            assert!(channel.try_send(message(sent)).is_err(), "{way:?}");
            channel.control().heartbeat > beat + 100
        });
        for id in 0..sent {
            assert_eq!(receive(&mut channel), message(id), "{way:?}");
        }
        let closed = channel.close().expect("it leaves");
        assert_eq!((closed.control.processed, closed.control.in_flight), (sent, 0), "{way:?}");
    }
}

#[test]
fn a_forgotten_batch_is_sent_with_the_next_message() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        let mut batch = channel.send_batch(64);
        for id in 0..4 {
            batch.push(message(id)).expect("room");
        }
        std::mem::forget(batch);
        channel.try_send(message(4)).expect("room");
        eventually("all are answered", || channel.flush().is_ok() && waiting(&mut channel).1 == 5);
        let mut batch = channel.recv_batch(64);
        for id in 0..3 {
            assert_eq!(batch.pop(), Ok(message(id)), "{way:?}");
        }
        std::mem::forget(batch);
        assert_eq!([receive(&mut channel), receive(&mut channel)], [message(3), message(4)], "{way:?}");
        assert!(matches!(channel.try_recv(), Err(ReceiveError::Empty)), "{way:?}: none twice");
    }
}
