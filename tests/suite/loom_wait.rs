//! Sleep and wake-up at a ring, in every interleaving.
#[path = "../../layouts/tests/suite/loom_machine.rs"]
#[allow(dead_code, reason = "made for the rings' own models")]
mod loom_machine;

use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_machine::{Loom, LoomCell, LoomWord, RMW_RELAXED, STRONG, check, must_fail};
use ringmem::ring::{RingFlags, Slot, framed, lossy, mailbox, mpmc, spsc};
use ringmem::wait::{Park, RecvError, WaitError, WaitStrategy, Waiting, WakerList, connect};
use ringmem::{RingHeader, RingLayout, SlotCell, Word};

const SLEEP: WaitStrategy = WaitStrategy::Sleep { polls: 0 };
const DEADLOCK: &str = "deadlock";
const PREEMPTIONS: usize = 2;

#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

#[derive(Default)]
struct Wakers(Mutex<Vec<(u64, Waker)>>);

impl WakerList for Wakers {
    fn with<R>(&self, run: impl FnOnce(&mut Vec<(u64, Waker)>) -> R) -> R {
        run(&mut self.0.lock().unwrap())
    }
}

impl<const WEAK: u8> Park<LoomWord<WEAK>> for Futex {
    type WakerList = Wakers;
    fn wait(&self, word: &LoomWord<WEAK>, epoch: u32, _most: Option<Duration>) {
        let held = self.lock.lock().unwrap();
        if (word.load() >> 32) as u32 == epoch {
            drop(self.woken.wait(held).unwrap());
        }
    }
    fn wake(&self, _word: &LoomWord<WEAK>) {
        let _held = self.lock.lock().unwrap();
        self.woken.notify_all();
    }
}

#[derive(Default)]
struct Alarm {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() = true;
        self.bell.notify_all();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let alarm = Arc::new(Alarm::default());
    let waker = Kept::new(Waker::from(Arc::clone(&alarm)));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut rung = alarm.rung.lock().unwrap();
        while !*rung {
            rung = alarm.bell.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Not dropped in a failed model, which must not call loom.
struct Kept<T>(ManuallyDrop<T>);

impl<T> Kept<T> {
    fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<F: Future + Unpin> Future for Kept<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        Pin::new(&mut **self).poll(cx)
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: once; unused afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

type Machine<const WEAK: u8> = Loom<WEAK>;
type Sender<const WEAK: u8> = Waiting<spsc::Producer<'static, u64, Machine<WEAK>>, Futex>;
type Receiver<const WEAK: u8> = Waiting<spsc::Consumer<'static, u64, Machine<WEAK>>, Futex>;

fn with_ring<const WEAK: u8>(run: impl FnOnce(Kept<Sender<WEAK>>, Kept<Receiver<WEAK>>)) {
    let layout = RingLayout::of::<u64>(1).unwrap();
    let memory = Box::into_raw(Box::new((RingHeader::new::<u64>(&layout, u64::MAX), LoomCell::<u64>::new(0))));
    // SAFETY: just allocated; freed after the ends, or leaked by a failed model.
    let (header, cell): (&'static RingHeader<LoomWord<WEAK>>, _) = unsafe { (&(*memory).0, NonNull::from(&(*memory).1)) };
    // SAFETY: one cell; the only ends.
    let producer = unsafe { spsc::Producer::new(header, header, cell) }.unwrap().announce();
    // SAFETY: one cell; the only ends.
    let consumer = unsafe { spsc::Consumer::new(header, header, cell) }.unwrap().announce();
    let (sender, receiver) = Waiting::pair(producer, consumer, SLEEP);
    run(Kept::new(sender), Kept::new(receiver));
    // SAFETY: `run` and both ends are gone.
    drop(unsafe { Box::from_raw(memory) });
}

fn blocking<const WEAK: u8>() {
    with_ring::<WEAK>(|mut sender, mut receiver| {
        let writer = thread::spawn(move || {
            sender.send(1).unwrap();
            sender.send(2).unwrap();
            sender
        });
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(1), Ok(2)));
        drop((writer.join().unwrap(), receiver));
    });
}

fn tasks<const WEAK: u8>() {
    with_ring::<WEAK>(|mut sender, mut receiver| {
        let writer = thread::spawn(move || {
            block_on(Kept::new(sender.send_async(1))).unwrap();
            block_on(Kept::new(sender.send_async(2))).unwrap();
            sender
        });
        assert_eq!((block_on(Kept::new(receiver.recv_async())), block_on(Kept::new(receiver.recv_async()))), (Ok(1), Ok(2)));
        drop((writer.join().unwrap(), receiver));
    });
}

fn thread_and_task<const WEAK: u8>() {
    with_ring::<WEAK>(|mut sender, mut receiver| {
        let writer = thread::spawn(move || {
            sender.send(1).unwrap();
            sender.send(2).unwrap();
            sender
        });
        assert_eq!((block_on(Kept::new(receiver.recv_async())), block_on(Kept::new(receiver.recv_async()))), (Ok(1), Ok(2)));
        drop((writer.join().unwrap(), receiver));
    });
}

fn leaving<const WEAK: u8>() {
    with_ring::<WEAK>(|sender, mut receiver| {
        let writer = thread::spawn(move || drop(sender));
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        writer.join().unwrap();
        drop(receiver);
    });
}

fn cancelled_and_forgotten<const WEAK: u8>() {
    with_ring::<WEAK>(|mut sender, mut receiver| {
        let writer = thread::spawn(move || {
            sender.send(1).unwrap();
            sender
        });
        let mut cx = Context::from_waker(Waker::noop());
        let first = Pin::new(&mut Kept::new(receiver.recv_async())).poll(&mut cx);
        let second = if first.is_pending() {
            let mut forgotten = ManuallyDrop::new(receiver.recv_async());
            Pin::new(&mut *forgotten).poll(&mut cx)
        } else {
            first
        };
        match second {
            Poll::Ready(received) => assert_eq!(received, Ok(1)),
            Poll::Pending => assert_eq!(receiver.recv(), Ok(1)),
        }
        drop((writer.join().unwrap(), receiver));
    });
}

fn two_sleepers<const WEAK: u8>() {
    let layout = RingLayout::of_kind::<u64>(RingFlags::MPMC, 2).unwrap();
    let slots: [Slot<LoomWord<WEAK>, LoomCell<u64>>; 2] = std::array::from_fn(|place| Slot::vacant(LoomCell::new(0), place as u64, 2, 0));
    let memory = Box::into_raw(Box::new((RingHeader::new::<u64>(&layout, 0), slots)));
    // SAFETY: just allocated; freed after the ends, or leaked by a failed model.
    let (header, slots): (&'static RingHeader<LoomWord<WEAK>>, _) = unsafe { (&(*memory).0, NonNull::from(&(*memory).1).cast()) };
    // SAFETY: two vacant slots that outlive the model.
    let producer: mpmc::Producer<'static, u64, Machine<WEAK>> = unsafe { mpmc::Producer::new(header, slots) }.unwrap();
    // SAFETY: two vacant slots that outlive the model.
    let consumer: mpmc::Consumer<'static, u64, Machine<WEAK>> = unsafe { mpmc::Consumer::new(header, slots) }.unwrap();
    let (sender, receiver) = Waiting::<_, Futex>::pair(producer, consumer, SLEEP);
    let (mut sender, mut receiver) = (Kept::new(sender), Kept::new(receiver));
    let mut other = Kept::new(Waiting::clone(&receiver));
    let reader = thread::spawn(move || (other.recv().unwrap(), other));
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    let mine = receiver.recv().unwrap();
    let (theirs, other) = reader.join().unwrap();
    assert_eq!(mine + theirs, 3);
    drop((sender, receiver, other));
    // SAFETY: all handles are gone.
    drop(unsafe { Box::from_raw(memory) });
}

fn released_claim<const WEAK: u8>(send: fn(&mut Waiting<mpmc::Producer<'static, u64, Machine<WEAK>>, Futex>)) {
    let layout = RingLayout::of_kind::<u64>(RingFlags::MPMC, 1).unwrap();
    let slots: [Slot<LoomWord<WEAK>, LoomCell<u64>>; 1] = [Slot::vacant(LoomCell::new(0), 0, 1, 0)];
    let memory = Box::into_raw(Box::new((RingHeader::new::<u64>(&layout, 0), slots)));
    // SAFETY: just allocated; freed after the ends, or leaked by a failed model.
    let (header, slots): (&'static RingHeader<LoomWord<WEAK>>, _) = unsafe { (&(*memory).0, NonNull::from(&(*memory).1).cast()) };
    // SAFETY: a vacant slot that outlives the model.
    let producer: mpmc::Producer<'static, u64, Machine<WEAK>> = unsafe { mpmc::Producer::new(header, slots) }.unwrap();
    // SAFETY: a vacant slot that outlives the model.
    let consumer: mpmc::Consumer<'static, u64, Machine<WEAK>> = unsafe { mpmc::Consumer::new(header, slots) }.unwrap();
    let (sender, receiver) = Waiting::<_, Futex>::pair(producer, consumer, SLEEP);
    let (mut sender, receiver) = (Kept::new(sender), Kept::new(receiver));
    let mut beside = Kept::new(Waiting::clone(&sender));
    let sent = sender.with_end(|end| {
        let grant = end.reserve(1).unwrap();
        let sent = thread::spawn(move || {
            send(&mut beside);
            beside
        });
        drop(grant);
        sent
    });
    drop((sent.join().unwrap(), sender, receiver));
    // SAFETY: all handles are dropped.
    drop(unsafe { Box::from_raw(memory) });
}

fn released_claim_for_a_thread<const WEAK: u8>() {
    released_claim::<WEAK>(|sender| sender.send(1).unwrap());
}

fn released_claim_for_a_task<const WEAK: u8>() {
    released_claim::<WEAK>(|sender| block_on(Kept::new(sender.send_async(1))).unwrap());
}

/// The first empty poll releases a forgotten batch's slots, which wakes a sender.
fn forgotten_batch<const WEAK: u8>(receive: fn(&mut Receiver<WEAK>)) {
    with_ring::<WEAK>(|mut sender, mut receiver| {
        sender.send(1).unwrap();
        receiver.with_end(|end| {
            let mut batch = end.batch(8);
            assert_eq!(batch.pop(), Ok(1));
            std::mem::forget(batch);
        });
        let writer = thread::spawn(move || {
            sender.send(2).unwrap();
            sender
        });
        receive(&mut receiver);
        drop((writer.join().unwrap(), receiver));
    });
}

fn forgotten_batch_of_a_thread<const WEAK: u8>() {
    forgotten_batch::<WEAK>(|receiver| assert_eq!(receiver.recv(), Ok(2)));
}

fn forgotten_batch_of_a_task<const WEAK: u8>() {
    forgotten_batch::<WEAK>(|receiver| assert_eq!(block_on(Kept::new(receiver.recv_async())), Ok(2)));
}

fn frames<const WEAK: u8>() {
    let layout = framed::layout(16).unwrap();
    let slots: [LoomCell<u64>; 2] = std::array::from_fn(|_| LoomCell::new(0));
    let memory = Box::into_raw(Box::new((RingHeader::new::<u64>(&layout, u64::MAX), slots)));
    // SAFETY: just allocated; freed after the ends, or leaked by a failed model.
    let (header, slots): (&'static RingHeader<LoomWord<WEAK>>, _) = unsafe { (&(*memory).0, NonNull::from(&(*memory).1).cast()) };
    // SAFETY: two words that outlive the model; the only producer.
    let producer: framed::Producer<'static, Machine<WEAK>> = unsafe { framed::Producer::new(header, header, slots) }.unwrap().announce();
    // SAFETY: two words that outlive the model; the only consumer.
    let consumer: framed::Consumer<'static, Machine<WEAK>> = unsafe { framed::Consumer::new(header, header, slots) }.unwrap().announce();
    let (sender, receiver) = Waiting::<_, Futex>::pair(producer, consumer, SLEEP);
    let (mut sender, mut receiver) = (Kept::new(sender), Kept::new(receiver));
    let writer = thread::spawn(move || {
        for _ in 0..3 {
            let sent = sender.wait(None, |end| match end.reserve(0) {
                Ok(grant) => {
                    grant.commit(0);
                    Some(Ok(()))
                }
                Err(framed::PushError::Full) => None,
                Err(never) => Some(Err(never)),
            });
            assert_eq!(sent, Ok(()));
        }
    });
    let next = |end: &mut framed::Consumer<'static, Machine<WEAK>>| match end.peek() {
        Ok(frame) => {
            frame.release();
            Some(Ok(()))
        }
        Err(framed::PopError::Empty) => None,
        Err(corrupt) => Some(Err(corrupt)),
    };
    assert_eq!(receiver.wait(None, next), Ok(()));
    assert_eq!(block_on(Kept::new(Box::pin(receiver.wait_async(next)))), Ok(()));
    assert_eq!([(); 2].map(|()| receiver.wait(None, next)), [Ok(()), Err(WaitError::Disconnected)]);
    writer.join().unwrap();
    drop(receiver);
    // SAFETY: both ends are gone.
    drop(unsafe { Box::from_raw(memory) });
}

fn with_words<const WEAK: u8>(kind: RingFlags, run: impl FnOnce(&'static RingHeader<LoomWord<WEAK>>, NonNull<LoomWord<WEAK>>)) {
    let layout = RingLayout::of_kind::<u64>(kind, 2).unwrap();
    let words: [LoomWord<WEAK>; 4] = std::array::from_fn(|_| LoomWord::new(0));
    let memory = Box::into_raw(Box::new((RingHeader::new::<u64>(&layout, 0), words)));
    // SAFETY: just allocated; freed after `run`, or leaked by a failed model.
    unsafe { run(&(*memory).0, NonNull::from(&(*memory).1).cast()) };
    // SAFETY: `run` and all ends are gone.
    drop(unsafe { Box::from_raw(memory) });
}

fn followers<const WEAK: u8>() {
    with_words::<WEAK>(RingFlags::LOSSY, |header, slots| {
        // SAFETY: two slots of two words; the only writer.
        let writer = unsafe { lossy::Writer::<u64, Machine<WEAK>>::new(header, slots) }.unwrap().announce();
        // SAFETY: two slots of two words.
        let reader = unsafe { lossy::Reader::<u64, Machine<WEAK>>::new(header, slots) }.unwrap();
        let (writer, reader) = connect::<LoomWord<WEAK>, _, _>(writer, reader);
        let (sender, receiver) = Waiting::<_, Futex>::pair(writer, reader, SLEEP);
        let (mut sender, mut receiver) = (Kept::new(sender), Kept::new(receiver));
        let mut other = Kept::new(Waiting::clone(&receiver));
        let task = thread::spawn(move || assert_eq!(block_on(Kept::new(other.recv_async())), Ok(Ok(1))));
        let writer = thread::spawn(move || sender.send(1).unwrap());
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(Ok(1)), Err(RecvError::Disconnected)));
        writer.join().unwrap();
        task.join().unwrap();
        drop(receiver);
    });
}

fn latest<const WEAK: u8>() {
    with_words::<WEAK>(RingFlags::MAILBOX, |header, slots| {
        // SAFETY: two slots of two words; the only writer.
        let writer = unsafe { mailbox::Writer::<u64, Machine<WEAK>>::new(header, slots) }.unwrap().announce();
        // SAFETY: two slots of two words.
        let reader = unsafe { mailbox::Reader::<u64, Machine<WEAK>>::new(header, slots) }.unwrap();
        let (writer, reader) = connect::<LoomWord<WEAK>, _, _>(writer, reader);
        let (sender, receiver) = Waiting::<_, Futex>::pair(writer, reader, SLEEP);
        let (mut sender, mut receiver) = (Kept::new(sender), Kept::new(receiver));
        let writer = thread::spawn(move || {
            sender.send(1).unwrap();
            sender.send(2).unwrap();
        });
        while receiver.recv().unwrap().version < 2 {}
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        writer.join().unwrap();
        drop(receiver);
    });
}

macro_rules! models {
    ($($model:ident: $fact:ident, $twin:ident;)+) => {$(
        #[test]
        fn $fact() {
            check(PREEMPTIONS, $model::<STRONG>);
        }

        #[test]
        fn $twin() {
            must_fail(DEADLOCK, PREEMPTIONS, $model::<RMW_RELAXED>);
        }
    )+};
}

models! {
    blocking: threads_wake_each_other, relaxed_counting_threads_deadlock;
    tasks: tasks_wake_each_other, relaxed_counting_tasks_deadlock;
    thread_and_task: a_thread_and_a_task_wake_each_other, a_relaxed_counting_thread_and_task_deadlock;
    leaving: a_dropped_sender_wakes_the_receiver, a_relaxed_drop_wakes_no_receiver;
    cancelled_and_forgotten: cancelled_and_forgotten_futures_lose_no_message, a_relaxed_counting_forgotten_future_deadlocks;
    released_claim_for_a_thread: a_released_claim_wakes_another_sending_thread, a_relaxed_counting_thread_misses_a_released_claim;
    released_claim_for_a_task: a_released_claim_wakes_another_sending_task, a_relaxed_counting_task_misses_a_released_claim;
    forgotten_batch_of_a_thread: a_blocking_poll_that_frees_slots_wakes_the_sender, a_relaxed_release_by_a_thread_wakes_no_sender;
    forgotten_batch_of_a_task: an_async_poll_that_frees_slots_wakes_the_sender, a_relaxed_release_by_a_task_wakes_no_sender;
    frames: frames_and_room_wake_their_waiters, relaxed_counting_frame_waiters_deadlock;
    followers: a_separate_wait_word_wakes_every_lossy_reader, relaxed_counting_lossy_readers_deadlock;
    latest: the_latest_value_wakes_its_reader, a_relaxed_counting_mailbox_reader_deadlocks;
    two_sleepers: every_sleeper_is_woken, relaxed_counting_mpmc_sleepers_deadlock;
}
