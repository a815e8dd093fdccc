//! Feeds and publishers in one process.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::RingMessage;
use ringmem::backend::host::HostBackend;
use ringmem::bridge::TransferStrategy;
use ringmem::channel::Channel;
use ringmem::ring::{framed, spsc};
use ringmem_iceoryx2::{Error, Feed, Link, Message, Moved, Options, Publish, Sink, run};
use ringmem_kernels::echo::{ECHO, Echo};

use crate::host::{Host, until};

fn moved(messages: u64, bytes: u64) -> Moved {
    Moved { messages, bytes }
}

#[test]
fn a_full_ring_leaves_samples_in_the_queue_and_messages_in_the_ring_before_it() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages_with::<u64>(&node, "numbers", Options { queue: 8, ..Options::default() }).unwrap();
    let (mut from, mut consumer) = spsc::bounded::<u64>(64);
    let (mut producer, mut to) = spsc::bounded::<u64>(4);
    let (mut feed, mut publish) = (Feed::new(&link).unwrap(), Publish::messages(&link).unwrap());
    (0..40).for_each(|value| from.push(value).unwrap());

    assert_eq!(publish.pump(&mut consumer).unwrap(), moved(8, 64), "into the queue");
    assert_eq!(publish.pump(&mut consumer).unwrap(), moved(0, 0), "the queue is full");
    assert_eq!(feed.pump(&mut producer).unwrap(), moved(4, 32), "into the ring");
    assert_eq!(feed.pump(&mut producer).unwrap(), moved(0, 0), "the ring is full");
    assert_eq!(publish.pump(&mut consumer).unwrap(), moved(5, 40), "four for the ring, one that the feed holds");
    assert_eq!((from.len(), publish.total(), feed.total()), (27, moved(13, 104), moved(4, 32)));

    let mut next = 0;
    until("forty messages", || {
        while let Ok(value) = to.pop() {
            assert_eq!(value, next);
            next += 1;
        }
        feed.pump(&mut producer).unwrap();
        publish.pump(&mut consumer).unwrap();
        next == 40
    });
    assert_eq!((publish.total(), feed.total()), (moved(40, 320), moved(40, 320)));
}

#[test]
fn messages_wait_in_the_ring_for_a_subscriber() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u32>(&node, "numbers").unwrap();
    let (mut from, mut consumer) = spsc::bounded::<u32>(8);
    let mut publish = Publish::messages(&link).unwrap();
    (0..3).for_each(|value| from.push(value).unwrap());
    assert_eq!((publish.pump(&mut consumer).unwrap(), from.len()), (moved(0, 0), 3));

    let subscriber = link.service().subscriber_builder().create().unwrap();
    assert_eq!((publish.pump(&mut consumer).unwrap(), from.len()), (moved(3, 12), 0));
    for value in 0..3 {
        assert_eq!(subscriber.receive().unwrap().unwrap().0, value);
    }
}

#[test]
fn a_second_subscriber_is_an_error_until_the_first_is_dropped() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u32>(&node, "numbers").unwrap();
    let first = Feed::new(&link).unwrap();
    assert!(matches!(Feed::new(&link), Err(Error::Subscriber(_))));
    drop(first);
    Feed::new(&link).unwrap();
}

#[test]
fn frames_of_all_lengths_arrive_in_order() {
    let host = Host::new();
    let node = host.node();
    let link = Link::frames(&node, "log", 100).unwrap();
    let (mut from, mut consumer) = framed::bounded(512);
    let (mut producer, mut to) = framed::bounded(256);
    let (mut feed, mut publish) = (Feed::new(&link).unwrap(), Publish::frames(&link).unwrap());
    let frame = |number: usize| vec![number as u8; number * 37 % 101];
    let (mut pushed, mut popped, mut buffer) = (0, 0, [0; 100]);
    until("500 frames", || {
        while pushed < 500 && from.push(&frame(pushed)).is_ok() {
            pushed += 1;
        }
        publish.pump(&mut consumer).unwrap();
        feed.pump(&mut producer).unwrap();
        while let Ok(len) = to.pop(&mut buffer) {
            assert_eq!(buffer[..len], frame(popped));
            popped += 1;
        }
        popped == 500
    });
    let bytes = (0..500).map(|number| frame(number).len() as u64).sum();
    assert_eq!((feed.total(), publish.total()), (moved(500, bytes), moved(500, bytes)));
}

#[test]
fn a_frame_that_is_too_large_is_an_error_and_stays_until_skipped() {
    let host = Host::new();
    let node = host.node();
    let link = Link::frames(&node, "log", 100).unwrap();
    let mut feed = Feed::new(&link).unwrap();
    let publisher = link.service().publisher_builder().initial_max_slice_len(200).create().unwrap();
    for len in [101, 90, 3] {
        publisher.loan_slice_uninit(len).unwrap().write_from_fn(|_| 7).send().unwrap();
    }
    let (mut producer, mut to) = framed::bounded(512);
    for _ in 0..2 {
        assert!(matches!(feed.pump(&mut producer), Err(Error::TooLarge { bytes: 101, largest: 100 })));
    }
    assert!(feed.skip());
    // A ring of 64 bytes holds less than 90.
    let (mut small, _rest) = framed::bounded(64);
    assert!(matches!(feed.pump(&mut small), Err(Error::TooLarge { bytes: 90, largest }) if largest < 90));
    assert_eq!(feed.pump(&mut producer).unwrap(), moved(2, 93));
    assert!(!feed.skip());
    assert_eq!(to.pop(&mut [0; 100]), Ok(90));

    // The frame stays in its ring.
    let (mut from, mut consumer) = framed::bounded(512);
    from.push(&[1; 101]).unwrap();
    let mut publish = Publish::frames(&link).unwrap();
    assert!(matches!(publish.pump(&mut consumer), Err(Error::TooLarge { bytes: 101, largest: 100 })));
    assert_eq!(consumer.pop(&mut [0; 200]), Ok(101));
}

/// Fails at every second message.
struct Failing(Vec<u64>, bool);

impl Sink<u64> for Failing {
    fn push(&mut self, message: &u64) -> Result<bool, Error> {
        self.1 = !self.1;
        if self.1 {
            return Err(Error::TooLarge { bytes: 0, largest: 0 });
        }
        self.0.push(*message);
        Ok(true)
    }
}

#[test]
fn a_failing_ring_loses_and_doubles_nothing() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let mut feed = Feed::new(&link).unwrap();
    let publisher = link.service().publisher_builder().create().unwrap();
    (0..10).for_each(|value| assert_eq!(publisher.send_copy(Message(value)).unwrap(), 1));
    let mut ring = Failing(Vec::new(), false);
    for number in 0..10 {
        assert!(feed.pump(&mut ring).is_err());
        assert_eq!(feed.total().messages, number);
    }
    assert!(feed.pump(&mut ring).is_ok());
    assert_eq!(ring.0, (0..10).collect::<Vec<_>>());
}

/// Sends one more sample during each push, and cannot be flushed.
struct Busy<F>(F, u64);

impl<F: FnMut(u64)> Sink<u64> for Busy<F> {
    fn push(&mut self, message: &u64) -> Result<bool, Error> {
        assert_eq!(*message, self.1);
        self.1 += 1;
        self.0(self.1);
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), Error> {
        Err(Error::Name("flush".to_owned()))
    }
}

#[test]
fn a_pump_ends_while_samples_keep_arriving_and_counts_what_a_failed_flush_left_in_the_ring() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let mut feed = Feed::new(&link).unwrap();
    let publisher = link.service().publisher_builder().create().unwrap();
    let send = |value| assert_eq!(publisher.send_copy(Message(value)).unwrap(), 1);
    send(0);
    let mut ring = Busy(send, 0);
    for pumps in 1..3 {
        assert!(matches!(feed.pump(&mut ring), Err(Error::Name(name)) if name == "flush"));
        assert_eq!((feed.total().messages, ring.1), (pumps * 64, pumps * 64));
    }
}

#[test]
fn a_kernel_gets_samples_and_its_answers_wait_for_a_subscriber() {
    // Shared rings and copied rings.
    for strategy in [TransferStrategy::Unified, TransferStrategy::Sync] {
        let host = Host::new();
        let node = host.node();
        let backend = HostBackend::builder().build().unwrap();
        let mut channel = Channel::builder(ECHO).strategy(strategy).open(&backend, 0).unwrap();
        let questions = Link::messages::<Echo>(&node, "questions").unwrap();
        let answers = Link::messages::<Echo>(&node, "answers").unwrap();
        let (mut feed, mut publish) = (Feed::new(&questions).unwrap(), Publish::messages(&answers).unwrap());
        let publisher = questions.service().publisher_builder().create().unwrap();
        for number in 0..3 {
            publisher.send_copy(Message(Echo { words: [number; 8] })).unwrap();
        }
        assert_eq!(feed.pump(&mut channel).unwrap(), moved(3, 192));
        until("the kernel has popped all", || channel.control().processed == 3);
        for _ in 0..3 {
            assert_eq!(publish.pump(&mut channel).unwrap(), moved(0, 0));
        }
        let subscriber = answers.service().subscriber_builder().create().unwrap();
        until("all answers", || {
            publish.pump(&mut channel).unwrap();
            publish.total() == moved(3, 192)
        });
        for number in 0..3 {
            assert_eq!(subscriber.receive().unwrap().unwrap().0.words, [number; 8]);
        }
    }
}

#[test]
fn run_ends_when_it_is_stopped_and_nothing_moves() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let mut feed = Feed::new(&link).unwrap();
    let publisher = link.service().publisher_builder().create().unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(16);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (stop, consumer) = (&stop, &mut consumer);
        let reader = scope.spawn(move || {
            until("ten messages", || consumer.len() == 10);
            stop.store(true, Relaxed);
        });
        (0..10).for_each(|value| assert_eq!(publisher.send_copy(Message(value)).unwrap(), 1));
        assert_eq!(run(stop, || feed.pump(&mut producer)).unwrap(), moved(10, 80));
        reader.join().unwrap();
    });
    assert_eq!(consumer.try_iter().sum::<u64>(), 45);
    publisher.send_copy(Message(1)).unwrap();
    assert_eq!(run(&stop, || feed.pump(&mut producer)).unwrap(), moved(1, 8), "what is there is moved before it ends");
    assert!(run(&stop, || Err(Error::Name(String::new()))).is_err());
}

/// Moves `count` messages through ring, service and ring in this process.
fn carry<T: RingMessage + PartialEq + core::fmt::Debug>(count: u64, message: impl Fn(u64) -> T) {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<T>(&node, "messages").unwrap();
    let (mut from, mut consumer) = spsc::bounded::<T>(8);
    let (mut producer, mut to) = spsc::bounded::<T>(8);
    let (mut feed, mut publish) = (Feed::new(&link).unwrap(), Publish::messages(&link).unwrap());
    let (mut pushed, mut popped) = (0, 0);
    until("all messages", || {
        while pushed < count && from.push(message(pushed)).is_ok() {
            pushed += 1;
        }
        publish.pump(&mut consumer).unwrap();
        feed.pump(&mut producer).unwrap();
        while let Ok(value) = to.pop() {
            assert_eq!(value, message(popped));
            popped += 1;
        }
        popped == count
    });
    assert_eq!(feed.total(), moved(count, count * size_of::<T>() as u64));
}

#[test]
fn messages_of_all_sizes_arrive_unchanged() {
    carry(300, |number| number as u8);
    carry(300, |number| [number as f32; 3]);
    carry(300, |number| [number; 8192]);
}

#[test]
fn a_message_larger_than_the_stack_arrives() {
    type Large = [u64; 1 << 20];
    let host = Host::new();
    let node = host.node();
    let link = Link::messages_with::<Large>(&node, "messages", Options { queue: 2, ..Options::default() }).unwrap();
    let ((mut from, mut consumer), (mut producer, mut to)) = (spsc::bounded::<Large>(1), spsc::bounded::<Large>(1));
    let message = Box::<Large>::try_from(vec![7; 1 << 20]).unwrap();
    assert_eq!(from.with(|end| end.push_slice(core::slice::from_ref(&*message))), Ok(1));
    let (mut feed, mut publish) = (Feed::new(&link).unwrap(), Publish::messages(&link).unwrap());
    // A test's thread has a stack of 2 MiB.
    assert_eq!(publish.pump(&mut consumer).unwrap(), moved(1, 8 << 20));
    assert_eq!(feed.pump(&mut producer).unwrap(), moved(1, 8 << 20));
    assert!(to.with(|end| end.peek(1).unwrap().get(0) == Some(&*message)));
}
