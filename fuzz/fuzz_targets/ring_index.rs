//! Ring indices: against a `VecDeque`, or with a peer that writes any index.

#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::mem::forget;
use std::ptr::NonNull;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, PushError, ReserveError};
use ringmem_layouts::{Host, HostWord, RingHeader, RingLayout, RingMessage, Word};

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

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Start {
    Near(u8),
    NearTheEnd(u8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
enum Peer {
    Honest,
    Hostile(Vec<(u8, Number)>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Near(i8),
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Op {
    Push,
    Pop,
    Burst(u8),
    PushSlice(u8),
    PopSlice(u8),
    Reserve { count: u8, write: u8, forget: bool },
    ReserveAny(u64),
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

/// For exactly one ring, so that the sanitizer detects an access outside.
struct Memory {
    base: NonNull<u8>,
    allocation: Layout,
}

impl Memory {
    fn formatted<T: RingMessage>(layout: &RingLayout, start: u64) -> Self {
        let allocation = Layout::from_size_align(layout.size() as usize, layout.align() as usize).unwrap();
        // SAFETY: not empty: there is a header.
        let base = NonNull::new(unsafe { alloc_zeroed(allocation) }).expect("some memory");
        let memory = Self { base, allocation };
        // SAFETY: nothing is attached yet.
        unsafe { memory.header().format::<T>(layout, start) };
        memory
    }
    fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: aligned and long enough by its layout, zeroed, atomic words.
        unsafe { self.base.cast().as_ref() }
    }
    fn words(&self) -> &[HostWord; 48] {
        // SAFETY: a header is 48 words, as its table says.
        unsafe { self.base.cast().as_ref() }
    }
    fn attach<T: RingMessage>(&self) -> Result<Ends<'_, T>, AttachError> {
        let len = self.allocation.size() as u64;
        // SAFETY: that many initialised bytes live there; one thread, whose peers write between operations.
        let producer = unsafe { Producer::from_raw(self.base, len)? };
        // SAFETY: as above.
        let consumer = unsafe { Consumer::from_raw(self.base, len)? };
        Ok((producer, consumer))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.allocation) }
    }
}

fn write(word: &HostWord, number: Number) {
    let value = match number {
        Number::Near(step) => Word::load(word).wrapping_add_signed(step.into()),
        Number::Any(value) => value,
    };
    Word::store(word, value);
}

fn run<T: Numbered>(input: &Input) {
    let layout = RingLayout::of::<T>(1 << (input.doublings % 4)).unwrap();
    let start = match input.start {
        Start::Near(steps) => steps.into(),
        Start::NearTheEnd(steps) => u64::MAX - u64::from(steps),
        Start::Any(start) => start,
    };
    let memory = Memory::formatted::<T>(&layout, start);
    match &input.peer {
        Peer::Honest => honest::<T>(&memory, &layout, &input.operations),
        Peer::Hostile(header) => {
            for (place, number) in header {
                write(&memory.words()[usize::from(*place) % 48], *number);
            }
            hostile::<T>(&memory, &layout, &input.operations);
        }
    }
}

struct Model<T> {
    slots: VecDeque<T>,
    popped: usize,
    unpublished: usize,
}

impl<T: Numbered> Model<T> {
    fn visible(&self) -> usize {
        self.slots.len() - self.popped - self.unpublished
    }
    fn publish(&mut self, values: impl IntoIterator<Item = T>) {
        self.slots.extend(values);
        self.unpublished = 0;
    }
    fn pop(&mut self) -> Option<T> {
        if self.visible() == 0 {
            return None;
        }
        self.popped += 1;
        Some(self.slots[self.popped - 1])
    }
    fn release(&mut self) {
        self.slots.drain(..self.popped);
        self.popped = 0;
    }
}

fn honest<T: Numbered>(memory: &Memory, layout: &RingLayout, operations: &[Op]) {
    let capacity = layout.capacity();
    let (mut producer, mut consumer) = memory.attach::<T>().unwrap();
    let mut model = Model { slots: VecDeque::new(), popped: 0, unpublished: 0 };
    let mut numbers = 0;
    let mut fresh = || {
        numbers += 1;
        T::numbered(numbers)
    };
    for op in operations {
        let free = capacity - model.slots.len() as u64;
        match *op {
            Op::Push => {
                let value = fresh();
                let pushed = producer.push(value);
                if free == 0 {
                    assert_eq!(pushed, Err(PushError::Full(value)));
                    model.unpublished = 0;
                } else {
                    assert_eq!(pushed, Ok(()));
                    model.publish([value]);
                }
            }
            Op::Pop => {
                let expected = model.pop();
                assert_eq!(consumer.pop(), expected.ok_or(PopError::Empty));
                model.release();
            }
            Op::Burst(count) => {
                for _ in 0..count % 32 {
                    let value = fresh();
                    match producer.push(value) {
                        Ok(()) => model.publish([value]),
                        Err(refused) => {
                            assert_eq!(refused, PushError::Full(value));
                            assert_eq!(model.slots.len() as u64, capacity);
                            model.unpublished = 0;
                        }
                    }
                }
                for _ in 0..count % 32 {
                    let expected = model.pop();
                    assert_eq!(consumer.pop(), expected.ok_or(PopError::Empty));
                    model.release();
                }
            }
            Op::PushSlice(count) => {
                let values: Vec<T> = (0..count % 16).map(|_| fresh()).collect();
                let taken = producer.push_slice(&values).unwrap();
                assert_eq!(taken as u64, free.min(values.len() as u64));
                model.publish(values[..taken].iter().copied());
            }
            Op::PopSlice(count) => {
                let mut values = vec![T::numbered(0); usize::from(count % 16)];
                let taken = consumer.pop_slice(&mut values).unwrap();
                assert_eq!(taken, model.visible().min(values.len()));
                for value in &values[..taken] {
                    assert_eq!(Some(*value), model.pop());
                }
                model.release();
            }
            Op::Reserve { count, write, forget: forgets } => {
                let count = u64::from(count % 16);
                match producer.reserve(count) {
                    Ok(mut grant) => {
                        assert!(count <= free && grant.len() == count);
                        let values: Vec<T> = (0..count.min(u64::from(write % 16))).map(|_| fresh()).collect();
                        assert_eq!(grant.fill(values.iter().copied()), values.len() as u64);
                        model.unpublished = if forgets { values.len() } else { 0 };
                        model.slots.extend(values);
                        if forgets { forget(grant) } else { drop(grant) }
                    }
                    Err(ReserveError::Full { free: said }) => {
                        assert!(said == free && (free + 1..=capacity).contains(&count));
                        model.unpublished = 0;
                    }
                    Err(refused) => {
                        assert_eq!(refused, ReserveError::TooLarge { capacity });
                        assert!(count > capacity);
                    }
                }
            }
            Op::ReserveAny(count) => {
                assert_eq!(producer.reserve(count).is_ok(), count <= free);
                if count <= capacity {
                    model.unpublished = 0;
                }
            }
            Op::Release { most, count, forget: forgets } => {
                let seen = usize::from(most).min(model.visible());
                match consumer.peek(most.into()) {
                    Ok(chunk) => {
                        assert_eq!(chunk.len(), seen as u64);
                        assert!(chunk.as_slices().into_iter().flatten().eq(model.slots.range(model.popped..model.popped + seen)));
                        if !forgets {
                            chunk.release(count.into());
                            for _ in 0..seen.min(count.into()) {
                                model.pop();
                            }
                            model.release();
                        }
                    }
                    Err(refused) => {
                        assert_eq!(refused, PopError::Empty);
                        assert_eq!(seen, 0);
                        model.release();
                    }
                }
            }
            Op::BatchPush { every, count, forget: forgets } => {
                let mut batch = producer.batch(every.into());
                model.unpublished = 0;
                for _ in 0..count % 32 {
                    let value = fresh();
                    match batch.push(value) {
                        Ok(()) => model.slots.push_back(value),
                        Err(refused) => {
                            assert_eq!(refused, PushError::Full(value));
                            assert_eq!(model.slots.len() as u64, capacity);
                        }
                    }
                }
                if forgets {
                    forget(batch);
                } else {
                    drop(batch);
                }
                model.unpublished = model.slots.len() - model.popped - consumer.refresh().unwrap() as usize;
                assert!(model.unpublished == 0 || forgets && model.unpublished < every.max(1).into());
            }
            Op::BatchPop { every, count, forget: forgets } => {
                let mut batch = consumer.batch(every.into());
                model.release();
                for _ in 0..count % 32 {
                    assert_eq!(batch.pop(), model.pop().ok_or(PopError::Empty));
                }
                if forgets {
                    forget(batch);
                } else {
                    drop(batch);
                }
                let unreleased = (capacity - producer.refresh().unwrap()) as usize - (model.slots.len() - model.popped);
                assert!(unreleased == 0 || forgets && unreleased < every.max(1).into());
                model.slots.drain(..model.popped - unreleased);
                model.popped = unreleased;
            }
            Op::Look => {
                assert_eq!(producer.refresh(), Ok(free));
                assert_eq!(consumer.refresh(), Ok(model.visible() as u64));
            }
            Op::AttachAgain => {
                drop((producer, consumer));
                (producer, consumer) = memory.attach().unwrap();
                model.release();
                model.unpublished = 0;
            }
            Op::PeerWritesTail(_) | Op::PeerWritesHead(_) => {}
        }
        assert_eq!(producer.tail().wrapping_sub(consumer.head()), (model.slots.len() - model.popped) as u64);
    }
}

fn hostile<T: Numbered>(memory: &Memory, layout: &RingLayout, operations: &[Op]) {
    let Ok((mut producer, mut consumer)) = memory.attach::<T>() else { return };
    let capacity = producer.capacity();
    assert!(capacity.is_power_of_two() && capacity <= layout.capacity());
    let written = Cell::new(0);
    let fresh = || {
        written.set(written.get() + 1);
        T::numbered(written.get())
    };
    let corrupt = |corrupt: Corrupt| assert!(corrupt.capacity == capacity && corrupt.tail.wrapping_sub(corrupt.head) > capacity);
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
                    Ok(taken) => assert!(taken <= values.len() && taken as u64 <= capacity),
                    Err(refused) => corrupt(refused),
                }
            }
            Op::PopSlice(count) => {
                let mut values = vec![T::numbered(0); usize::from(count % 16)];
                match consumer.pop_slice(&mut values) {
                    Ok(taken) => {
                        assert!(taken as u64 <= capacity);
                        assert!(values[..taken].iter().all(|value| value.was_written(written.get())));
                    }
                    Err(refused) => corrupt(refused),
                }
            }
            Op::Reserve { count, write, forget: forgets } => match producer.reserve(u64::from(count % 16)) {
                Ok(mut grant) => {
                    assert!(grant.len() == u64::from(count % 16) && grant.len() <= capacity);
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
            Op::AttachAgain => match memory.attach() {
                Ok(ends) => (producer, consumer) = ends,
                Err(refused) => return assert!(matches!(refused, AttachError::Corrupt(_)), "only indices have changed"),
            },
            Op::PeerWritesTail(number) => write(&memory.header().producer.tail, number),
            Op::PeerWritesHead(number) => write(&memory.header().consumer.head, number),
        }
        assert!(producer.free() <= capacity && consumer.available() <= capacity);
    }
}

fn popped<T: Numbered>(popped: Result<T, PopError>, written: u64, corrupt: impl Fn(Corrupt)) {
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
