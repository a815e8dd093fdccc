use std::cell::Cell;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use ringmem_layouts::Local;
use ringmem_layouts::ring::lossy::ReadError;
use ringmem_layouts::ring::mailbox::{LatestError, New};
use ringmem_layouts::ring::{End, Owned, Pop, PopError, Push, PushError, flagged, framed, lossy, mailbox, mpmc, mpsc, spsc};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Owned<spsc::Producer<'static, Cell<u8>, Local>>: Send);
assert_impl_all!(Owned<mpmc::Consumer<'static, u8, Local>>: Send, Clone);
assert_not_impl_any!(Owned<spsc::Producer<'static, u8, Local>>: Clone, Sync);
assert_not_impl_any!(Owned<mpsc::Consumer<'static, u8, Local>>: Clone, Sync);
assert_not_impl_any!(Owned<spsc::Consumer<'static, std::rc::Rc<u8>, Local>>: Send);

const MESSAGES: u64 = 2_000;

fn until<R>(mut attempt: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        thread::yield_now();
        assert!(Instant::now() < deadline, "no end in a minute");
    }
}

fn push<E: Push>(end: &mut E, value: E::Item) {
    let mut value = Some(value);
    until(|| match end.push(value.take()?) {
        Ok(()) => Some(()),
        Err(back) => {
            value = Some(back.into_inner());
            None
        }
    });
}

struct Counted(Arc<AtomicUsize>, bool);

impl Counted {
    fn new(drops: &Arc<AtomicUsize>) -> Self {
        Self(Arc::clone(drops), false)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(!std::mem::replace(&mut self.1, true), "dropped twice");
        self.0.fetch_add(1, SeqCst);
    }
}

struct Bomb(#[allow(dead_code, reason = "counts the drop")] Counted, bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.1 {
            resume_unwind(Box::new("bomb"));
        }
    }
}

fn leave_three<P: Push<Item = Counted>, C: Pop<Item = Counted>>((mut producer, mut consumer): (P, C), drops: &Arc<AtomicUsize>) -> (P, C) {
    for _ in 0..4 {
        assert!(producer.push(Counted::new(drops)).is_ok());
    }
    assert!(producer.push(Counted::new(drops)).is_err());
    drop(consumer.pop());
    assert_eq!(drops.swap(0, SeqCst), 2);
    (producer, consumer)
}

macro_rules! of_each_kind {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn owned_ends_outlive_the_creating_thread() {
                let (mut producer, mut consumer) = $kind::Boxed::<Box<u64>>::over(Box::new_uninit_slice(4)).unwrap().into_ends();
                let writer = thread::spawn(move || (0..MESSAGES).for_each(|number| push(&mut producer, Box::new(number))));
                let reader = thread::spawn(move || {
                    assert!((0..MESSAGES).all(|number| *until(|| consumer.pop().ok()) == number));
                    until(|| consumer.end().is_disconnected().then_some(()));
                    assert_eq!(consumer.pop(), Err(PopError::Empty));
                });
                writer.join().unwrap();
                reader.join().unwrap();
            }

            #[test]
            fn the_last_end_drops_the_remaining_values_once() {
                let drops = Arc::default();
                let inline = || $kind::Ring::<Counted, 4>::starting_at(u64::MAX - 1).into_ends();
                let boxed = || $kind::Boxed::<Counted>::over_starting_at(Box::new_uninit_slice(4), 3).unwrap().into_ends();
                for ends in [inline(), boxed()] {
                    let (producer, consumer) = leave_three(ends, &drops);
                    drop(producer);
                    assert_eq!(drops.load(SeqCst), 0);
                    thread::spawn(move || drop(consumer)).join().unwrap();
                    assert_eq!(drops.swap(0, SeqCst), 3);
                }
                let (producer, mut consumer) = leave_three(boxed(), &drops);
                assert!(!producer.end().is_disconnected());
                assert!(consumer.pop().is_ok());
                drop(consumer);
                assert!(producer.end().is_disconnected());
                assert_eq!(drops.load(SeqCst), 3);
                drop(producer);
                assert_eq!(drops.swap(0, SeqCst), 3);
            }

            #[test]
            fn a_panicking_drop_leaks_no_other_value() {
                for bomb in 0..4 {
                    let drops = Arc::default();
                    let (mut producer, consumer) = $kind::Ring::<Bomb, 4>::starting_at(u64::MAX - 1).into_ends();
                    for place in 0..4 {
                        assert!(producer.push(Bomb(Counted::new(&drops), place == bomb)).is_ok());
                    }
                    drop(producer);
                    assert!(catch_unwind(AssertUnwindSafe(|| drop(consumer))).is_err());
                    assert_eq!(drops.load(SeqCst), 4, "value {bomb} panics");
                }
            }

            #[test]
            fn a_forgotten_end_keeps_the_ring_alive() {
                let drops = Arc::default();
                let (mut producer, consumer) = leave_three($kind::Ring::<Counted, 4>::new().into_ends(), &drops);
                forget(consumer);
                assert!(producer.push(Counted::new(&drops)).is_ok());
                drop(producer);
                assert_eq!((drops.load(SeqCst), Arc::strong_count(&drops)), (0, 5));
            }

            #[test]
            fn leave_keeps_the_ring_alive_during_its_callback() {
                let drops = Arc::default();
                let (producer, consumer) = leave_three($kind::Ring::<Counted, 4>::new().into_ends(), &drops);
                drop(producer);
                assert!(End::is_disconnected(&consumer));
                let mut seen = None;
                End::leave(consumer, |_bell| seen = Some(drops.load(SeqCst)));
                assert_eq!((seen, drops.load(SeqCst)), (Some(0), 3));
            }

            #[test]
            fn with_gives_access_to_the_borrowed_end() {
                let (mut producer, mut consumer) = $kind::Ring::<u64, 8>::new().into_ends();
                assert_eq!(producer.with(|end| end.reserve(3).map(|mut grant| grant.fill([1, 2, 3]))), Ok(3));
                assert_eq!((producer.end().len(), consumer.end().len(), consumer.end().capacity()), (3, 3, 8));
                let mut values = [0; 4];
                let popped: u64 = consumer.with(|end| (0..).zip(&mut values).map_while(|(_, value)| end.pop().map(|new| *value = new).ok()).count() as u64);
                assert_eq!((popped, values), (3, [1, 2, 3, 0]));
                assert!(format!("{producer:?}").starts_with("Owned("));
            }
        }
    )+};
}

of_each_kind! {
    of_spsc: spsc;
    of_flagged: flagged;
    of_mpsc: mpsc;
    of_mpmc: mpmc;
}

#[test]
fn cloned_handles_keep_the_ring_alive() {
    let drops = Arc::default();
    let (producer, consumer) = leave_three(mpmc::Ring::<Counted, 4>::new().into_ends(), &drops);
    let (mut other, mut reader) = (producer.clone(), consumer.clone());
    drop((producer, consumer));
    drop(reader.pop());
    assert_eq!(drops.load(SeqCst), 1);
    assert!(!reader.end().is_disconnected());
    push(&mut other, Counted::new(&drops));
    drop(reader);
    assert!(other.end().is_disconnected());
    drop(other);
    assert_eq!(drops.load(SeqCst), 4);
}

#[test]
fn an_owned_producer_overwrites_the_oldest() {
    let (mut producer, mut consumer) = mpmc::Ring::<u64, 2>::new().into_ends();
    let mut lost = Vec::new();
    (0..5).for_each(|number| producer.with(|end| end.force_push(number, |old| lost.push(old))).unwrap());
    assert_eq!((consumer.pop(), consumer.pop(), lost), (Ok(3), Ok(4), vec![0, 1, 2]));
}

#[test]
fn framed_lossy_and_mailbox_ends_move_between_threads() {
    let (mut producer, mut consumer) = framed::Ring::<64>::starting_at(u64::MAX).into_ends();
    let writer = thread::spawn(move || {
        for number in 0..MESSAGES {
            until(|| producer.with(|end| end.push(&number.to_le_bytes()[..number as usize % 9])).ok());
        }
    });
    for number in 0..MESSAGES {
        let mut bytes = [0; 8];
        let len = until(|| consumer.with(|end| end.pop(&mut bytes)).ok());
        assert_eq!(bytes[..len], number.to_le_bytes()[..number as usize % 9]);
    }
    writer.join().unwrap();
    assert!(consumer.end().is_disconnected() && consumer.end().is_empty());

    let (mut writer, mut reader) = lossy::Ring::<u64, 4>::new().into_ends();
    let mut other = reader.clone();
    thread::spawn(move || (0..6).for_each(|number| writer.with(|end| end.push(number)))).join().unwrap();
    assert!(reader.end().is_disconnected());
    assert_eq!(reader.with(|end| (end.pop(), end.pop())), (Err(ReadError::Overrun { lost: 2 }), Ok(2)));
    drop(reader);
    assert_eq!(other.with(|end| (end.skip(1), end.pop())), (5, Ok(5)));

    let (mut writer, mut reader) = mailbox::Mailbox::<u64>::new().into_ends();
    thread::spawn(move || (0..3).for_each(|number| writer.with(|end| end.publish(number)))).join().unwrap();
    assert_eq!(reader.with(|end| end.take_new()), Ok(New { version: 3, value: 2, skipped: 2 }));
}

/// The same calls on the ends of `split` and of `into_ends`.
macro_rules! overwritten {
    ($lossy:expr, $mailbox:expr) => {{
        let (mut writer, mut reader) = $lossy;
        writer.push(1);
        writer.push_slice(&[2, 3]);
        let mut batch = writer.batch(8);
        batch.push(4);
        batch.push(5);
        drop(batch);
        let mut values = [0; 2];
        let seen = (reader.latest(), reader.pop(), reader.lost(), reader.peek(), reader.pop_slice(&mut values), values);
        assert_eq!(seen, (Ok((5, 5)), Err(ReadError::Overrun { lost: 1 }), 1, Ok(2), Ok(2), [2, 3]));
        assert_eq!((reader.skip(1), reader.pop(), reader.pop()), (1, Ok(5), Err(ReadError::Empty)));
        assert_eq!((writer.len(), writer.capacity(), reader.len(), reader.is_disconnected()), (4, 4, 0, false));

        let (mut writer, mut reader) = $mailbox;
        assert_eq!((reader.latest(), reader.changed(), reader.version()), (Err(LatestError::Empty), false, 0));
        (0..3).for_each(|value| writer.publish(value));
        assert_eq!((reader.latest(), reader.changed(), reader.version(), writer.version()), (Ok((3, 2)), true, 3, 3));
        assert_eq!(reader.take_new(), Ok(New { version: 3, value: 2, skipped: 2 }));
        assert_eq!((reader.take_new(), reader.changed(), reader.is_disconnected()), (Err(LatestError::Empty), false, false));
        drop(writer);
        assert!(reader.is_disconnected());
    }};
}

#[test]
fn owned_ends_of_overwritten_rings_have_the_methods_of_borrowed_ones() {
    let (mut ring, mut mailbox) = (lossy::Ring::<u64, 4>::new(), mailbox::Mailbox::<u64>::new());
    overwritten!(ring.split(), mailbox.split());
    overwritten!(lossy::bounded::<u64>(4), mailbox::channel::<u64>());
}

#[test]
fn bounded_rounds_the_capacity_up() {
    let (mut producer, mut consumer) = spsc::bounded::<u64>(3);
    let pushed: Vec<_> = (0..6).map(|value| producer.push(value)).collect();
    assert_eq!(pushed[..4], [Ok(()); 4]);
    assert_eq!(pushed[4..], [Err(PushError::Full(4)), Err(PushError::Full(5))]);
    assert_eq!((producer.capacity(), consumer.capacity()), (4, 4));
    assert_eq!((producer.len(), consumer.len(), producer.is_full(), consumer.is_empty()), (4, 4, true, false));
    assert_eq!(consumer.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(consumer.pop(), Err(PopError::Empty));
    assert!(consumer.is_empty() && producer.is_empty() && !producer.is_full());

    let (mut flagged, _consumer) = flagged::bounded::<u64>(0);
    assert_eq!((flagged.capacity(), flagged.push(1), flagged.push(2)), (1, Ok(()), Err(PushError::Full(2))));
    let (mut many, mut one) = mpsc::bounded::<u64>(5);
    assert_eq!((many.capacity(), many.clone().push(1), many.push(2)), (8, Ok(()), Ok(())));
    assert_eq!(one.try_iter().collect::<Vec<_>>(), [1, 2]);
    let (mut writer, mut reader) = lossy::bounded::<u64>(2);
    (0..3).for_each(|value| writer.push(value));
    assert_eq!((reader.pop(), reader.pop()), (Err(ReadError::Overrun { lost: 1 }), Ok(1)));
    let (mut writer, mut reader) = mailbox::channel::<u64>();
    assert_eq!(reader.take_new(), Err(LatestError::Empty));
    (0..3).for_each(|value| writer.publish(value));
    assert_eq!(reader.take_new().map(|new| new.value), Ok(2));
    let (mut producer, mut consumer) = framed::bounded(100);
    assert_eq!((producer.capacity(), producer.push(&[7; 50])), (128, Ok(())));
    assert_eq!(consumer.pop(&mut [0; 60]), Ok(50));
}

macro_rules! by_slices {
    ($($kind:ident)+) => {$({
        let (mut producer, mut consumer) = $kind::bounded::<u64>(4);
        assert_eq!((producer.push_slice(&[1, 2, 3, 4, 5]), producer.free(), consumer.free()), (4, 0, 0));
        let mut values = [0; 3];
        assert_eq!((consumer.pop_slice(&mut values), values, consumer.free()), (3, [1, 2, 3], 3));
        producer.batch(2).push(6).unwrap();
        producer.reserve(1).unwrap().fill([7]);
        assert_eq!(consumer.try_iter().collect::<Vec<_>>(), [4, 6, 7]);
        assert!(!producer.is_disconnected());
        drop(consumer);
        assert!(producer.is_disconnected());
    })+};
}

macro_rules! in_place {
    ($($kind:ident)+) => {$({
        let (mut producer, mut consumer) = $kind::bounded::<u64>(4);
        assert_eq!(producer.push_slice(&[1, 2, 3]), 3);
        let chunk = consumer.peek(2).unwrap();
        assert_eq!((chunk.len(), chunk.get(1)), (2, Some(&2)));
        chunk.release(1);
        assert_eq!(consumer.batch(2).pop(), Ok(2));
        assert_eq!(consumer.pop(), Ok(3));
        assert_eq!(consumer.peek(1).err(), Some(PopError::Empty));
    })+};
}

#[test]
fn owned_ends_have_slices_grants_chunks_and_batches() {
    by_slices! { spsc flagged mpsc mpmc }
    in_place! { spsc flagged mpsc }
    let (mut producer, mut consumer) = mpmc::bounded::<u64>(4);
    assert_eq!(producer.push_slice(&[1, 2, 3]), 3);
    assert_eq!((consumer.take(2).unwrap().sum::<u64>(), consumer.pop()), (3, Ok(3)));
    assert_eq!(consumer.take(2).err(), Some(PopError::Empty));

    let (mut producer, mut consumer) = framed::bounded(128);
    let mut grant = producer.reserve(9).unwrap();
    grant[..3].copy_from_slice(b"one");
    grant.commit(3);
    producer.batch(4).push(b"two").unwrap();
    let frame = consumer.peek().unwrap();
    assert_eq!(&*frame, b"one");
    frame.release();
    let chunk = consumer.peek_many().unwrap();
    assert_eq!(chunk.next().as_deref(), Ok(&b"two"[..]));
    assert_eq!((chunk.release(), consumer.is_empty()), (1, true));
    producer.push(b"three").unwrap();
    assert_eq!(consumer.batch(4).pop(&mut [0; 8]), Ok(5));
    assert!(consumer.is_empty());
}

#[test]
#[should_panic(expected = "capacity overflow")]
fn bounded_with_a_huge_capacity_panics() {
    let _ = spsc::bounded::<u64>(usize::MAX);
}

/// Starting close to the wrap, with values before and behind it.
fn a_dropped_consumer_drops_the_values<P, C>(what: &str, (mut producer, mut consumer): (Owned<P>, Owned<C>))
where
    P: Push<Item = Counted>,
    C: Pop<Item = Counted>,
{
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        push(&mut producer, Counted::new(&drops));
        drop(consumer.pop().ok().unwrap());
    }
    for _ in 0..8 {
        push(&mut producer, Counted::new(&drops));
    }
    drop(consumer.pop().ok().unwrap());
    assert_eq!(drops.load(SeqCst), 6, "{what}");
    drop(consumer);
    assert_eq!(drops.load(SeqCst), 13, "{what}: the producer lives");
    // These fill slots that were released; they stay until a producer is dropped.
    for _ in 0..8 {
        push(&mut producer, Counted::new(&drops));
    }
    assert!(producer.push(Counted::new(&drops)).is_err(), "{what}: it is full");
    assert_eq!(drops.load(SeqCst), 14, "{what}");
    drop(producer);
    assert_eq!(drops.load(SeqCst), 22, "{what}");
}

#[test]
fn dropping_the_last_consumer_drops_the_values_in_the_ring() {
    a_dropped_consumer_drops_the_values("spsc", spsc::bounded(8));
    a_dropped_consumer_drops_the_values("flagged", flagged::bounded(8));
    a_dropped_consumer_drops_the_values("mpsc", mpsc::bounded(8));
    a_dropped_consumer_drops_the_values("mpmc", mpmc::bounded(8));
    let near_the_wrap = |n| u64::MAX - n;
    a_dropped_consumer_drops_the_values("spsc", spsc::Ring::<_, 8>::starting_at(near_the_wrap(7)).into_ends());
    a_dropped_consumer_drops_the_values("mpsc", mpsc::Ring::<_, 8>::starting_at(near_the_wrap(9)).into_ends());
    a_dropped_consumer_drops_the_values("mpmc", mpmc::Ring::<_, 8>::starting_at(near_the_wrap(10)).into_ends());
}

#[test]
fn values_stay_while_another_consumer_is_left() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut producer, consumer) = mpmc::bounded(4);
    let other = consumer.clone();
    push(&mut producer, Counted::new(&drops));
    drop(consumer);
    assert_eq!(drops.load(SeqCst), 0);
    drop(other);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn one_dropped_producer_of_several_drops_abandoned_values() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut producer, consumer) = mpsc::bounded(4);
    let other = producer.clone();
    drop(consumer);
    push(&mut producer, Counted::new(&drops));
    assert_eq!(drops.load(SeqCst), 0);
    drop(other);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_borrowed_producer_drops_abandoned_values() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut producer, consumer) = mpsc::bounded(4);
    drop(consumer);
    push(&mut producer, Counted::new(&drops));
    <&mut _ as End>::discard_if_abandoned(&&mut producer);
    assert_eq!(drops.load(SeqCst), 1);
}

/// A value that owns an end of its own ring: the drop of the value drops that end, in the middle of the drops.
#[test]
fn values_that_own_a_producer_of_their_ring_are_dropped() {
    struct Nested(Arc<AtomicUsize>, Option<mpsc::OwnedProducer<Nested>>);
    impl Drop for Nested {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            // The ring has room again: one more generation.
            if let Some(mut producer) = self.1.take() {
                assert!(producer.push(Nested(Arc::clone(&self.0), None)).is_ok());
            }
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut producer, consumer) = mpsc::bounded(8);
    for _ in 0..4 {
        let own = producer.clone();
        assert!(producer.push(Nested(Arc::clone(&drops), Some(own))).is_ok());
    }
    drop(consumer);
    assert_eq!(drops.load(SeqCst), 8);
    assert_eq!(producer.len(), 0);
}

#[test]
fn a_panicking_drop_of_an_abandoned_value_keeps_the_others_from_leaking() {
    struct Panics(Arc<AtomicUsize>, bool);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            if self.1 {
                resume_unwind(Box::new("a drop of the test panics"));
            }
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut producer, consumer) = mpmc::bounded(8);
    for number in 0..4 {
        assert!(producer.push(Panics(Arc::clone(&drops), number == 1)).is_ok());
    }
    assert!(catch_unwind(AssertUnwindSafe(|| drop(consumer))).is_err());
    assert_eq!(drops.load(SeqCst), 4);
    // Later values are dropped too.
    assert!(producer.push(Panics(Arc::clone(&drops), false)).is_ok());
    drop(producer.clone());
    assert_eq!(drops.load(SeqCst), 5);
}
