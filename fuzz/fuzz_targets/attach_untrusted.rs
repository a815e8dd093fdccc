//! Arbitrary bytes as a mapping, with arbitrary writes between operations.

#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::region::{self, kind};
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

fn run<T: RingMessage>(input: &Input) {
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
    // SAFETY: that many initialised bytes; one thread.
    if let Ok(entries) = unsafe { region::entries::<HostWord>(memory.base, memory.len() as u64, 0) } {
        for entry in &entries {
            assert!(entry.offset.checked_add(entry.size).is_some_and(|end| end <= memory.len() as u64) || entry.kind != kind::SHARED_RING);
        }
    }

    let (Some(mut producer), Some(mut consumer)) = (memory.producer::<T>(), memory.consumer::<T>()) else { return };
    let mut capacity = producer.capacity();
    let (mut tail, mut head) = (producer.tail(), consumer.head());
    let value = T::zeroed();
    for op in &input.operations {
        assert!(capacity.is_power_of_two() && 384 + capacity * size_of::<T>() <= memory.len());
        let corrupt = |found: Corrupt| {
            assert!(found.capacity == capacity as u64 && found.tail.wrapping_sub(found.head) > found.capacity, "{found}");
        };
        match *op {
            Op::Push => match producer.push(value) {
                Ok(()) => tail = tail.wrapping_add(1),
                Err(PushError::Full(_)) => assert_eq!(producer.free(), 0),
                Err(PushError::Corrupt(_, found)) => corrupt(found),
            },
            Op::Pop => match consumer.pop() {
                Ok(_) => head = head.wrapping_add(1),
                Err(PopError::Empty) => assert_eq!(consumer.available(), 0),
                Err(PopError::Corrupt(found)) => corrupt(found),
            },
            Op::PushSlice(count) => match producer.push_slice(&vec![value; count.into()]) {
                Ok(pushed) => {
                    assert!(pushed <= usize::from(count) && pushed <= capacity);
                    tail = tail.wrapping_add(pushed as u64);
                }
                Err(found) => corrupt(found),
            },
            Op::PopSlice(count) => match consumer.pop_slice(&mut vec![value; count.into()]) {
                Ok(popped) => {
                    assert!(popped <= usize::from(count) && popped <= capacity);
                    head = head.wrapping_add(popped as u64);
                }
                Err(found) => corrupt(found),
            },
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
