//! The model of a paired ring: a queue. A new end, a producer that dies within a push and an earlier use of the memory leave it unchanged.

use std::collections::VecDeque;

use ringmem_layouts::ring::paired::{Consumer, Producer};
use ringmem_layouts::ring::{PopError, PushError, RingFlags};
use ringmem_layouts::{Host, RingLayout, RingMessage, Word};

use super::lossy::Value;
use crate::ring_memory::Memory;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Push,
    Pop,
    Refresh,
    AttachProducer,
    AttachConsumer,
    /// A producer dies: it has stored the words of the bits of this number, but one.
    DieWithinPush(u64),
}

/// What the memory held.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub byte: u8,
    /// Messages of an earlier ring.
    pub messages: u64,
    /// A word of the first slot that is zero, or each message would still wait.
    pub zero: usize,
}

fn producer<T: RingMessage>(memory: &Memory) -> Producer<'_, T, Host> {
    memory.attach(Producer::from_raw).unwrap()
}

fn consumer<T: RingMessage>(memory: &Memory) -> Consumer<'_, T, Host> {
    memory.attach(Consumer::from_raw).unwrap()
}

pub fn follows_the_model<T: Value>(capacity: u64, start: u64, before: Before, ops: &[Op]) {
    let layout = RingLayout::of_kind::<T>(RingFlags::PAIRED, capacity).unwrap();
    let memory = Memory::formatted_over::<T>(before.byte, layout, start);
    let set_one_to_zero = || {
        let first = memory.slot(start);
        Word::store(&first[before.zero % first.len()], 0);
    };
    set_one_to_zero();
    let mut earlier = (producer::<T>(&memory), consumer::<T>(&memory));
    for number in 0..before.messages {
        earlier.0.push(T::of(number)).unwrap();
        assert_eq!(earlier.1.pop(), Ok(T::of(number)));
    }
    drop(earlier);
    // SAFETY: no end is attached.
    unsafe { memory.header().format::<T>(&memory.layout, start) };
    set_one_to_zero();

    let (mut producer, mut consumer) = (self::producer::<T>(&memory), self::consumer::<T>(&memory));
    let mut model = VecDeque::new();
    let mut numbers = 0..;
    let mut fresh = || T::of(numbers.next().unwrap());
    let (mut next, mut seen) = (start, start);
    for op in ops {
        let head = next.wrapping_sub(model.len() as u64);
        let is_full = model.len() as u64 == capacity;
        match *op {
            Op::Push => {
                if producer.free() == 0 {
                    seen = head;
                }
                let value = fresh();
                let expected = if is_full { Err(PushError::Full(value)) } else { Ok(()) };
                assert_eq!(producer.push(value), expected);
                if expected.is_ok() {
                    model.push_back(value);
                    next = next.wrapping_add(1);
                }
            }
            Op::Pop => assert_eq!(consumer.pop(), model.pop_front().ok_or(PopError::Empty)),
            Op::Refresh => {
                assert_eq!(producer.refresh(), Ok(capacity as usize - model.len()));
                seen = head;
            }
            Op::AttachProducer => (producer, seen) = (self::producer(&memory), head),
            Op::AttachConsumer => consumer = self::consumer(&memory),
            Op::DieWithinPush(stored) if !is_full => {
                let slot = memory.slot(next);
                let before: Vec<u64> = slot.iter().map(Word::load).collect();
                producer.push(fresh()).unwrap();
                let missing = stored as usize % slot.len();
                for (place, word) in slot.iter().enumerate() {
                    if place == missing || stored >> (place % 64) & 1 == 0 {
                        Word::store(word, before[place]);
                    }
                }
                (producer, seen) = (self::producer(&memory), head);
            }
            Op::DieWithinPush(_) => {}
        }
        let head = next.wrapping_sub(model.len() as u64);
        assert_eq!((producer.next_index(), consumer.next_index()), (next, head));
        assert_eq!((producer.free() as u64, producer.unread()), (seen.wrapping_add(capacity).wrapping_sub(next), model.len()));
        assert_eq!((producer.capacity() as u64, consumer.capacity() as u64), (capacity, capacity));
    }
}
