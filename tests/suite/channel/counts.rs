use ringmem::backend::host::{Counters, Phase, Verb};
use ringmem::control::Command;

use super::*;

const SLOT: u64 = 64;
const INDEX: u64 = 8;

fn moved(backend: &HostBackend, before: &Counters) -> [u64; 3] {
    let of = |counters: &Counters| [counters.uploads.count, counters.downloads.count, counters.publications];
    let (now, before) = (of(&backend.counters()), of(before));
    [0, 1, 2].map(|kind| now[kind] - before[kind])
}

fn logging() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20).log(true))
}

fn settled(backend: &HostBackend) {
    eventually("what was queued is executed", || {
        let log = backend.call_log();
        let queued = log.iter().filter(|call| matches!(call.verb, Verb::Copy | Verb::Publish) && call.ticket.is_some());
        let [called, executed] = [Phase::Called, Phase::Executed].map(|phase| queued.clone().filter(|call| call.phase == phase).count());
        called == executed
    });
}

fn all_ways() -> impl Iterator<Item = Options<'static>> {
    let seen = Options { strategy: Some(TransferStrategy::Sync), placement: Some([Placement::PINNED; 2]), ..Options::new("echo") };
    ways().into_iter().chain([seen])
}

#[test]
fn each_send_is_one_copy_and_answers_share_one_copy() {
    for way in all_ways() {
        let backend = logging();
        let mut channel = open(&backend, &way).expect("a channel");
        let (shares, sees) =
            (matches!(way.strategy, None | Some(TransferStrategy::Flagged)), way.placement == Some([Placement::PINNED; 2]));
        let is_queued = !shares && way.strategy != Some(TransferStrategy::Sync);
        settled(&backend);
        let before = backend.counters();
        for id in 0..100 {
            channel.try_send(message(id)).expect("room");
        }
        eventually("all are answered", || channel.control().processed == 100);
        settled(&backend);
        let expected = if shares || sees { [0, 0, 0] } else { [100, 0, 100] };
        assert_eq!(moved(&backend, &before), expected, "{way:?}: sent");

        let before = backend.counters();
        for id in 0..100 {
            assert_eq!(receive(&mut channel), message(id));
        }
        settled(&backend);
        let [up, down, published] = moved(&backend, &before);
        let looks = match way.placement {
            _ if shares || sees => {
                assert_eq!([up, down, published], [0, 0, 0], "{way:?}: received");
                continue;
            }
            Some([_, Placement::SPLIT]) => 0,
            _ if is_queued => down.saturating_sub(1).max(1),
            _ => 1,
        };
        assert_eq!([up, down, published], [0, looks + 1, 1], "{way:?}: received");
        let bytes = backend.counters().downloads.bytes - before.downloads.bytes;
        assert_eq!(bytes, looks * INDEX + 100 * SLOT, "{way:?}: all of them in one copy");
    }
}

fn blocking(options: Options<'static>) -> (Clean, Channel<Echo, Echo>) {
    let backend = logging();
    // Each poll of the kernel's index is a copy.
    let placement = Some([Placement::DEVICE; 2]);
    let channel = open(&backend, &Options { strategy: Some(TransferStrategy::Sync), placement, ..options }).expect("a channel");
    (backend, channel)
}

#[test]
fn send_polls_only_when_a_ring_is_full() {
    let (backend, mut channel) = blocking(Options { input_capacity: 4, ..Options::new("echo") });
    channel.command(Command::PAUSE).expect("it is acted on");
    let before = backend.counters();
    for (id, expected) in (0..8).zip([[1, 0, 1], [2, 0, 2], [3, 0, 3], [4, 0, 4], [4, 2, 4], [4, 4, 4], [4, 6, 4], [4, 8, 4]]) {
        channel.try_send(message(id)).expect("room");
        assert_eq!(moved(&backend, &before), expected, "message {id}: a look at each index where the kernel's ring is full");
    }
    for times in 1..=3 {
        assert!(channel.try_send(message(8)).is_err(), "both are full");
        assert_eq!(moved(&backend, &before), [4, 8 + 2 * times, 4]);
    }
}

#[test]
fn send_polls_before_the_output_ring_fills() {
    let (backend, mut channel) = blocking(Options { output_capacity: 16, ..Options::new("echo") });
    channel.command(Command::PAUSE).expect("it is acted on");
    let before = backend.counters();
    for id in 0..100 {
        channel.try_send(message(id)).expect("room");
    }
    assert_eq!(moved(&backend, &before), [100, 12, 100], "a look at every eighth");

    let (_backend, mut channel) = blocking(Options { output_capacity: 16, ..Options::new("echo") });
    for id in 0..32 {
        channel.try_send(message(id)).expect("room");
        eventually("it is answered, though nobody receives", || channel.control().processed == id + 1);
    }
}

#[test]
fn receive_polls_for_answers_before_sending() {
    let (backend, mut channel) = blocking(Options::new("echo"));
    let mut batch = channel.send_batch(64);
    for id in 0..10 {
        batch.push(message(id)).expect("room");
    }
    drop(batch);
    let copies = |backend: &HostBackend| -> Vec<u64> {
        let log = backend.call_log();
        log.iter().filter(|call| call.verb == Verb::Copy && call.phase == Phase::Called).map(|call| call.bytes).collect()
    };
    let before = copies(&backend).len();
    assert!(matches!(channel.try_recv(), Err(ReceiveError::Empty)));
    assert_eq!(copies(&backend)[before..], [INDEX, 10 * SLOT], "and then what waits to be sent goes");
    assert_eq!(receive(&mut channel), message(0));
}
