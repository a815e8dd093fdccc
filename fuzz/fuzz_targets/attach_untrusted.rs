//! Arbitrary bytes as a mapping, with arbitrary writes between operations. Until the first such write, a ring is compared with a queue.

#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::spsc::untrusted::{Consumer, Producer};
use ringmem_layouts::ring::{PopError, PushError};
use ringmem_layouts::{HostWord, RingHeader, RingLayout, RingMessage, Word};

#[derive(Arbitrary, Debug)]
struct Input {
    message: Message,
    sound: Option<Start>,
    bytes: Vec<(u16, Vec<u8>)>,
    size: u16,
    operations: Vec<Op>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Message {
    Byte,
    Word,
    Odd,
    Twelve,
    Line,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Start {
    doublings: u8,
    back: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Op {
    Push,
    Pop,
    PushSlice(u8),
    PopSlice(u8),
    Look,
    Attach,
    Index { producer: bool, step: i8 },
    Any { word: u16, value: u64 },
}

struct Memory {
    base: NonNull<u8>,
    allocation: Layout,
}

impl Memory {
    fn zeroed(size: usize) -> Self {
        let allocation = Layout::from_size_align(size, 128).unwrap();
        // SAFETY: not empty, ensured by `run`.
        let base = NonNull::new(unsafe { alloc_zeroed(allocation) }).expect("some memory");
        Self { base, allocation }
    }
    fn len(&self) -> usize {
        self.allocation.size()
    }
    fn words(&self) -> &[HostWord] {
        // SAFETY: that many initialised words, accessed atomically.
        unsafe { std::slice::from_raw_parts(self.base.cast().as_ptr(), self.len() / 8) }
    }
    fn write(&self, from: u16, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            // SAFETY: within the memory by the remainder; no reference to the bytes.
            let place = unsafe { AtomicU8::from_ptr(self.base.as_ptr().add((usize::from(from) + place) % self.len())) };
            place.store(*byte, Relaxed);
        }
    }
    fn producer<T: RingMessage>(&self) -> Option<Producer<'_, T>> {
        // SAFETY: that many initialised bytes, accessed atomically.
        unsafe { Producer::attach(self.base, self.len() as u64) }.ok()
    }
    fn consumer<T: RingMessage>(&self) -> Option<Consumer<'_, T>> {
        // SAFETY: that many initialised bytes, accessed atomically.
        unsafe { Consumer::attach(self.base, self.len() as u64) }.ok()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.allocation) }
    }
}

const TAIL: usize = 0;
const HEAD: usize = 128 / 8;

fn numbered<T: RingMessage>(number: u64) -> T {
    let mut value = T::zeroed();
    for (place, byte) in value.as_bytes_mut().iter_mut().enumerate() {
        *byte = (number as u8).wrapping_mul(31).wrapping_add(place as u8 ^ 0x5A);
    }
    value
}

fn run<T: RingMessage + PartialEq + Debug>(input: &Input) {
    let layout = input.sound.map(|start| (RingLayout::of::<T>(1 << (start.doublings % 5)).unwrap(), start));
    let size = match &layout {
        Some((layout, _)) => (layout.size() as usize).saturating_sub(usize::from(input.size) % 4 * usize::from(input.size)),
        None => usize::from(input.size) % 4096,
    };
    let memory = Memory::zeroed(size.max(1));
    if let Some((layout, start)) = layout
        && memory.len() >= 384
    {
        // SAFETY: aligned and long enough; any bytes are valid words.
        let header = unsafe { memory.base.cast::<RingHeader<HostWord>>().as_ref() };
        // SAFETY: nothing is attached.
        unsafe { header.format::<T>(&layout, u64::from(start.back).wrapping_neg()) };
    }
    for (from, bytes) in &input.bytes {
        memory.write(*from, bytes);
    }
    let (Some(mut producer), Some(mut consumer)) = (memory.producer::<T>(), memory.consumer::<T>()) else { return };
    let mut capacity = producer.capacity();
    let (mut tail, mut head) = (producer.tail(), consumer.head());
    // The messages of a ring that only its ends have written.
    let mut queue = (input.sound.is_some() && input.bytes.is_empty()).then(VecDeque::new);
    let mut numbers = 0..;
    let mut fresh = || numbered::<T>(numbers.next().unwrap());
    for op in &input.operations {
        if let Op::Index { .. } | Op::Any { .. } = op {
            queue = None;
        }
        assert!(capacity.is_power_of_two() && 384 + capacity * size_of::<T>() <= memory.len());
        let corrupt = |found: Corrupt| {
            assert!(found.capacity == capacity as u64 && found.tail.wrapping_sub(found.head) > found.capacity, "{found}");
        };
        match *op {
            Op::Push => {
                let value = fresh();
                let pushed = producer.push(value);
                if let Some(queue) = &mut queue {
                    assert_eq!(pushed, if queue.len() == capacity { Err(PushError::Full(value)) } else { Ok(()) });
                    queue.extend(pushed.is_ok().then_some(value));
                }
                match pushed {
                    Ok(()) => tail = tail.wrapping_add(1),
                    Err(PushError::Full(_)) => assert_eq!(producer.free(), 0),
                    Err(PushError::Corrupt(_, found)) => corrupt(found),
                }
            }
            Op::Pop => {
                let popped = consumer.pop();
                if let Some(queue) = &mut queue {
                    assert_eq!(popped, queue.pop_front().ok_or(PopError::Empty));
                }
                match popped {
                    Ok(_) => head = head.wrapping_add(1),
                    Err(PopError::Empty) => assert_eq!(consumer.available(), 0),
                    Err(PopError::Corrupt(found)) => corrupt(found),
                }
            }
            Op::PushSlice(count) => {
                let values: Vec<T> = (0..count).map(|_| fresh()).collect();
                let pushed = producer.push_slice(&values);
                if let Some(queue) = &mut queue {
                    assert_eq!(pushed, Ok(values.len().min(capacity - queue.len())));
                    queue.extend(&values[..pushed.unwrap_or(0)]);
                }
                match pushed {
                    Ok(pushed) => {
                        assert!(pushed <= values.len() && pushed <= capacity);
                        tail = tail.wrapping_add(pushed as u64);
                    }
                    Err(found) => corrupt(found),
                }
            }
            Op::PopSlice(count) => {
                let mut values = vec![T::zeroed(); count.into()];
                let popped = consumer.pop_slice(&mut values);
                if let Some(queue) = &mut queue {
                    assert_eq!(popped, Ok(values.len().min(queue.len())));
                    assert!(queue.drain(..popped.unwrap_or(0)).eq(values[..popped.unwrap_or(0)].iter().copied()));
                }
                match popped {
                    Ok(popped) => {
                        assert!(popped <= values.len() && popped <= capacity);
                        head = head.wrapping_add(popped as u64);
                    }
                    Err(found) => corrupt(found),
                }
            }
            Op::Look => {
                producer.refresh().map_or_else(corrupt, |free| assert_eq!(free, producer.free()));
                consumer.refresh().map_or_else(corrupt, |waiting| assert_eq!(waiting, consumer.available()));
                let _ = (producer.is_disconnected(), consumer.is_disconnected());
            }
            Op::Attach => {
                if let (Some(new_producer), Some(new_consumer)) = (memory.producer::<T>(), memory.consumer::<T>()) {
                    (producer, consumer) = (new_producer.announce(), new_consumer.announce());
                    (capacity, tail, head) = (producer.capacity(), producer.tail(), consumer.head());
                }
            }
            Op::Index { producer: true, step } => Word::store(&memory.words()[TAIL], head.wrapping_add_signed(step.into())),
            Op::Index { producer: false, step } => Word::store(&memory.words()[HEAD], tail.wrapping_add_signed(step.into())),
            Op::Any { word, value } => {
                let words = memory.words();
                Word::store(&words[usize::from(word) % words.len()], value);
            }
        }
        assert_eq!((producer.tail(), consumer.head()), (tail, head));
        assert_eq!((producer.capacity(), consumer.capacity()), (capacity, capacity));
        assert!(producer.free() <= capacity && consumer.available() <= capacity);
        assert!(producer.len() <= capacity && consumer.len() <= capacity);
        if let Some(queue) = &queue {
            assert_eq!((producer.len(), consumer.len()), (queue.len(), queue.len()));
        }
    }
}

fuzz_target!(|input: Input| {
    match input.message {
        Message::Byte => run::<u8>(&input),
        Message::Word => run::<u64>(&input),
        Message::Odd => run::<[u8; 5]>(&input),
        Message::Twelve => run::<[u32; 3]>(&input),
        Message::Line => run::<[u64; 8]>(&input),
    }
});
