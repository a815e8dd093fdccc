use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::channel::{Channel, ReceiveError, SendError};
use ringmem::ring::{framed, spsc};
use ringmem::shared::Memory;
use ringmem::wait::{self, TryRecvError, TrySendError};
use ringmem_kernels::{SharedLayout, kernels};
use ringmem_zenoh::{Error, FrameSink, Frames, MessageSink, Messages, Options, Relay, SharedSink, SharedSource, SpscSink, SpscSource};
use zenoh::Wait;

use crate::two_hosts::{LIMIT, Link, Message, Result, endpoint, eventually, message, pair, session};

#[derive(Clone, Copy, Debug, SharedLayout)]
#[repr(C)]
#[layout(message = 5)]
struct Order {
    price: f64,
    volume: u64,
}

#[derive(Clone, Copy, Debug, SharedLayout)]
#[repr(C)]
#[layout(message = 5)]
struct OtherOrder {
    price: f64,
    amount: u64,
}

#[test]
fn messages_arrive_in_order_and_are_counted() -> Result {
    let (here, there) = pair();
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<Message>(64), spsc::bounded::<Message>(64));
    let receiver = Relay::receiver(&there, "order", MessageSink::of(sink))?;
    let sender = Relay::sender(&here, "order", Messages::of(source))?;
    for number in 0..10_000 {
        while producer.push(message(number)).is_err() {
            thread::yield_now();
        }
        if number % 3 == 0 {
            assert_eq!(eventually("a message", || consumer.pop().ok()), message(number / 3));
        }
    }
    for number in 3334..10_000 {
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
    }
    let metrics = eventually("acknowledgements", || Some(sender.metrics()).filter(|metrics| metrics.acknowledged == 10_000));
    assert_eq!((metrics.messages, metrics.bytes, metrics.rejected), (10_000, 320_000, 0));
    let metrics = receiver.metrics();
    assert_eq!((metrics.messages, metrics.bytes, metrics.rejected), (10_000, 320_000, 0));
    sender.stop().1?;
    receiver.stop().1?;
    Ok(())
}

#[test]
fn frames_arrive_with_their_lengths() -> Result {
    let (here, there) = pair();
    let ((mut producer, source), (sink, mut consumer)) = (framed::bounded(1024), framed::bounded(4096));
    let (largest, there_largest) = (producer.end().largest(), consumer.end().largest());
    let _receiver = Relay::receiver(&there, "frames", FrameSink::of(sink, there_largest))?;
    let _sender = Relay::sender(&here, "frames", Frames::of(source, largest))?;
    let frame = |number: usize| vec![number as u8; number * 7 % (largest + 1)];
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..5_000 {
                eventually("room", || producer.push(&frame(number)).ok());
            }
        });
        let mut bytes = [0; 4096];
        for number in 0..5_000 {
            let len = eventually("a frame", || consumer.pop(&mut bytes).ok());
            assert!(bytes[..len] == frame(number), "frame {number}");
        }
    });
    Ok(())
}

#[test]
fn frames_that_never_fit_the_sink_are_a_mismatch() -> Result {
    let (here, there) = pair();
    let ((_producer, source), (sink, _consumer)) = (framed::bounded(4096), framed::bounded(64));
    let _receiver = Relay::receiver(&there, "large", FrameSink::of(sink, 24))?;
    let sender = Relay::sender(&here, "large", Frames::of(source, 2040))?;
    eventually("the sender's end", || sender.is_finished().then_some(()));
    let error = sender.join().1.unwrap_err().to_string();
    assert!(error.contains("up to 2040 bytes") && error.contains("up to 24 bytes"), "{error}");
    Ok(())
}

#[test]
fn a_message_type_mismatch_ends_the_sender() -> Result {
    let (here, there) = pair();
    let ((_producer, source), (sink, _consumer)) = (spsc::bounded::<Order>(4), spsc::bounded::<OtherOrder>(4));
    let receiver = Relay::receiver(&there, "types", MessageSink::of(sink))?;
    let sender = Relay::sender(&here, "types", Messages::of(source))?;
    eventually("the sender's end", || sender.is_finished().then_some(()));
    let error = sender.join().1.unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("8  volume: u64, 8 bytes") && text.contains("8  amount: u64, 8 bytes"), "{text}");
    assert!(!receiver.is_finished() && receiver.metrics().refused > 0, "the receiver waits for a sender that fits");
    Ok(())
}

kernels! {
    pub persistent fn successor(value: &u64, next: &mut u64) {
        *next = *value + 1;
    }
}

#[test]
fn a_channel_is_relayed_in_both_directions() -> Result {
    let (here, there) = pair();
    let channel = Channel::open(&HostBackend::builder().build()?, 0, SUCCESSOR)?;
    let channel = Arc::new(Mutex::new(channel));
    let to_kernel = Arc::clone(&channel);
    let sink = MessageSink::new(move |value: u64| match to_kernel.lock().unwrap().try_send(value) {
        // In the ring although the flush failed; the next one repeats it.
        Ok(()) | Err(SendError::Flush { message: None, .. }) => Ok(true),
        Err(SendError::Full(_) | SendError::Flush { message: Some(_), .. }) => Ok(false),
        Err(error) => Err(Error::End(error.to_string())),
    });
    let source = Messages::new(move || match channel.lock().unwrap().try_recv() {
        Ok(value) => Ok(Some(value)),
        Err(ReceiveError::Empty | ReceiveError::Flush(_)) => Ok(None),
        Err(error) => Err(Error::End(error.to_string())),
    });
    let _kernel_side = (Relay::receiver(&there, "to", sink)?, Relay::sender(&there, "from", source)?);
    let (mut sends, to) = wait::bounded::<u64>(16);
    let (from, mut receives) = wait::bounded::<u64>(16);
    let near_side = (Relay::sender(&here, "to", received(to))?, Relay::receiver(&here, "from", sent(from))?);
    thread::scope(|scope| {
        scope.spawn(|| (0..2_000).for_each(|number| sends.send(number).unwrap()));
        for number in 0..2_000 {
            assert_eq!(receives.recv_timeout(LIMIT), Ok(number + 1));
        }
    });
    drop(receives);
    sends.send(1)?;
    eventually("the receiver's end", || near_side.1.is_finished().then_some(()));
    drop(sends);
    eventually("the sender's end", || near_side.0.is_finished().then_some(()));
    let ends = [near_side.0.join().1, near_side.1.join().1].map(|end| end.unwrap_err().to_string());
    assert!(ends[0].contains("the sender was dropped") && ends[1].contains("the receiver was dropped"), "{ends:?}");
    Ok(())
}

fn received(mut end: wait::Receiver<u64>) -> Messages<u64> {
    Messages::new(move || match end.try_recv() {
        Ok(value) => Ok(Some(value)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(ended) => Err(Error::End(ended.to_string())),
    })
}

fn sent(mut end: wait::Sender<u64>) -> MessageSink<u64> {
    MessageSink::new(move |value| match end.try_send(value) {
        Ok(()) => Ok(true),
        Err(TrySendError::Full(_)) => Ok(false),
        Err(ended) => Err(Error::End(ended.to_string())),
    })
}

#[test]
fn batches_between_processes_of_one_host_pass_through_shared_memory_if_enabled() -> Result {
    const COUNT: u64 = 1 << 16;
    let endpoint = endpoint();
    let there = session("peer", &[&endpoint], &[]);
    let link = Link::to(&endpoint);
    let here = session("peer", &[], &[&link.endpoint]);
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<Message>(1 << 16), spsc::bounded::<Message>(1 << 16));
    (0..COUNT).for_each(|number| producer.push(message(number)).unwrap());
    let _receiver = Relay::receiver(&there, "memory", SpscSink::new(sink))?;
    let _sender = Relay::sender(&here, "memory", SpscSource::new(source))?;
    for number in 0..COUNT {
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
    }
    let (carried, bytes) = (link.carried(), 32 * COUNT);
    if cfg!(feature = "shared-memory") {
        assert!(carried < bytes / 4, "{carried} of {bytes} bytes through TCP");
    } else {
        assert!(carried >= bytes, "{carried} of {bytes} bytes through TCP");
    }
    Ok(())
}

#[test]
fn a_full_sink_limits_sent_messages_without_loss() -> Result {
    const WINDOW: usize = 64 << 10;
    let (here, there) = pair();
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<Message>(1 << 15), spsc::bounded::<Message>(64));
    let options = Options { window_bytes: WINDOW, silence: Duration::from_millis(50), ..Options::default() };
    let receiver = Relay::receiver(&there, "slow", MessageSink::of(sink))?;
    let sender = Relay::sender_with(&here, "slow", Messages::of(source), options)?;
    (0..1 << 15).for_each(|number| producer.push(message(number)).unwrap());
    eventually("a full sink", || consumer.end().is_full().then_some(()));
    thread::sleep(Duration::from_millis(500));
    let metrics = sender.metrics();
    assert_eq!((metrics.acknowledged, metrics.resent), (64, 0), "handshakes alone send nothing again");
    assert!(metrics.messages <= 64 + WINDOW as u64 / 32, "{metrics:?}");
    for number in 0..1 << 15 {
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
    }
    let metrics = receiver.metrics();
    assert_eq!((metrics.messages, metrics.duplicates, metrics.gaps), (1 << 15, 0, 0));
    Ok(())
}

#[test]
fn a_source_continues_with_a_new_sender() -> Result {
    let (here, there) = pair();
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<Message>(1024), spsc::bounded::<Message>(4));
    let _receiver = Relay::receiver(&there, "stop", MessageSink::of(sink))?;
    (0..1000).for_each(|number| producer.push(message(number)).unwrap());
    let mut sender = Relay::sender(&here, "stop", Messages::of(source))?;
    for number in 0..1000 {
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
        if number % 300 == 299 {
            let (source, ended) = sender.stop();
            ended?;
            sender = Relay::sender(&here, "stop", source)?;
        }
    }
    thread::sleep(Duration::from_millis(200));
    assert!(consumer.pop().is_err(), "nothing is doubled");
    Ok(())
}

#[test]
fn messages_arrive_after_ring_files_are_recreated() -> Result {
    let (here, there) = pair();
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    for (new_source, new_sink) in [(true, true), (false, false), (true, false), (false, true), (true, true)] {
        for (is_new, path) in [(new_source, &from), (new_sink, &to)] {
            if is_new {
                let _ = std::fs::remove_file(path);
                Memory::create_at::<Message>(path, 64)?;
            }
        }
        let mut producer = Memory::open(&from)?.producer::<Message>()?;
        let mut consumer = Memory::open(&to)?.consumer::<Message>()?;
        let receiver = Relay::receiver(&there, "path", SharedSink::open(&to)?)?;
        let sender = Relay::sender(&here, "path", SharedSource::open(&from)?)?;
        for number in 0..100 {
            eventually("room", || producer.push(message(number)).ok());
            assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
        }
        eventually("acknowledgements", || (sender.metrics().acknowledged == 100).then_some(()));
        sender.stop().1?;
        receiver.stop().1?;
    }
    Ok(())
}

#[test]
fn malformed_messages_are_counted_and_ignored() -> Result {
    let endpoint = endpoint();
    // A router forwards between clients, not between peers.
    let here = session("router", &[&endpoint], &[]);
    let (there, hostile) = (session("client", &[], &[&endpoint]), session("client", &[], &[&endpoint]));
    let ((mut producer, source), (sink, mut consumer)) = (spsc::bounded::<Message>(64), spsc::bounded::<Message>(64));
    let receiver = Relay::receiver(&there, "bad", MessageSink::of(sink))?;
    let sender = Relay::sender(&here, "bad", Messages::of(source))?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let watch = |sample: zenoh::sample::Sample| (sample.key_expr().to_string(), sample.payload().to_bytes().into_owned());
    let _watching = hostile.declare_subscriber("bad/*").callback(move |sample| keep.lock().unwrap().push(watch(sample))).wait()?;
    let mut random = 1_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for number in 0..300 {
        eventually("room", || producer.push(message(number)).ok());
        for (key, len) in [("bad/data", 64), ("bad/ack", 37)] {
            let recorded =
                seen.lock().unwrap().iter().rev().find(|(at, bytes)| at == key && bytes.len() == len).map(|(_, bytes)| bytes.clone());
            // Keep stream and receiver; randomise or cut the rest of the header.
            let mut bytes = recorded.unwrap_or_else(|| vec![0; len]);
            match next() % 4 {
                0 => bytes.truncate(next() as usize % bytes.len()),
                1 => bytes.extend(vec![7; next() as usize % 100]),
                2 if key == "bad/data" => bytes[4..8].copy_from_slice(&(next() as u32 | 2).to_le_bytes()),
                // Too far ahead.
                _ if key == "bad/data" => bytes[24..32].copy_from_slice(&(1 << 40 | next()).to_le_bytes()),
                _ => bytes[20..28].copy_from_slice(&(1 << 40 | next()).to_le_bytes()),
            }
            hostile.put(key, bytes).wait()?;
        }
        // A repeated batch of one message.
        let is_old = |bytes: &[u8]| bytes.len() == 64 && bytes[4..8] == [1, 0, 0, 0] && bytes[26..32] == [0; 6];
        let old = seen.lock().unwrap().iter().find(|(at, bytes)| at == "bad/data" && is_old(bytes)).map(|(_, bytes)| bytes.clone());
        if let Some(old) = old {
            hostile.put("bad/data", old).wait()?;
        }
        let replies =
            hostile.get("bad/hello").payload(vec![next() as u8; next() as usize % 30_000]).timeout(Duration::from_secs(1)).wait()?;
        while replies.recv().is_ok() {}
        assert_eq!(eventually("a message", || consumer.pop().ok()), message(number));
    }
    eventually("counters", || {
        (sender.metrics().rejected > 50 && receiver.metrics().rejected > 300 && receiver.metrics().gaps > 0).then_some(())
    });
    eventually("acknowledgements", || (sender.metrics().acknowledged == 300).then_some(()));
    sender.stop().1?;
    receiver.stop().1?;
    Ok(())
}
