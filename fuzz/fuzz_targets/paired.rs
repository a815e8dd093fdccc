//! Paired rings: against a queue, or with a peer that stores anything.

#![no_main]

#[path = "../../layouts/tests/suite/models/lossy.rs"]
#[allow(dead_code, reason = "the values alone are used")]
mod lossy;
#[path = "../memory/mod.rs"]
mod memory;
#[path = "../../layouts/tests/suite/models/paired.rs"]
mod paired;
#[path = "../../layouts/tests/suite/ring_memory.rs"]
mod ring_memory;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use lossy::Value;
use memory::{Message, Number, Start, store};
use paired::{Before, follows_the_model};
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::paired::{Consumer, Producer};
use ringmem_layouts::ring::{PopError, PushError, RingFlags};
use ringmem_layouts::{Host, RingLayout, RingMessage, Word};

#[derive(Arbitrary, Debug)]
struct Input {
    message: Message,
    doublings: u8,
    start: Start,
    before: (u8, u8, u8),
    hostile: bool,
    operations: Vec<Op>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Op {
    Push,
    Pop,
    Refresh,
    AttachProducer,
    AttachConsumer,
    DieWithinPush(u64),
    Store { word: u16, number: Number },
    StoreSlot { producer: bool, word: u8, lap: i8 },
    StoreHead(Number),
}

type Ends<'a, T> = (Producer<'a, T, Host>, Consumer<'a, T, Host>);

fn open<T: RingMessage>(memory: &Memory) -> Result<Ends<'_, T>, AttachError> {
    Ok((memory.attach(Producer::from_raw)?, memory.attach(Consumer::from_raw)?))
}

fn run<T: Value>(input: &Input) {
    let (capacity, start, (byte, messages, zero)) = (1 << (input.doublings % 4), input.start.index(), input.before);
    if input.hostile {
        let layout = RingLayout::of_kind::<T>(RingFlags::PAIRED, capacity).unwrap();
        hostile::<T>(&Memory::formatted_over::<T>(byte, layout, start), &input.operations);
    } else {
        let operations: Vec<_> = input.operations.iter().copied().filter_map(honest).collect();
        follows_the_model::<T>(capacity, start, Before { byte, messages: (messages % 32).into(), zero: zero.into() }, &operations);
    }
}

fn honest(op: Op) -> Option<paired::Op> {
    Some(match op {
        Op::Push => paired::Op::Push,
        Op::Pop => paired::Op::Pop,
        Op::Refresh => paired::Op::Refresh,
        Op::AttachProducer => paired::Op::AttachProducer,
        Op::AttachConsumer => paired::Op::AttachConsumer,
        Op::DieWithinPush(stored) => paired::Op::DieWithinPush(stored),
        Op::Store { .. } | Op::StoreSlot { .. } | Op::StoreHead(_) => return None,
    })
}

/// The upper half of the words of the message with this index.
fn flag(index: u64, capacity: u64) -> u64 {
    (index / capacity) << 1 & 0xFFFF_FFFF | 1
}

/// The message in the slot of `index`, if each word has its flag.
fn message<T: RingMessage>(memory: &Memory, index: u64, capacity: u64) -> Option<T> {
    let words = size_of::<T>().div_ceil(8) * 2;
    let first = memory.layout.slots_offset() as usize / 8 + (index % capacity) as usize * words;
    let mut value = T::zeroed();
    for (part, word) in value.as_bytes_mut().chunks_mut(4).zip(&memory.words()[first..]) {
        let word = Word::load(word);
        if word >> 32 != flag(index, capacity) {
            return None;
        }
        part.copy_from_slice(&(word as u32).to_le_bytes()[..part.len()]);
    }
    Some(value)
}

fn hostile<T: Value>(memory: &Memory, operations: &[Op]) {
    let (first, operations) = operations.split_at(operations.len().min(3));
    for op in first {
        if let Op::Store { word, number } = op {
            store(&memory.words()[usize::from(*word) % memory.words().len()], *number);
        }
    }
    let Ok((mut producer, mut consumer)) = open::<T>(memory) else { return };
    let capacity = producer.capacity() as u64;
    let mut numbers = 0..;
    for op in operations {
        let (next, claimed) = (producer.next_index(), Word::load(&memory.header().consumer.head));
        let used = next.wrapping_sub(claimed);
        let corrupt = Corrupt { head: claimed, tail: next, capacity };
        match *op {
            Op::Push | Op::DieWithinPush(_) => {
                let value = T::of(numbers.next().unwrap());
                let expected = match used {
                    _ if producer.free() > 0 => Ok(()),
                    used if used > capacity => Err(PushError::Corrupt(value, corrupt)),
                    used if used == capacity => Err(PushError::Full(value)),
                    _ => Ok(()),
                };
                assert_eq!(producer.push(value), expected);
                if expected.is_ok() {
                    assert_eq!(message(memory, next, capacity), Some(value));
                }
                assert_eq!(producer.next_index(), next.wrapping_add(expected.is_ok().into()));
            }
            Op::Pop => {
                let head = consumer.next_index();
                let expected = message::<T>(memory, head, capacity);
                assert_eq!(consumer.pop(), expected.ok_or(PopError::Empty));
                assert_eq!(consumer.next_index(), head.wrapping_add(expected.is_some().into()));
                if expected.is_some() {
                    assert_eq!(Word::load(&memory.header().consumer.head), consumer.next_index());
                }
            }
            Op::Refresh => {
                let known = producer.free();
                let expected = if used > capacity { Err(corrupt) } else { Ok((capacity - used) as usize) };
                assert_eq!(producer.refresh(), expected);
                assert_eq!(producer.free(), expected.unwrap_or(known));
            }
            Op::AttachProducer => match memory.attach(Producer::from_raw) {
                Ok(another) if another.capacity() as u64 == capacity => {
                    producer = another;
                    assert!(producer.next_index().wrapping_sub(claimed) <= capacity);
                }
                Ok(_) | Err(_) => return,
            },
            Op::AttachConsumer => match memory.attach(Consumer::from_raw) {
                Ok(another) if another.capacity() as u64 == capacity => {
                    consumer = another;
                    assert_eq!(consumer.next_index(), claimed);
                }
                Ok(_) | Err(_) => return,
            },
            Op::Store { word, number } => store(&memory.words()[usize::from(word) % memory.words().len()], number),
            Op::StoreSlot { producer: at_producer, word, lap } => {
                let index = if at_producer { next } else { consumer.next_index() };
                let words = size_of::<T>().div_ceil(8) * 2;
                let first = memory.layout.slots_offset() as usize / 8 + (index % capacity) as usize * words;
                let flag = flag(index.wrapping_add_signed(i64::from(lap) * capacity as i64), capacity);
                Word::store(&memory.words()[first + usize::from(word) % words], flag << 32 | u64::from(word));
            }
            Op::StoreHead(number) => store(&memory.header().consumer.head, number),
        }
        assert!(producer.free() as u64 <= capacity && producer.unread() as u64 <= capacity);
        assert_eq!((producer.capacity() as u64, consumer.capacity() as u64), (capacity, capacity));
    }
}

fuzz_target!(|input: Input| {
    match input.message {
        Message::Byte => run::<u8>(&input),
        Message::Word => run::<u64>(&input),
        Message::Odd => run::<[u8; 5]>(&input),
        Message::Words => run::<[u64; 19]>(&input),
    }
});
