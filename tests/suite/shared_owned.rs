#![cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::executor::block_on;
use ringmem::ring::End;
use ringmem::shared::{Consumer, Memory, NoPeer, OwnerState, Producer, Side};
use ringmem::wait::{RecvError, SendError, WaitStrategy, Waiting, pair};

use crate::LIMIT;

const MESSAGES: u64 = 5_000;
const SLEEP: WaitStrategy = WaitStrategy::Sleep { polls: 0 };

fn in_a_thread<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> impl FnOnce() -> R {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(run()));
    move || receiver.recv_timeout(LIMIT).expect("it panicked, or nobody woke it")
}

fn two_mappings() -> (Producer<u64>, Consumer<u64>) {
    let memory = Memory::create::<u64>(4).unwrap();
    let theirs = Memory::from_fd(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
    (memory.producer().unwrap(), theirs.consumer().unwrap())
}

fn receive_all(mut receiver: Waiting<Consumer<u64>>) {
    for number in 0..MESSAGES {
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(number));
    }
    assert_eq!(receiver.recv_timeout(LIMIT), Err(RecvError::Disconnected));
}

async fn await_all(mut receiver: Waiting<Consumer<u64>>) {
    for number in 0..MESSAGES {
        assert_eq!(receiver.recv_async().await, Ok(number));
    }
    assert_eq!(receiver.recv_async().await, Err(RecvError::Disconnected));
}

#[test]
fn owning_ends_wait_in_threads() {
    let (producer, consumer) = two_mappings();
    let (mut sender, receiver) = (producer.into_waiting(SLEEP), consumer.into_waiting(SLEEP));
    let received = in_a_thread(move || receive_all(receiver));
    let sent = in_a_thread(move || (0..MESSAGES).for_each(|number| sender.send_timeout(number, LIMIT).unwrap()));
    sent();
    received();
}

#[test]
fn a_pair_of_owning_ends_waits_in_tasks() {
    let (producer, consumer) = two_mappings();
    let (mut sender, receiver) = pair(producer, consumer, SLEEP);
    let received = in_a_thread(move || block_on(await_all(receiver)));
    let sent = in_a_thread(move || {
        block_on(async move {
            for number in 0..MESSAGES {
                sender.send_async(number).await.unwrap();
            }
        });
    });
    sent();
    received();
}

#[test]
fn owning_ends_wait_in_tasks_without_a_pair() {
    for how in [SLEEP, WaitStrategy::SpinYield { polls: 0 }] {
        let (producer, consumer) = two_mappings();
        let (mut sender, receiver) = (producer.into_waiting(how), consumer.into_waiting(how));
        let received = in_a_thread(move || block_on(await_all(receiver)));
        let sent = in_a_thread(move || {
            block_on(async move {
                for number in 0..MESSAGES {
                    sender.send_async(number).await.unwrap();
                }
            });
        });
        sent();
        received();
    }
}

#[test]
fn dropping_an_end_wakes_a_sleeping_task() {
    let (producer, consumer) = two_mappings();
    let (sender, mut receiver) = pair(producer, consumer, SLEEP);
    let (asleep, is_asleep) = channel();
    let received = in_a_thread(move || {
        block_on(async move {
            let mut first = receiver.recv_async();
            assert_eq!((&mut first).now_or_never(), None);
            asleep.send(()).unwrap();
            first.await
        })
    });
    is_asleep.recv_timeout(LIMIT).unwrap();
    drop(sender);
    assert_eq!(received(), Err(RecvError::Disconnected));
}

#[test]
fn a_dropped_sender_leaves_its_end_to_a_successor() {
    let memory = Memory::create::<u64>(1).unwrap();
    let mut receiver = memory.consumer::<u64>().unwrap().into_waiting(SLEEP);
    for generation in 1..=3 {
        let mut sender = memory.producer::<u64>().unwrap().into_waiting(SLEEP);
        assert_eq!((sender.end().peer_state(), receiver.end().peer_generation()), (OwnerState::Alive, generation));
        sender.send(generation).unwrap();
        assert!(matches!(sender.send_timeout(9, Duration::from_millis(1)), Err(SendError::Timeout(9))));
        drop(sender);
        assert_eq!(memory.state(Side::Producer), OwnerState::Left);
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(generation), Err(RecvError::Disconnected)));
    }
}

#[test]
fn a_borrowing_wait_keeps_the_end_attached() {
    let (mut producer, mut consumer) = two_mappings();
    for number in 0..3 {
        producer.waiting(SLEEP).send(number).unwrap();
        assert!(!End::is_disconnected(&consumer), "the end is its owner's, who has not left");
        assert_eq!(consumer.waiting(SLEEP).recv_timeout(LIMIT), Ok(number));
    }
    drop(producer);
    assert_eq!(consumer.waiting(SLEEP).recv_timeout(LIMIT), Err(RecvError::Disconnected));
}

fn until_asleep(producers_view: &Memory) {
    let deadline = Instant::now() + LIMIT;
    while !sleeps(producers_view) {
        assert!(Instant::now() < deadline, "the consumer did not go to sleep");
        thread::yield_now();
    }
}

fn sleeps(memory: &Memory) -> bool {
    use std::os::unix::fs::FileExt;
    const RING: u64 = 1152;
    let mut word = [0; 8];
    std::fs::File::from(memory.as_fd().try_clone_to_owned().unwrap()).read_exact_at(&mut word, RING + 16).unwrap();
    u64::from_ne_bytes(word) as u32 != 0
}

#[test]
fn wait_for_peer_returns_for_each_successor() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut consumer = memory.consumer::<u64>().unwrap();
    for generation in 1..=3 {
        let attached = in_a_thread(move || (consumer.wait_for_peer(SLEEP, None), consumer));
        until_asleep(&memory);
        let mut producer = memory.producer::<u64>().unwrap();
        let (peer, woken) = attached();
        consumer = woken;
        assert_eq!(peer, Ok(generation));
        producer.push(generation).unwrap();
        drop(producer);
        let received = [(); 2].map(|()| consumer.waiting(SLEEP).recv());
        assert_eq!(received, [Ok(generation), Err(RecvError::Disconnected)]);
    }
}

#[test]
fn wait_for_peer_sees_a_successor_that_already_left() {
    let memory = Memory::create::<u64>(4).unwrap();
    let mut consumer = memory.consumer::<u64>().unwrap();
    let past = || Some(Instant::now());
    let nobody = |state| Err(NoPeer { end: Side::Producer, state });
    assert_eq!(consumer.wait_for_peer(SLEEP, past()), nobody(OwnerState::NotYet));
    for generation in 1..=3 {
        memory.producer::<u64>().unwrap().push(generation).unwrap();
        assert_eq!([(); 2].map(|()| consumer.wait_for_peer(SLEEP, past())), [Ok(generation); 2]);
        let received = [(); 2].map(|()| consumer.waiting(SLEEP).recv());
        assert_eq!(received, [Ok(generation), Err(RecvError::Disconnected)]);
        assert_eq!(consumer.wait_for_peer(SLEEP, past()), nobody(OwnerState::Left));
    }
    let said = NoPeer { end: Side::Producer, state: OwnerState::Left }.to_string();
    assert_eq!(said, "no producer attached before the deadline: the last one was dropped");
}

#[test]
fn a_peer_that_left_before_this_end_attached_is_absent() {
    let memory = Memory::create::<u64>(4).unwrap();
    let past = || Some(Instant::now());
    // A consumer came and left; then the producer is restarted.
    drop((memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap()));
    let mut producer = memory.producer::<u64>().unwrap();
    assert_eq!(producer.wait_for_peer(SLEEP, past()), Err(NoPeer { end: Side::Consumer, state: OwnerState::Left }));
    drop(memory.consumer::<u64>().unwrap());
    assert_eq!(producer.wait_for_peer(SLEEP, past()), Ok(2), "this one attached after the producer");
    producer.push(7).unwrap();
    drop(producer);
    // The other way round; a message that was left can be popped.
    let mut consumer = memory.consumer::<u64>().unwrap();
    assert_eq!(consumer.wait_for_peer(SLEEP, past()), Err(NoPeer { end: Side::Producer, state: OwnerState::Left }));
    assert_eq!(consumer.pop(), Ok(7));
    let kept = memory.producer::<u64>().unwrap();
    drop(consumer);
    let mut consumer = memory.consumer::<u64>().unwrap();
    assert_eq!(consumer.wait_for_peer(SLEEP, past()), Ok(3), "it is attached");
    drop(kept);
}

#[test]
fn a_producer_of_a_full_ring_continues_with_a_new_consumer() {
    let memory = Memory::create::<u64>(1).unwrap();
    let mut producer = memory.producer::<u64>().unwrap();
    let consumer = memory.consumer::<u64>().unwrap();
    assert_eq!(producer.wait_for_peer(SLEEP, None), Ok(1));
    producer.push(1).unwrap();
    drop(consumer);
    let mut sender = producer.into_waiting(SLEEP);
    assert!(matches!(sender.send(2), Err(SendError::Disconnected(2))));
    let sent = in_a_thread(move || {
        let peer = sender.wait_for_peer(Some(Instant::now() + LIMIT));
        (peer, sender.send_timeout(2, LIMIT).is_ok())
    });
    let mut receiver = memory.consumer::<u64>().unwrap().into_waiting(SLEEP);
    assert_eq!((receiver.recv_timeout(LIMIT), receiver.recv_timeout(LIMIT)), (Ok(1), Ok(2)));
    assert_eq!(sent(), (Ok(2), true));
}
