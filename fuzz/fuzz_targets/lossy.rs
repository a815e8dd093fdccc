//! Lossy rings: against a list of all messages, or with a peer that stores anything.

#![no_main]

#[path = "../../layouts/tests/suite/models/lossy.rs"]
mod lossy;
#[path = "../memory/mod.rs"]
mod memory;
#[path = "../../layouts/tests/suite/ring_memory.rs"]
mod ring_memory;

use std::mem::forget;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use lossy::{Value, follows_the_model};
use memory::{Message, Number, Start, lossy_message, store};
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::lossy::{LatestError, ReadError, Reader, Writer};
use ringmem_layouts::{Host, RingLayout, RingMessage};

#[derive(Arbitrary, Debug)]
struct Input {
    message: Message,
    doublings: u8,
    start: Start,
    before: u8,
    hostile: bool,
    operations: Vec<Op>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Op {
    Push,
    PushSlice(u8),
    Batch { every: u8, count: u8, forget: bool },
    AttachWriter,
    Pop { reader: u8 },
    Peek { reader: u8 },
    PopSlice { reader: u8, count: u8 },
    Latest { reader: u8 },
    Skip { reader: u8, keep: u8 },
    Clone { reader: u8 },
    AttachReader,
    Store { word: u16, number: Number },
    StoreTail(Number),
}

fn open_writer<T: RingMessage>(memory: &Memory) -> Result<Writer<'_, T, Host>, AttachError> {
    memory.attach(Writer::from_raw)
}

fn open_reader<T: RingMessage>(memory: &Memory) -> Result<Reader<'_, T, Host>, AttachError> {
    memory.attach(Reader::from_raw)
}

fn run<T: Value>(input: &Input) {
    let (capacity, start) = (1 << (input.doublings % 4), input.start.index());
    if input.hostile {
        let layout = RingLayout::of_kind::<T>(RingFlags::LOSSY, capacity).unwrap();
        hostile::<T>(&Memory::formatted_over::<T>(input.before, layout, start), &input.operations);
    } else {
        let operations: Vec<_> = input.operations.iter().copied().filter_map(honest).collect();
        follows_the_model::<T>(capacity, start, input.before, &operations);
    }
}

fn honest(op: Op) -> Option<lossy::Op> {
    let (of, most) = (usize::from, |count: u8| u64::from(count % 32));
    Some(match op {
        Op::Push => lossy::Op::Push,
        Op::PushSlice(count) => lossy::Op::PushSlice(most(count)),
        Op::Batch { every, count, forget } => lossy::Op::Batch { every: every.into(), count: most(count), forget },
        Op::AttachWriter => lossy::Op::AttachWriter,
        Op::Pop { reader } => lossy::Op::Pop(of(reader)),
        Op::Peek { reader } => lossy::Op::Peek(of(reader)),
        Op::PopSlice { reader, count } => lossy::Op::PopSlice(of(reader), of(count % 16)),
        Op::Latest { reader } => lossy::Op::Latest(of(reader)),
        Op::Skip { reader, keep } => lossy::Op::Skip(of(reader), keep.into()),
        Op::Clone { reader } => lossy::Op::CloneReader(of(reader)),
        Op::AttachReader => lossy::Op::AttachReader,
        Op::Store { .. } | Op::StoreTail(_) => return None,
    })
}

fn hostile<T: Value>(memory: &Memory, operations: &[Op]) {
    let (first, operations) = operations.split_at(operations.len().min(3));
    for op in first {
        if let Op::Store { word, number } = op {
            store(&memory.words()[usize::from(*word) % memory.words().len()], *number);
        }
    }
    let (Ok(mut writer), Ok(mut reader)) = (open_writer::<T>(memory), open_reader::<T>(memory)) else { return };
    let capacity = reader.capacity();
    let message = |index: u64| lossy_message::<T>(memory.words(), &memory.layout, capacity, index);
    let mut numbers = 0;
    let mut fresh = || {
        numbers += 1;
        T::of(numbers)
    };
    for op in operations {
        let (head, lost) = (reader.head(), reader.lost());
        let mut step = 0;
        match *op {
            Op::Push => writer.push(fresh()),
            Op::PushSlice(count) => writer.push_slice(&(0..count % 32).map(|_| fresh()).collect::<Vec<T>>()),
            Op::Batch { every, count, forget: forgets } => {
                let mut batch = writer.batch(every.into());
                (0..count % 32).for_each(|_| batch.push(fresh()));
                if forgets {
                    forget(batch);
                }
            }
            Op::AttachWriter => match open_writer(memory) {
                Ok(another) => writer = another,
                Err(_) => return,
            },
            Op::Pop { .. } => match reader.pop() {
                Ok(value) => {
                    assert_eq!(message(head), Some(value));
                    step = 1;
                }
                Err(refused) => step = overrun(refused),
            },
            Op::Peek { .. } => match reader.peek() {
                Ok(value) => assert_eq!(message(head), Some(value)),
                Err(refused) => step = overrun(refused),
            },
            Op::PopSlice { count, .. } => match reader.pop_slice(&mut vec![fresh(); usize::from(count % 16)]) {
                Ok(count) => {
                    assert!(count <= capacity);
                    step = count as u64;
                }
                Err(refused) => step = overrun(refused),
            },
            Op::Latest { .. } => {
                let expected = match reader.written() {
                    0 => Err(LatestError::Empty),
                    number => message(reader.poll().wrapping_sub(1)).map(|value| (number, value)).ok_or(LatestError::Busy),
                };
                assert_eq!(reader.latest(), expected);
            }
            Op::Skip { keep, .. } => {
                reader.skip(keep.into());
                assert!(reader.poll().wrapping_sub(reader.head()) <= capacity as u64);
                step = reader.head().wrapping_sub(head);
            }
            Op::Clone { .. } => reader = reader.clone(),
            Op::AttachReader => match open_reader(memory) {
                Ok(another) => {
                    reader = another;
                    assert!(reader.poll().wrapping_sub(reader.head()) <= capacity as u64);
                    continue;
                }
                Err(_) => return,
            },
            Op::Store { word, number } => store(&memory.words()[usize::from(word) % memory.words().len()], number),
            Op::StoreTail(number) => store(&memory.header().producer.tail, number),
        }
        assert_eq!(reader.head().wrapping_sub(head), step);
        assert!(reader.lost() == lost || reader.lost().wrapping_sub(lost) == step);
        assert!(reader.len() <= capacity && reader.capacity() == capacity && writer.capacity() >= 1);
    }
}

fn overrun(refused: ReadError<Corrupt>) -> u64 {
    match refused {
        ReadError::Overrun { lost } => {
            assert!(lost > 0);
            lost
        }
        ReadError::Empty | ReadError::Corrupt(_) => 0,
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
