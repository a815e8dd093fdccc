//! Mailboxes, also with a writer that stores anything.

#![no_main]

#[path = "../../layouts/tests/suite/models/lossy.rs"]
#[allow(dead_code, reason = "the values alone are used")]
mod lossy;
#[path = "../memory/mod.rs"]
mod memory;
#[path = "../../layouts/tests/suite/ring_memory.rs"]
mod ring_memory;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use lossy::Value;
use memory::{Message, Number, Start, lossy_message, store};
use ring_memory::Memory;
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::mailbox::{LatestError, New, Reader, Writer};
use ringmem_layouts::{Host, RingLayout, RingMessage, Word};

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
    Publish { times: u8 },
    AttachWriter,
    Latest { reader: u8 },
    TakeNew { reader: u8 },
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
    let layout = RingLayout::of_kind::<T>(RingFlags::MAILBOX, 1 << (input.doublings % 4)).unwrap();
    let memory = Memory::formatted_over::<T>(input.before, layout, input.start.index());
    if input.hostile {
        hostile::<T>(&memory, &input.operations);
    } else if memory.layout.capacity() == 1 {
        let refused = Some(AttachError::Capacity { got: 1 });
        assert_eq!((open_writer::<T>(&memory).err(), open_reader::<T>(&memory).err()), (refused, refused));
    } else {
        honest::<T>(&memory, &input.operations);
    }
}

fn honest<T: Value>(memory: &Memory, operations: &[Op]) {
    let mut version = 0_u64;
    let latest = |version: u64| if version == 0 { Err(LatestError::Empty) } else { Ok((version, T::of(version))) };
    let mut writer = open_writer::<T>(memory).unwrap();
    let mut readers = vec![(open_reader::<T>(memory).unwrap(), 0)];
    for op in operations {
        let count = readers.len();
        let at = |reader: u8| usize::from(reader) % count;
        match *op {
            Op::Publish { times } => {
                for _ in 0..times % 32 {
                    version += 1;
                    writer.publish(T::of(version));
                }
            }
            Op::AttachWriter => writer = open_writer(memory).unwrap(),
            Op::Latest { reader } => assert_eq!(readers[at(reader)].0.latest(), latest(version)),
            Op::TakeNew { reader } => {
                let (reader, seen) = &mut readers[at(reader)];
                let expected = if version == *seen {
                    Err(LatestError::Empty)
                } else {
                    Ok(New { version, value: T::of(version), skipped: version - *seen - 1 })
                };
                assert_eq!(reader.take_new(), expected);
                *seen = version;
            }
            Op::Clone { reader } if count < 8 => {
                let clone = readers[at(reader)].clone();
                readers.push(clone);
            }
            Op::AttachReader if count < 8 => readers.push((open_reader(memory).unwrap(), version.saturating_sub(1))),
            Op::Clone { .. } | Op::AttachReader | Op::Store { .. } | Op::StoreTail(_) => {}
        }
        assert_eq!(writer.version(), version);
        for (reader, seen) in &readers {
            assert_eq!(reader.changed(), version != *seen);
        }
    }
}

fn hostile<T: Value>(memory: &Memory, operations: &[Op]) {
    let (first, operations) = operations.split_at(operations.len().min(3));
    for op in first {
        if let Op::Store { word, number } = op {
            store(&memory.words()[usize::from(*word) % memory.words().len()], *number);
        }
    }
    let (Ok(mut writer), Ok(mut reader)) = (open_writer::<T>(memory), open_reader::<T>(memory)) else { return };
    for op in operations {
        match *op {
            Op::Publish { times } => (0..times % 32).for_each(|number| writer.publish(T::of(number.into()))),
            Op::AttachWriter => match open_writer(memory) {
                Ok(another) => writer = another,
                Err(_) => return,
            },
            Op::Latest { .. } => assert_eq!(reader.latest(), latest(memory, &reader)),
            Op::TakeNew { .. } => {
                let expected = if reader.changed() { latest(memory, &reader) } else { Err(LatestError::Empty) };
                let taken = reader.take_new();
                assert_eq!(taken.map(|new| (new.version, new.value)), expected);
                if taken.is_ok() {
                    assert!(!reader.changed());
                    assert_eq!(reader.take_new(), Err(LatestError::Empty));
                }
            }
            Op::Clone { .. } => reader = reader.clone(),
            Op::AttachReader => match open_reader(memory) {
                Ok(another) => reader = another,
                Err(_) => return,
            },
            Op::Store { word, number } => store(&memory.words()[usize::from(word) % memory.words().len()], number),
            Op::StoreTail(number) => store(&memory.header().producer.tail, number),
        }
    }
}

/// What memory that nothing else writes now determines.
fn latest<T: Value>(memory: &Memory, reader: &Reader<'_, T, Host>) -> Result<(u64, T), LatestError> {
    let (version, tail) = (reader.version(), Word::load(&memory.header().producer.tail));
    if version == 0 {
        return Err(LatestError::Empty);
    }
    let value = lossy_message(memory.words(), &memory.layout, reader.capacity(), tail.wrapping_sub(1));
    value.map(|value| (version, value)).ok_or(LatestError::Busy)
}

fuzz_target!(|input: Input| {
    match input.message {
        Message::Byte => run::<u8>(&input),
        Message::Word => run::<u64>(&input),
        Message::Odd => run::<[u8; 5]>(&input),
        Message::Words => run::<[u64; 19]>(&input),
    }
});
