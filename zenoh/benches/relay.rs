//! A relay against zenoh's put and subscribe: messages and bytes per second, and round trips.
//!
//! `cargo bench --bench relay -- [--json]`: medians of rounds in turns; ours over theirs.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringmem::RingMessage;
use ringmem::ring::spsc;
use ringmem_zenoh::{Relay, SpscSink, SpscSource};
use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

const ROUNDS: usize = 7;
/// The relay's default.
const BATCH: usize = 32 << 10;
const RING: usize = 8 << 20;
const NAP: Duration = Duration::from_micros(50);
const ROUND_TRIPS: usize = 2000;

fn session(endpoints: &str, endpoint: &str) -> Session {
    let mut config = Config::default();
    for (name, value) in [("listen/endpoints", "[]"), ("scouting/multicast/enabled", "false"), (endpoints, &format!("[{endpoint:?}]"))] {
        config.insert_json5(name, value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

fn relayed<T: RingMessage + PartialEq + std::fmt::Debug>(
    here: &Session,
    there: &Session,
    key: &str,
    count: u64,
    message: fn(u64) -> T,
) -> f64 {
    let slots = RING / size_of::<T>();
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<T>(slots), spsc::bounded::<T>(slots));
    let receiver = Relay::receiver(there, key, SpscSink::new(sink)).unwrap();
    let sender = Relay::sender(here, key, SpscSource::new(source)).unwrap();
    producer.push(message(0)).unwrap();
    while consumer.pop().is_err() {
        thread::yield_now();
    }
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0;
            while next < count {
                // Polling for a single slot takes a core from the relay.
                let free = producer.with(|end| end.refresh()).unwrap() as u64;
                if free < (slots as u64 / 4).min(count - next) {
                    thread::sleep(NAP);
                    continue;
                }
                let most = free.min(count - next);
                producer.with(|end| end.reserve(most as usize).unwrap().fill((next..next + most).map(message)));
                next += most;
            }
        });
        let mut next = 0;
        while next < count {
            let got = consumer.with(|end| {
                let chunk = end.peek(usize::MAX).ok()?;
                chunk.iter().zip(next..).for_each(|(got, number)| assert_eq!(*got, message(number)));
                let len = chunk.len();
                chunk.release(len);
                Some(len)
            });
            match got {
                Some(len) => next += len as u64,
                None => thread::sleep(NAP),
            }
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    sender.stop().1.unwrap();
    receiver.stop().1.unwrap();
    seconds
}

/// Moves messages in batches by put and subscribe; compares each.
fn put<T: RingMessage + PartialEq + std::fmt::Debug>(here: &Session, there: &Session, key: &str, count: u64, message: fn(u64) -> T) -> f64 {
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
    let publisher = here.declare_publisher(key).congestion_control(CongestionControl::Block).express(true).wait().unwrap();
    while !publisher.matching_status().wait().unwrap().matching() {
        thread::yield_now();
    }
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

/// Returns zenoh's median round trip in microseconds: callbacks that publish, as in its example.
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

fn report(json: bool, workload: &str, unit: &str, ours: &[f64], theirs: &[f64], scale: f64) {
    let [ours, theirs] = [ours, theirs].map(|values| median(values.iter().copied()));
    let ratio = ours / theirs;
    let [shown, other] = if scale > 0.0 { [scale / ours, scale / theirs] } else { [ours, theirs] };
    if json {
        println!(
            r#"{{"bench":"relay","workload":"{workload}","subject":"ringmem-zenoh","unit":"{unit}","median":{shown:.3},"peer":{other:.3},"ratio":{ratio:.3}}}"#
        );
    } else {
        println!("{workload:24} {shown:12.1} {other:12.1} {unit:20} time ratio {ratio:.2}");
    }
}

fn throughput<T: RingMessage + PartialEq + std::fmt::Debug>(
    json: bool,
    sessions: [&Session; 2],
    name: &str,
    count: u64,
    message: fn(u64) -> T,
) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ours.push(relayed(sessions[0], sessions[1], &format!("{name}/ring/{round}"), count, message));
        theirs.push(put(sessions[0], sessions[1], &format!("{name}/put/{round}"), count, message));
    }
    report(json, &format!("messages-{name}"), "10^3 messages/s", &ours, &theirs, count as f64 / 1e3);
    report(json, &format!("bytes-{name}"), "MB/s", &ours, &theirs, (count * size_of::<T>() as u64) as f64 / 1e6);
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let quick = if std::env::args().any(|argument| argument == "--quick") { 20 } else { 1 };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp/{}", listener.local_addr().unwrap());
    drop(listener);
    let there = session("listen/endpoints", &endpoint);
    let here = session("connect/endpoints", &endpoint);
    let sessions = [&here, &there];
    throughput::<u64>(json, sessions, "8", 10_000_000 / quick, |number| number);
    throughput::<[u64; 8]>(json, sessions, "64", 5_000_000 / quick, |number| [number; 8]);
    throughput::<[u64; 128]>(json, sessions, "1024", 500_000 / quick, |number| [number; 128]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(ring_round_trip(&here, &there));
        theirs.push(ping(&here, &there));
    }
    report(json, "round-trip-8", "us", &ours, &theirs, 0.0);
}
