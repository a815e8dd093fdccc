//! A relay against zenoh's put and subscribe on one link: messages and bytes per second, and round trips.
//!
//! `cargo bench --bench relay -- [--json] [--quick] [8|64|1024|round-trip]`: rounds in turns, each in another order. `README.md`
//! explains the columns.

use std::net::TcpListener;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::RingMessage;
use ringmem::ring::spsc::{self, OwnedConsumer, OwnedProducer};
use ringmem_zenoh::{Relay, Sink, Source, SpscSink, SpscSource};
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

const ROUNDS: usize = 7;
/// As the relay's: what zenoh puts at once.
const BATCH: usize = 32 << 10;
const RING: usize = 8 << 20;
/// A quarter of a ring lasts some 2 ms.
const NAP: Duration = Duration::from_micros(200);
const ROUND_TRIPS: usize = 2000;

trait Value: RingMessage + PartialEq + std::fmt::Debug {}
impl<T: RingMessage + PartialEq + std::fmt::Debug> Value for T {}

fn session(endpoints: &str, endpoint: &str) -> Session {
    let mut config = Config::default();
    for (name, value) in [("listen/endpoints", "[]"), ("scouting/multicast/enabled", "false"), (endpoints, &format!("[{endpoint:?}]"))] {
        config.insert_json5(name, value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

fn relayed<T: Value>(here: &Session, there: &Session, key: &str, count: u64, message: fn(u64) -> T) -> f64 {
    let slots = RING / size_of::<T>();
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<T>(slots), spsc::bounded::<T>(slots));
    let receiver = Relay::receiver(there, key, SpscSink::new(sink)).unwrap();
    let sender = Relay::sender(here, key, SpscSource::new(source)).unwrap();
    // Connects the relays and touches each page of the rings.
    carry(&mut producer, &mut consumer, slots as u64, message);
    let seconds = carry(&mut producer, &mut consumer, count, message);
    sender.stop().1.unwrap();
    receiver.stop().1.unwrap();
    seconds
}

/// Moves the messages from one ring to another with the relay's source and sink, but by put and subscribe alone.
fn rings<T: Value>(here: &Session, there: &Session, key: &str, count: u64, message: fn(u64) -> T) -> f64 {
    let slots = RING / size_of::<T>();
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<T>(slots), spsc::bounded::<T>(slots));
    let (mut source, sink) = (SpscSource::new(source), Mutex::new(SpscSink::new(sink)));
    let subscriber = move |sample: zenoh::sample::Sample| {
        let bytes = sample.payload().to_bytes();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (count, pushed) = sink.lock().unwrap().push(rest).unwrap();
            rest = &rest[pushed..];
            if count == 0 {
                thread::sleep(NAP);
            }
        }
    };
    let _subscriber = there.declare_subscriber(key).callback(subscriber).wait().unwrap();
    let publisher = publisher(here, key);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0;
            while sent < slots as u64 + count {
                let mut bytes = Vec::with_capacity(BATCH);
                let taken = source.take(BATCH, &mut bytes).unwrap();
                if taken == 0 {
                    thread::yield_now();
                    continue;
                }
                publisher.put(bytes).wait().unwrap();
                source.release(taken.into());
                sent += u64::from(taken);
            }
        });
        carry(&mut producer, &mut consumer, slots as u64, message);
        carry(&mut producer, &mut consumer, count, message)
    })
}

/// Pushes `count` messages into one ring and pops them from another; returns seconds.
fn carry<T: Value>(producer: &mut OwnedProducer<T>, consumer: &mut OwnedConsumer<T>, count: u64, message: fn(u64) -> T) -> f64 {
    let slots = producer.capacity() as u64;
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            while next < count {
                // A quarter of the ring at once: polling for a single slot takes a core from the relay.
                let free = producer.free() as u64;
                if free < (slots / 4).min(count - next) {
                    thread::sleep(NAP);
                    continue;
                }
                let most = free.min(count - next);
                producer.reserve(most as usize).unwrap().fill((next..next + most).map(message));
                next += most;
            }
        });
        let mut next = 0;
        while next < count {
            let Ok(chunk) = consumer.peek(usize::MAX) else {
                thread::sleep(NAP);
                continue;
            };
            chunk.iter().zip(next..).for_each(|(got, number)| assert_eq!(*got, message(number)));
            next += chunk.len() as u64;
            chunk.release(usize::MAX);
        }
    });
    begun.elapsed().as_secs_f64()
}

/// A publisher as the relay's; waits for a subscriber.
fn publisher(here: &Session, key: &str) -> Publisher<'static> {
    let key = zenoh::key_expr::KeyExpr::try_from(key.to_owned()).unwrap();
    let publisher = here.declare_publisher(key).congestion_control(CongestionControl::Block).express(true).wait().unwrap();
    while !publisher.matching_status().wait().unwrap().matching() {
        thread::yield_now();
    }
    publisher
}

/// Moves as many messages in batches by put and subscribe, which compares each message too.
fn put<T: Value>(here: &Session, there: &Session, key: &str, count: u64, message: fn(u64) -> T) -> f64 {
    let (done, ends) = mpsc::channel();
    let arrived = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&arrived);
    let subscriber = move |sample: zenoh::sample::Sample| {
        let bytes = sample.payload().to_bytes();
        let mut next = counter.load(Relaxed);
        for chunk in bytes.chunks_exact(size_of::<T>()) {
            let mut value = T::zeroed();
            value.as_bytes_mut().copy_from_slice(chunk);
            assert_eq!(value, message(next));
            next += 1;
        }
        counter.store(next, Relaxed);
        if next == count {
            done.send(()).unwrap();
        }
    };
    let _subscriber = there.declare_subscriber(key).callback(subscriber).wait().unwrap();
    let publisher = publisher(here, key);
    let begun = Instant::now();
    let mut number = 0;
    while number < count {
        let mut bytes = Vec::with_capacity(BATCH);
        while number < count && bytes.len() + size_of::<T>() <= BATCH {
            bytes.extend_from_slice(message(number).as_bytes());
            number += 1;
        }
        publisher.put(bytes).wait().unwrap();
    }
    ends.recv_timeout(Duration::from_secs(120)).unwrap();
    begun.elapsed().as_secs_f64()
}

fn ring_round_trip(here: &Session, there: &Session) -> f64 {
    let ((mut to, source), (sink, mut at)) = (spsc::bounded::<u64>(64), spsc::bounded::<u64>(64));
    let ((mut back, far_source), (near_sink, mut from)) = (spsc::bounded::<u64>(64), spsc::bounded::<u64>(64));
    let _forth =
        (Relay::receiver(there, "rtt/to", SpscSink::new(sink)).unwrap(), Relay::sender(here, "rtt/to", SpscSource::new(source)).unwrap());
    let _back = (
        Relay::receiver(here, "rtt/from", SpscSink::new(near_sink)).unwrap(),
        Relay::sender(there, "rtt/from", SpscSource::new(far_source)).unwrap(),
    );
    let echo = thread::spawn(move || {
        loop {
            match at.pop() {
                Ok(u64::MAX) => return,
                Ok(value) => back.push(value).unwrap(),
                Err(_) => thread::yield_now(),
            }
        }
    });
    let median = median((0..ROUND_TRIPS as u64).map(|number| {
        let begun = Instant::now();
        to.push(number).unwrap();
        while from.pop().is_err() {
            thread::yield_now();
        }
        begun.elapsed().as_secs_f64() * 1e6
    }));
    to.push(u64::MAX).unwrap();
    echo.join().unwrap();
    median
}

/// Returns the median round trip of zenoh's ping and pong, in microseconds: callbacks that publish, as in its example.
fn ping(here: &Session, there: &Session) -> f64 {
    let pong = there.declare_publisher("ping/pong").congestion_control(CongestionControl::Block).express(true).wait().unwrap();
    let _echo =
        there.declare_subscriber("ping/ping").callback(move |sample| pong.put(sample.payload().clone()).wait().unwrap()).wait().unwrap();
    let (arrives, arrived) = mpsc::channel();
    let _back = here.declare_subscriber("ping/pong").callback(move |_| arrives.send(()).unwrap()).wait().unwrap();
    let publisher = here.declare_publisher("ping/ping").congestion_control(CongestionControl::Block).express(true).wait().unwrap();
    loop {
        publisher.put(vec![0; 8]).wait().unwrap();
        if arrived.recv_timeout(Duration::from_millis(200)).is_ok() {
            break;
        }
    }
    while arrived.recv_timeout(Duration::from_millis(200)).is_ok() {}
    median((0..ROUND_TRIPS).map(|_| {
        let begun = Instant::now();
        publisher.put(vec![0; 8]).wait().unwrap();
        arrived.recv_timeout(Duration::from_secs(10)).unwrap();
        begun.elapsed().as_secs_f64() * 1e6
    }))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints medians, and the ratio of rates in each round: its median, least and greatest.
fn report(json: bool, workload: &str, unit: &str, subject: &str, ours: &[f64], theirs: &[f64], shown: impl Fn(f64) -> f64) {
    let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours).collect();
    ratios.sort_by(f64::total_cmp);
    let (least, ratio, greatest) = (ratios[0], ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
    let [ours, theirs] = [ours, theirs].map(|values| shown(median(values.iter().copied())));
    if json {
        println!(
            r#"{{"bench":"relay","workload":"{workload}","subject":"{subject}","unit":"{unit}","median":{ours:.3},"peer":{theirs:.3},"ratio":{ratio:.3},"least":{least:.3},"greatest":{greatest:.3}}}"#
        );
    } else {
        println!("{workload:16} {subject:12} {ours:10.1} {theirs:10.1} {unit:18} {ratio:.2} ({least:.2} to {greatest:.2})");
    }
}

fn throughput<T: Value>(json: bool, [here, there]: [&Session; 2], name: &str, count: u64, message: fn(u64) -> T) {
    let mut seconds = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for subject in (0..3).map(|subject| (subject + round) % 3) {
            let key = format!("{name}/{subject}/{round}");
            let run = [relayed, rings, put][subject];
            seconds[subject].push(run(here, there, &key, count, message));
        }
    }
    let [relay, rings, put] = &seconds;
    for (subject, ours, theirs) in [("relay/put", relay, put), ("rings/put", rings, put), ("relay/rings", relay, rings)] {
        report(json, &format!("messages-{name}"), "10^3 messages/s", subject, ours, theirs, |seconds| count as f64 / 1e3 / seconds);
        let bytes = (count * size_of::<T>() as u64) as f64;
        report(json, &format!("bytes-{name}"), "MB/s", subject, ours, theirs, |seconds| bytes / 1e6 / seconds);
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let json = has("--json");
    let quick = if has("--quick") { 20 } else { 1 };
    let named = ["8", "64", "1024", "round-trip"];
    let runs = |name: &str| has(name) || !named.into_iter().any(has);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp/{}", listener.local_addr().unwrap());
    drop(listener);
    let there = session("listen/endpoints", &endpoint);
    let here = session("connect/endpoints", &endpoint);
    let sessions = [&here, &there];
    if runs("8") {
        throughput::<u64>(json, sessions, "8", 20_000_000 / quick, |number| number);
    }
    if runs("64") {
        throughput::<[u64; 8]>(json, sessions, "64", 5_000_000 / quick, |number| [number; 8]);
    }
    if runs("1024") {
        throughput::<[u64; 128]>(json, sessions, "1024", 300_000 / quick, |number| [number; 128]);
    }
    if runs("round-trip") {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(ring_round_trip(&here, &there));
            theirs.push(ping(&here, &there));
        }
        report(json, "round-trip-8", "us", "relay/ping", &ours, &theirs, |microseconds| microseconds);
    }
}
