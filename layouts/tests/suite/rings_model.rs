use crate::count::Count;
use crate::models::queue;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::{MaybeUninit, forget};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use queue::{End, Op, dirty, flagged_follows_the_model, mpmc_follows_the_model, mpsc_follows_the_model, spsc_follows_the_model};
use ringmem_layouts::ring::mpmc::ManyProducer;
use ringmem_layouts::ring::{BareSlot, PopError, PushError, ReserveError, Storage, WordSlot, flagged, mpmc, mpsc, spsc};
use ringmem_layouts::{Host, Machine};
use static_assertions::{assert_impl_all, assert_not_impl_any};

macro_rules! ends {
    ($($ring:ident)+) => {$(
        assert_impl_all!($ring::Ring<u64, 4>: Send, Sync);
        assert_not_impl_any!($ring::Ring<Rc<u8>, 4>: Send, Sync);
        assert_not_impl_any!($ring::Ring<u64, 4>: Clone);
        assert_impl_all!($ring::Producer<'static, u64, Host>: Send);
        assert_impl_all!($ring::Consumer<'static, u64, Host>: Send);
        assert_not_impl_any!($ring::Producer<'static, Rc<u8>, Host>: Send, Sync);
        assert_not_impl_any!($ring::Consumer<'static, Rc<u8>, Host>: Send, Sync);
    )+};
}

ends! { spsc flagged mpsc mpmc }
assert_impl_all!(mpmc::Producer<'static, u64, Host>: Clone);
assert_impl_all!(mpmc::Consumer<'static, u64, Host>: Clone);
assert_impl_all!(mpsc::Producer<'static, u64, Host>: Clone);
assert_not_impl_any!(mpsc::Consumer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(flagged::Producer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(flagged::Consumer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(spsc::Producer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(spsc::Consumer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(mpmc::Grant<'static, 'static, Rc<u8>, Host>: Send);
assert_not_impl_any!(mpmc::BatchProducer<'static, 'static, Rc<u8>, Host>: Send);
assert_not_impl_any!(mpmc::Taken<'static, 'static, Rc<u8>, Host>: Send);

fn op() -> impl Strategy<Value = Op> {
    let end = || prop_oneof![Just(End::Drop), Just(End::Explicit), Just(End::Forget)];
    prop_oneof![
        3 => Just(Op::Push),
        3 => Just(Op::Pop),
        2 => (0..12_usize).prop_map(Op::PushSlice),
        2 => (0..12_usize).prop_map(Op::PopSlice),
        3 => (prop_oneof![0..10_usize, Just(usize::MAX)], 0..10_usize, end()).prop_map(|(count, write, end)| Op::Reserve { count, write, end }),
        2 => (prop_oneof![0..5_usize, Just(usize::MAX)], 0..10_usize, any::<u16>(), end())
            .prop_map(|(every, count, pops, end)| Op::BatchPush { every, count, pops, end }),
        2 => (prop_oneof![0..10_usize, Just(usize::MAX)], 0..10_usize, end()).prop_map(|(most, count, end)| Op::InPlace { most, count, end }),
        2 => (0..5_usize, 0..10_usize, end()).prop_map(|(every, count, end)| Op::BatchPop { every, count, end }),
        1 => Just(Op::SplitAgain),
    ]
}

fn ops() -> impl Strategy<Value = Vec<(usize, Op)>> {
    prop::collection::vec((0..2_usize, op()), 0..60)
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, (0..20_u64).prop_map(|back| u64::MAX - back), any::<u64>()]
}

macro_rules! models {
    ($($name:ident: $follows:ident;)+) => {$(
        mod $name {
            use super::*;

            models! { @$follows
                bytes_follow_the_model: u8;
                words_follow_the_model: u64;
                odd_sizes_follow_the_model: [u8; 5];
                zero_sized_values_follow_the_model: ();
            }
        }
    )+};
    (@$follows:ident $($name:ident: $value:ty;)+) => {
        proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

            $(
                #[test]
                fn $name(start in start(), ops in ops()) {
                    $follows::<$value, 1>(start, &ops);
                    $follows::<$value, 2>(start, &ops);
                    $follows::<$value, 4>(start, &ops);
                    $follows::<$value, 8>(start, &ops);
                }
            )+
        }
    };
}

models! {
    spsc_model: spsc_follows_the_model;
    flagged_model: flagged_follows_the_model;
    mpsc_model: mpsc_follows_the_model;
    mpmc_model: mpmc_follows_the_model;
}

thread_local! {
    /// Not in the values: a double drop should be counted, not crash.
    static DROPPED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static BOMB: Cell<Option<usize>> = const { Cell::new(None) };
}

#[repr(align(64))]
struct Noted(u64);

impl Drop for Noted {
    fn drop(&mut self) {
        assert!(std::ptr::from_mut(self).is_aligned());
        let count = DROPPED.with_borrow_mut(|dropped| {
            dropped.push(self.0);
            dropped.len()
        });
        if BOMB.get() == Some(count) && !thread::panicking() {
            resume_unwind(Box::new("bomb"));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum OwnedOp {
    Push,
    BatchPush { every: usize, count: usize, forget: bool },
    Reserve { count: usize, write: usize, forget: bool },
    Explode { count: usize, write: usize },
    Pop,
    InPlace { most: usize, count: usize },
    SplitAgain,
}

fn owned_op() -> impl Strategy<Value = OwnedOp> {
    prop_oneof![
        2 => Just(OwnedOp::Push),
        2 => Just(OwnedOp::Pop),
        2 => (0..9_usize, 0..9_usize, any::<bool>()).prop_map(|(every, count, forget)| OwnedOp::BatchPush { every, count, forget }),
        2 => (0..9_usize, 0..9_usize, any::<bool>()).prop_map(|(count, write, forget)| OwnedOp::Reserve { count, write, forget }),
        1 => (0..9_usize, 0..9_usize).prop_map(|(count, write)| OwnedOp::Explode { count, write }),
        3 => (0..9_usize, 0..9_usize).prop_map(|(most, count)| OwnedOp::InPlace { most, count }),
        1 => Just(OwnedOp::SplitAgain),
    ]
}

macro_rules! owned {
    ($($name:ident: $ring:ident, |$consumer:ident, $most:ident, $count:ident| $in_place:expr;)+) => {$(
        fn $name<const N: usize>(start: u64, ops: &[OwnedOp], bomb: Option<usize>) {
            drops($ring::Ring::<Noted, N>::starting_at(start), ops, bomb);
            drops($ring::RingIn::over_starting_at(&mut dirty::<_, N>()[..], start).unwrap(), ops, bomb);

            #[allow(unused_mut, reason = "an MPMC ring is split by reference")]
            fn drops<S: Storage<WordSlot<Noted>>>(mut ring: $ring::RingIn<Noted, S>, ops: &[OwnedOp], bomb: Option<usize>) {
                DROPPED.with_borrow_mut(Vec::clear);
                BOMB.set(bomb);
                let made = Cell::new(0);
                let fresh = || {
                    made.set(made.get() + 1);
                    Noted(made.get())
                };
                let mut ops = ops.iter().copied().peekable();
                while ops.peek().is_some() {
                    let (mut producer, mut $consumer) = ring.split();
                    for op in ops.by_ref() {
                        let _ = catch_unwind(AssertUnwindSafe(|| match op {
                            OwnedOp::Push => drop(producer.push(fresh())),
                            OwnedOp::BatchPush { every, count, .. } => {
                                let mut batch = producer.batch(every);
                                for _ in 0..count {
                                    drop(batch.push(fresh()));
                                }
                            }
                            OwnedOp::Reserve { count, write, .. } => {
                                if let Ok(mut grant) = producer.reserve(count) {
                                    for _ in 0..write {
                                        drop(grant.write(fresh()));
                                    }
                                }
                            }
                            OwnedOp::Explode { count, write } => {
                                if let Ok(mut grant) = producer.reserve(count) {
                                    let mut left = write;
                                    grant.fill(std::iter::from_fn(|| {
                                        if left == 0 {
                                            resume_unwind(Box::new("iterator"));
                                        }
                                        left -= 1;
                                        Some(fresh())
                                    }));
                                }
                            }
                            OwnedOp::Pop => drop($consumer.pop()),
                            OwnedOp::InPlace { most: $most, count: $count } => $in_place,
                            OwnedOp::SplitAgain => {}
                        }));
                        if let OwnedOp::SplitAgain = op {
                            break;
                        }
                    }
                }
                let before = DROPPED.with_borrow(Vec::len);
                let exploded = catch_unwind(AssertUnwindSafe(|| drop(ring))).is_err();
                let mut dropped = DROPPED.with_borrow(Vec::clone);
                let count = dropped.len();
                dropped.sort_unstable();
                dropped.dedup();
                assert_eq!(dropped.len(), count, "dropped twice");
                assert_eq!(count as u64, made.get(), "leaked");
                assert!(!exploded || bomb.is_some_and(|bomb| bomb > before && bomb <= count));
            }
        }
    )+};
}

owned! {
    mpmc_drops_each_once: mpmc, |consumer, most, count| {
        if let Ok(mut taken) = consumer.take(most) {
            taken.by_ref().take(count).for_each(drop);
        }
    };
    mpsc_drops_each_once: mpsc, |consumer, most, count| {
        if let Ok(chunk) = consumer.peek(most) {
            chunk.release(count);
        }
    };
}

fn dropped_since(before: usize) -> Vec<u64> {
    DROPPED.with_borrow(|dropped| dropped[before..].to_vec())
}

macro_rules! owned_in_order {
    ($($name:ident: $ring:ident over $slot:ident;)+) => {$(
        fn $name<const N: usize>(start: u64, ops: &[OwnedOp], bomb: Option<usize>) {
            drops($ring::Ring::<Noted, N>::starting_at(start), ops, bomb);
            drops($ring::RingIn::over_starting_at(&mut dirty::<_, N>()[..], start).unwrap(), ops, bomb);

            fn drops<S: Storage<$slot<Noted>>>(mut ring: $ring::RingIn<Noted, S>, ops: &[OwnedOp], bomb: Option<usize>) {
                let capacity = ring.split().0.capacity();
                DROPPED.with_borrow_mut(Vec::clear);
                BOMB.set(bomb);
                let mut made = 0;
                let mut fresh = || {
                    made += 1;
                    Noted(made)
                };
                let mut ops = ops.iter().copied().peekable();
                let mut inside = VecDeque::new();
                let mut unpublished = 0;
                while ops.peek().is_some() {
                    let (mut producer, mut consumer) = ring.split();
                    for op in ops.by_ref() {
                        let seen = dropped_since(0).len();
                        let free = capacity - inside.len();
                        match op {
                            OwnedOp::SplitAgain => break,
                            OwnedOp::Push => {
                                let value = fresh();
                                let id = value.0;
                                let outcome = catch_unwind(AssertUnwindSafe(|| producer.push(value).is_ok()));
                                assert_eq!(outcome.unwrap_or(false), free > 0);
                                unpublished = 0;
                                if free > 0 {
                                    inside.push_back(id);
                                } else {
                                    assert_eq!(dropped_since(seen), [id], "the value comes back");
                                }
                            }
                            OwnedOp::BatchPush { every, count, forget: forgets } => {
                                let mut batch = producer.batch(every);
                                for _ in 0..count.min(free) {
                                    let value = fresh();
                                    inside.push_back(value.0);
                                    assert!(batch.push(value).is_ok());
                                }
                                if forgets {
                                    forget(batch);
                                } else {
                                    drop(batch);
                                }
                                unpublished = inside.len() - consumer.len();
                                assert!(unpublished == 0 || forgets);
                            }
                            OwnedOp::Reserve { count, write, forget: forgets } => {
                                let before = unpublished;
                                let mut grant = producer.reserve(count.min(free)).unwrap();
                                let mut ids = Vec::new();
                                for _ in 0..write.min(grant.len()) {
                                    let value = fresh();
                                    ids.push(value.0);
                                    assert!(grant.write(value).is_ok());
                                }
                                let written = ids.len();
                                inside.extend(ids);
                                if forgets {
                                    forget(grant);
                                } else {
                                    drop(grant);
                                }
                                unpublished = inside.len() - consumer.len();
                                // Some kinds publish forgotten slots before a grant, others with the next publish.
                                assert!([0, before].map(|before| if forgets { before + written } else { 0 }).contains(&unpublished));
                            }
                            OwnedOp::Explode { count, write } => {
                                let mut grant = producer.reserve(count.min(free)).unwrap();
                                let written = write.min(grant.len());
                                let values = (0..=written).map(|number| {
                                    if number == written {
                                        resume_unwind(Box::new("iterator"));
                                    }
                                    let value = fresh();
                                    inside.push_back(value.0);
                                    value
                                });
                                let all = written == grant.len();
                                let outcome = catch_unwind(AssertUnwindSafe(move || grant.fill(values)));
                                assert_eq!(outcome.is_ok(), all, "a grant asks for no more than it has room for");
                                unpublished = 0;
                            }
                            OwnedOp::Pop => {
                                let outcome = catch_unwind(AssertUnwindSafe(|| consumer.pop().map(drop)));
                                assert_eq!(matches!(outcome, Ok(Err(PopError::Empty))), inside.len() == unpublished);
                                for id in dropped_since(seen) {
                                    assert_eq!(inside.pop_front(), Some(id));
                                }
                            }
                            OwnedOp::InPlace { most, count } => {
                                let visible = inside.len() - unpublished;
                                let _ = catch_unwind(AssertUnwindSafe(|| consumer.peek(most).map(|chunk| chunk.release(count))));
                                let dropped = dropped_since(seen);
                                for id in &dropped {
                                    assert_eq!(inside.pop_front(), Some(*id), "in order, and the one that panicked too");
                                }
                                let expected = visible.min(most).min(count);
                                let exploded = bomb.is_some_and(|bomb| seen < bomb && bomb <= seen + dropped.len());
                                assert!(dropped.len() == expected || exploded);
                            }
                        }
                        assert_eq!(consumer.len(), inside.len() - unpublished);
                    }
                    unpublished = 0;
                }
                let before = dropped_since(0).len();
                let exploded = catch_unwind(AssertUnwindSafe(|| drop(ring))).is_err();
                let mut dropped = dropped_since(0);
                assert!(dropped[before..].iter().eq(&inside), "in order, whichever drop panics");
                assert!(!exploded || bomb.is_some_and(|bomb| bomb > before && bomb <= dropped.len()));
                assert_eq!(dropped.len(), made as usize, "leaked, or dropped twice");
                dropped.sort_unstable();
                dropped.dedup();
                assert_eq!(dropped.len(), made as usize, "dropped twice");
            }
        }
    )+};
}

owned_in_order! {
    spsc_drops_each_once: spsc over BareSlot;
    flagged_drops_each_once: flagged over WordSlot;
}

macro_rules! at_every_capacity {
    ($arguments:tt: $($drops:ident)+) => {$(
        $drops::<1>$arguments;
        $drops::<2>$arguments;
        $drops::<8>$arguments;
    )+};
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_value_is_dropped_once_despite_panics(
        start in start(),
        ops in prop::collection::vec(owned_op(), 0..60),
        bomb in prop::option::of(1..30_usize),
    ) {
        at_every_capacity!((start, &ops, bomb): spsc_drops_each_once mpmc_drops_each_once mpsc_drops_each_once flagged_drops_each_once);
    }
}

fn three_and_a_panic() -> impl Iterator<Item = u64> {
    (1..).inspect(|number| {
        if *number == 4 {
            resume_unwind(Box::new("iterator"));
        }
    })
}

macro_rules! facts {
    ($($tests:ident: $ring:ident)+) => {$(
        #[allow(unused_mut, reason = "an MPMC ring is split by reference")]
        mod $tests {
            use super::*;

            #[test]
            fn a_panicking_iterator_publishes_the_items_before_it() {
                let mut ring = $ring::Ring::<u64, 4>::starting_at(u64::MAX - 1);
                let (mut producer, mut consumer) = ring.split();
                assert!(catch_unwind(AssertUnwindSafe(|| producer.reserve(4).unwrap().fill(three_and_a_panic()))).is_err());
                assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(2), Ok(3)]);
                assert_eq!(consumer.pop(), Err(PopError::Empty));
                assert!((0..4).all(|value| producer.push(value).is_ok()), "no capacity is lost");
                assert_eq!(producer.push(5), Err(PushError::Full(5)));
            }

            #[test]
            fn reserve_separates_too_large_from_full() {
                let mut ring = $ring::Ring::<u8, 4>::new();
                let (mut producer, consumer) = ring.split();
                for count in [5, u32::MAX as usize, usize::MAX] {
                    assert_eq!(producer.reserve(count).map(drop), Err(ReserveError::TooLarge { capacity: 4 }));
                }
                producer.push(1).unwrap();
                assert_eq!(producer.reserve(4).map(drop), Err(ReserveError::Full { free: 3 }));
                assert_eq!(consumer.len(), 1);
                assert_eq!(producer.push_slice(&[2; 9]).count(), 3, "more than ever fits: what fits");
            }

            #[test]
            fn push_on_a_full_ring_returns_the_value() {
                let mut ring = $ring::Ring::<String, 1>::starting_at(u64::MAX);
                let (mut producer, mut consumer) = ring.split();
                producer.push("first".into()).unwrap();
                assert_eq!(producer.push("second".into()).unwrap_err().into_inner(), "second");
                assert_eq!(producer.batch(8).push("third".into()).unwrap_err().into_inner(), "third");
                assert_eq!(consumer.pop().as_deref(), Ok("first"));
            }

            #[test]
            fn a_dropped_end_is_disconnected_until_split() {
                let mut ring = $ring::Ring::<u64, 2>::new();
                let (mut producer, mut consumer) = ring.split();
                producer.push(1).unwrap();
                drop(producer);
                assert!(consumer.is_disconnected());
                assert_eq!(consumer.pop(), Ok(1), "what was published before");
                drop(consumer);
                let (producer, consumer) = ring.split();
                assert!(!producer.is_disconnected() && !consumer.is_disconnected());
                drop(consumer);
                assert!(producer.is_disconnected());
            }
        }
    )+};
}

facts! { spsc_ring: spsc flagged_ring: flagged mpsc_ring: mpsc mpmc_ring: mpmc }

macro_rules! facts_of_forgetting {
    ($($tests:ident: $ring:ident)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn a_full_ring_publishes_a_forgotten_grant() {
                let mut ring = $ring::Ring::<u64, 2>::starting_at(u64::MAX);
                let (mut producer, mut consumer) = ring.split();
                let mut grant = producer.reserve(2).unwrap();
                assert_eq!(grant.fill(1..), 2);
                forget(grant);
                assert_eq!(consumer.pop(), Err(PopError::Empty));
                assert_eq!(producer.push(3), Err(PushError::Full(3)));
                assert_eq!([consumer.pop(), consumer.pop()], [Ok(1), Ok(2)], "or both sides would wait for ever");
            }

            #[test]
            fn forgotten_batches_do_not_deadlock_both_ends() {
                let mut ring = $ring::Ring::<u8, 2>::new();
                let (mut producer, mut consumer) = ring.split();
                for value in [1, 2] {
                    let mut batch = producer.batch(9);
                    batch.push(value).unwrap();
                    forget(batch);
                }
                assert_eq!(producer.push(3), Err(PushError::Full(3)));
                let mut batch = consumer.batch(9);
                assert_eq!((batch.pop(), batch.pop()), (Ok(1), Ok(2)));
                forget(batch);
                assert_eq!(producer.push(3), Err(PushError::Full(3)));
                assert_eq!(consumer.pop(), Err(PopError::Empty));
                assert_eq!(producer.push(3), Ok(()));
            }

            #[test]
            fn a_forgotten_batch_does_not_block_its_successor() {
                let mut ring = $ring::Ring::<u64, 4>::starting_at(u64::MAX - 2);
                let (mut producer, mut consumer) = ring.split();
                let mut batch = producer.batch(usize::MAX);
                for value in 0..4 {
                    batch.push(value).unwrap();
                }
                forget(batch);
                assert_eq!(producer.batch(usize::MAX).push(4), Err(PushError::Full(4)));
                assert_eq!(consumer.len(), 4, "a full ring has been published");

                let mut batch = consumer.batch(usize::MAX);
                for value in 0..4 {
                    assert_eq!(batch.pop(), Ok(value));
                }
                forget(batch);
                let mut batch = consumer.batch(usize::MAX);
                assert_eq!(batch.pop(), Err(PopError::Empty));
                assert_eq!(producer.refresh(), Ok(4), "a ring that was found empty has been released");
            }
        }
    )+};
}

facts_of_forgetting! { spsc_forgets: spsc flagged_forgets: flagged }

#[test]
fn as_mut_slices_excludes_written_slots() {
    let mut ring = spsc::Ring::<u64, 4>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    let mut grant = producer.reserve(3).unwrap();
    grant.write(7).unwrap();
    for run in grant.as_mut_slices() {
        run.fill(MaybeUninit::new(0));
    }
    grant.commit();
    assert_eq!(consumer.pop(), Ok(7));
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn messages_behind_an_open_grant_are_not_popped() {
    let ring = mpmc::Ring::<u64, 4>::starting_at(u64::MAX - 2);
    let (mut producer, mut consumer) = ring.split();
    let mut slow = producer.clone();
    let mut grant = slow.reserve(2).unwrap();
    grant.write(1).unwrap();
    assert_eq!([producer.push(3), producer.push(4)], [Ok(()); 2]);
    assert_eq!(producer.push(5), Err(PushError::Full(5)));
    assert_eq!(consumer.pop(), Ok(1));
    assert_eq!(consumer.pop(), Err(PopError::Empty), "the message behind the second slot is there, and held up");
    assert_eq!(producer.push(5), Ok(()));
    drop(grant);
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(3), Ok(4), Ok(5)]);
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn held_messages_keep_their_slots() {
    let ring = mpmc::Ring::<u64, 4>::starting_at(u64::MAX - 2);
    let (mut producer, mut consumer) = ring.split();
    let mut slow = consumer.clone();
    assert_eq!(producer.push_slice(&[1, 2, 3, 4]), 4);
    let mut taken = slow.take(2).unwrap();
    assert_eq!([consumer.pop(), consumer.pop()], [Ok(3), Ok(4)]);
    assert_eq!(producer.push(5), Err(PushError::Full(5)), "two slots are free, behind those that are held");
    assert_eq!(taken.next(), Some(1));
    assert_eq!(producer.push_slice(&[5, 6]), 1);
    drop(taken);
    assert_eq!(producer.push_slice(&[6, 7, 8]), 3);
    let mut values = [0; 4];
    assert_eq!((consumer.pop_slice(&mut values), values), (4, [5, 6, 7, 8]));
}

#[test]
fn calls_behind_a_forgotten_claim_never_block() {
    let ring = mpmc::Ring::<u64, 2>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    forget(producer.reserve(1).unwrap());
    assert_eq!([producer.push(1), producer.push(2)], [Ok(()), Err(PushError::Full(2))]);
    for _ in 0..3 {
        assert_eq!(consumer.pop(), Err(PopError::Empty));
        assert_eq!(consumer.take(usize::MAX).map(|_| ()), Err(PopError::Empty));
        assert_eq!(producer.reserve(1).map(drop), Err(ReserveError::Full { free: 0 }));
    }
}

#[test]
fn forgotten_messages_are_dropped_with_the_ring() {
    let value = Rc::new(());
    let ring = mpmc::Ring::<Rc<()>, 2>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    let mut push = || producer.push(Rc::clone(&value)).is_ok();
    assert_eq!([push(), push()], [true; 2]);
    let mut taken = consumer.take(2).unwrap();
    drop(taken.next());
    forget(taken);
    for lap in 0..3 {
        assert_eq!((push(), push()), (lap == 0, false), "one slot is free, the other is held");
        assert_eq!((consumer.pop().is_ok(), consumer.pop().is_ok()), (lap == 0, false));
    }
    drop((producer, consumer));
    assert_eq!(Rc::strong_count(&value), 2, "the forgotten value");
    drop(ring);
    assert_eq!(Rc::strong_count(&value), 1);
}

#[test]
fn a_chunk_ends_at_an_abandoned_slot() {
    let mut ring = mpsc::Ring::<u64, 4>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    producer.push(1).unwrap();
    drop(producer.reserve(1).unwrap());
    producer.push(2).unwrap();
    for number in [1, 2] {
        let chunk = consumer.peek(usize::MAX).unwrap();
        assert_eq!((chunk.len(), chunk.get(0)), (1, Some(&number)));
        chunk.release(1);
    }
}

#[test]
fn reserve_succeeds_while_another_grant_is_open() {
    let ring = mpmc::Ring::<u64, 4>::starting_at(u64::MAX);
    let (mut slow, mut consumer) = ring.split();
    let (mut fast, mut late) = (slow.clone(), slow.clone());
    let grant = slow.reserve(1).unwrap();
    fast.push(1).unwrap();
    assert_eq!(late.reserve(3).map(drop), Err(ReserveError::Full { free: 2 }));
    assert_eq!(late.reserve(2).map(|mut grant| grant.fill([2, 3])), Ok(2));
    drop(grant);
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(2), Ok(3)]);
}

#[test]
fn several_laps_of_abandoned_slots_are_skipped() {
    let ring = mpmc::Ring::<u64, 2>::starting_at(u64::MAX - 3);
    let (mut producer, mut consumer) = ring.split();
    for lap in 0..5 {
        drop(producer.reserve(2).unwrap());
        assert_eq!(producer.len(), 2, "lap {lap}: at most the capacity");
    }
    producer.push(1).unwrap();
    assert_eq!((consumer.pop(), consumer.pop(), consumer.len()), (Ok(1), Err(PopError::Empty), 0));
    assert_eq!(producer.push_slice(&[2, 3, 4]), 2);
}

#[test]
fn an_end_without_handles_is_disconnected() {
    let ring = mpmc::Ring::<u64, 2>::new();
    let (producer, consumer) = ring.split();
    let other = producer.clone();
    drop(producer);
    assert!(!consumer.is_disconnected());
    drop(other);
    assert!(consumer.is_disconnected());
    let (producer, second) = ring.split();
    assert!(!consumer.is_disconnected(), "an end that was split off again is open");
    drop(consumer);
    assert!(!producer.is_disconnected());
    drop(second);
    assert!(producer.is_disconnected());
}

#[test]
fn a_ring_split_again_keeps_its_messages() {
    fn lap<M: Machine<Word = ringmem_layouts::HostWord>, const KIND: u64>(mut producer: ManyProducer<'_, u64, M, KIND>) {
        assert_eq!(producer.push_slice(&[1, 2]), 2);
        let mut grant = producer.reserve(2).unwrap();
        grant.write(3).unwrap();
    }
    let ring = mpmc::Ring::<u64, 4>::starting_at(u64::MAX - 1);
    lap(ring.split().0);
    let (mut producer, mut consumer) = ring.split();
    assert_eq!([consumer.pop(), consumer.pop()], [Ok(1), Ok(2)]);
    producer.push(4).unwrap();
    assert_eq!([consumer.pop(), consumer.pop()], [Ok(3), Ok(4)]);

    let mut ring = mpsc::Ring::<u64, 4>::starting_at(u64::MAX - 1);
    lap(ring.split().0);
    assert_eq!(ring.split().1.pop(), Ok(1));
    let (mut producer, mut consumer) = ring.split();
    producer.push(4).unwrap();
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(2), Ok(3), Ok(4)]);
}

#[test]
fn a_static_ring_is_shared_by_threads() {
    const MESSAGES: u64 = 1_000;
    static RING: mpmc::Ring<u64, 4> = mpmc::Ring::new();
    let (mut producer, mut consumer) = RING.split();
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait = move || {
        thread::yield_now();
        assert!(Instant::now() < deadline, "no end in a minute");
    };
    let writer = thread::spawn(move || {
        for number in 0..MESSAGES {
            while producer.push(number).is_err() {
                wait();
            }
        }
    });
    for number in 0..MESSAGES {
        let value = loop {
            match consumer.pop() {
                Ok(value) => break value,
                Err(_) => wait(),
            }
        };
        assert_eq!(value, number);
    }
    writer.join().unwrap();
    assert!(consumer.is_disconnected());
}
