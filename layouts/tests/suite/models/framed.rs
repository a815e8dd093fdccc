//! The model of a framed ring: a queue of messages of any length, whose frames fill the ring.

use std::collections::VecDeque;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ringmem_layouts::Local;
use ringmem_layouts::ring::framed::{Consumer, PopError, Producer, PushError, Ring};

#[derive(Clone, Copy, Debug)]
pub enum End {
    Drop,
    Explicit,
    Forget,
    Panic,
}

#[derive(Clone, Copy, Debug)]
pub enum Length {
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
pub enum Op {
    Push(Length),
    PushMany(Vec<Length>, Option<usize>),
    Reserve { len: Length, used: Length, end: End },
    BatchPush { every: usize, messages: Vec<Length>, in_place: bool, end: End },
    Pop { missing: usize },
    Peek(End),
    PeekMany { most: usize, end: End },
    BatchPop { every: usize, count: usize, in_place: bool, end: End },
    LookAtHead,
    LookAtTail,
    SplitAgain,
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
    fn observe(&mut self, consumer: &Consumer<'_, Local>) {
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

pub fn follows_the_model<const BYTES: usize>(start: u64, ops: &[Op]) {
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

fn step(producer: &mut Producer<'_, Local>, consumer: &mut Consumer<'_, Local>, model: &mut Model, op: &Op) {
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
                Err(_) => assert_eq!((Some(expected.0), expected.1), (panics, Ok(()))),
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
                    // Otherwise the consumer of a full ring would wait forever.
                    Err(PushError::Full) => published(model, consumer),
                    Err(_) => {}
                }
                model.observe(consumer);
                assert!(model.unpublished < every.max(1), "a batch is published when it is complete");
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
                if leave(end, chunk, |chunk| assert_eq!(chunk.release(), count)) && count > 0 {
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
                        if model.popped >= every.max(1) {
                            model.release();
                        }
                    }
                    None => {
                        assert_eq!(outcome, Err(PopError::Empty));
                        // Otherwise the producer of a dry ring would wait forever.
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

fn published(model: &mut Model, consumer: &Consumer<'_, Local>) {
    model.observe(consumer);
    assert_eq!(model.unpublished, 0);
}

fn begins_on_a_word(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(8)
}
