use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ringmem::Local;
use ringmem::ring::{End, Pop, PopError, Push, PushError, WaitWords, flagged, mpmc, mpsc, spsc};
use ringmem::wait::{self, RecvError, SendError, TryRecvError, TrySendError, WaitStrategy, Waiting, pair};

use crate::LIMIT;

const HOWS: [WaitStrategy; 4] = [
    WaitStrategy::SpinYield { polls: 0 },
    WaitStrategy::SpinYield { polls: 100 },
    WaitStrategy::Sleep { polls: 0 },
    WaitStrategy::Sleep { polls: 100 },
];
const MESSAGES: u64 = 20_000;
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn messages_pass_between_two_waiting_threads() {
    for how in HOWS {
        let mut ring = spsc::Ring::<u64, 4>::starting_at(u64::MAX - 2);
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        thread::scope(|scope| {
            scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_timeout(number, LIMIT).unwrap()));
            for number in 0..MESSAGES {
                assert_eq!(receiver.recv_timeout(LIMIT), Ok(number), "{how:?}");
            }
            assert_eq!(receiver.recv_timeout(LIMIT), Err(RecvError::Disconnected), "{how:?}");
        });
    }
}

#[test]
fn a_flagged_ring_supports_waiting() {
    let mut ring = flagged::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    thread::scope(|scope| {
        scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_timeout(number, LIMIT).unwrap()));
        for number in 0..MESSAGES {
            assert_eq!(receiver.recv_timeout(LIMIT), Ok(number));
        }
    });
}

fn sum_of_all(mut receiver: Waiting<mpmc::Consumer<'_, u64, Local>>) -> u64 {
    let mut sum = 0;
    loop {
        match receiver.recv_timeout(LIMIT) {
            Ok(number) => sum += number,
            Err(end) => {
                assert_eq!(end, RecvError::Disconnected);
                return sum;
            }
        }
    }
}

#[test]
fn owning_ends_wait_in_threads_and_tasks() {
    for how in HOWS {
        let ring = spsc::Boxed::<String>::over(Box::new_uninit_slice(2)).unwrap();
        let (producer, consumer) = ring.into_ends();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        let sends = thread::spawn(move || (0..MESSAGES / 10).for_each(|number| sender.send_timeout(number.to_string(), LIMIT).unwrap()));
        let receives = thread::spawn(move || {
            block_on(async {
                for number in 0..MESSAGES / 10 {
                    assert_eq!(receiver.recv_async().await, Ok(number.to_string()));
                }
                receiver.recv_async().await
            })
        });
        sends.join().unwrap();
        assert_eq!(receives.join().unwrap(), Err(RecvError::Disconnected), "{how:?}");
    }
}

#[test]
fn every_waiter_of_an_mpmc_ring_is_woken() {
    let ring = mpmc::Ring::<u64, 2>::new();
    let (producer, consumer) = ring.split();
    let (sender, receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    let total: u64 = thread::scope(|scope| {
        for part in 0..2 {
            let mut sender = sender.clone();
            scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_timeout(2 * number + part, LIMIT).unwrap()));
        }
        drop(sender);
        let threads = [receiver.clone(), receiver].map(|receiver| scope.spawn(move || sum_of_all(receiver)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, (0..2 * MESSAGES).sum::<u64>());
}

#[test]
fn a_deadline_ends_a_wait_and_returns_the_value() {
    for how in [WaitStrategy::Spin, WaitStrategy::SpinYield { polls: 10 }, WaitStrategy::Sleep { polls: 10 }] {
        let mut ring = spsc::Ring::<String, 1>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        let begun = Instant::now();
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvError::Timeout), "{how:?}");
        assert!(begun.elapsed() >= SHORT);
        sender.send("first".to_owned()).unwrap();
        match sender.send_deadline("second".to_owned(), Instant::now() + SHORT) {
            Err(SendError::Timeout(value)) => assert_eq!(value, "second"),
            other => panic!("{how:?}: {other:?}"),
        }
        assert_eq!(receiver.recv().unwrap(), "first");
        sender.send_deadline("third".to_owned(), begun).unwrap();
        assert_eq!(receiver.recv_deadline(begun).unwrap(), "third");
    }
}

#[test]
fn send_without_a_receiver_returns_the_value() {
    for how in HOWS {
        let mut ring = spsc::Ring::<String, 1>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, receiver) = pair(producer, consumer, how);
        sender.send("taken".to_owned()).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(SHORT);
                drop(receiver);
            });
            match sender.send_timeout("left".to_owned(), LIMIT) {
                Err(SendError::Disconnected(value)) => assert_eq!(value, "left"),
                other => panic!("{how:?}: {other:?}"),
            }
        });
        match block_on(sender.send_async("still".to_owned())) {
            Err(SendError::Disconnected(value)) => assert_eq!(value, "still"),
            other => panic!("{how:?}: {other:?}"),
        }
    }
}

#[test]
fn tasks_of_any_executor_can_wait() {
    for how in HOWS {
        let mut ring = mpsc::Ring::<u64, 2>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        thread::scope(|scope| {
            scope.spawn(move || {
                block_on(async {
                    for number in 0..MESSAGES {
                        sender.send_async(number).await.unwrap();
                    }
                });
            });
            block_on(async {
                for number in 0..MESSAGES {
                    assert_eq!(receiver.recv_async().await, Ok(number), "{how:?}");
                }
                assert_eq!(receiver.recv_async().await, Err(RecvError::Disconnected));
            });
        });
    }
}

#[test]
fn a_dropped_or_forgotten_future_loses_no_message() {
    use futures::FutureExt;
    let mut ring = spsc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    for number in 0..100 {
        assert!(receiver.recv_async().now_or_never().is_none());
        let mut forgotten = receiver.recv_async();
        assert!((&mut forgotten).now_or_never().is_none());
        std::mem::forget(forgotten);
        block_on(sender.send_async(number)).unwrap();
        let mut unsent = sender.send_async(1000);
        assert!((&mut unsent).now_or_never().is_none());
        assert_eq!(unsent.cancel(), Some(1000));
        assert!(sender.send_async(1000).now_or_never().is_none());
        assert_eq!(block_on(receiver.recv_async()), Ok(number));
    }
    assert_eq!(receiver.recv_async().now_or_never(), None);
}

#[test]
fn an_awake_end_is_not_counted_as_a_sleeper() {
    use futures::FutureExt;
    use ringmem::Word;
    let mut ring = spsc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    let asleep = |word: &ringmem::HostWord| Word::load(word) as u32;
    let mut forgotten = receiver.recv_async();
    assert!((&mut forgotten).now_or_never().is_none());
    std::mem::forget(forgotten);
    assert!(receiver.recv_async().now_or_never().is_none());
    assert_eq!(asleep(sender.end().wait_words().theirs), 1, "the forgotten one");
    sender.send(1).unwrap();
    assert_eq!(asleep(sender.end().wait_words().theirs), 0, "woken once, and struck off");
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(1));
    assert_eq!(receiver.recv_timeout(SHORT), Err(RecvError::Timeout));
    assert_eq!(asleep(receiver.end().wait_words().ours), 0, "a deadline that has passed counts nobody");
}

fn until_asleep(word: &ringmem::HostWord) {
    while ringmem::Word::load(word) as u32 == 0 {
        thread::yield_now();
    }
    thread::sleep(SHORT);
}

/// `rescue` wakes a sleeping thread, so that the test can fail.
fn has_ended<T>(thread: &thread::ScopedJoinHandle<'_, T>, rescue: impl FnOnce()) -> bool {
    let begun = Instant::now();
    while !thread.is_finished() {
        if begun.elapsed() > LIMIT {
            rescue();
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn dropping_a_grant_wakes_other_senders() {
    let ring = mpmc::Ring::<u64, 4>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    let mut beside = sender.clone();
    thread::scope(|scope| {
        let sent = sender.with_end(|end| {
            let grant = end.reserve(4).unwrap();
            let sent = scope.spawn(move || beside.send(7));
            until_asleep(receiver.end().wait_words().theirs);
            drop(grant);
            sent
        });
        assert!(has_ended(&sent, || receiver.with_end(|_| ())), "the room that was given up woke nobody");
    });
}

#[test]
fn a_message_published_before_a_panic_wakes_the_receiver() {
    let mut ring = spsc::Ring::<u64, 4>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    thread::scope(|scope| {
        let received = scope.spawn(move || receiver.recv());
        until_asleep(sender.end().wait_words().theirs);
        let written = std::panic::AssertUnwindSafe(|| {
            sender.with_end(|end| {
                end.reserve(4).unwrap().fill((0..4).inspect(|number| assert!(*number < 2, "planned")));
            });
        });
        std::panic::catch_unwind(written).expect_err("the iterator panics");
        assert!(has_ended(&received, || sender.with_end(|_| ())), "what was written woke nobody");
        assert_eq!(received.join().unwrap(), Ok(0));
    });
}

#[test]
fn releasing_a_forgotten_batch_wakes_its_sender() {
    use futures::FutureExt;
    for is_async in [false, true] {
        let mut ring = spsc::Ring::<u64, 2>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
        (0..2).for_each(|number| sender.send(number).unwrap());
        receiver.with_end(|end| {
            let mut batch = end.batch(8);
            (0..2).for_each(|number| assert_eq!(batch.pop(), Ok(number)));
            std::mem::forget(batch);
        });
        thread::scope(|scope| {
            let sent = scope.spawn(move || sender.send(2));
            until_asleep(receiver.end().wait_words().theirs);
            let at_once = if is_async { receiver.recv_async().now_or_never() } else { None };
            if is_async {
                assert!(has_ended(&sent, || receiver.with_end(|_| ())), "the release of a poll woke nobody");
            }
            let received = at_once.unwrap_or_else(|| receiver.recv_timeout(LIMIT));
            receiver.with_end(|_| ());
            assert_eq!(received, Ok(2));
        });
    }
}

/// The wakers of a task are kept by the pair whose future it awaits, and the ends of two pairs are exchanged.
#[test]
fn exchanged_ends_wake_the_tasks_and_threads_of_their_ring() {
    for is_task in [false, true] {
        let (mut one, first) = wait::bounded::<u64>(1);
        let (mut other, second) = wait::bounded::<u64>(1);
        let words = [one.end(), other.end()].map(|end| std::ptr::from_ref(end.wait_words().theirs));
        let [first, second] = [first, second].map(|mut end| {
            let (sender, results) = std::sync::mpsc::channel();
            thread::spawn(move || {
                for _ in 0..2 {
                    let result = if is_task { block_on(end.recv_async()) } else { end.recv() };
                    let _ = sender.send(result);
                }
                end
            });
            results
        });
        // SAFETY: the rings live as long as the senders.
        words.iter().for_each(|&word| until_asleep(unsafe { &*word }));
        one.with_end(|one| other.with_end(|other| std::mem::swap(one, other)));
        // SAFETY: the rings live as long as the senders, and the other sender has this ring now.
        words.iter().for_each(|&word| until_asleep(unsafe { &*word }));
        // One after the other: a message to either ring may wake the tasks of both.
        one.send(7).unwrap();
        assert_eq!(second.recv_timeout(LIMIT).expect("it was woken"), Ok(7), "{is_task}");
        other.send(8).unwrap();
        assert_eq!(first.recv_timeout(LIMIT).expect("it was woken"), Ok(8), "{is_task}");
        drop((one, other));
        for received in [first, second] {
            assert_eq!(received.recv_timeout(LIMIT).expect("it was woken"), Err(RecvError::Disconnected), "{is_task}");
        }
    }
}

/// A full ring without a consumer at even checks.
struct Flickering(std::cell::Cell<u32>, [ringmem::HostWord; 2]);

impl End for Flickering {
    type Word = ringmem::HostWord;
    type Corrupt = std::convert::Infallible;
    fn wait_words(&self) -> WaitWords<'_, Self::Word> {
        WaitWords { theirs: &self.1[0], ours: &self.1[1] }
    }
    fn is_disconnected(&self) -> bool {
        self.0.set(self.0.get() + 1);
        self.0.get().is_multiple_of(2)
    }
    fn leave(self, after: impl FnOnce(&Self::Word)) {
        after(&self.1[0]);
    }
}

impl Push for Flickering {
    type Item = String;
    fn push(&mut self, value: String) -> Result<(), PushError<String>> {
        Err(PushError::Full(value))
    }
}

#[test]
fn send_async_returns_an_unsent_value_on_disconnect() {
    let end = Flickering(std::cell::Cell::new(0), Default::default());
    let mut sender = Waiting::sender(end, WaitStrategy::default());
    match block_on(sender.send_async("kept".to_owned())) {
        Err(SendError::Disconnected(value)) => assert_eq!(value, "kept"),
        other => panic!("{other:?}"),
    }
}

/// Empty, without a producer; the next check finds a message and a sleeping producer.
struct Succeeded(bool, [ringmem::HostWord; 2]);

impl End for Succeeded {
    type Word = ringmem::HostWord;
    type Corrupt = std::convert::Infallible;
    fn wait_words(&self) -> WaitWords<'_, Self::Word> {
        WaitWords { theirs: &self.1[0], ours: &self.1[1] }
    }
    fn is_disconnected(&self) -> bool {
        true
    }
    fn leave(self, after: impl FnOnce(&Self::Word)) {
        after(&self.1[0]);
    }
}

impl Pop for Succeeded {
    type Item = u64;
    fn pop(&mut self) -> Result<u64, PopError> {
        if !std::mem::replace(&mut self.0, true) {
            return Err(PopError::Empty);
        }
        ringmem::Word::store(&self.1[0], 1);
        Ok(7)
    }
}

#[test]
fn receiving_a_departed_sender_s_message_wakes_its_successor() {
    let mut receiver = Waiting::receiver(Succeeded(false, Default::default()), WaitStrategy::Sleep { polls: 0 });
    assert_eq!(receiver.recv(), Ok(7));
    assert_eq!(ringmem::Word::load(receiver.end().wait_words().theirs) >> 32, 1, "who sleeps is woken");
}

#[test]
fn try_recv_returns_a_message_published_before_the_disconnect() {
    let mut receiver = Waiting::receiver(Succeeded(false, Default::default()), WaitStrategy::default());
    assert!(receiver.is_disconnected());
    assert_eq!(receiver.try_recv(), Ok(7));
}

/// Callers that wait for an answer inside their message: its drop is the answer.
#[test]
fn messages_are_dropped_with_the_last_receiver() {
    fn each<E: Push<Item = Arc<()>>, F: Pop<Item = Arc<()>>>(what: &str, (mut sender, receiver): (Waiting<E>, Waiting<F>))
    where
        wait::Os: wait::Park<E::Word> + wait::Park<F::Word>,
    {
        let message = Arc::new(());
        for _ in 0..3 {
            assert!(sender.try_send(Arc::clone(&message)).is_ok(), "{what}");
        }
        drop(receiver);
        assert_eq!(Arc::strong_count(&message), 1, "{what}: the sender lives");
        assert!(matches!(sender.try_send(Arc::clone(&message)), Err(TrySendError::Disconnected(_))), "{what}");
        assert_eq!(Arc::strong_count(&message), 1, "{what}");
    }
    each("spsc", wait::bounded(4));
    each("mpsc", wait::bounded_mpsc(4));
    each("mpmc", wait::bounded_mpmc(4));
    for how in HOWS {
        let (producer, consumer) = flagged::bounded(4);
        each("flagged", pair(producer, consumer, how));
    }
}

/// Each pair of threads meets at a barrier, so that many pushes come while the receiver leaves.
#[test]
fn a_message_sent_while_the_last_receiver_leaves_is_dropped() {
    const ROUNDS: usize = 500;
    for how in [WaitStrategy::Sleep { polls: 0 }, WaitStrategy::SpinYield { polls: 100 }] {
        let (message, mut kept) = (Arc::new(()), 0);
        let meet = Barrier::new(3);
        let (to_sender, senders) = std::sync::mpsc::channel();
        let (to_other, others) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            for senders in [senders, others] {
                let (meet, message) = (&meet, &message);
                scope.spawn(move || {
                    for mut sender in senders.iter().take(ROUNDS) {
                        let sent: &mut Waiting<mpsc::OwnedProducer<Arc<()>>> = &mut sender;
                        meet.wait();
                        while !matches!(sent.try_send(Arc::clone(message)), Err(TrySendError::Disconnected(_))) {}
                        // The receiver has left and both senders have stopped, but live.
                        meet.wait();
                        meet.wait();
                    }
                });
            }
            for round in 0..ROUNDS {
                let (producer, consumer) = mpsc::bounded(1024);
                let (sender, receiver) = pair(producer, consumer, how);
                to_other.send(sender.clone()).expect("a thread");
                to_sender.send(sender).expect("a thread");
                meet.wait();
                for _ in 0..round % 256 {
                    std::hint::spin_loop();
                }
                drop(receiver);
                meet.wait();
                // A panic here would leave the senders at the barrier.
                kept += Arc::strong_count(&message) - 1;
                meet.wait();
            }
        });
        assert_eq!(kept, 0, "{how:?}");
    }
}

#[test]
fn try_send_and_try_recv_report_a_dropped_peer() {
    let (mut sender, receiver) = wait::bounded::<u64>(1);
    assert_eq!(sender.try_send(1).ok(), Some(()));
    assert!(matches!(sender.try_send(2), Err(TrySendError::Full(2))));
    assert!(!sender.is_disconnected());
    drop(receiver);
    assert!(sender.is_disconnected());
    assert!(matches!(sender.try_send(3), Err(TrySendError::Disconnected(3))));
    let (mut sender, mut receiver) = wait::bounded::<u64>(1);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    sender.send(4).unwrap();
    drop(sender);
    assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(4), Err(TryRecvError::Disconnected)));
}

#[test]
fn a_panicking_waker_does_not_block_other_tasks() {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::{Context, Wake, Waker};
    struct Woken(AtomicU32);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            assert_ne!(self.0.fetch_add(1, Relaxed), 0, "planned");
        }
    }
    let woken = Arc::new(Woken(AtomicU32::new(0)));
    let ring = mpmc::Ring::<u64, 4>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::Sleep { polls: 0 });
    let mut beside = receiver.clone();
    let waker = Waker::from(woken.clone());
    let (mut one, mut other) = (pin!(receiver.recv_async()), pin!(beside.recv_async()));
    for future in [one.as_mut(), other.as_mut()] {
        assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sender.send(1)));
    sent.expect_err("the waker's panic goes on");
    assert_eq!(woken.0.load(Relaxed), 2);
    assert!(one.poll(&mut Context::from_waker(&waker)).is_ready());
}

#[cfg(feature = "futures")]
#[test]
fn ends_are_streams_and_sinks() {
    use futures::{SinkExt, StreamExt, TryStreamExt, stream};
    let mut ring = spsc::Ring::<u64, 2>::new();
    let (producer, consumer) = ring.split();
    let (sender, receiver) = pair(producer, consumer, WaitStrategy::default());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut sink = sender.into_sink();
            block_on(sink.send_all(&mut stream::iter((0..MESSAGES).map(Ok)))).unwrap();
            block_on(sink.close()).unwrap();
        });
        let numbers: Vec<u64> = block_on(receiver.into_stream().take(MESSAGES as usize).try_collect()).unwrap();
        assert!(numbers.into_iter().eq(0..MESSAGES));
    });
}

#[cfg(feature = "futures")]
#[test]
fn a_closed_sink_has_disconnected() {
    use futures::{SinkExt, StreamExt};
    let mut ring = spsc::Ring::<u64, 2>::new();
    let (producer, consumer) = ring.split();
    let (sender, receiver) = pair(producer, consumer, WaitStrategy::default());
    let (mut sink, mut messages) = (sender.into_sink(), receiver.into_stream());
    block_on(sink.feed(1)).unwrap();
    block_on(sink.close()).unwrap();
    assert!(matches!(block_on(sink.send(2)), Err(SendError::Disconnected(2))));
    assert!(matches!(block_on(messages.next()), Some(Ok(1))));
    assert!(block_on(messages.next()).is_none());
    block_on(sink.close()).unwrap();
}

#[test]
fn bounded_rounds_capacities_up_and_receivers_iterate() {
    for (asked, capacity) in [(0, 1), (1, 1), (3, 4), (1000, 1024)] {
        let (sender, receiver) = wait::bounded::<u64>(asked);
        assert_eq!((sender.end().capacity(), receiver.end().capacity()), (capacity, capacity));
    }
    let (mut sender, mut receiver) = wait::bounded(4);
    let producer = thread::spawn(move || (0..1000_u64).for_each(|number| sender.send(number).expect("a receiver")));
    assert_eq!(receiver.iter().take(10).sum::<u64>(), 45);
    assert_eq!(receiver.into_iter().sum::<u64>(), 499_500 - 45);
    producer.join().expect("no panic");

    let (mut sender, mut receiver) = wait::bounded_mpsc(8);
    let mut other = sender.clone();
    sender.send(1).expect("room");
    other.send(2).expect("room");
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
    drop((sender, other));
    assert_eq!(receiver.into_iter().next(), None);

    let (mut sender, receiver) = wait::bounded_mpmc(8);
    let mut other = receiver.clone();
    sender.send(1).expect("room");
    drop(sender);
    assert_eq!((other.recv(), receiver.into_iter().next()), (Ok(1), None));
}

#[test]
fn select_returns_a_message_that_is_sent_later() {
    let (ends, mut receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| wait::bounded::<u64>(4)).unzip();
    let mut senders = ends.into_iter();
    let (mut quiet, mut loud) = (senders.next().expect("four"), senders.next_back().expect("four"));
    let kept: Vec<_> = senders.collect();
    let (go, gone) = std::sync::mpsc::channel();
    let sends = thread::spawn(move || {
        for number in 0..100 {
            gone.recv().expect("the test");
            loud.send(number).expect("a receiver");
        }
        loud
    });
    for number in 0..100 {
        go.send(()).expect("the sender");
        assert_eq!(wait::select(&mut receivers, Some(Instant::now() + LIMIT)), Some((3, Ok(number))));
    }
    let loud = sends.join().expect("no panic");
    quiet.send(7).expect("room");
    drop(loud);
    let mut seen: Vec<_> = (0..100).map(|_| wait::select(&mut receivers, None).expect("two are ready")).collect();
    seen.sort_by_key(|(index, _)| *index);
    seen.dedup();
    assert_eq!(seen, [(0, Ok(7)), (3, Err(RecvError::Disconnected))]);
    drop((quiet, kept));
}

/// Each slice of two has its own calls; a counter of the process would give the second slice the same start each time.
#[test]
fn alternating_selects_serve_every_receiver_alike() {
    for slices in 1..5 {
        let (mut senders, mut receivers): (Vec<_>, Vec<_>) = (0..slices).map(|_| full_rings(2, 200)).unzip();
        let mut served = vec![[0; 2]; slices];
        for _ in 0..200 {
            for (slice, receivers) in receivers.iter_mut().enumerate() {
                let (index, received) = wait::select(receivers, None).expect("both are ready");
                received.expect("a message");
                served[slice][index] += 1;
            }
        }
        assert_eq!(served, vec![[100; 2]; slices]);
        senders.clear();
    }
}

#[test]
fn a_ready_receiver_is_selected_within_as_many_calls_as_there_are_receivers() {
    let (senders, mut receivers) = full_rings(5, 64);
    // The first is empty and disconnected, so it is always ready.
    drop(senders.into_iter().next());
    while receivers[0].try_recv().is_ok() {}
    let order: Vec<usize> = (0..15).map(|_| wait::select(&mut receivers, None).expect("all are ready").0).collect();
    for round in order.chunks(5) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(round, [0, 1, 2, 3, 4], "{order:?}");
    }
    // One is selected from another slice in between: it comes last in the next round.
    let (index, _) = wait::select(&mut receivers[3..5], None).expect("both are ready");
    let next: Vec<usize> = (0..4).map(|_| wait::select(&mut receivers, None).expect("all are ready").0).collect();
    assert!(!next.contains(&(index + 3)), "{index}: {next:?}");
}

fn full_rings(count: usize, messages: u64) -> (Vec<wait::Sender<u64>>, Vec<wait::Receiver<u64>>) {
    (0..count)
        .map(|_| {
            let (mut sender, receiver) = wait::bounded::<u64>(256);
            (0..messages).for_each(|number| sender.send(number).expect("room"));
            (sender, receiver)
        })
        .unzip()
}

#[test]
fn select_ends_at_its_deadline_without_a_message() {
    let (mut sender, receiver) = wait::bounded::<u64>(4);
    let (_other, second) = wait::bounded(4);
    let mut receivers = [receiver, second];
    let wait_for = Duration::from_millis(20);
    let begun = Instant::now();
    assert_eq!(wait::select(&mut receivers, Some(begun + wait_for)), None);
    assert!(begun.elapsed() >= wait_for);
    assert_eq!(wait::select(&mut receivers[..0], None), None);
    sender.send(1).expect("room");
    assert_eq!(wait::select(&mut receivers, Some(begun)), Some((0, Ok(1))));
}
