//! Two processes; one is killed.

use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use iceoryx2::prelude::*;
use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::ring::spsc;
use ringmem_iceoryx2::{Feed, Link, Message, Options, Publish, run};
use ringmem_kernels::echo::{ECHO, Echo};

use crate::host::{Host, role, say, until};

const MILLION: u64 = 1_000_000;
const SMALL: Options = Options { queue: 4, publishers: 2 };

/// Publishes all numbers from `argument` on, from a ring.
#[test]
fn publishing_role() {
    let Some((node, _, first)) = role() else { return };
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(256);
    let mut publish = Publish::messages(&link).unwrap();
    let mut next = first;
    run(&AtomicBool::new(false), || {
        while producer.push(next).is_ok() {
            next += 1;
        }
        publish.pump(&mut consumer)
    })
    .unwrap();
}

#[test]
fn a_million_messages_arrive_once_and_in_order() {
    let host = Host::new();
    let link = Link::messages::<u64>(&host.node(), "numbers").unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(256);
    let mut feed = Feed::new(&link).unwrap();
    let _peer = host.start("publishing_role", 0);
    let mut next = 0;
    until("a million messages", || {
        feed.pump(&mut producer).unwrap();
        while let Ok(value) = consumer.pop() {
            assert_eq!(value, next);
            next += 1;
        }
        next >= MILLION
    });
}

#[test]
fn a_publisher_killed_while_it_sends_leaves_no_gap() {
    const ROUNDS: u64 = 10;
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(256);
    let mut feed = Feed::new(&link).unwrap();
    let mut next = [0; ROUNDS as usize];
    for round in 0..ROUNDS {
        let mut peer = host.start("publishing_role", round * MILLION);
        until("1000 messages of a publisher", || {
            feed.pump(&mut producer).unwrap();
            while let Ok(value) = consumer.pop() {
                let from = &mut next[(value / MILLION) as usize];
                assert_eq!(value % MILLION, *from);
                *from += 1;
            }
            next[round as usize] >= 1000
        });
        peer.kill();
    }
}

/// Fills the queue with numbers from `argument` on, by a publisher of iceoryx2.
#[test]
fn filling_role() {
    let Some((node, _, first)) = role() else { return };
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let publisher = link.service().publisher_builder().create().unwrap();
    (first..first + link.queue() as u64).for_each(|value| assert_eq!(publisher.send_copy(Message(value)).unwrap(), 1));
    say("sent");
    loop {
        thread::park();
    }
}

#[test]
fn what_a_killed_publisher_sent_arrives_and_its_successor_continues() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages::<u64>(&node, "numbers").unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(16);
    let mut feed = Feed::new(&link).unwrap();
    let mut next = 0;
    for _ in 0..5 {
        let mut peer = host.start("filling_role", next);
        peer.wait_for("sent");
        peer.kill();
        let end = next + link.queue() as u64;
        until("the queue of a killed publisher", || {
            feed.pump(&mut producer).unwrap();
            while let Ok(value) = consumer.pop() {
                assert_eq!(value, next);
                next += 1;
            }
            next == end
        });
    }
}

#[test]
fn recording_role() {
    let Some((node, folder, number)) = role() else { return };
    let link = Link::messages_with::<u64>(&node, "numbers", SMALL).unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(2);
    let mut feed = Feed::new(&link).unwrap();
    let mut file = File::create(folder.join(number.to_string())).unwrap();
    say("subscribed");
    run(&AtomicBool::new(false), || {
        let moved = feed.pump(&mut producer)?;
        consumer.try_iter().for_each(|value| file.write_all(&u64::to_le_bytes(value)).unwrap());
        Ok(moved)
    })
    .unwrap();
}

fn recorded(host: &Host, number: u64) -> Vec<u64> {
    let bytes = fs::read(host.file(&number.to_string())).unwrap_or_default();
    bytes.as_chunks::<8>().0.iter().map(|value| u64::from_le_bytes(*value)).collect()
}

#[test]
fn a_killed_subscriber_loses_at_most_its_queue_and_its_successor_continues() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages_with::<u64>(&node, "numbers", SMALL).unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(64);
    let mut publish = Publish::messages(&link).unwrap();
    let mut next = 0;
    let mut last = None;
    for round in 0..4 {
        let mut peer = host.start("recording_role", round);
        peer.wait_for("subscribed");
        until("500 recorded messages", || {
            while producer.push(next).is_ok() {
                next += 1;
            }
            publish.pump(&mut consumer).unwrap();
            recorded(&host, round).len() >= 500
        });
        peer.kill();
        // The dead subscriber's queue fills; then messages wait in the ring.
        until("a full queue", || {
            while producer.push(next).is_ok() {
                next += 1;
            }
            publish.pump(&mut consumer).unwrap().messages == 0
        });
        assert!(producer.end().is_full());
        let got = recorded(&host, round);
        assert!(got.windows(2).all(|pair| pair[1] == pair[0] + 1), "in order and without gaps");
        if let Some(last) = last {
            // The queue, one held sample, and two in the peer's ring.
            let lost = got[0] - last - 1;
            assert!(got[0] > last && lost <= 4 + 1 + 2, "{lost} lost");
        }
        last = got.last().copied();
    }
    let sent = publish.total().messages;
    assert_eq!(sent + producer.len() as u64, next, "the others are in the ring");
    // This process takes over, without a new node.
    Feed::new(&Link::messages_with::<u64>(&node, "numbers", SMALL).unwrap()).unwrap();
}

/// Sends `argument` numbers by a publisher of iceoryx2 that blocks while the queue is full.
#[test]
fn blocking_role() {
    let Some((node, _, count)) = role() else { return };
    let link = Link::messages_with::<u64>(&node, "numbers", SMALL).unwrap();
    let publisher = link.service().publisher_builder().create().unwrap();
    for value in 0..count {
        // 0 while the subscriber is unconnected and the queue full: iceoryx2 blocks only for a connected one.
        until("a connected subscriber", || publisher.send_copy(Message(value)).unwrap() == 1);
    }
    say("sent");
    loop {
        thread::park();
    }
}

#[test]
fn a_slow_reader_blocks_a_publisher_of_iceoryx2_without_loss() {
    let host = Host::new();
    let node = host.node();
    let link = Link::messages_with::<u64>(&node, "numbers", SMALL).unwrap();
    let (mut producer, mut consumer) = spsc::bounded::<u64>(2);
    let mut feed = Feed::new(&link).unwrap();
    let mut peer = host.start("blocking_role", 500);
    let mut next = 0;
    until("500 messages", || {
        feed.pump(&mut producer).unwrap();
        if let Ok(value) = consumer.pop() {
            assert_eq!(value, next);
            next += 1;
            thread::sleep(Duration::from_micros(200));
        }
        next == 500
    });
    peer.wait_for("sent");
    assert_eq!(feed.total().messages, 500);
}

/// Publishes `argument` questions and reads the answers, with ports of iceoryx2.
#[test]
fn asking_role() {
    let Some((node, _, count)) = role() else { return };
    let questions = Link::messages::<Echo>(&node, "questions").unwrap();
    let answers = Link::messages::<Echo>(&node, "answers").unwrap();
    let subscriber = answers.service().subscriber_builder().create().unwrap();
    let publisher = questions.service().publisher_builder().backpressure_strategy(BackpressureStrategy::DiscardData).create().unwrap();
    let (mut asked, mut answered) = (0, 0);
    until("all answers", || {
        while asked < count && publisher.send_copy(Message(Echo { words: [asked; 8] })).unwrap() == 1 {
            asked += 1;
        }
        while let Some(answer) = subscriber.receive().unwrap() {
            assert_eq!(answer.0.words, [answered; 8]);
            answered += 1;
        }
        answered == count
    });
    say("answered");
}

#[test]
fn a_kernel_answers_a_process_through_a_channel() {
    const COUNT: u64 = 20_000;
    let host = Host::new();
    let node = host.node();
    let backend = HostBackend::builder().build().unwrap();
    let mut channel = Channel::open(&backend, 0, ECHO).unwrap();
    let mut feed = Feed::new(&Link::messages::<Echo>(&node, "questions").unwrap()).unwrap();
    let mut publish = Publish::messages(&Link::messages::<Echo>(&node, "answers").unwrap()).unwrap();
    let mut peer = host.start("asking_role", COUNT);
    let stop = AtomicBool::new(false);
    let moved = thread::scope(|scope| {
        scope.spawn(|| {
            peer.wait_for("answered");
            stop.store(true, Relaxed);
        });
        run(&stop, || Ok(feed.pump(&mut channel)? + publish.pump(&mut channel)?)).unwrap()
    });
    assert_eq!((moved.messages, moved.bytes), (2 * COUNT, 2 * COUNT * 64));
    assert_eq!(channel.close().unwrap().control.processed, COUNT);
}
