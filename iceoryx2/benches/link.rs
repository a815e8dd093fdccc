//! Links against iceoryx2's publisher and subscriber: messages and bytes per second.
//!
//! `cargo bench --bench link -- [--quick] [--json]`: a thread with its own node at each end; medians of rounds in turns.

use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use ringmem::RingMessage;
use ringmem::ring::spsc;
use ringmem_iceoryx2::{Feed, Link, Message, Options, Publish};

const ROUNDS: usize = 11;
/// Samples of the queue; most slots of each ring.
const QUEUE: usize = 64;
/// Bytes of each ring: a second copy costs less in a core's cache.
const RING: usize = 512 << 10;

fn ring<T: Words>() -> Ends<T> {
    spsc::bounded(QUEUE.min(RING / size_of::<T>()))
}

/// Words of 8 bytes, all with the message's number.
trait Words: RingMessage {
    fn fill(place: &mut MaybeUninit<Self>, number: u64);
    fn check(&self, number: u64);
}

impl<const N: usize> Words for [u64; N] {
    fn fill(place: &mut MaybeUninit<Self>, number: u64) {
        // SAFETY: an array of uninitialised words is an uninitialised array.
        let words = unsafe { &mut *core::ptr::from_mut(place).cast::<[MaybeUninit<u64>; N]>() };
        for word in words {
            word.write(number);
        }
    }

    fn check(&self, number: u64) {
        assert!(self.iter().all(|word| *word == number));
    }
}

fn link<T: Words>(config: &Config) -> Link<ipc::Service, Message<T>> {
    let node = NodeBuilder::new().config(config).create::<ipc::Service>().unwrap();
    Link::messages_with(&node, &format!("bench/{}", std::process::id()), Options { queue: QUEUE, publishers: 1 }).unwrap()
}

/// Fills samples in place; blocks while the queue is full.
fn send<T: Words>(publisher: &Publisher<ipc::Service, Message<T>, ()>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut sample = publisher.loan_uninit().unwrap();
        let place: *mut MaybeUninit<Message<T>> = sample.payload_mut();
        // SAFETY: the sample's payload; `Message` is transparent.
        T::fill(unsafe { &mut *place.cast() }, number);
        // SAFETY: filled.
        assert_eq!(unsafe { sample.assume_init() }.send().unwrap(), 1);
    }
}

fn receive<T: Words>(subscriber: &Subscriber<ipc::Service, Message<T>, ()>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        loop {
            if let Some(sample) = subscriber.receive().unwrap() {
                sample.0.check(number);
                break;
            }
            thread::yield_now();
        }
    }
}

fn publish<T: Words>(publish: &mut Publish<ipc::Service, Message<T>>, ring: &mut Ends<T>, numbers: std::ops::Range<u64>) {
    let (mut next, mut sent) = (numbers.start, numbers.start);
    while sent < numbers.end {
        let count = ring.0.free().min((numbers.end - next) as usize);
        let mut grant = ring.0.reserve(count).unwrap();
        for place in grant.as_mut_slices().into_iter().flatten() {
            T::fill(place, next);
            next += 1;
        }
        // SAFETY: all are filled.
        unsafe { grant.assume_written(count) };
        grant.commit();
        let moved = publish.pump(&mut ring.1).unwrap().messages;
        sent += moved;
        if moved == 0 {
            thread::yield_now();
        }
    }
}

fn feed<T: Words>(feed: &mut Feed<ipc::Service, Message<T>>, ring: &mut Ends<T>, numbers: std::ops::Range<u64>) {
    let mut next = numbers.start;
    while next < numbers.end {
        if feed.pump(&mut ring.0).unwrap().messages == 0 {
            thread::yield_now();
            continue;
        }
        let chunk = ring.1.peek(usize::MAX).unwrap();
        for message in chunk.iter() {
            message.check(next);
            next += 1;
        }
        chunk.release(usize::MAX);
    }
}

type Ends<T> = (spsc::OwnedProducer<T>, spsc::OwnedConsumer<T>);

fn carry<T: Words>(config: &Config, count: u64, rings: [bool; 2]) -> f64 {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let link = link::<T>(config);
            barrier.wait();
            barrier.wait();
            if rings[0] {
                let (mut end, mut ring) = (Publish::messages(&link).unwrap(), ring());
                publish(&mut end, &mut ring, 0..1);
                barrier.wait();
                publish(&mut end, &mut ring, 1..count);
            } else {
                let publisher = link.service().publisher_builder().create().unwrap();
                send(&publisher, 0..1);
                barrier.wait();
                send(&publisher, 1..count);
            }
            barrier.wait();
        });
        let link = link::<T>(config);
        barrier.wait();
        let begun;
        if rings[1] {
            let (mut end, mut ring) = (Feed::new(&link).unwrap(), ring());
            barrier.wait();
            feed(&mut end, &mut ring, 0..1);
            barrier.wait();
            begun = Instant::now();
            feed(&mut end, &mut ring, 1..count);
        } else {
            let subscriber = link.service().subscriber_builder().create().unwrap();
            barrier.wait();
            receive(&subscriber, 0..1);
            barrier.wait();
            begun = Instant::now();
            receive(&subscriber, 1..count);
        }
        let seconds = begun.elapsed().as_secs_f64();
        barrier.wait();
        seconds
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const SUBJECTS: [(&str, [bool; 2]); 4] =
    [("iceoryx2", [false, false]), ("feed", [false, true]), ("publish", [true, false]), ("publish-and-feed", [true, true])];

fn measure<T: Words>(config: &Config, json: bool, count: u64) {
    let mut times = [const { Vec::new() }; 4];
    for round in 0..=ROUNDS {
        for ((_, rings), times) in SUBJECTS.iter().zip(&mut times) {
            let seconds = carry::<T>(config, count, *rings);
            // The first warms up.
            if round > 0 {
                times.push(seconds);
            }
        }
    }
    let times = times.map(|mut times| median(&mut times));
    let size = size_of::<T>();
    for ((subject, _), seconds) in SUBJECTS.iter().zip(times) {
        let (rate, ratio) = (count as f64 / seconds, times[0] / seconds);
        let (thousands, megabytes) = (rate / 1e3, rate * size as f64 / 1e6);
        if json {
            println!(
                r#"{{"bench":"link","workload":"{size}","subject":"{subject}","unit":"10^3 messages/s","median":{thousands:.1},"megabytes":{megabytes:.1},"ratio":{ratio:.3}}}"#
            );
        } else {
            println!("{size:6} bytes  {subject:17} {thousands:10.1} 10^3 messages/s {megabytes:10.1} MB/s  {ratio:.2} of iceoryx2");
        }
    }
}

fn main() {
    set_log_level(LogLevel::Fatal);
    let [json, quick] = ["--json", "--quick"].map(|wanted| std::env::args().any(|argument| argument == wanted));
    let part = if quick { 20 } else { 1 };
    let mut config = Config::default();
    config.global.prefix = FileName::new(b"ringmem_bench_").unwrap();
    measure::<[u64; 1]>(&config, json, 1_000_000 / part);
    measure::<[u64; 8]>(&config, json, 1_000_000 / part);
    measure::<[u64; 128]>(&config, json, 400_000 / part);
    measure::<[u64; 8192]>(&config, json, 20_000 / part);
}
