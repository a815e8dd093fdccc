//! Real threads and real tasks that wait at rings.
#![cfg(feature = "std")]

use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ringmem::Host;
use ringmem::layouts::ring::{flagged, mpmc, mpsc, spsc};
use ringmem::wait::{How, RecvError, SendError, Waiting, pair};

const HOWS: [How; 4] = [How::SpinYield { looks: 0 }, How::SpinYield { looks: 100 }, How::Sleep { looks: 0 }, How::Sleep { looks: 100 }];
const MESSAGES: u64 = 20_000;
/// Long enough for any machine: it is reached only by a wake-up that was lost.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn messages_pass_between_two_threads_that_wait() {
    for how in HOWS {
        let mut ring = spsc::Ring::<u64, 4>::starting_at(u64::MAX - 2);
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, how);
        thread::scope(|scope| {
            scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_timeout(number, LONG).unwrap()));
            for number in 0..MESSAGES {
                assert_eq!(receiver.recv_timeout(LONG), Ok(number), "{how:?}");
            }
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvError::Disconnected), "{how:?}");
        });
    }
}

#[test]
fn a_flag_in_the_slot_is_waited_for_too() {
    let mut ring = flagged::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, How::Sleep { looks: 0 });
    thread::scope(|scope| {
        scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_timeout(number, LONG).unwrap()));
        for number in 0..MESSAGES {
            assert_eq!(receiver.recv_timeout(LONG), Ok(number));
        }
    });
}

fn sum_of_all(mut receiver: Waiting<mpmc::Consumer<'_, u64, Host>>) -> u64 {
    let mut sum = 0;
    loop {
        match receiver.recv_timeout(LONG) {
            Ok(number) => sum += number,
            Err(end) => {
                assert_eq!(end, RecvError::Disconnected);
                return sum;
            }
        }
    }
}

#[test]
fn every_one_of_many_is_woken() {
    let ring = mpmc::Ring::<u64, 2>::new();
    let (producer, consumer) = ring.split();
    let (sender, receiver) = pair(producer, consumer, How::Sleep { looks: 0 });
    let total: u64 = thread::scope(|scope| {
        for part in 0..2 {
            let mut sender = sender.clone();
            scope.spawn(move || (0..MESSAGES).for_each(|number| sender.send_timeout(2 * number + part, LONG).unwrap()));
        }
        drop(sender);
        let threads = [receiver.clone(), receiver].map(|receiver| scope.spawn(move || sum_of_all(receiver)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, (0..2 * MESSAGES).sum::<u64>());
}

#[test]
fn a_deadline_ends_a_wait_and_gives_the_value_back() {
    for how in [How::Spin, How::SpinYield { looks: 10 }, How::Sleep { looks: 10 }] {
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
        // A deadline that has passed is still one look.
        sender.send_deadline("third".to_owned(), begun).unwrap();
        assert_eq!(receiver.recv_deadline(begun).unwrap(), "third");
    }
}

#[test]
fn who_sends_to_nobody_gets_the_value_back() {
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
            match sender.send_timeout("left".to_owned(), LONG) {
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
fn tasks_of_any_executor_wait() {
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
fn a_future_that_is_dropped_or_forgotten_loses_nothing() {
    use futures::FutureExt;
    let mut ring = spsc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, How::Sleep { looks: 0 });
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
fn nobody_is_counted_asleep_when_all_are_awake() {
    use futures::FutureExt;
    use ringmem::Word;
    use ringmem::layouts::ring::End;
    let mut ring = spsc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, How::Sleep { looks: 0 });
    let asleep = |word: &ringmem::HostWord| Word::load(word) as u32;
    let mut forgotten = receiver.recv_async();
    assert!((&mut forgotten).now_or_never().is_none());
    std::mem::forget(forgotten);
    assert!(receiver.recv_async().now_or_never().is_none());
    assert_eq!(asleep(sender.end().bells().theirs), 1, "the forgotten one");
    sender.send(1).unwrap();
    assert_eq!(asleep(sender.end().bells().theirs), 0, "woken once, and struck off");
    assert_eq!(receiver.recv_timeout(LONG), Ok(1));
    assert_eq!(receiver.recv_timeout(SHORT), Err(RecvError::Timeout));
    assert_eq!(asleep(receiver.end().bells().ours), 0, "a deadline that has passed counts nobody");
}

#[cfg(feature = "futures")]
#[test]
fn ends_are_streams_and_sinks() {
    use futures::{SinkExt, StreamExt, TryStreamExt, stream};
    let mut ring = spsc::Ring::<u64, 2>::new();
    let (producer, consumer) = ring.split();
    let (sender, receiver) = pair(producer, consumer, How::default());
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
