//! A peer of the zenoh network that forges the messages of a relay, and options out of range.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::ring::spsc;
use ringmem::shared::{Consumer, Memory, Producer};
use ringmem_zenoh::{Error, MessageSink, Messages, Options, Relay, RingType, SharedSink, SharedSource, Sink, Source, SpscSink, SpscSource};
use tempfile::TempDir;
use zenoh::query::{Queryable, Reply};
use zenoh::{Session, Wait};

use crate::two_hosts::{LIMIT, Message, Result, endpoint, eventually, message, session};

const MIB: usize = 1 << 20;

/// A sender's host, which is the router, a receiver's host and a hostile one.
fn three() -> (Session, Session, Session) {
    let endpoint = endpoint();
    // A router forwards between clients, not between peers.
    let here = session("router", &[&endpoint], &[]);
    (here, session("client", &[], &[&endpoint]), session("client", &[], &[&endpoint]))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn replace(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Listens to the hellos of a sender without an answer; keeps the last one.
struct Hellos {
    last: Arc<Mutex<Option<Vec<u8>>>>,
    _queryable: Queryable<()>,
}

impl Hellos {
    fn of(hostile: &Session, key: &str) -> Self {
        let last = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&last);
        let queryable = hostile.declare_queryable(format!("{key}/hello"));
        let hear = move |query: zenoh::query::Query| *keep.lock().unwrap() = query.payload().map(|payload| payload.to_bytes().into_owned());
        Self { last, _queryable: queryable.callback(hear).wait().unwrap() }
    }

    fn wait(&self) -> Vec<u8> {
        eventually("a hello", || self.last.lock().unwrap().clone())
    }
}

/// Sends a hello; returns the first reply, unless none comes within a second.
fn greet(session: &Session, key: &str, hello: &[u8]) -> Option<Vec<u8>> {
    let replies = session.get(format!("{key}/hello")).payload(hello.to_vec()).timeout(Duration::from_secs(1)).wait().unwrap();
    let payload = |reply: Reply| reply.result().ok().map(|sample| sample.payload().to_bytes().into_owned());
    std::iter::from_fn(|| replies.recv().ok()).find_map(payload)
}

/// Replaces stream, first sequence number and the number after it in a genuine hello.
fn forged(genuine: &[u8], stream: u64, first: u64, count: u64) -> Vec<u8> {
    let mut hello = genuine.to_vec();
    replace(&mut hello, 4, stream);
    replace(&mut hello, 12, first);
    replace(&mut hello, 20, count);
    hello
}

/// A batch of one message, to the receiver of `welcome`.
fn batch(stream: u64, welcome: &[u8], first: u64, value: Message) -> Vec<u8> {
    let mut data = [b"rmzD".as_slice(), &1_u32.to_le_bytes(), &[0; 24]].concat();
    replace(&mut data, 8, stream);
    replace(&mut data, 16, number(welcome, 4));
    replace(&mut data, 24, first);
    data.extend(value.iter().flat_map(|word| word.to_ne_bytes()));
    data
}

/// Two rings in files and the relay between them.
struct Files {
    directory: TempDir,
    producer: Producer<Message>,
    consumer: Consumer<Message>,
    next: u64,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("ringmem-zenoh").tempdir_in("/dev/shm").unwrap();
        let [from, to] = ["from", "to"].map(|name| Memory::create_at::<Message>(directory.path().join(name), 64).unwrap());
        Self { directory, producer: from.producer().unwrap(), consumer: to.consumer().unwrap(), next: 0 }
    }

    fn relay(&self, key: &str, here: &Session, there: &Session) -> (Relay<SharedSource>, Relay<SharedSink>) {
        let options = Options { silence: Duration::from_millis(100), ..Options::default() };
        let receiver = Relay::receiver_with(there, key, SharedSink::open(self.directory.path().join("to")).unwrap(), options).unwrap();
        let sender = Relay::sender_with(here, key, SharedSource::open(self.directory.path().join("from")).unwrap(), options).unwrap();
        (sender, receiver)
    }

    /// Carries `count` messages, which arrive once and in order. Forged ones, of four equal words, may arrive between them.
    fn carry(&mut self, count: u64) {
        for _ in 0..count {
            self.producer.push(message(self.next)).unwrap();
            let genuine = |value: &Message| value[0] != value[1];
            let got = eventually(&format!("message {}", self.next), || self.consumer.pop().ok().filter(genuine));
            assert_eq!(got, message(self.next));
            self.next += 1;
        }
    }
}

fn stop<S: Send + 'static, R: Send + 'static>((sender, receiver): (Relay<S>, Relay<R>)) {
    sender.stop().1.unwrap();
    receiver.stop().1.unwrap();
}

#[test]
fn a_forged_hello_changes_neither_the_sequence_nor_the_stored_state() -> Result {
    let (here, there, hostile) = three();
    let hellos = Hellos::of(&hostile, "hello");
    let mut files = Files::new();
    let mut relay = files.relay("hello", &here, &there);
    files.carry(5);
    let genuine = hellos.wait();
    let stream = number(&genuine, 4);
    let stored = fs::read(files.directory.path().join("to.relay"))?;
    for (first, count) in [(1 << 62, 0), (u64::MAX, u64::MAX), (1 << 63, 1), (files.next + 1, 0), (0, 0), (files.next - 1, u64::MAX)] {
        eventually("an answer", || greet(&hostile, "hello", &forged(&genuine, stream, first, count)));
        assert_eq!(fs::read(files.directory.path().join("to.relay"))?, stored, "first {first}, count {count}");
        files.carry(3);
        stop(relay);
        relay = files.relay("hello", &here, &there);
        files.carry(3);
    }
    stop(relay);
    Ok(())
}

#[test]
fn a_relay_recovers_from_forged_hellos_with_forged_data() -> Result {
    let (here, there, hostile) = three();
    let hellos = Hellos::of(&hostile, "data");
    let mut files = Files::new();
    let mut relay = files.relay("data", &here, &there);
    files.carry(5);
    let genuine = hellos.wait();
    let stream = number(&genuine, 4);
    for first in [1 << 62, 1 << 63, u64::MAX, 0] {
        for restarts in [false, true] {
            eventually("acknowledgements", || (relay.0.metrics().acknowledged == relay.0.metrics().messages).then_some(()));
            // A peer may insert messages. A hello of the genuine sender in between withdraws the offer: once more.
            eventually("the forged message", || {
                let welcome = greet(&hostile, "data", &forged(&genuine, stream, first, 0))?;
                hostile.put("data/data", batch(stream, &welcome, first, [first; 4])).wait().unwrap();
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(1) {
                    if let Ok(value) = files.consumer.pop() {
                        assert_eq!(value, [first; 4]);
                        return Some(());
                    }
                    thread::sleep(Duration::from_micros(200));
                }
                None
            });
            if restarts {
                stop(relay);
                relay = files.relay("data", &here, &there);
            }
            files.carry(3);
        }
    }
    stop(relay);
    Ok(())
}

#[test]
fn forged_hellos_of_other_sources_do_not_make_a_receiver_forget_one() -> Result {
    let (here, _, hostile) = three();
    let (sink, mut consumer) = spsc::bounded::<Message>(64);
    let receiver = Relay::receiver(&here, "forget", SpscSink::new(sink))?;
    let hellos = Hellos::of(&hostile, "forget");
    let (_producer, source) = spsc::bounded::<Message>(4);
    let sender = Relay::sender(&here, "forget", SpscSource::new(source))?;
    let genuine = hellos.wait();
    sender.stop().1?;
    let welcome = eventually("a welcome", || greet(&hostile, "forget", &forged(&genuine, 7, 100, 3)));
    for place in 0..3 {
        hostile.put("forget/data", batch(7, &welcome, 100 + place, message(place))).wait()?;
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(place));
    }
    for stream in 1000..1200 {
        eventually("a welcome", || greet(&hostile, "forget", &forged(&genuine, stream, stream, 0)));
    }
    // No acknowledgement arrived: the source still has the three messages.
    let welcome = eventually("a welcome", || greet(&hostile, "forget", &forged(&genuine, 7, 100, 3)));
    assert_eq!((number(&welcome, 12), number(&welcome, 20)), (103, 103));
    assert_eq!(receiver.metrics().reconnects, 0, "no other source sent a message");
    receiver.stop().1?;
    Ok(())
}

/// Replies with `payload` to each hello, after `delay`, and calls itself complete.
fn answer(hostile: &Session, key: &str, delay: Duration, payload: Vec<u8>) -> Queryable<()> {
    let reply = move |query: zenoh::query::Query| {
        let payload = payload.clone();
        thread::spawn(move || {
            thread::sleep(delay);
            let _ = query.reply(query.key_expr().clone(), payload).wait();
        });
    };
    hostile.declare_queryable(format!("{key}/hello")).complete(true).callback(reply).wait().unwrap()
}

fn refusal(table: usize) -> Vec<u8> {
    [b"rmzR".as_slice(), &[0], &9_u64.to_le_bytes(), &[0; 16], &vec![b'x'; table]].concat()
}

fn welcome(receiver: u64, pushed: u64, received: u64, window: u64) -> Vec<u8> {
    [b"rmzW".to_vec(), [receiver, pushed, received, window].map(u64::to_le_bytes).concat()].concat()
}

#[test]
fn a_sender_does_not_follow_a_welcome_that_it_cannot() -> Result {
    let (here, there, hostile) = three();
    let false_ones = [welcome(1, 0, 0, 0), welcome(1, 0, 9, 1 << 20), welcome(1, 1, 0, 1 << 20), welcome(1, u64::MAX, 0, 1)];
    for (number, forged) in false_ones.into_iter().enumerate() {
        let key = format!("false/{number}");
        let answers = answer(&hostile, &key, Duration::ZERO, forged.clone());
        eventually("the forged reply", || greet(&here, &key, &[]).filter(|reply| *reply == forged));
        let (mut producer, source) = spsc::bounded::<Message>(4);
        let sender = Relay::sender(&here, &key, SpscSource::new(source))?;
        eventually("rejected", || (sender.metrics().rejected > 0).then_some(()));
        let (sink, mut consumer) = spsc::bounded::<Message>(4);
        let receiver = Relay::receiver(&there, &key, SpscSink::new(sink))?;
        producer.push(message(7))?;
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(7));
        drop(answers);
        stop((sender, receiver));
    }
    Ok(())
}

#[test]
fn a_later_forged_reply_does_not_hide_the_receivers_welcome() -> Result {
    let (here, there, hostile) = three();
    for (number, forged) in [refusal(3), welcome(1, 1 << 62, 1 << 62, 1), welcome(1, 0, 0, 0)].into_iter().enumerate() {
        let key = format!("late/{number}");
        let mut files = Files::new();
        // Both replies reach the sender's host before the sender starts: alone, a refusal ends the sender.
        let (sender, receiver) = files.relay(&key, &here, &there);
        files.carry(1);
        sender.stop().1?;
        let late = answer(&hostile, &key, Duration::from_millis(200), forged.clone());
        eventually("the forged reply", || greet(&here, &key, &[]).filter(|reply| *reply == forged));
        let sender = Relay::sender(&here, &key, SharedSource::open(files.directory.path().join("from"))?)?;
        files.carry(3);
        drop(late);
        stop((sender, receiver));
    }
    Ok(())
}

#[test]
fn oversized_hellos_are_rejected() -> Result {
    let (here, there, hostile) = three();
    let hellos = Hellos::of(&hostile, "large");
    let mut files = Files::new();
    let relay = files.relay("large", &here, &there);
    files.carry(1);
    let genuine = hellos.wait();
    drop(hellos);
    let get = |selector: &str| hostile.get(selector.to_owned()).payload(genuine.clone()).timeout(Duration::from_secs(1));
    let text = format!("large/hello?{}", "x".repeat(MIB));
    for (place, query) in [get("large/hello").attachment(vec![7; MIB]), get(&text)].into_iter().enumerate() {
        let before = relay.1.metrics().rejected;
        let replies = query.wait()?;
        assert!(std::iter::from_fn(|| replies.recv().ok()).all(|reply| reply.result().is_err()), "{place}: no answer");
        eventually("the counter", || (relay.1.metrics().rejected > before).then_some(()));
    }
    files.carry(1);
    stop(relay);
    Ok(())
}

/// The most memory that a process used, in bytes.
fn peak(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn sending_role() {
    let Ok(endpoint) = std::env::var("RINGMEM_ZENOH_SENDER") else { return };
    let here = session("client", &[], &[&endpoint]);
    let (mut producer, source) = spsc::bounded::<Message>(4);
    producer.push(message(0)).unwrap();
    let sender = Relay::sender(&here, "memory", SpscSource::new(source)).unwrap();
    println!("sends");
    std::io::stdout().flush().unwrap();
    let ended = sender.join().1.unwrap_err();
    assert!(matches!(&ended, Error::Mismatch { .. }), "{ended}");
    println!("ended");
    std::io::stdout().flush().unwrap();
    thread::sleep(LIMIT);
}

#[test]
fn a_sender_copies_no_refusal_or_acknowledgement_beyond_its_limit() -> Result {
    const LARGE: usize = 100 * MIB;
    let endpoint = endpoint();
    let hostile = session("router", &[&endpoint], &[]);
    let mut command = Command::new(std::env::current_exe()?);
    let command = command.args(["--exact", "hostile::sending_role", "--nocapture"]).env("RINGMEM_ZENOH_SENDER", &endpoint);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = |word: &str| assert!(lines.by_ref().map_while(|line| line.ok()).any(|line| line == word), "{word}");
    said("sends");
    hostile.put("memory/ack", vec![0; LARGE]).wait()?;
    thread::sleep(Duration::from_secs(2));
    let answers = answer(&hostile, "memory", Duration::ZERO, refusal(LARGE));
    thread::sleep(Duration::from_secs(4));
    let used = peak(child.id());
    assert!(child.try_wait()?.is_none(), "the sender runs");
    // Zenoh itself holds the whole message, and may still hold the one before.
    assert!(used < 2 * LARGE + LARGE / 4 * 3, "{} MiB", used / MIB);
    drop(answers);
    let _short = answer(&hostile, "memory", Duration::ZERO, refusal(10));
    said("ended");
    child.kill()?;
    child.wait()?;
    Ok(())
}

#[test]
fn the_program_limits_the_messages_that_zenoh_assembles() -> Result {
    const LARGE: usize = 100 * MIB;
    let endpoint = endpoint();
    let hostile = session("router", &[&endpoint], &[]);
    let _answers = answer(&hostile, "test/ring", Duration::ZERO, refusal(LARGE));
    let hosts = crate::two_hosts::Hosts::new(64);
    let client = ["--mode", "client", "--connect", &endpoint];
    let (sender, receiver) = (hosts.sender(&client), hosts.receiver(&client));
    hosts.carry(100, |_| {});
    for key in ["test/ring/ack", "test/ring/data"] {
        hostile.put(key, vec![0; LARGE]).wait()?;
    }
    thread::sleep(Duration::from_secs(4));
    for process in [&sender, &receiver] {
        let used = peak(process.id());
        assert!(used < LARGE, "{} MiB", used / MIB);
    }
    Ok(())
}

#[test]
fn options_out_of_range_are_errors_that_name_the_option() {
    let session = session("peer", &[], &[]);
    let default = Options::default();
    let options = [
        ("batch_bytes", Options { batch_bytes: 0, ..default }),
        ("batch_bytes", Options { batch_bytes: usize::MAX, ..default }),
        ("window_bytes", Options { window_bytes: 0, ..default }),
        ("window_bytes", Options { window_bytes: usize::MAX, ..default }),
        ("silence", Options { silence: Duration::ZERO, ..default }),
        ("silence", Options { silence: Duration::from_micros(999), ..default }),
        ("silence", Options { silence: Duration::MAX, ..default }),
    ];
    for (name, options) in options {
        let (sink, source) = spsc::bounded::<u64>(4);
        let sender = Relay::sender_with(&session, "options", SpscSource::new(source), options).err().map(|error| error.to_string());
        let receiver = Relay::receiver_with(&session, "options", SpscSink::new(sink), options).err().map(|error| error.to_string());
        for error in [sender, receiver] {
            let error = error.unwrap_or_else(|| panic!("accepted: {options:?}"));
            assert!(error.contains(name) && error.contains("got"), "{error}");
        }
    }
}

#[test]
fn options_at_their_limits_carry_messages() -> Result {
    let (here, there) = crate::two_hosts::pair();
    let least = Options { batch_bytes: 1, window_bytes: 1, silence: Duration::from_millis(1) };
    let most = Options { batch_bytes: 64 << 20, window_bytes: 1 << 40, silence: Duration::from_secs(24 * 60 * 60) };
    for (place, [ours, theirs]) in [[least, least], [least, most], [most, least], [most, most]].into_iter().enumerate() {
        let key = format!("limits/{place}");
        let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<Message>(64), spsc::bounded::<Message>(64));
        let receiver = Relay::receiver_with(&there, &key, MessageSink::of(sink), theirs)?;
        let sender = Relay::sender_with(&here, &key, Messages::of(source), ours)?;
        for number in 0..20 {
            producer.push(message(number))?;
            assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
        }
        stop((sender, receiver));
    }
    Ok(())
}

#[test]
fn an_invalid_state_is_an_error_that_names_the_remedy() -> Result {
    let session = session("peer", &[], &[]);
    let mut files = Files::new();
    let relay = files.relay("state", &session, &session);
    files.carry(3);
    // Without its state, a receiver gets unacknowledged messages again.
    eventually("acknowledgements", || (relay.0.metrics().acknowledged == 3).then_some(()));
    stop(relay);
    let state = files.directory.path().join("to.relay");
    let stored = fs::read(&state)?;
    for invalid in [stored[..stored.len() - 1].to_vec(), [&stored[..8], &[0; 16 * 10]].concat(), [&stored[..8], &[0; 1 << 15]].concat()] {
        fs::write(&state, &invalid)?;
        let error =
            Relay::receiver(&session, "state", SharedSink::open(files.directory.path().join("to"))?).err().map(|error| error.to_string());
        assert!(
            error.as_ref().is_some_and(|error| error.contains(&format!("{} bytes", invalid.len() - 8)) && error.contains(".relay")),
            "{error:?}"
        );
        assert_eq!(fs::read(&state)?, invalid, "unchanged");
    }
    // Entries with numbers that the source cannot have.
    fs::write(&state, [&stored[..16], &[0x55; 8]].concat())?;
    let relay = files.relay("state", &session, &session);
    files.carry(3);
    stop(relay);
    Ok(())
}

/// An end of a ring that breaks a rule: messages of no bytes, or more bytes pushed than there are.
struct Faulty {
    ring: RingType,
    pushes: usize,
}

impl Sink for Faulty {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn push(&mut self, messages: &[u8]) -> std::result::Result<(u64, usize), Error> {
        Ok((1, messages.len() + self.pushes))
    }

    fn tail(&self) -> u64 {
        0
    }
}

impl Source for Faulty {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn stream(&self) -> u64 {
        1
    }

    fn first(&self) -> u64 {
        0
    }

    fn take(&mut self, _: usize, into: &mut Vec<u8>) -> std::result::Result<u32, Error> {
        into.clear();
        Ok(1)
    }

    fn unreleased(&mut self) -> std::result::Result<u64, Error> {
        Ok(1)
    }

    fn seek(&mut self, _: u64) -> std::result::Result<bool, Error> {
        Ok(true)
    }

    fn release(&mut self, _: u64) {}
}

#[test]
fn messages_of_no_bytes_are_an_error_of_both_sides() {
    let session = session("peer", &[], &[]);
    let end = || Faulty { ring: RingType { size: 0, ..RingType::of::<u64>() }, pushes: 0 };
    let sender = Relay::<Faulty>::sender(&session, "empty", end()).err().map(|error| error.to_string());
    let receiver = Relay::<Faulty>::receiver(&session, "empty", end()).err().map(|error| error.to_string());
    for error in [sender, receiver] {
        assert!(error.as_ref().is_some_and(|error| error.contains("0 bytes")), "{error:?}");
    }
}

#[test]
fn ends_that_miscount_bytes_end_their_relay_with_an_error() -> Result {
    let (here, there) = crate::two_hosts::pair();
    let end = || Faulty { ring: RingType::of::<u64>(), pushes: 1 };
    let (mut producer, source) = spsc::bounded::<u64>(4);
    producer.push(1)?;
    let receiver = Relay::<Faulty>::receiver(&there, "sink", end())?;
    let _sender = Relay::sender(&here, "sink", SpscSource::new(source))?;
    eventually("the receiver's end", || receiver.is_finished().then_some(()));
    let error = receiver.join().1.unwrap_err().to_string();
    assert!(error.contains("the sink pushed 9 of 8 bytes"), "{error}");

    let (sink, _consumer) = spsc::bounded::<u64>(4);
    let _receiver = Relay::receiver(&there, "source", SpscSink::new(sink))?;
    let sender = Relay::<Faulty>::sender(&here, "source", end())?;
    eventually("the sender's end", || sender.is_finished().then_some(()));
    let error = sender.join().1.unwrap_err().to_string();
    assert!(error.contains("the source removed"), "{error}");
    Ok(())
}
