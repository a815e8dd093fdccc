//! The model of a lossy ring: all its messages, of which a reader may miss old ones.

use std::fmt::Debug;
use std::mem::forget;

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::lossy::{LatestError, ReadError, Reader, Writer};
use ringmem_layouts::{Host, RingLayout, RingMessage, Word};

use crate::ring_memory::Memory;

pub fn writer<T: RingMessage>(memory: &Memory) -> Writer<'_, T, Host> {
    memory.attach(Writer::from_raw).unwrap()
}

pub fn reader<T: RingMessage>(memory: &Memory) -> Reader<'_, T, Host> {
    memory.attach(Reader::from_raw).unwrap()
}

pub trait Value: RingMessage + PartialEq + Debug {
    fn of(number: u64) -> Self;
}

impl Value for u8 {
    fn of(number: u64) -> Self {
        number as u8
    }
}

impl Value for u64 {
    fn of(number: u64) -> Self {
        !number
    }
}

impl Value for [u8; 5] {
    fn of(number: u64) -> Self {
        [number as u8, 1, 2, 3, !number as u8]
    }
}

impl Value for [u64; 3] {
    fn of(number: u64) -> Self {
        [number, !number, number.rotate_left(32)]
    }
}

impl Value for [u64; 19] {
    fn of(number: u64) -> Self {
        std::array::from_fn(|place| number << 8 | place as u64)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Push,
    PushSlice(u64),
    Batch { every: usize, count: u64, forget: bool },
    AttachWriter,
    Pop(usize),
    PopSlice(usize, usize),
    Peek(usize),
    Latest(usize),
    Skip(usize, usize),
    CloneReader(usize),
    AttachReader,
}

struct Model<T> {
    messages: Vec<T>,
    published: usize,
    claimed: usize,
    capacity: usize,
    made: u64,
}

#[derive(Clone, Copy)]
struct Place {
    next: usize,
    lost: u64,
}

impl<T: Value> Model<T> {
    fn write(&mut self) -> T {
        self.made += 1;
        let value = T::of(self.made);
        self.messages.push(value);
        self.claimed = self.claimed.max(self.messages.len());
        value
    }
    fn publish(&mut self) {
        self.published = self.messages.len();
    }
    fn next(&self, place: &mut Place) -> Result<T, ReadError<Corrupt>> {
        if place.next == self.published {
            return Err(ReadError::Empty);
        }
        if self.claimed - place.next > self.capacity {
            let lost = (self.published - place.next).saturating_sub(self.capacity).max(1);
            place.next += lost;
            place.lost += lost as u64;
            return Err(ReadError::Overrun { lost: lost as u64 });
        }
        Ok(self.messages[place.next])
    }
    fn waiting(&self, place: Place) -> usize {
        (self.published - place.next).min(self.capacity)
    }
}

pub fn follows_the_model<T: Value>(capacity: u64, start: u64, before: u8, ops: &[Op]) {
    let memory = Memory::formatted_over::<T>(before, RingLayout::of_kind::<T>(RingFlags::LOSSY, capacity).unwrap(), start);
    let mut model = Model::<T> { messages: Vec::new(), published: 0, claimed: 0, capacity: capacity as usize, made: 0 };
    let mut writer = writer::<T>(&memory);
    let mut readers = vec![(reader::<T>(&memory), Place { next: 0, lost: 0 })];
    for op in ops {
        let at = |reader: usize| reader % readers.len();
        match *op {
            Op::Push => {
                writer.push(model.write());
                model.publish();
            }
            Op::PushSlice(count) => {
                let values: Vec<T> = (0..count).map(|_| model.write()).collect();
                writer.push_slice(&values);
                model.publish();
            }
            Op::Batch { every, count, forget: forgets } => {
                let mut batch = writer.batch(every);
                model.publish();
                for _ in 0..count {
                    batch.push(model.write());
                    if model.messages.len() - model.published == every.clamp(1, capacity as usize) {
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
                writer = self::writer(&memory);
                model.messages.truncate(model.published);
            }
            Op::Pop(reader) => {
                let reader = at(reader);
                let (reader, place) = &mut readers[reader];
                let expected = model.next(place);
                place.next += usize::from(expected.is_ok());
                assert_eq!(reader.pop(), expected);
            }
            Op::Peek(reader) => {
                let reader = at(reader);
                let (reader, place) = &mut readers[reader];
                assert_eq!(reader.peek(), model.next(place));
            }
            Op::PopSlice(reader, count) => {
                let reader = at(reader);
                let (reader, place) = &mut readers[reader];
                let mut values = vec![T::of(0); count];
                let found = reader.pop_slice(&mut values);
                match if count == 0 { Err(ReadError::Empty) } else { model.next(place) } {
                    Ok(_) => {
                        let count = count.min(model.waiting(*place));
                        assert_eq!(found, Ok(count));
                        assert_eq!(values[..count], model.messages[place.next..][..count]);
                        place.next += count;
                    }
                    Err(ReadError::Empty) => assert_eq!(found, Ok(0)),
                    Err(refused) => assert_eq!(found, Err(refused)),
                }
            }
            Op::Latest(reader) => {
                let expected = model.published.checked_sub(1).ok_or(LatestError::Empty);
                assert_eq!(readers[at(reader)].0.latest(), expected.map(|last| (last as u64 + 1, model.messages[last])));
            }
            Op::Skip(reader, keep) => {
                let reader = at(reader);
                let (reader, place) = &mut readers[reader];
                let passed = (model.published - place.next) - model.waiting(*place).min(keep);
                assert_eq!(reader.skip(keep), passed as u64);
                place.next += passed;
            }
            Op::CloneReader(reader) => {
                let clone = readers[at(reader)].clone();
                readers.push(clone);
            }
            Op::AttachReader => {
                readers.push((self::reader(&memory), Place { next: model.published.saturating_sub(model.capacity), lost: 0 }));
            }
        }
        assert_eq!(writer.written(), model.messages.len() as u64);
        for (reader, place) in &readers {
            assert_eq!((reader.len(), reader.lost()), (model.waiting(*place), place.lost));
            assert_eq!(reader.head().wrapping_sub(start), place.next as u64);
        }
    }
    assert!(memory.header().consumer.owner.load(std::sync::atomic::Ordering::Relaxed) == 0, "the consumer's line is nobody's");
    assert_eq!(Word::load(&memory.header().consumer.head), start, "the consumer's line is nobody's");
}
