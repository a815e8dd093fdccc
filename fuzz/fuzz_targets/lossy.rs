//! Lossy rings: against a list of all messages, or with a peer that stores anything.

#![no_main]

#[path = "../memory/mod.rs"]
mod memory;

use std::mem::forget;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use memory::{Memory, Message, Number, Numbered, Start, store};
use ringmem_layouts::attach::AttachError;
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

fn run<T: Numbered>(input: &Input) {
    let layout = RingLayout::of_kind::<T>(RingFlags::LOSSY, 1 << (input.doublings % 4)).unwrap();
    let start = input.start.index();
    let memory = Memory::formatted::<T>(&layout, start, input.before);
    if input.hostile {
        hostile::<T>(&memory, &input.operations);
    } else {
        honest::<T>(&memory, layout.capacity() as usize, start, &input.operations);
    }
}

struct Model<T> {
    messages: Vec<T>,
    published: usize,
    claimed: usize,
    capacity: usize,
    made: u64,
}

impl<T: Numbered> Model<T> {
    fn write(&mut self) -> T {
        self.made += 1;
        let value = T::numbered(self.made);
        self.messages.push(value);
        self.claimed = self.claimed.max(self.messages.len());
        value
    }
    fn publish(&mut self) {
        self.published = self.messages.len();
    }
    fn waiting(&self, next: usize) -> usize {
        (self.published - next).min(self.capacity)
    }
    fn find(&self, next: &mut usize) -> Result<T, ReadError> {
        if *next == self.published {
            return Err(ReadError::Empty);
        }
        if self.claimed - *next > self.capacity {
            let lost = (self.published - *next).saturating_sub(self.capacity).max(1);
            *next += lost;
            return Err(ReadError::Overrun { lost: lost as u64 });
        }
        Ok(self.messages[*next])
    }
}

fn honest<T: Numbered>(memory: &Memory, capacity: usize, start: u64, operations: &[Op]) {
    let mut model = Model { messages: Vec::new(), published: 0, claimed: 0, capacity, made: 0 };
    let mut writer = open_writer::<T>(memory).unwrap();
    let mut readers = vec![(open_reader::<T>(memory).unwrap(), 0)];
    for op in operations {
        let count = readers.len();
        let at = |reader: u8| usize::from(reader) % count;
        match *op {
            Op::Push => {
                writer.push(model.write());
                model.publish();
            }
            Op::PushSlice(count) => {
                let values: Vec<T> = (0..count % 32).map(|_| model.write()).collect();
                writer.push_slice(&values);
                model.publish();
            }
            Op::Batch { every, count, forget: forgets } => {
                let mut batch = writer.batch(every.into());
                model.publish();
                for _ in 0..count % 32 {
                    batch.push(model.write());
                    if model.messages.len() - model.published == usize::from(every).clamp(1, capacity) {
                        model.publish();
                    }
                }
                if forgets {
                    forget(batch);
                } else {
                    drop(batch);
                    model.publish();
                }
            }
            Op::AttachWriter => {
                writer = open_writer(memory).unwrap();
                model.messages.truncate(model.published);
            }
            Op::Pop { reader } => {
                let (reader, next) = &mut readers[at(reader)];
                let expected = model.find(next);
                *next += usize::from(expected.is_ok());
                assert_eq!(reader.pop(), expected);
            }
            Op::Peek { reader } => {
                let (reader, next) = &mut readers[at(reader)];
                assert_eq!(reader.peek(), model.find(next));
            }
            Op::PopSlice { reader, count } => {
                let (reader, next) = &mut readers[at(reader)];
                let mut values = vec![T::numbered(0); usize::from(count % 16)];
                let found = reader.pop_slice(&mut values);
                match if values.is_empty() { Err(ReadError::Empty) } else { model.find(next) } {
                    Ok(_) => {
                        let count = values.len().min(model.waiting(*next));
                        assert_eq!(found, Ok(count));
                        assert_eq!(values[..count], model.messages[*next..][..count]);
                        *next += count;
                    }
                    Err(ReadError::Empty) => assert_eq!(found, Ok(0)),
                    Err(refused) => assert_eq!(found, Err(refused)),
                }
            }
            Op::Latest { reader } => {
                let expected = model.published.checked_sub(1).ok_or(LatestError::Empty);
                assert_eq!(readers[at(reader)].0.latest(), expected.map(|last| (last as u64 + 1, model.messages[last])));
            }
            Op::Skip { reader, keep } => {
                let (reader, next) = &mut readers[at(reader)];
                let passed = (model.published - *next) - model.waiting(*next).min(keep.into());
                assert_eq!(reader.skip(keep.into()), passed as u64);
                *next += passed;
            }
            Op::Clone { reader } if count < 8 => {
                let clone = readers[at(reader)].clone();
                readers.push(clone);
            }
            Op::AttachReader if count < 8 => readers.push((open_reader(memory).unwrap(), model.published.saturating_sub(capacity))),
            Op::Clone { .. } | Op::AttachReader | Op::Store { .. } | Op::StoreTail(_) => {}
        }
        assert_eq!(writer.written(), model.messages.len() as u64);
        for (reader, next) in &readers {
            assert_eq!((reader.len(), reader.head().wrapping_sub(start)), (model.waiting(*next) as u64, *next as u64));
        }
    }
}

fn hostile<T: Numbered>(memory: &Memory, operations: &[Op]) {
    let (first, operations) = operations.split_at(operations.len().min(3));
    for op in first {
        if let Op::Store { word, number } = op {
            store(&memory.words()[usize::from(*word) % memory.words().len()], *number);
        }
    }
    let (Ok(mut writer), Ok(mut reader)) = (open_writer::<T>(memory), open_reader::<T>(memory)) else { return };
    let capacity = reader.capacity();
    let mut numbers = 0;
    let mut fresh = || {
        numbers += 1;
        T::numbered(numbers)
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
                Ok(_) => step = 1,
                Err(refused) => step = overrun(refused),
            },
            Op::Peek { .. } => {
                if let Err(refused) = reader.peek() {
                    step = overrun(refused);
                }
            }
            Op::PopSlice { count, .. } => match reader.pop_slice(&mut vec![fresh(); usize::from(count % 16)]) {
                Ok(count) => {
                    assert!(count as u64 <= capacity);
                    step = count as u64;
                }
                Err(refused) => step = overrun(refused),
            },
            Op::Latest { .. } => {
                let _ = reader.latest();
            }
            Op::Skip { keep, .. } => {
                reader.skip(keep.into());
                assert!(reader.poll().wrapping_sub(reader.head()) <= capacity);
                step = reader.head().wrapping_sub(head);
            }
            Op::Clone { .. } => reader = reader.clone(),
            Op::AttachReader => match open_reader(memory) {
                Ok(another) => {
                    reader = another;
                    assert!(reader.poll().wrapping_sub(reader.head()) <= capacity);
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

fn overrun(refused: ReadError) -> u64 {
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
        Message::Words => run::<[u64; 9]>(&input),
    }
});
