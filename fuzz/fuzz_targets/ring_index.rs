//! Ring indices with a peer that writes any index. The target `many` compares rings with a `VecDeque`.

#![no_main]

#[path = "../memory/mod.rs"]
mod memory;
#[path = "../../layouts/tests/suite/ring_memory.rs"]
mod ring_memory;

use std::cell::Cell;
use std::fmt::Debug;
use std::mem::forget;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use memory::{Number, Start, store};
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, ReserveError};
use ringmem_layouts::{Host, RingLayout, RingMessage};

#[derive(Arbitrary, Debug)]
struct Input {
    message: Message,
    doublings: u8,
    start: Start,
    peer: Peer,
    operations: Vec<Op>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Message {
    Byte,
    Word,
    Odd,
}

#[derive(Arbitrary, Debug)]
enum Peer {
    Honest,
    Hostile(Vec<(u8, Number)>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Op {
    Push,
    Pop,
    Burst(u8),
    PushSlice(u8),
    PopSlice(u8),
    Reserve { count: u8, write: u8, forget: bool },
    ReserveAny(usize),
    Release { most: u8, count: u8, forget: bool },
    BatchPush { every: u8, count: u8, forget: bool },
    BatchPop { every: u8, count: u8, forget: bool },
    Look,
    AttachAgain,
    PeerWritesTail(Number),
    PeerWritesHead(Number),
}

trait Numbered: RingMessage + PartialEq + Debug {
    fn numbered(number: u64) -> Self;
    fn was_written(&self, written: u64) -> bool;
}

impl Numbered for u8 {
    fn numbered(number: u64) -> Self {
        number as u8
    }
    fn was_written(&self, written: u64) -> bool {
        u64::from(*self) <= written
    }
}

impl Numbered for u64 {
    fn numbered(number: u64) -> Self {
        number
    }
    fn was_written(&self, written: u64) -> bool {
        *self <= written
    }
}

impl Numbered for [u8; 5] {
    fn numbered(number: u64) -> Self {
        let byte = number as u8;
        [byte, !byte, byte ^ 0x55, byte.wrapping_mul(3), byte.rotate_left(1)]
    }
    fn was_written(&self, written: u64) -> bool {
        *self == [0; 5] || u64::from(self[0]) <= written && *self == Self::numbered(self[0].into())
    }
}

type Ends<'a, T> = (Producer<'a, T, Host>, Consumer<'a, T, Host>);

fn attach<T: RingMessage>(memory: &Memory) -> Result<Ends<'_, T>, AttachError> {
    Ok((memory.attach(Producer::from_raw)?, memory.attach(Consumer::from_raw)?))
}

fn run<T: Numbered>(input: &Input) {
    let layout = RingLayout::of::<T>(1 << (input.doublings % 4)).unwrap();
    let memory = Memory::formatted_over::<T>(0, layout, input.start.index());
    if let Peer::Hostile(header) = &input.peer {
        for (place, number) in header {
            store(&memory.words()[usize::from(*place) % 48], *number);
        }
    }
    hostile::<T>(&memory, &input.operations);
}

fn hostile<T: Numbered>(memory: &Memory, operations: &[Op]) {
    let Ok((mut producer, mut consumer)) = attach::<T>(memory) else { return };
    let capacity = producer.capacity();
    assert!(capacity.is_power_of_two() && capacity as u64 <= memory.layout.capacity());
    let written = Cell::new(0);
    let fresh = || {
        written.set(written.get() + 1);
        T::numbered(written.get())
    };
    let corrupt = |corrupt: Corrupt| {
        assert!(corrupt.capacity == capacity as u64 && corrupt.tail.wrapping_sub(corrupt.head) > corrupt.capacity);
    };
    for op in operations {
        match *op {
            Op::Push => {
                let value = fresh();
                if let Err(refused) = producer.push(value) {
                    assert_eq!(refused.into_inner(), value);
                }
            }
            Op::Pop => popped(consumer.pop(), written.get(), corrupt),
            Op::Burst(count) => {
                for _ in 0..count % 32 {
                    let _ = producer.push(fresh());
                }
                for _ in 0..count % 32 {
                    popped(consumer.pop(), written.get(), corrupt);
                }
            }
            Op::PushSlice(count) => {
                let values: Vec<T> = (0..count % 16).map(|_| fresh()).collect();
                match producer.push_slice(&values) {
                    Ok(taken) => assert!(taken <= values.len() && taken <= capacity),
                    Err(refused) => corrupt(refused),
                }
            }
            Op::PopSlice(count) => {
                let mut values = vec![T::numbered(0); usize::from(count % 16)];
                match consumer.pop_slice(&mut values) {
                    Ok(taken) => {
                        assert!(taken <= capacity);
                        assert!(values[..taken].iter().all(|value| value.was_written(written.get())));
                    }
                    Err(refused) => corrupt(refused),
                }
            }
            Op::Reserve { count, write, forget: forgets } => match producer.reserve(usize::from(count % 16)) {
                Ok(mut grant) => {
                    assert!(grant.len() == usize::from(count % 16) && grant.len() <= capacity);
                    for _ in 0..write % 16 {
                        let _ = grant.write(fresh());
                    }
                    if forgets {
                        forget(grant);
                    }
                }
                Err(ReserveError::Corrupt(refused)) => corrupt(refused),
                Err(_) => {}
            },
            Op::ReserveAny(count) => assert!(producer.reserve(count).is_err() || count <= capacity),
            Op::Release { most, count, forget: forgets } => match consumer.peek(most.into()) {
                Ok(chunk) => {
                    assert!(chunk.len() <= capacity.min(most.into()) && !chunk.as_slices()[0].is_empty());
                    assert!(chunk.as_slices().into_iter().flatten().all(|value| value.was_written(written.get())));
                    if !forgets {
                        chunk.release(count.into());
                    }
                }
                Err(PopError::Empty) => {}
                Err(PopError::Corrupt(refused)) => corrupt(refused),
            },
            Op::BatchPush { every, count, forget: forgets } => {
                let mut batch = producer.batch(every.into());
                for _ in 0..count % 32 {
                    let value = fresh();
                    if let Err(refused) = batch.push(value) {
                        assert_eq!(refused.into_inner(), value);
                    }
                }
                if forgets {
                    forget(batch);
                }
            }
            Op::BatchPop { every, count, forget: forgets } => {
                let mut batch = consumer.batch(every.into());
                for _ in 0..count % 32 {
                    popped(batch.pop(), written.get(), corrupt);
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
            Op::PeerWritesTail(number) => store(&memory.header().producer.tail, number),
            Op::PeerWritesHead(number) => store(&memory.header().consumer.head, number),
        }
        assert!(producer.free() <= capacity && consumer.available() <= capacity);
    }
}

fn popped<T: Numbered>(popped: Result<T, PopError<Corrupt>>, written: u64, corrupt: impl Fn(Corrupt)) {
    match popped {
        Ok(value) => assert!(value.was_written(written), "{value:?} was never written"),
        Err(PopError::Empty) => {}
        Err(PopError::Corrupt(refused)) => corrupt(refused),
    }
}

fuzz_target!(|input: Input| {
    match input.message {
        Message::Byte => run::<u8>(&input),
        Message::Word => run::<u64>(&input),
        Message::Odd => run::<[u8; 5]>(&input),
    }
});
