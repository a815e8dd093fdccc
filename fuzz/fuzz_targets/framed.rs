//! Framed rings: against a model, or with a peer that writes anything.

#![no_main]

#[path = "../memory/mod.rs"]
mod memory;
#[path = "../../layouts/tests/suite/models/framed.rs"]
#[allow(dead_code, reason = "no input panics")]
mod model;
#[path = "../../layouts/tests/suite/ring_memory.rs"]
mod ring_memory;

use std::mem::forget;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use memory::Start;
use model::{End, follows_the_model};
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::framed::{self, Consumer, PopError, Producer, PushError};
use ringmem_layouts::{Host, HostWord, Word};

#[derive(Arbitrary, Debug)]
struct Input {
    doublings: u8,
    start: Start,
    peer: Peer,
    operations: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
enum Peer {
    Honest,
    /// Writes before attaching; indices and slots at any time.
    Hostile(Vec<(u8, Number)>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Near(i8),
    Marker,
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Length {
    Of(u8),
    Any(u64),
}

#[derive(Arbitrary, Clone, Debug)]
enum Op {
    Push(u8),
    PushMany(Vec<u8>),
    Reserve { len: Length, used: u8, forget: bool },
    BatchPush { every: u8, messages: Vec<u8>, in_place: bool, forget: bool },
    Pop { room: u8 },
    Peek { release: bool },
    PeekMany { most: u8, release: bool },
    BatchPop { every: u8, count: u8, in_place: bool, forget: bool },
    Look,
    AttachAgain,
    PeerWritesTail(Number),
    PeerWritesHead(Number),
    PeerWritesSlot(u8, Number),
}

fn attach(memory: &Memory) -> Result<(Producer<'_, Host>, Consumer<'_, Host>), AttachError> {
    Ok((memory.attach(Producer::from_raw)?, memory.attach(Consumer::from_raw)?))
}

fn holds(memory: &Memory, bytes: &[u8], capacity: usize) -> bool {
    let at = bytes.as_ptr() as usize - memory.base.as_ptr() as usize;
    at.is_multiple_of(8) && at >= 384 && at + bytes.len() <= 384 + capacity
}

fn write(word: &HostWord, number: Number) {
    let value = match number {
        Number::Near(step) => Word::load(word).wrapping_add_signed(step.into()),
        Number::Marker => u64::MAX,
        Number::Any(value) => value,
    };
    Word::store(word, value);
}

impl Length {
    fn bytes(self) -> usize {
        match self {
            Self::Of(bytes) => bytes.into(),
            Self::Any(bytes) => bytes as usize,
        }
    }
}

struct Fresh(u8);

impl Fresh {
    fn message(&mut self, len: u8) -> Vec<u8> {
        self.0 = self.0.wrapping_add(1);
        (0..len).map(|place| self.0 ^ place.wrapping_mul(37)).collect()
    }
}

fn honest(op: &Op) -> Option<model::Op> {
    let end = |forgets: bool| if forgets { End::Forget } else { End::Explicit };
    let lengths = |lengths: &[u8]| lengths.iter().take(16).map(|&len| model::Length::Of(len.into())).collect();
    Some(match *op {
        Op::Push(len) => model::Op::Push(model::Length::Of(len.into())),
        Op::PushMany(ref messages) => model::Op::PushMany(lengths(messages), None),
        Op::Reserve { len, used, forget } => {
            model::Op::Reserve { len: model::Length::Of(len.bytes()), used: model::Length::Of(used.into()), end: end(forget) }
        }
        Op::BatchPush { every, ref messages, in_place, forget } => {
            model::Op::BatchPush { every: every.into(), messages: lengths(messages), in_place, end: end(forget) }
        }
        Op::Pop { room } => model::Op::Pop { missing: usize::from(room % 4) },
        Op::Peek { release } => model::Op::Peek(end(!release)),
        Op::PeekMany { most, release } => model::Op::PeekMany { most: most.into(), end: end(!release) },
        Op::BatchPop { every, count, in_place, forget } => {
            model::Op::BatchPop { every: every.into(), count: usize::from(count % 32), in_place, end: end(forget) }
        }
        Op::Look => model::Op::LookAtHead,
        Op::AttachAgain => model::Op::SplitAgain,
        Op::PeerWritesTail(_) | Op::PeerWritesHead(_) | Op::PeerWritesSlot(..) => return None,
    })
}

fn hostile(memory: &Memory, most: u64, operations: &[Op]) {
    let Ok((mut producer, mut consumer)) = attach(memory) else { return };
    let bytes = producer.capacity();
    assert!(bytes.is_power_of_two() && (16..=most as usize * 8).contains(&bytes));
    let (capacity, largest) = (bytes as u64 / 8, bytes / 2 - 8);
    assert!(producer.largest() == largest && consumer.largest() == largest);
    let corrupt = |corrupt: Corrupt| assert!(corrupt.capacity == capacity && corrupt.tail.wrapping_sub(corrupt.head) > capacity);
    let pushed = |len: usize, outcome: Result<(), PushError<Corrupt>>| match outcome {
        Ok(()) | Err(PushError::Full) => assert!(len <= largest),
        Err(PushError::TooLarge { largest: said, asked }) => assert!(said == largest && asked == len && len > largest),
        Err(PushError::Corrupt(refused)) => corrupt(refused),
    };
    let popped = |room: usize, outcome: Result<usize, PopError<Corrupt>>| match outcome {
        Ok(len) => assert!(len <= room && len <= largest),
        Err(PopError::TooSmall { needed }) => assert!(needed > room && needed <= largest),
        Err(PopError::Corrupt(refused)) => corrupt(refused),
        Err(PopError::Empty | PopError::BadFrame { .. }) => {}
    };
    let mut fresh = Fresh(0);
    for op in operations {
        match *op {
            Op::Push(len) => pushed(len.into(), producer.push(&fresh.message(len))),
            Op::PushMany(ref lengths) => {
                let messages: Vec<_> = lengths.iter().take(16).map(|len| fresh.message(*len)).collect();
                let (taken, outcome) = producer.push_many(messages.iter().map(Vec::as_slice));
                assert!(taken as u64 <= capacity);
                if outcome.is_err() {
                    pushed(messages[taken].len(), outcome);
                }
            }
            Op::Reserve { len, used, forget: forgets } => {
                let outcome = producer.reserve(len.bytes()).map(|mut grant| {
                    assert!(grant.len() == len.bytes() && holds(memory, &grant, bytes));
                    grant.fill(used);
                    if forgets { forget(grant) } else { grant.commit(used.into()) }
                });
                pushed(len.bytes(), outcome);
            }
            Op::BatchPush { every, ref messages, in_place, forget: forgets } => {
                let mut batch = producer.batch(every.into());
                for len in messages.iter().take(16) {
                    let outcome = if in_place {
                        batch.reserve((*len).into()).map(|grant| grant.commit(usize::MAX))
                    } else {
                        batch.push(&fresh.message(*len))
                    };
                    pushed((*len).into(), outcome);
                }
                if forgets {
                    forget(batch);
                }
            }
            Op::Pop { room } => popped(room.into(), consumer.pop(&mut vec![0; room.into()])),
            Op::Peek { release } => {
                let outcome = consumer.peek().map(|frame| {
                    assert!(holds(memory, &frame, bytes));
                    let len = frame.len();
                    if release {
                        frame.release();
                    }
                    len
                });
                popped(largest, outcome);
            }
            Op::PeekMany { most, release } => match consumer.peek_many() {
                Ok(chunk) => {
                    let mut seen = 0;
                    for _ in 0..most {
                        match chunk.next() {
                            Ok(message) => assert!(holds(memory, &message, bytes) && message.len() <= largest),
                            Err(refused) => {
                                popped(largest, Err(refused));
                                break;
                            }
                        }
                        seen += 1;
                    }
                    assert!(seen as u64 <= capacity);
                    if release {
                        assert_eq!(chunk.release(), seen);
                    }
                }
                Err(refused) => popped(largest, Err(refused)),
            },
            Op::BatchPop { every, count, in_place, forget: forgets } => {
                let mut batch = consumer.batch(every.into());
                for _ in 0..count % 32 {
                    if in_place {
                        let outcome = batch.peek().map(|frame| {
                            assert!(holds(memory, &frame, bytes));
                            let len = frame.len();
                            frame.release();
                            len
                        });
                        popped(largest, outcome);
                    } else {
                        popped(count.into(), batch.pop(&mut vec![0; count.into()]));
                    }
                }
                if forgets {
                    forget(batch);
                }
            }
            Op::Look => {
                match producer.refresh() {
                    Ok(free) => assert_eq!(free, producer.free()),
                    Err(refused) => corrupt(refused),
                }
                match consumer.refresh() {
                    Ok(waiting) => assert_eq!(waiting, consumer.available()),
                    Err(refused) => corrupt(refused),
                }
            }
            Op::AttachAgain => match attach(memory) {
                Ok(ends) => (producer, consumer) = ends,
                Err(refused) => return assert!(matches!(refused, AttachError::Corrupt(_)), "only indices have changed"),
            },
            Op::PeerWritesTail(number) => write(&memory.header().producer.tail, number),
            Op::PeerWritesHead(number) => write(&memory.header().consumer.head, number),
            Op::PeerWritesSlot(place, number) => write(&memory.words()[48 + usize::from(place) % capacity as usize], number),
        }
        assert!(producer.free() <= bytes && consumer.available() <= bytes && consumer.len() <= bytes);
    }
}

fuzz_target!(|input: Input| {
    let (doublings, start) = (input.doublings % 5, input.start.index());
    match &input.peer {
        Peer::Honest => {
            let operations: Vec<_> = input.operations.iter().filter_map(honest).collect();
            let follows = [
                follows_the_model::<16>,
                follows_the_model::<32>,
                follows_the_model::<64>,
                follows_the_model::<128>,
                follows_the_model::<256>,
            ];
            follows[usize::from(doublings)](start, &operations);
        }
        Peer::Hostile(words) => {
            let memory = Memory::formatted_over::<u64>(0, framed::layout(16 << doublings).unwrap(), start);
            for (place, number) in words {
                write(&memory.words()[usize::from(*place) % memory.words().len()], *number);
            }
            hostile(&memory, memory.layout.capacity(), &input.operations);
        }
    }
});
