use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ringmem::ring::{End, mpmc, spsc};
use ringmem::wait::{Park, Waiting, bounded, pair};
use ringmem::{HostWord, Local, Word};

use super::{ASLEEP, block_on};

const COUNT: u64 = u32::MAX as u64;

/// Clears the count during sleep, like a killed process's successor or a malicious peer.
#[derive(Default)]
struct Cleared;

impl Park<HostWord> for Cleared {
    type WakerList = Mutex<Vec<(u64, Waker)>>;
    fn wait(&self, word: &HostWord, _epoch: u32, _most: Option<Duration>) {
        word.fetch_and(!COUNT, AcqRel);
    }
    fn wake(&self, _word: &HostWord) {}
}

#[test]
fn a_thread_with_a_cleared_count_keeps_the_wake_up_count() {
    let mut ring = spsc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (sender, mut receiver) = Waiting::<_, Cleared>::pair(producer, consumer, ASLEEP);
    let mut polls = 0;
    let waited = receiver.wait(None, |_| {
        polls += 1;
        (polls > 4).then_some(Ok::<_, Infallible>(()))
    });
    assert_eq!(waited, Ok(()));
    assert_eq!(Word::load(sender.end().wait_words().theirs), 0, "no sleepers and no wake-ups");
}

#[test]
fn a_task_with_a_cleared_count_keeps_the_wake_up_count() {
    let ring = mpmc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, ASLEEP);
    let mut other = receiver.clone();
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let mut cancelled = pin!(receiver.recv_async());
        assert!(cancelled.as_mut().poll(cx).is_pending());
        sender.end().wait_words().theirs.fetch_and(!COUNT, AcqRel);
    }
    assert_eq!(Word::load(sender.end().wait_words().theirs), 0, "a future that is dropped");
    let (mut first, mut second) = (pin!(receiver.recv_async()), pin!(other.recv_async()));
    assert!(first.as_mut().poll(cx).is_pending() && second.as_mut().poll(cx).is_pending());
    sender.end().wait_words().theirs.fetch_sub(1, AcqRel);
    sender.try_send(1).unwrap();
    assert_eq!(Word::load(sender.end().wait_words().theirs), 1 << 32, "one wake-up of two tasks");
    assert!(first.poll(cx).is_ready());
}

#[test]
fn a_panicking_attempt_leaves_no_sleeper_counted() {
    let mut ring = spsc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (sender, mut receiver) = pair(producer, consumer, ASLEEP);
    let attempts = catch_unwind(AssertUnwindSafe(|| {
        receiver.wait(None, |end| {
            if Word::load(end.wait_words().ours) & COUNT == 1 {
                resume_unwind(Box::new("asleep"));
            }
            None::<Result<(), Infallible>>
        })
    }));
    assert_eq!(attempts.unwrap_err().downcast_ref(), Some(&"asleep"));
    assert_eq!(Word::load(sender.end().wait_words().theirs) & COUNT, 0);
}

struct Woken {
    times: AtomicU32,
    panics: bool,
}

impl Woken {
    fn new(panics: bool) -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self { times: AtomicU32::new(0), panics });
        (Arc::clone(&woken), Waker::from(woken))
    }
    fn times(&self) -> u32 {
        self.times.load(Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Relaxed);
        if self.panics {
            resume_unwind(Box::new("waker"));
        }
    }
}

#[test]
fn the_tasks_of_ends_of_two_rings_poll() {
    let (mut one, mut other) = (spsc::Ring::<u64, 2>::new(), spsc::Ring::<u64, 2>::new());
    let ((to_one, from_one), (to_other, from_other)) = (one.split(), other.split());
    let (_sends_one, mut receives_other) = pair(to_one, from_other, ASLEEP);
    let (mut sends_other, _receives_one) = pair(to_other, from_one, ASLEEP);
    let (woken, waker) = Woken::new(false);
    let mut received = pin!(receives_other.recv_async());
    for polls in 1..=3 {
        assert!(received.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(woken.times(), polls, "no end knows of it");
    }
    sends_other.send(7).expect("room");
    assert_eq!(received.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(7)));
    let idle = woken.times();
    let (mut sender, mut receiver) = bounded::<u64>(2);
    let mut received = pin!(receiver.recv_async());
    assert!(received.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(woken.times(), idle, "the sender wakes it");
    sender.send(8).expect("room");
    assert_eq!(woken.times(), idle + 1);
}

#[test]
fn panics_of_a_closure_and_a_waker_wake_all_sleepers() {
    let ring = mpmc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, ASLEEP);
    let mut other = receiver.clone();
    let ((bad, bad_waker), (good, good_waker)) = (Woken::new(true), Woken::new(false));
    let (mut first, mut second) = (pin!(receiver.recv_async()), pin!(other.recv_async()));
    assert!(first.as_mut().poll(&mut Context::from_waker(&bad_waker)).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&good_waker)).is_pending());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        sender.with_end(|end| {
            end.push(1).unwrap();
            resume_unwind(Box::new("closure"))
        })
    }));
    let panic: Box<dyn std::any::Any + Send> = match panicked {
        Ok(()) => unreachable!("it panics"),
        Err(panic) => panic,
    };
    assert_eq!(panic.downcast_ref(), Some(&"closure"), "the first panic is resumed");
    assert_eq!((bad.times(), good.times()), (1, 1));
    assert_eq!(second.poll(&mut Context::from_waker(&good_waker)), Poll::Ready(Ok(1)));
}

/// The unwinding frees the slots of a grant, for which another sender may wait.
#[test]
fn a_panic_of_an_attempt_wakes_other_senders() {
    for is_async in [false, true] {
        let ring = mpmc::Ring::<u64, 4>::new();
        let (producer, consumer) = ring.split();
        let (mut sender, _receiver) = pair(producer, consumer, ASLEEP);
        let mut beside = sender.clone();
        let (woken, waker) = Woken::new(false);
        let cx = &mut Context::from_waker(&waker);
        let mut sent = pin!(beside.send_async(7));
        let attempt = |end: &mut mpmc::Producer<'_, u64, Local>| -> Option<Result<(), Infallible>> {
            let _grant = end.reserve(4).unwrap();
            assert!(sent.as_mut().poll(cx).is_pending());
            resume_unwind(Box::new("attempt"))
        };
        let panicked =
            catch_unwind(AssertUnwindSafe(|| if is_async { block_on(sender.wait_async(attempt)) } else { sender.wait(None, attempt) }));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"attempt"));
        assert_eq!(woken.times(), 1, "{is_async}");
        assert!(matches!(sent.poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(()))));
    }
}

#[test]
fn a_panicking_waker_does_not_block_the_other_side() {
    let ring = mpmc::Ring::<u64, 1>::new();
    let (producer, consumer) = ring.split();
    let (mut sender, mut receiver) = pair(producer, consumer, ASLEEP);
    let mut beside = sender.clone();
    let ((bad, bad_waker), (good, good_waker)) = (Woken::new(true), Woken::new(false));
    let mut received = pin!(receiver.recv_async());
    let mut never = pin!(beside.wait_async(|_| None::<Result<(), Infallible>>));
    assert!(received.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(never.as_mut().poll(&mut Context::from_waker(&good_waker)).is_pending());
    assert!(received.as_mut().poll(&mut Context::from_waker(&bad_waker)).is_pending());
    assert_eq!((bad.times(), good.times()), (0, 0));
    let panicked = catch_unwind(AssertUnwindSafe(|| sender.with_end(|_| ())));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"waker"));
    assert_eq!((bad.times(), good.times()), (1, 1));
}

#[test]
fn an_end_dropped_by_a_panic_wakes_its_peer() {
    let (producer, consumer) = spsc::Ring::<u64, 1>::new().into_ends();
    let (sender, mut receiver) = pair(producer, consumer, ASLEEP);
    let (bad, bad_waker) = Woken::new(true);
    let mut received = pin!(receiver.recv_async());
    assert!(received.as_mut().poll(&mut Context::from_waker(&bad_waker)).is_pending());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _sender = sender;
        resume_unwind(Box::new("its owner"))
    }));
    let panic: Box<dyn std::any::Any + Send> = match panicked {
        Ok(()) => unreachable!("it panics"),
        Err(panic) => panic,
    };
    assert_eq!((panic.downcast_ref(), bad.times()), (Some(&"its owner"), 1));
    assert!(received.poll(&mut Context::from_waker(&bad_waker)).is_ready());
}
