//! Ends of rings in shared memory that own what they wait at: moved into threads and tasks, the memory's other handles gone.
#![cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use ringmem::layouts::ring::End;
use ringmem::shared::{Consumer, Memory, OwnerState, Producer, Side};
use ringmem::wait::{How, RecvError, SendError, Waiting, pair};

const MESSAGES: u64 = 5_000;
/// Long enough for any machine: it is reached only by a wake-up that was lost.
const LONG: Duration = Duration::from_secs(30);
const SLEEP: How = How::Sleep { looks: 0 };

/// Runs in a thread of its own, and is waited for no longer than [`LONG`].
fn in_a_thread<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> impl FnOnce() -> R {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(run()));
    move || receiver.recv_timeout(LONG).expect("it panicked, or nobody woke it")
}

/// Both ends of a ring of four, over mappings of their own as two processes have, and nothing else of it.
fn two_mappings() -> (Producer<u64>, Consumer<u64>) {
    let memory = Memory::create::<u64>(4).unwrap();
    let theirs = Memory::from_fd(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
    (memory.producer().unwrap(), theirs.consumer().unwrap())
}

/// Receives all messages, and that there are no more.
fn receive_all(mut receiver: Waiting<Consumer<u64>>) {
    for number in 0..MESSAGES {
        assert_eq!(receiver.recv_timeout(LONG), Ok(number));
    }
    assert_eq!(receiver.recv_timeout(LONG), Err(RecvError::Disconnected));
}

/// The same in a task.
async fn await_all(mut receiver: Waiting<Consumer<u64>>) {
    for number in 0..MESSAGES {
        assert_eq!(receiver.recv_async().await, Ok(number));
    }
    assert_eq!(receiver.recv_async().await, Err(RecvError::Disconnected));
}

#[test]
fn ends_that_own_their_memory_wait_in_threads() {
    let (producer, consumer) = two_mappings();
    let (mut sender, receiver) = (producer.into_waiting(SLEEP), consumer.into_waiting(SLEEP));
    let received = in_a_thread(move || receive_all(receiver));
    let sent = in_a_thread(move || (0..MESSAGES).for_each(|number| sender.send_timeout(number, LONG).unwrap()));
    sent();
    received();
}

#[test]
fn a_pair_of_ends_that_own_their_memory_waits_in_tasks() {
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

/// Nobody in its process wakes it: it asks to be polled again, however it was to wait.
#[test]
fn a_task_whose_peer_is_elsewhere_goes_on() {
    for how in [SLEEP, How::SpinYield { looks: 0 }] {
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
fn a_task_that_sleeps_is_woken_when_the_other_end_is_dropped() {
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
    is_asleep.recv_timeout(LONG).unwrap();
    drop(sender);
    assert_eq!(received(), Err(RecvError::Disconnected));
}

#[test]
fn dropping_the_wait_leaves_the_end_to_a_successor() {
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
fn a_wait_that_borrows_leaves_nothing_when_it_ends() {
    let (mut producer, mut consumer) = two_mappings();
    for number in 0..3 {
        producer.waiting(SLEEP).send(number).unwrap();
        assert!(!End::is_disconnected(&consumer), "the end is its owner's, who has not left");
        assert_eq!(consumer.waiting(SLEEP).recv_timeout(LONG), Ok(number));
    }
    drop(producer);
    assert_eq!(consumer.waiting(SLEEP).recv_timeout(LONG), Err(RecvError::Disconnected));
}
