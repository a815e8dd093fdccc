mod counts;
mod spawned;

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;
use std::ptr::NonNull;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ringmem::ring::lossy::Overrun;
use ringmem::ring::mailbox::New;
use ringmem::ring::{End, Follow, Owned, Publish, RingFlags, framed, lossy, mailbox, mpmc, spsc};
use ringmem::wait::{Follower, Publisher, RecvError, WaitError, WaitStrategy, Waiting, broadcast, follow, pair};
use ringmem::{Host, HostWord, Local, RingHeader, RingLayout};

use crate::LIMIT;

const HOWS: [WaitStrategy; 4] = [
    WaitStrategy::SpinYield { polls: 0 },
    WaitStrategy::SpinYield { polls: 100 },
    WaitStrategy::Sleep { polls: 0 },
    WaitStrategy::Sleep { polls: 100 },
];
const ASLEEP: WaitStrategy = WaitStrategy::Sleep { polls: 0 };
const MESSAGES: usize = 5_000;
const SHORT: Duration = Duration::from_millis(20);

fn message(number: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(number % 24).collect()
}

fn until_asleep(word: &HostWord) {
    let deadline = Instant::now() + LIMIT;
    while ringmem::Word::load(word) as u32 == 0 {
        assert!(Instant::now() < deadline, "nobody went to sleep");
        thread::yield_now();
    }
    thread::sleep(SHORT);
}

macro_rules! pending {
    ($future:expr) => {
        assert!(pin!($future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    };
}

#[test]
fn bytes_pass_between_two_waiting_threads() {
    for how in HOWS {
        let mut ring = framed::Ring::<64>::starting_at(u64::MAX - 2);
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        thread::scope(|scope| {
            scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_bytes_timeout(&message(number), LIMIT).unwrap()));
            let mut into = [0; 24];
            for number in 0..MESSAGES {
                let len = receiver.recv_bytes_timeout(&mut into, LIMIT).unwrap();
                assert_eq!(into[..len], message(number), "{how:?}");
            }
            assert_eq!(receiver.recv_bytes_timeout(&mut into, LIMIT), Err(WaitError::Disconnected), "{how:?}");
        });
    }
}

#[test]
fn bytes_pass_between_two_tasks_with_owning_ends() {
    for how in HOWS {
        let (producer, consumer) = framed::Ring::<64>::new().into_ends();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        let sends = thread::spawn(move || {
            block_on(async {
                for number in 0..MESSAGES {
                    sender.send_bytes_async(&message(number)).await.unwrap();
                }
            });
        });
        let receives = thread::spawn(move || {
            block_on(async {
                let mut into = [0; 24];
                for number in 0..MESSAGES {
                    let len = receiver.recv_bytes_async(&mut into).await.unwrap();
                    assert_eq!(into[..len], message(number), "{how:?}");
                }
                receiver.recv_bytes_async(&mut into).await
            })
        });
        sends.join().unwrap();
        assert_eq!(receives.join().unwrap(), Err(WaitError::Disconnected));
    }
}

#[test]
fn oversized_frames_fail_at_once_and_full_rings_time_out() {
    for how in HOWS {
        let mut ring = framed::Ring::<32>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        let mut into = [0; 2];
        let begun = Instant::now();
        assert_eq!(receiver.recv_bytes_timeout(&mut into, SHORT), Err(WaitError::Timeout));
        assert!(begun.elapsed() >= SHORT);
        assert_eq!(sender.send_bytes(&[0; 9]), Err(WaitError::Refused(framed::PushError::TooLarge { largest: 8, asked: 9 })));
        assert_eq!((sender.send_bytes(b"eight..."), sender.try_send_bytes(b"also..")), (Ok(()), Ok(())));
        assert_eq!(sender.send_bytes_deadline(b"", Instant::now() + SHORT), Err(WaitError::Timeout));
        assert_eq!(sender.try_send_bytes(b""), Err(WaitError::Refused(framed::PushError::Full)));
        assert_eq!(receiver.recv_bytes(&mut into), Err(WaitError::Refused(framed::PopError::TooSmall { needed: 8 })));
        let mut into = [0; 8];
        assert_eq!((receiver.recv_bytes_deadline(&mut into, begun), &into), (Ok(8), b"eight..."));
        assert_eq!((receiver.try_recv_bytes(&mut into), &into[..6]), (Ok(6), &b"also.."[..]));
        assert_eq!(receiver.try_recv_bytes(&mut into), Err(WaitError::Refused(framed::PopError::Empty)));
        drop(receiver);
        assert_eq!(sender.try_send_bytes(b""), Err(WaitError::Disconnected));
        assert_eq!(sender.send_bytes(b""), Err(WaitError::Disconnected));
        assert_eq!(block_on(sender.send_bytes_async(b"")), Err(WaitError::Disconnected));
        drop(sender);
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        sender.send_bytes(b"last").unwrap();
        drop(sender);
        assert_eq!([(); 2].map(|()| receiver.try_recv_bytes(&mut into)), [Ok(4), Err(WaitError::Disconnected)]);
    }
}

#[test]
fn each_end_of_a_framed_ring_wakes_the_other() {
    let mut ring = framed::Ring::<16>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, ASLEEP);
    thread::scope(|scope| {
        let reads = scope.spawn(move || (receiver.recv_bytes_timeout(&mut [], LIMIT), receiver));
        until_asleep(sender.end().wait_words().theirs);
        sender.try_send_bytes(b"").unwrap();
        let (received, mut receiver) = reads.join().unwrap();
        assert_eq!(received, Ok(0));
        (0..2).for_each(|_| sender.try_send_bytes(b"").unwrap());
        let writes = scope.spawn(move || (sender.send_bytes_timeout(b"", LIMIT), sender));
        until_asleep(receiver.end().wait_words().theirs);
        receiver.try_recv_bytes(&mut []).unwrap();
        let (sent, mut sender) = writes.join().unwrap();
        assert_eq!(sent, Ok(()));
        let writes = scope.spawn(move || sender.send_bytes_timeout(b"", LIMIT));
        until_asleep(receiver.end().wait_words().theirs);
        drop(receiver);
        assert_eq!(writes.join().unwrap(), Err(WaitError::Disconnected));
    });
}

#[test]
fn a_dropped_bytes_future_receives_nothing_and_is_not_counted() {
    let mut ring = framed::Ring::<16>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, ASLEEP);
    {
        let mut into = [0; 8];
        pending!(receiver.recv_bytes_async(&mut into));
    }
    assert_eq!(ringmem::Word::load(receiver.end().wait_words().ours) as u32, 0);
    (0..2).for_each(|_| sender.try_send_bytes(b"").unwrap());
    {
        pending!(sender.send_bytes_async(b""));
    }
    assert_eq!(ringmem::Word::load(sender.end().wait_words().ours) as u32, 0);
    assert_eq!([(); 3].map(|()| receiver.try_recv_bytes(&mut [])), [Ok(0), Ok(0), Err(WaitError::Refused(framed::PopError::Empty))]);
}

#[cfg(feature = "futures")]
#[test]
fn framed_ends_are_streams_and_sinks_of_vectors() {
    use futures::{SinkExt, StreamExt, TryStreamExt, stream};
    for how in HOWS {
        let (producer, consumer) = framed::Ring::<64>::starting_at(u64::MAX - 2).into_ends();
        let (sender, receiver) = pair(producer, consumer, how);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut sink = sender.into_bytes_sink();
                block_on(sink.send_all(&mut stream::iter((0..MESSAGES).map(|number| Ok(message(number)))))).unwrap();
                block_on(sink.close()).unwrap();
            });
            let messages: Vec<Vec<u8>> = block_on(receiver.into_bytes_stream().take(MESSAGES).try_collect()).unwrap();
            assert!(messages.into_iter().eq((0..MESSAGES).map(message)), "{how:?}");
        });
    }
}

#[cfg(feature = "futures")]
#[test]
fn a_bytes_sink_returns_rejected_frames() {
    use framed::PushError::TooLarge;
    use futures::{FutureExt, SinkExt, StreamExt};
    let (producer, consumer) = framed::Ring::<32>::new().into_ends();
    let (sender, receiver) = pair(producer, consumer, ASLEEP);
    let (mut sink, mut messages) = (sender.into_bytes_sink(), receiver.into_bytes_stream());
    assert_eq!(sink.send(vec![9; 9]).now_or_never(), Some(Err(WaitError::Refused(TooLarge { largest: 8, asked: 9 }))));
    assert_eq!((sink.refused(), sink.refused()), (Some(vec![9; 9]), None));
    assert_eq!(sink.feed(vec![1; 8]).now_or_never(), Some(Ok(())));
    assert_eq!(sink.start_send_unpin(vec![]), Err(WaitError::Timeout));
    assert_eq!(sink.refused(), Some(vec![]));
    assert_eq!(sink.feed(vec![2; 5]).now_or_never(), Some(Ok(())), "the first went into the ring, which has room for two");
    assert_eq!(sink.flush().now_or_never(), Some(Ok(())));
    assert_eq!(sink.send(vec![3; 3]).now_or_never(), None);
    assert_eq!(messages.next().now_or_never(), Some(Some(Ok(vec![1; 8]))));
    assert_eq!(sink.close().now_or_never(), Some(Ok(())));
    assert_eq!(sink.send(vec![4]).now_or_never(), Some(Err(WaitError::Disconnected)));
    assert_eq!(sink.refused(), Some(vec![4]));
    let rest = [(); 3].map(|()| messages.next().now_or_never());
    assert_eq!(rest, [Some(Some(Ok(vec![2; 5]))), Some(Some(Ok(vec![3; 3]))), Some(None)]);
    let (producer, consumer) = framed::Ring::<32>::new().into_ends();
    let (sender, receiver) = pair(producer, consumer, ASLEEP);
    let mut sink = sender.into_bytes_sink();
    drop(receiver);
    assert_eq!(sink.send(vec![5]).now_or_never(), Some(Err(WaitError::Disconnected)));
    assert_eq!(sink.refused(), Some(vec![5]));
}

#[cfg(feature = "futures")]
#[test]
fn a_dropped_bytes_stream_or_sink_is_not_counted() {
    use futures::{SinkExt, StreamExt};
    let sleepers = |word: &HostWord| ringmem::Word::load(word) as u32;
    let (producer, consumer) = framed::Ring::<16>::new().into_ends();
    let (mut sender, receiver) = pair(producer, consumer, ASLEEP);
    let mut messages = receiver.into_bytes_stream();
    pending!(messages.next());
    assert_eq!(sleepers(sender.end().wait_words().theirs), 1);
    drop(messages);
    assert_eq!(sleepers(sender.end().wait_words().theirs), 0);
    assert_eq!(sender.try_send_bytes(b""), Err(WaitError::Disconnected));

    let (producer, consumer) = framed::Ring::<16>::new().into_ends();
    let (mut sender, receiver) = pair(producer, consumer, ASLEEP);
    (0..2).for_each(|_| sender.try_send_bytes(b"").unwrap());
    let mut sink = sender.into_bytes_sink();
    pending!(sink.send(vec![]));
    assert_eq!(sleepers(receiver.end().wait_words().theirs), 1);
    drop(sink);
    assert_eq!(sleepers(receiver.end().wait_words().theirs), 0);
}

#[test]
fn wait_accepts_any_operation_of_an_end() {
    for how in HOWS {
        let mut ring = framed::Ring::<64>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..MESSAGES as u8 {
                    let grant = sender.wait(None, |end| match end.reserve(20) {
                        Ok(mut grant) => {
                            grant.fill(number);
                            grant.commit(20);
                            Some(Ok(()))
                        }
                        Err(framed::PushError::Full) => None,
                        Err(never) => Some(Err(never)),
                    });
                    assert_eq!(grant, Ok(()));
                }
            });
            let mut numbers = 0..MESSAGES as u8;
            let ended = loop {
                let seen = receiver.wait(Some(Instant::now() + LIMIT), |end| match end.peek() {
                    Ok(frame) => {
                        let seen = (frame.len(), frame[19]);
                        frame.release();
                        Some(Ok(seen))
                    }
                    Err(framed::PopError::Empty) => None,
                    Err(corrupt) => Some(Err(corrupt)),
                });
                match seen {
                    Ok(seen) => assert_eq!(Some(seen), numbers.next().map(|number| (20, number)), "{how:?}"),
                    Err(ended) => break ended,
                }
            };
            assert_eq!((ended, numbers.next()), (WaitError::Disconnected, None));
        });

        let (producer, consumer) = spsc::Ring::<u64, 4>::new().into_ends();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        let reads = thread::spawn(move || {
            let three = |end: &mut Owned<spsc::Consumer<'static, u64, Local>>| {
                (end.end().len() >= 3).then(|| Ok::<_, Infallible>([(); 3].map(|()| end.pop().unwrap())))
            };
            block_on(receiver.wait_async(three))
        });
        (0..3).for_each(|number| sender.send(number).unwrap());
        assert_eq!(reads.join().unwrap(), Ok([0, 1, 2]), "{how:?}");
        assert_eq!(sender.wait(Some(Instant::now()), |_| None::<Result<(), Infallible>>), Err(WaitError::Disconnected));
    }
}

#[test]
fn a_grant_dropped_in_an_attempt_wakes_other_senders() {
    for is_async in [false, true] {
        let ring = mpmc::Ring::<u64, 4>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, receiver) = pair(producer, consumer, ASLEEP);
        thread::scope(|scope| {
            let (mut beside, mut sent) = (Some(sender.clone()), None);
            let attempt = |end: &mut mpmc::Producer<'_, u64, Local>| {
                let grant = end.reserve(4).unwrap();
                let mut beside = beside.take()?;
                sent = Some(scope.spawn(move || beside.send_timeout(7, LIMIT).is_ok()));
                until_asleep(receiver.end().wait_words().theirs);
                drop(grant);
                Some(Ok::<(), Infallible>(()))
            };
            let gave_up = if is_async { block_on(sender.wait_async(attempt)) } else { sender.wait(None, attempt) };
            assert_eq!((gave_up, sent.map(|sent| sent.join().unwrap())), (Ok(()), Some(true)), "{is_async}");
        });
    }
}

fn read_all<E>(mut receiver: Waiting<Follower<E>>) -> (u64, u64)
where
    E: Follow<Item = Result<u64, Overrun>>,
{
    let (mut read, mut lost, mut next) = (0, 0, 0);
    loop {
        match receiver.recv_timeout(LIMIT) {
            Ok(Ok(number)) => {
                assert_eq!(number, next);
                (read, next) = (read + 1, next + 1);
            }
            Ok(Err(Overrun { lost: passed })) => (lost, next) = (lost + passed, next + passed),
            Err(end) => {
                assert_eq!(end, RecvError::Disconnected);
                return (read, lost);
            }
        }
    }
}

#[test]
fn every_reader_of_a_lossy_ring_reads_or_counts_all() {
    for how in HOWS {
        let mut ring = lossy::Ring::<u64, 8>::starting_at(u64::MAX - 2);
        let (writer, reader) = ring.split();
        let (mut sender, receiver) = broadcast(writer, reader, how);
        thread::scope(|scope| {
            let reads = [receiver.clone(), receiver.clone(), receiver].map(|receiver| scope.spawn(move || read_all(receiver)));
            for number in 0..MESSAGES as u64 {
                sender.send(number).unwrap();
                if number % 64 == 0 {
                    thread::yield_now();
                }
            }
            drop(sender);
            for thread in reads {
                let (read, lost) = thread.join().unwrap();
                assert_eq!(read + lost, MESSAGES as u64, "{how:?}");
                assert!(read >= 8, "the last eight are there when the writer has left");
            }
        });
    }
}

#[test]
fn threads_and_tasks_wait_for_the_latest_value() {
    for how in HOWS {
        let (writer, reader) = mailbox::Mailbox::<[u64; 3]>::new().into_ends();
        let (mut sender, mut receiver) = broadcast(writer, reader, how);
        let mut other = receiver.clone();
        let thread = thread::spawn(move || {
            let mut last = New { version: 0, value: [0; 3], skipped: 0 };
            let mut seen = 0;
            while let Ok(new) = receiver.recv_timeout(LIMIT) {
                assert!(new.version > last.version && new.value == [new.version; 3], "{how:?}: {new:?}");
                seen += 1 + new.skipped;
                last = new;
            }
            (last.version, seen)
        });
        let task = thread::spawn(move || {
            block_on(async {
                let mut last = 0;
                while let Ok(new) = other.recv_async().await {
                    last = new.version;
                }
                last
            })
        });
        (1..=MESSAGES as u64).for_each(|number| sender.send([number; 3]).unwrap());
        drop(sender);
        assert_eq!((thread.join().unwrap(), task.join().unwrap()), ((MESSAGES as u64, MESSAGES as u64), MESSAGES as u64), "{how:?}");
    }
}

fn memory(kind: RingFlags) -> (RingHeader<HostWord>, [HostWord; 4]) {
    (RingHeader::new::<u64>(&RingLayout::of_kind::<u64>(kind, 2).unwrap(), 0), Default::default())
}

fn wakes<S, E, T>(mut sender: Waiting<Publisher<S>>, mut receiver: Waiting<Follower<E>>, header: &RingHeader<HostWord>, value: T)
where
    S: Publish<Item = u64>,
    E: Follow<Item = T> + Send,
    T: Debug + PartialEq + Send,
{
    let untouched = || [&header.producer.waiting, &header.consumer.waiting].map(ringmem::Word::load);
    thread::scope(|scope| {
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvError::Timeout));
        let reads = scope.spawn(move || (receiver.recv_timeout(LIMIT), receiver));
        until_asleep(sender.end().wait_words().theirs);
        assert_eq!(untouched(), [0, 0]);
        sender.send(7).unwrap();
        let (read, mut receiver) = reads.join().unwrap();
        assert_eq!(read, Ok(value));
        let reads = scope.spawn(move || receiver.recv_timeout(LIMIT));
        until_asleep(sender.end().wait_words().theirs);
        drop(sender);
        assert_eq!(reads.join().unwrap(), Err(RecvError::Disconnected));
    });
    assert_eq!(untouched(), [0, 0]);
}

#[test]
fn a_sleeping_reader_does_not_write_to_its_ring() {
    let (header, slots) = memory(RingFlags::LOSSY);
    let slots = NonNull::from(&slots).cast();
    // SAFETY: two zeroed slots of two words; the only writer.
    let writer = unsafe { lossy::Writer::<u64, Host>::new(&header, slots) }.unwrap().announce();
    // SAFETY: two zeroed slots of two words.
    let reader = unsafe { lossy::Reader::<u64, Host>::new(&header, slots) }.unwrap();
    let (sender, receiver) = broadcast(writer, reader, ASLEEP);
    wakes(sender, receiver, &header, Ok(7));

    let (header, slots) = memory(RingFlags::MAILBOX);
    let slots = NonNull::from(&slots).cast();
    // SAFETY: two zeroed slots of two words; the only writer.
    let writer = unsafe { mailbox::Writer::<u64, Host>::new(&header, slots) }.unwrap().announce();
    // SAFETY: two zeroed slots of two words.
    let reader = unsafe { mailbox::Reader::<u64, Host>::new(&header, slots) }.unwrap();
    let (sender, receiver) = broadcast(writer, reader, ASLEEP);
    wakes(sender, receiver, &header, New { version: 1, value: 7, skipped: 0 });
}

#[test]
fn push_slice_wakes_a_sleeping_reader() {
    let (writer, reader) = lossy::Ring::<u64, 8>::new().into_ends();
    let (mut sender, mut receiver) = broadcast(writer, reader, ASLEEP);
    let reads = thread::spawn(move || [(); 3].map(|()| receiver.recv_timeout(LIMIT)));
    until_asleep(sender.end().wait_words().theirs);
    sender.with_end(|end| end.end_mut().with(|writer| writer.push_slice(&[1, 2, 3])));
    assert_eq!(reads.join().unwrap(), [1, 2, 3].map(|number| Ok(Ok(number))));
}

#[test]
fn a_reader_of_a_plain_writer_still_receives_new_values() {
    for how in HOWS {
        let (mut writer, reader) = mailbox::Mailbox::<u64>::new().into_ends();
        let mut receiver = follow(reader, how);
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvError::Timeout));
        let writes = thread::spawn(move || {
            thread::sleep(SHORT);
            writer.with(|end| end.publish(7));
        });
        assert_eq!(receiver.recv_timeout(LIMIT).map(|new| new.value), Ok(7), "{how:?}");
        assert_eq!(block_on(receiver.recv_async()), Err(RecvError::Disconnected));
        writes.join().unwrap();
    }
}
