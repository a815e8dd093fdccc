use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::models::framed::{End, Length, Op, follows_the_model};
use proptest::prelude::*;
use ringmem_layouts::Host;
use ringmem_layouts::ring::framed::{Consumer, PopError, Producer, PushError, Ring};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Ring<64>: Send, Sync);
assert_not_impl_any!(Ring<64>: Clone);
assert_impl_all!(Producer<'static, Host>: Send);
assert_impl_all!(Consumer<'static, Host>: Send);
assert_not_impl_any!(Producer<'static, Host>: Clone, Sync);
assert_not_impl_any!(Consumer<'static, Host>: Clone, Sync);

fn length() -> impl Strategy<Value = Length> {
    prop_oneof![
        4 => (0..34_usize).prop_map(Length::Of),
        2 => (-9..9_isize).prop_map(Length::Largest),
        1 => (0..20_usize).prop_map(Length::Absurd),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let end = || prop_oneof![Just(End::Drop), Just(End::Explicit), Just(End::Forget), Just(End::Panic)];
    let lengths = || prop::collection::vec(length(), 0..6);
    prop_oneof![
        4 => length().prop_map(Op::Push),
        4 => prop_oneof![3 => Just(0), 1 => 1..5_usize].prop_map(|missing| Op::Pop { missing }),
        2 => (lengths(), prop::option::of(0..6_usize)).prop_map(|(lengths, panics)| Op::PushMany(lengths, panics)),
        3 => (length(), length(), end()).prop_map(|(len, used, end)| Op::Reserve { len, used, end }),
        2 => (0..4_usize, lengths(), any::<bool>(), end()).prop_map(|(every, messages, in_place, end)| Op::BatchPush { every, messages, in_place, end }),
        2 => end().prop_map(Op::Peek),
        2 => (0..6_usize, end()).prop_map(|(most, end)| Op::PeekMany { most, end }),
        2 => (0..4_usize, 0..6_usize, any::<bool>(), end()).prop_map(|(every, count, in_place, end)| Op::BatchPop { every, count, in_place, end }),
        1 => Just(Op::LookAtHead),
        1 => Just(Op::LookAtTail),
        1 => Just(Op::SplitAgain),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, (0..60_u64).prop_map(|back| u64::MAX - back), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_smallest_rings_follow_the_model(start in start(), ops in prop::collection::vec(op(), 0..60)) {
        follows_the_model::<16>(start, &ops);
        follows_the_model::<32>(start, &ops);
    }

    #[test]
    fn larger_rings_follow_the_model(start in start(), ops in prop::collection::vec(op(), 0..60)) {
        follows_the_model::<64>(start, &ops);
        follows_the_model::<128>(start, &ops);
        follows_the_model::<512>(start, &ops);
    }
}

fn fits_at_every_position<const BYTES: usize>() {
    for back in 0..2 * BYTES as u64 / 8 {
        let mut ring = Ring::<BYTES>::starting_at(u64::MAX - back);
        let (mut producer, mut consumer) = ring.split();
        let message: Vec<u8> = (0..producer.largest() as u32).map(|place| place as u8 ^ 0x5a).collect();
        let mut into = vec![0; message.len()];
        for _ in 0..2 {
            assert_eq!(producer.push(&message), Ok(()), "{BYTES} bytes, {back} words before the end");
            assert_eq!(consumer.pop(&mut into), Ok(message.len()));
            assert_eq!(into, message);
        }
        let asked = message.len() + 1;
        assert_eq!(producer.reserve(asked).map(drop), Err(PushError::TooLarge { largest: message.len(), asked }));
    }
}

#[test]
fn the_largest_message_fits_an_empty_ring_at_every_position() {
    fits_at_every_position::<16>();
    fits_at_every_position::<32>();
    fits_at_every_position::<64>();
    fits_at_every_position::<1024>();
}

#[test]
fn push_separates_too_large_from_full() {
    let mut ring = Ring::<64>::new();
    let (mut producer, mut consumer) = ring.split();
    let too_large = Err(PushError::TooLarge { largest: 24, asked: 25 });
    assert_eq!(producer.push(&[1; 25]), too_large);
    producer.push(&[1; 24]).unwrap();
    producer.push(&[2; 24]).unwrap();
    assert_eq!(producer.push(&[]), Err(PushError::Full));
    assert_eq!(producer.push(&[1; 25]), too_large, "also where the ring is full");
    assert_eq!(consumer.pop(&mut [0; 24]), Ok(24));
    assert_eq!(producer.push(&[3; 24]), Ok(()));
    assert_eq!(producer.push_many([[4; 1].as_slice()]), (0, Err(PushError::Full)));
}

#[test]
fn reserve_of_huge_lengths_returns_too_large() {
    let mut ring = Ring::<64>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    for asked in [25, 64, 65, 1 << 31, usize::MAX / 2, usize::MAX - 15, usize::MAX - 7, usize::MAX - 6, usize::MAX] {
        let too_large = PushError::TooLarge { largest: 24, asked };
        assert_eq!(producer.reserve(asked).map(drop), Err(too_large));
        assert_eq!(producer.batch(4).reserve(asked).map(drop), Err(too_large));
    }
    assert_eq!((producer.tail(), consumer.refresh()), (u64::MAX, Ok(0)));
}

#[test]
fn an_empty_message_is_a_message() {
    let mut ring = Ring::<16>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(producer.largest(), 0);
    assert_eq!([producer.push(&[]), producer.push(&[]), producer.push(&[])], [Ok(()), Ok(()), Err(PushError::Full)]);
    assert_eq!(consumer.pop(&mut []), Ok(0));
    assert!(consumer.peek().unwrap().is_empty());
    assert_eq!(consumer.pop(&mut []), Ok(0));
    assert_eq!(consumer.pop(&mut []), Err(PopError::Empty));
}

#[test]
fn pop_into_a_small_buffer_keeps_the_message() {
    let mut ring = Ring::<64>::new();
    let (mut producer, mut consumer) = ring.split();
    producer.push(b"nine byte").unwrap();
    for room in [0, 8] {
        assert_eq!(consumer.pop(&mut [0; 8][..room]), Err(PopError::TooSmall { needed: 9 }));
        assert_eq!(consumer.batch(4).pop(&mut [0; 8][..room]), Err(PopError::TooSmall { needed: 9 }));
    }
    let mut into = [0; 9];
    assert_eq!(consumer.pop(&mut into), Ok(9));
    assert_eq!(&into, b"nine byte");
}

#[test]
fn a_panic_during_a_grant_publishes_nothing() {
    let mut ring = Ring::<64>::new();
    let (mut producer, mut consumer) = ring.split();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        producer.reserve(24).unwrap().fill_with(|| resume_unwind(Box::new("half way")));
    }));
    assert!(outcome.is_err());
    let _ = producer.reserve(24).unwrap();
    assert_eq!((producer.tail(), consumer.len()), (0, 0));
    producer.push(b"whole").unwrap();
    assert_eq!(&*consumer.peek().unwrap(), b"whole");
}

#[test]
fn a_grant_is_initialised_and_keeps_earlier_bytes() {
    let mut ring = Ring::<32>::new();
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(*producer.reserve(8).unwrap(), [0; 8]);
    for _ in 0..2 {
        producer.push(b"eightbyt").unwrap();
        consumer.peek().unwrap().release();
    }
    assert_eq!(&*producer.reserve(8).unwrap(), b"eightbyt");
}

#[test]
fn a_partial_commit_frees_the_remaining_grant() {
    let mut ring = Ring::<64>::starting_at(u64::MAX - 1);
    let (mut producer, mut consumer) = ring.split();
    let mut grant = producer.reserve(24).unwrap();
    grant[..3].copy_from_slice(b"abc");
    grant.commit(3);
    assert_eq!(producer.tail(), 2, "two words skipped, two filled");
    let mut grant = producer.reserve(8).unwrap();
    grant.copy_from_slice(b"all of 8");
    grant.commit(usize::MAX);
    for expected in [b"abc".as_slice(), b"all of 8"] {
        let frame = consumer.peek().unwrap();
        assert_eq!(&*frame, expected);
        frame.release();
    }
    assert_eq!((producer.refresh(), consumer.refresh()), (Ok(64), Ok(0)));
}

#[test]
fn a_panicking_iterator_publishes_the_items_before_it() {
    let mut ring = Ring::<64>::starting_at(u64::MAX - 2);
    let (mut producer, mut consumer) = ring.split();
    let mut given = 0;
    let messages = std::iter::from_fn(|| {
        given += 1;
        if given == 3 {
            resume_unwind(Box::new("iterator"));
        }
        Some(b"message".as_slice())
    });
    assert!(catch_unwind(AssertUnwindSafe(|| producer.push_many(messages))).is_err());
    let mut into = [0; 7];
    assert_eq!([consumer.pop(&mut into), consumer.pop(&mut into), consumer.pop(&mut into)], [Ok(7), Ok(7), Err(PopError::Empty)]);
    assert_eq!(&into, b"message");
}

#[test]
fn push_many_publishes_once() {
    let mut ring = Ring::<64>::new();
    let (mut producer, mut consumer) = ring.split();
    let mut given = 0;
    let messages = std::iter::from_fn(|| {
        assert_eq!(consumer.len(), 0, "published before the last one");
        given += 1;
        (given < 4).then_some(b"m".as_slice())
    });
    assert_eq!(producer.push_many(messages), (3, Ok(())));
    assert_eq!(consumer.refresh(), Ok(48));
}

#[test]
fn a_forgotten_batch_does_not_block_its_successor() {
    let mut ring = Ring::<64>::starting_at(u64::MAX - 1);
    let (mut producer, mut consumer) = ring.split();
    let mut batch = producer.batch(usize::MAX);
    for value in 0..4 {
        batch.push(&[value]).unwrap();
    }
    forget(batch);
    assert_eq!(consumer.refresh(), Ok(16), "the first served a dry consumer");
    assert_eq!(producer.batch(usize::MAX).push(&[4]), Err(PushError::Full));
    assert_eq!(consumer.refresh(), Ok(64), "a full ring has been published");

    let mut batch = consumer.batch(usize::MAX);
    let mut into = [9];
    for value in 0..4 {
        assert_eq!((batch.pop(&mut into), into), (Ok(1), [value]));
    }
    forget(batch);
    assert_eq!(producer.refresh(), Ok(0));
    assert_eq!(consumer.batch(usize::MAX).pop(&mut into), Err(PopError::Empty));
    assert_eq!(producer.refresh(), Ok(64), "a ring that was found empty has been released");
}

#[test]
fn a_forgotten_batch_is_published_with_the_next_message() {
    let mut ring = Ring::<128>::new();
    let (mut producer, mut consumer) = ring.split();
    let mut batch = producer.batch(usize::MAX);
    batch.push(&[1]).unwrap();
    batch.push(&[2]).unwrap();
    forget(batch);
    assert_eq!(consumer.refresh(), Ok(16));
    producer.push(&[3]).unwrap();
    assert_eq!(consumer.refresh(), Ok(48));
}

#[test]
fn messages_of_a_dropped_producer_remain_readable() {
    let mut ring = Ring::<64>::new();
    let (mut producer, mut consumer) = ring.split();
    assert!(!producer.is_disconnected() && !consumer.is_disconnected());
    producer.push(b"last").unwrap();
    drop(producer);
    assert!(consumer.is_disconnected());
    assert_eq!(&*consumer.peek().unwrap(), b"last");
    drop(consumer);
    let (producer, consumer) = ring.split();
    assert!(!consumer.is_disconnected());
    drop(consumer);
    assert!(producer.is_disconnected());
}
