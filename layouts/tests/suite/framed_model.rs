use std::collections::VecDeque;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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

#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    Explicit,
    Forget,
    Panic,
}

#[derive(Clone, Copy, Debug)]
enum Length {
    Of(usize),
    Largest(isize),
    Absurd(usize),
}

impl Length {
    fn bytes(self, largest: usize) -> usize {
        match self {
            Self::Of(bytes) => bytes,
            Self::Largest(more) => largest.saturating_add_signed(more),
            Self::Absurd(less) => usize::MAX - less,
        }
    }
    fn real(self, largest: usize) -> usize {
        self.bytes(largest).min(largest + 9)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Push(Length),
    PushMany(Vec<Length>, Option<usize>),
    Reserve {
        len: Length,
        used: Length,
        end: End,
    },
    BatchPush {
        every: u64,
        messages: Vec<Length>,
        in_place: bool,
        end: End,
    },
    /// Into a buffer that is too short by so much.
    Pop {
        missing: usize,
    },
    Peek(End),
    PeekMany {
        most: usize,
        end: End,
    },
    BatchPop {
        every: u64,
        count: usize,
        in_place: bool,
        end: End,
    },
    LookAtHead,
    LookAtTail,
    SplitAgain,
}

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
        2 => (0..4_u64, lengths(), any::<bool>(), end()).prop_map(|(every, messages, in_place, end)| Op::BatchPush { every, messages, in_place, end }),
        2 => end().prop_map(Op::Peek),
        2 => (0..6_usize, end()).prop_map(|(most, end)| Op::PeekMany { most, end }),
        2 => (0..4_u64, 0..6_usize, any::<bool>(), end()).prop_map(|(every, count, in_place, end)| Op::BatchPop { every, count, in_place, end }),
        1 => Just(Op::LookAtHead),
        1 => Just(Op::LookAtTail),
        1 => Just(Op::SplitAgain),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, (0..60_u64).prop_map(|back| u64::MAX - back), any::<u64>()]
}

struct Entry {
    bytes: Vec<u8>,
    words: u64,
}

struct Model {
    capacity: u64,
    head: u64,
    entries: VecDeque<Entry>,
    popped: usize,
    unpublished: usize,
    made: u8,
}

impl Model {
    fn largest(&self) -> usize {
        (self.capacity as usize * 8) / 2 - 8
    }
    fn used(&self) -> u64 {
        self.entries.iter().map(|entry| entry.words).sum()
    }
    fn tail(&self) -> u64 {
        self.head.wrapping_add(self.used())
    }
    fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.made = self.made.wrapping_add(1);
        (0..len).map(|place| self.made ^ (place as u8).wrapping_mul(37)).collect()
    }
    fn room(&self, len: usize) -> Result<u64, PushError> {
        if len > self.largest() {
            return Err(PushError::TooLarge { largest: self.largest(), asked: len });
        }
        let words = 1 + len as u64 / 8 + u64::from(!len.is_multiple_of(8));
        let before_wrap = self.capacity - self.tail() % self.capacity;
        let skipped = if words <= before_wrap { 0 } else { before_wrap };
        if self.used() + skipped + words > self.capacity { Err(PushError::Full) } else { Ok(skipped) }
    }
    fn push(&mut self, bytes: Vec<u8>, skipped: u64) {
        let words = skipped + 1 + bytes.len().div_ceil(8) as u64;
        self.entries.push_back(Entry { bytes, words });
        self.unpublished += 1;
    }
    fn visible(&self) -> usize {
        self.entries.len() - self.popped - self.unpublished
    }
    fn waiting(&self) -> Option<&[u8]> {
        (self.visible() > 0).then(|| self.entries[self.popped].bytes.as_slice())
    }
    fn release(&mut self) {
        for entry in self.entries.drain(..self.popped) {
            self.head = self.head.wrapping_add(entry.words);
        }
        self.popped = 0;
    }
    fn observe(&mut self, consumer: &Consumer<'_, Host>) {
        let mut words = consumer.len() as u64 / 8;
        let mut visible = 0;
        for entry in self.entries.iter().skip(self.popped) {
            if words == 0 {
                break;
            }
            words = words.checked_sub(entry.words).expect("only whole frames are published");
            visible += 1;
        }
        assert_eq!(words, 0, "published and never pushed");
        let unpublished = self.entries.len() - self.popped - visible;
        assert!(unpublished <= self.unpublished, "taken back");
        self.unpublished = unpublished;
    }
}

fn leave<T>(end: End, held: T, explicitly: impl FnOnce(T)) -> bool {
    match end {
        End::Drop => drop(held),
        End::Forget => forget(held),
        End::Explicit => {
            explicitly(held);
            return true;
        }
        End::Panic => {
            let outcome = catch_unwind(AssertUnwindSafe(move || {
                let _held = held;
                resume_unwind(Box::new("while it is held"));
            }));
            assert!(outcome.is_err());
        }
    }
    false
}

fn follows_the_model<const BYTES: usize>(start: u64, ops: &[Op]) {
    let mut ring = Ring::<BYTES>::starting_at(start);
    let mut model = Model { capacity: BYTES as u64 / 8, head: start, entries: VecDeque::new(), popped: 0, unpublished: 0, made: 0 };
    let mut ops = ops.iter();
    loop {
        let (mut producer, mut consumer) = ring.split();
        loop {
            match ops.next() {
                None => return,
                Some(Op::SplitAgain) => break,
                Some(op) => step(&mut producer, &mut consumer, &mut model, op),
            }
            model.observe(&consumer);
            assert_eq!(producer.tail(), model.tail());
            let popped: u64 = model.entries.iter().take(model.popped).map(|entry| entry.words).sum();
            assert_eq!(consumer.head(), model.head.wrapping_add(popped));
            assert_eq!((producer.capacity(), consumer.capacity()), (BYTES, BYTES));
            assert_eq!((producer.largest(), consumer.largest()), (model.largest(), model.largest()));
            assert!(producer.free() <= BYTES && consumer.available() <= BYTES);
            assert_eq!(consumer.is_empty(), model.visible() == 0);
        }
        model.popped = 0;
        model.entries.truncate(model.entries.len() - model.unpublished);
        model.unpublished = 0;
    }
}

fn step(producer: &mut Producer<'_, Host>, consumer: &mut Consumer<'_, Host>, model: &mut Model, op: &Op) {
    let largest = model.largest();
    match *op {
        Op::Push(len) => {
            let message = model.fresh(len.real(largest));
            let room = model.room(message.len());
            assert_eq!(producer.push(&message), room.map(drop));
            match room {
                Ok(skipped) => {
                    model.push(message, skipped);
                    published(model, consumer);
                }
                Err(PushError::Full) => published(model, consumer),
                Err(_) => {}
            }
        }
        Op::PushMany(ref lengths, panics) => {
            let messages: Vec<Vec<u8>> = lengths.iter().map(|len| model.fresh(len.real(largest))).collect();
            let mut given = 0;
            let iterator = messages.iter().map(|message| {
                if panics == Some(given) {
                    resume_unwind(Box::new("iterator"));
                }
                given += 1;
                message.as_slice()
            });
            let outcome = catch_unwind(AssertUnwindSafe(|| producer.push_many(iterator)));
            let mut expected = (0, Ok(()));
            for (number, message) in messages.iter().enumerate() {
                if panics == Some(number) {
                    break;
                }
                match model.room(message.len()) {
                    Ok(skipped) => {
                        model.push(message.clone(), skipped);
                        expected.0 += 1;
                    }
                    Err(refused) => {
                        expected.1 = Err(refused);
                        break;
                    }
                }
            }
            match outcome {
                Ok(outcome) => assert_eq!(outcome, expected),
                Err(_) => assert_eq!((Some(expected.0 as usize), expected.1), (panics, Ok(()))),
            }
            published(model, consumer);
        }
        Op::Reserve { len, used, end } => {
            let len = len.bytes(largest);
            let room = model.room(len);
            match producer.reserve(len) {
                Err(refused) => {
                    assert_eq!(Err(refused), room);
                    if refused == PushError::Full {
                        published(model, consumer);
                    }
                }
                Ok(mut grant) => {
                    let skipped = room.expect("a grant where there is no room");
                    assert_eq!((grant.len(), grant.is_empty()), (len, len == 0));
                    assert!(begins_on_a_word(&grant));
                    let used = used.bytes(largest);
                    let message = model.fresh(len);
                    grant.copy_from_slice(&message);
                    if leave(end, grant, |grant| grant.commit(used)) {
                        model.push(message[..used.min(len)].to_vec(), skipped);
                        published(model, consumer);
                    }
                }
            }
        }
        Op::BatchPush { every, ref messages, in_place, end } => {
            let mut batch = producer.batch(every);
            published(model, consumer);
            for len in messages {
                let message = model.fresh(len.real(largest));
                let room = model.room(message.len());
                let outcome = if in_place {
                    batch.reserve(message.len()).map(|mut grant| {
                        grant.copy_from_slice(&message);
                        grant.commit(usize::MAX);
                    })
                } else {
                    batch.push(&message)
                };
                assert_eq!(outcome, room.map(drop));
                match room {
                    Ok(skipped) => model.push(message, skipped),
                    // A full ring must publish, or its consumer would wait forever.
                    Err(PushError::Full) => published(model, consumer),
                    Err(_) => {}
                }
                model.observe(consumer);
                assert!(model.unpublished < every.max(1) as usize, "a batch is published when it is complete");
                let dry = model.entries.len() == model.unpublished;
                assert!(!dry || model.unpublished == 0, "a consumer that has run dry is served at once");
            }
            leave(end, batch, |mut batch| batch.flush());
            if !matches!(end, End::Forget) {
                published(model, consumer);
            }
        }
        Op::Pop { missing } => {
            let mut into = vec![0xee; largest + 5];
            match model.waiting().map(<[u8]>::to_vec) {
                None => {
                    assert_eq!(consumer.pop(&mut into), Err(PopError::Empty));
                    model.release();
                }
                Some(message) if missing > 0 && !message.is_empty() => {
                    let room = message.len().saturating_sub(missing);
                    assert_eq!(consumer.pop(&mut into[..room]), Err(PopError::TooSmall { needed: message.len() }));
                }
                Some(message) => {
                    assert_eq!(consumer.pop(&mut into), Ok(message.len()));
                    assert_eq!(into[..message.len()], message);
                    assert!(into[message.len()..].iter().all(|byte| *byte == 0xee), "more than the message was written");
                    model.popped += 1;
                    model.release();
                }
            }
        }
        Op::Peek(end) => match consumer.peek() {
            Err(refused) => {
                assert_eq!((refused, model.waiting()), (PopError::Empty, None));
                model.release();
            }
            Ok(frame) => {
                assert_eq!(Some(&*frame), model.waiting());
                assert_eq!(frame.message().len(), frame.len());
                assert!(begins_on_a_word(&frame));
                if leave(end, frame, |frame| frame.release()) {
                    model.popped += 1;
                    model.release();
                }
            }
        },
        Op::PeekMany { most, end } => match consumer.peek_many() {
            Err(refused) => {
                assert_eq!((refused, model.waiting()), (PopError::Empty, None));
                model.release();
            }
            Ok(chunk) => {
                let seen: Vec<_> = std::iter::from_fn(|| chunk.next().ok()).take(most).collect();
                let expected = model.entries.iter().skip(model.popped).take(model.visible().min(most));
                assert!(seen.iter().map(|message| message.bytes()).eq(expected.map(|entry| entry.bytes.as_slice())));
                let count = seen.len();
                if most > count {
                    assert_eq!(chunk.next().map(|message| message.len()), Err(PopError::Empty));
                }
                drop(seen);
                if leave(end, chunk, |chunk| assert_eq!(chunk.release(), count as u64)) && count > 0 {
                    model.popped += count;
                    model.release();
                }
            }
        },
        Op::BatchPop { every, count, in_place, end } => {
            let mut batch = consumer.batch(every);
            model.release();
            for _ in 0..count {
                let mut into = vec![0; largest];
                let outcome = if in_place {
                    batch.peek().map(|frame| {
                        let len = frame.len();
                        into[..len].copy_from_slice(&frame);
                        frame.release();
                        len
                    })
                } else {
                    batch.pop(&mut into)
                };
                match model.waiting() {
                    Some(message) => {
                        assert_eq!(outcome, Ok(message.len()));
                        assert_eq!(&into[..message.len()], message);
                        model.popped += 1;
                        if model.popped as u64 >= every.max(1) {
                            model.release();
                        }
                    }
                    None => {
                        assert_eq!(outcome, Err(PopError::Empty));
                        // A dry consumer must release, or its producer would wait forever.
                        model.release();
                    }
                }
                assert_eq!(producer.refresh(), Ok((model.capacity - model.used()) as usize * 8));
            }
            leave(end, batch, |mut batch| batch.flush());
            if !matches!(end, End::Forget) {
                model.release();
                assert_eq!(producer.refresh(), Ok((model.capacity - model.used()) as usize * 8));
            }
        }
        Op::LookAtHead => {
            let free = (model.capacity - model.used()) as usize * 8;
            assert_eq!(producer.refresh(), Ok(free));
            assert_eq!(producer.free(), free);
        }
        Op::LookAtTail => {
            let waiting = consumer.len();
            assert_eq!(consumer.refresh(), Ok(waiting));
            assert_eq!(consumer.available(), waiting);
        }
        Op::SplitAgain => unreachable!("the caller's"),
    }
}

fn published(model: &mut Model, consumer: &Consumer<'_, Host>) {
    model.observe(consumer);
    assert_eq!(model.unpublished, 0);
}

fn begins_on_a_word(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(8)
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
    let mut batch = producer.batch(u64::MAX);
    for value in 0..4 {
        batch.push(&[value]).unwrap();
    }
    forget(batch);
    assert_eq!(consumer.refresh(), Ok(16), "the first served a dry consumer");
    assert_eq!(producer.batch(u64::MAX).push(&[4]), Err(PushError::Full));
    assert_eq!(consumer.refresh(), Ok(64), "a full ring has been published");

    let mut batch = consumer.batch(u64::MAX);
    let mut into = [9];
    for value in 0..4 {
        assert_eq!((batch.pop(&mut into), into), (Ok(1), [value]));
    }
    forget(batch);
    assert_eq!(producer.refresh(), Ok(0));
    assert_eq!(consumer.batch(u64::MAX).pop(&mut into), Err(PopError::Empty));
    assert_eq!(producer.refresh(), Ok(64), "a ring that was found empty has been released");
}

#[test]
fn a_forgotten_batch_is_published_with_the_next_message() {
    let mut ring = Ring::<128>::new();
    let (mut producer, mut consumer) = ring.split();
    let mut batch = producer.batch(u64::MAX);
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
