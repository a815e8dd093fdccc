//! Framed rings: against a `VecDeque`, or with a peer that writes anything.

#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::mem::forget;
use std::ptr::NonNull;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::framed::{self, Consumer, PopError, Producer, PushError};
use ringmem_layouts::{Host, HostWord, RingHeader, RingLayout, Word};

#[derive(Arbitrary, Debug)]
struct Input {
    doublings: u8,
    start: Start,
    peer: Peer,
    operations: Vec<Op>,
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
    /// Before anything attaches; and indices and slots at any time.
    Hostile(Vec<(u8, Number)>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Near(i8),
    Marker,
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Length {
    Of(u8),
    Any(u64),
}

#[derive(Arbitrary, Clone, Debug)]
enum Op {
    Push(u8),
    PushMany(Vec<u8>),
    Reserve { len: Length, used: u8, forget: bool },
    BatchPush { every: u8, messages: Vec<u8>, in_place: bool, forget: bool },
    Pop { room: u8 },
    Peek { release: bool },
    PeekMany { most: u8, release: bool },
    BatchPop { every: u8, count: u8, in_place: bool, forget: bool },
    Look,
    AttachAgain,
    PeerWritesTail(Number),
    PeerWritesHead(Number),
    PeerWritesSlot(u8, Number),
}

struct Memory {
    base: NonNull<u8>,
    allocation: Layout,
}

impl Memory {
    fn formatted(layout: &RingLayout, start: u64) -> Self {
        let allocation = Layout::from_size_align(layout.size() as usize, layout.align() as usize).unwrap();
        // SAFETY: not empty: there is a header.
        let base = NonNull::new(unsafe { alloc_zeroed(allocation) }).expect("some memory");
        let memory = Self { base, allocation };
        // SAFETY: nothing is attached yet.
        unsafe { memory.header().format::<u64>(layout, start) };
        memory
    }
    fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: aligned and long enough by its layout, zeroed, atomic words.
        unsafe { self.base.cast().as_ref() }
    }
    fn write(&self, place: usize, number: Number) {
        let place = place % (self.allocation.size() / 8);
        // SAFETY: within the words of the memory; one thread, and no reference to the slots.
        let word = unsafe { self.base.cast::<HostWord>().add(place).as_ref() };
        write(word, number);
    }
    fn attach(&self) -> Result<(Producer<'_, Host>, Consumer<'_, Host>), AttachError> {
        let len = self.allocation.size() as u64;
        // SAFETY: that many initialised bytes live there; one thread, whose peers write between operations.
        let producer = unsafe { Producer::from_raw(self.base, len)? };
        // SAFETY: as above.
        let consumer = unsafe { Consumer::from_raw(self.base, len)? };
        Ok((producer, consumer))
    }
    fn holds(&self, bytes: &[u8], capacity: usize) -> bool {
        let at = bytes.as_ptr() as usize - self.base.as_ptr() as usize;
        at.is_multiple_of(8) && at >= 384 && at + bytes.len() <= 384 + capacity
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
        Number::Marker => u64::MAX,
        Number::Any(value) => value,
    };
    Word::store(word, value);
}

impl Length {
    fn bytes(self) -> usize {
        match self {
            Self::Of(bytes) => bytes.into(),
            Self::Any(bytes) => bytes as usize,
        }
    }
}

struct Fresh(u8);

impl Fresh {
    fn message(&mut self, len: u8) -> Vec<u8> {
        self.0 = self.0.wrapping_add(1);
        (0..len).map(|place| self.0 ^ place.wrapping_mul(37)).collect()
    }
}

struct Model {
    capacity: u64,
    head: u64,
    entries: VecDeque<(Vec<u8>, u64)>,
    popped: usize,
    unpublished: usize,
}

impl Model {
    fn used(&self) -> u64 {
        self.entries.iter().map(|(_, words)| words).sum()
    }
    fn visible(&self) -> usize {
        self.entries.len() - self.popped - self.unpublished
    }
    fn waiting(&self) -> Option<&Vec<u8>> {
        (self.visible() > 0).then(|| &self.entries[self.popped].0)
    }
    fn room(&self, asked: usize) -> Result<u64, PushError> {
        let largest = self.capacity as usize * 4 - 8;
        if asked > largest {
            return Err(PushError::TooLarge { largest, asked });
        }
        let words = 1 + (asked as u64).div_ceil(8);
        let before_wrap = self.capacity - self.head.wrapping_add(self.used()) % self.capacity;
        let skipped = if words <= before_wrap { 0 } else { before_wrap };
        if self.used() + skipped + words > self.capacity { Err(PushError::Full) } else { Ok(skipped) }
    }
    fn push(&mut self, message: Vec<u8>, skipped: u64) {
        let words = skipped + 1 + message.len().div_ceil(8) as u64;
        self.entries.push_back((message, words));
        self.unpublished += 1;
    }
    fn release(&mut self) {
        for (_, words) in self.entries.drain(..self.popped) {
            self.head = self.head.wrapping_add(words);
        }
        self.popped = 0;
    }
    fn observe(&mut self, consumer: &Consumer<'_, Host>) {
        let mut words = consumer.len() as u64 / 8;
        let mut visible = 0;
        while words > 0 {
            words = words.checked_sub(self.entries[self.popped + visible].1).expect("only whole frames are published");
            visible += 1;
        }
        let unpublished = self.entries.len() - self.popped - visible;
        assert!(unpublished <= self.unpublished);
        self.unpublished = unpublished;
    }
    fn published(&mut self, consumer: &Consumer<'_, Host>) {
        self.observe(consumer);
        assert_eq!(self.unpublished, 0);
    }
}

fn honest(memory: &Memory, capacity: u64, start: u64, operations: &[Op]) {
    let (mut producer, mut consumer) = memory.attach().unwrap();
    let mut model = Model { capacity, head: start, entries: VecDeque::new(), popped: 0, unpublished: 0 };
    let mut fresh = Fresh(0);
    let bytes = capacity as usize * 8;
    for op in operations {
        match *op {
            Op::Push(len) => {
                let message = fresh.message(len);
                let room = model.room(message.len());
                assert_eq!(producer.push(&message), room.map(drop));
                if let Ok(skipped) = room {
                    model.push(message, skipped);
                }
                if room.is_ok() || room == Err(PushError::Full) {
                    model.published(&consumer);
                }
            }
            Op::PushMany(ref lengths) => {
                let messages: Vec<_> = lengths.iter().take(16).map(|len| fresh.message(*len)).collect();
                let mut expected = (0, Ok(()));
                for message in &messages {
                    match model.room(message.len()) {
                        Ok(skipped) => model.push(message.clone(), skipped),
                        Err(refused) => {
                            expected.1 = Err(refused);
                            break;
                        }
                    }
                    expected.0 += 1;
                }
                assert_eq!(producer.push_many(messages.iter().map(Vec::as_slice)), expected);
                model.published(&consumer);
            }
            Op::Reserve { len, used, forget: forgets } => {
                let room = model.room(len.bytes());
                match producer.reserve(len.bytes()) {
                    Err(refused) => assert_eq!(Err(refused), room),
                    Ok(mut grant) => {
                        let skipped = room.unwrap();
                        assert!(grant.len() == len.bytes() && memory.holds(&grant, bytes));
                        let message = fresh.message(grant.len() as u8);
                        grant.copy_from_slice(&message);
                        if forgets {
                            forget(grant);
                        } else {
                            grant.commit(used.into());
                            model.push(message[..message.len().min(used.into())].to_vec(), skipped);
                            model.published(&consumer);
                        }
                    }
                }
            }
            Op::BatchPush { every, ref messages, in_place, forget: forgets } => {
                let mut batch = producer.batch(every.into());
                model.published(&consumer);
                for len in messages.iter().take(16) {
                    let message = fresh.message(*len);
                    let room = model.room(message.len());
                    let outcome = if in_place {
                        batch.reserve(message.len()).map(|mut grant| {
                            grant.copy_from_slice(&message);
                            grant.commit(message.len());
                        })
                    } else {
                        batch.push(&message)
                    };
                    assert_eq!(outcome, room.map(drop));
                    match room {
                        Ok(skipped) => model.push(message, skipped),
                        Err(PushError::Full) => model.published(&consumer),
                        Err(_) => {}
                    }
                    model.observe(&consumer);
                    assert!(model.unpublished < every.max(1).into());
                    assert!(model.unpublished == 0 || model.unpublished < model.entries.len(), "a dry consumer is served");
                }
                if forgets {
                    forget(batch);
                } else {
                    drop(batch);
                    model.published(&consumer);
                }
            }
            Op::Pop { room } => {
                let mut into = vec![0; room.into()];
                let outcome = consumer.pop(&mut into);
                match model.waiting() {
                    None => {
                        assert_eq!(outcome, Err(PopError::Empty));
                        model.release();
                    }
                    Some(message) if message.len() > into.len() => {
                        assert_eq!(outcome, Err(PopError::TooSmall { needed: message.len() }));
                    }
                    Some(message) => {
                        assert_eq!(outcome, Ok(message.len()));
                        assert_eq!(&into[..message.len()], message);
                        model.popped += 1;
                        model.release();
                    }
                }
            }
            Op::Peek { release } => match consumer.peek() {
                Err(refused) => {
                    assert_eq!((refused, model.waiting()), (PopError::Empty, None));
                    model.release();
                }
                Ok(frame) => {
                    assert_eq!(&*frame, model.waiting().unwrap());
                    assert!(memory.holds(&frame, bytes));
                    if release {
                        frame.release();
                        model.popped += 1;
                        model.release();
                    }
                }
            },
            Op::PeekMany { most, release } => match consumer.peek_many() {
                Err(refused) => {
                    assert_eq!((refused, model.waiting()), (PopError::Empty, None));
                    model.release();
                }
                Ok(chunk) => {
                    let count = model.visible().min(most.into());
                    for (message, _) in model.entries.range(model.popped..model.popped + count) {
                        assert_eq!(&*chunk.next().unwrap(), message);
                    }
                    if count < most.into() {
                        assert_eq!(chunk.next().err(), Some(PopError::Empty));
                    }
                    if release {
                        assert_eq!(chunk.release(), count as u64);
                        if count > 0 {
                            model.popped += count;
                            model.release();
                        }
                    }
                }
            },
            Op::BatchPop { every, count, in_place, forget: forgets } => {
                let mut batch = consumer.batch(every.into());
                model.release();
                for _ in 0..count % 32 {
                    let mut into = [0; 256];
                    let outcome = if in_place {
                        batch.peek().map(|frame| {
                            let len = frame.len();
                            into[..len].copy_from_slice(&frame);
                            frame.release();
                            len
                        })
                    } else {
                        batch.pop(&mut into)
                    };
                    if let Some(message) = model.waiting() {
                        assert_eq!(outcome, Ok(message.len()));
                        assert_eq!(&into[..message.len()], message);
                        model.popped += 1;
                        if model.popped < every.max(1).into() {
                            continue;
                        }
                    } else {
                        assert_eq!(outcome, Err(PopError::Empty));
                    }
                    model.release();
                }
                if forgets {
                    forget(batch);
                } else {
                    drop(batch);
                    model.release();
                }
                assert_eq!(producer.refresh(), Ok((capacity - model.used()) as usize * 8));
            }
            Op::Look => {
                assert_eq!(producer.refresh(), Ok((capacity - model.used()) as usize * 8));
                assert_eq!(consumer.refresh(), Ok(consumer.len()));
            }
            Op::AttachAgain => {
                (producer, consumer) = memory.attach().unwrap();
                model.popped = 0;
                model.entries.truncate(model.entries.len() - model.unpublished);
                model.unpublished = 0;
            }
            Op::PeerWritesTail(_) | Op::PeerWritesHead(_) | Op::PeerWritesSlot(..) => {}
        }
        model.observe(&consumer);
        assert_eq!(producer.tail(), model.head.wrapping_add(model.used()));
    }
}

fn hostile(memory: &Memory, most: u64, operations: &[Op]) {
    let Ok((mut producer, mut consumer)) = memory.attach() else { return };
    let bytes = producer.capacity();
    assert!(bytes.is_power_of_two() && (16..=most as usize * 8).contains(&bytes));
    let (capacity, largest) = (bytes as u64 / 8, bytes / 2 - 8);
    assert!(producer.largest() == largest && consumer.largest() == largest);
    let corrupt = |corrupt: Corrupt| assert!(corrupt.capacity == capacity && corrupt.tail.wrapping_sub(corrupt.head) > capacity);
    let pushed = |len: usize, outcome: Result<(), PushError>| match outcome {
        Ok(()) | Err(PushError::Full) => assert!(len <= largest),
        Err(PushError::TooLarge { largest: said, asked }) => assert!(said == largest && asked == len && len > largest),
        Err(PushError::Corrupt(refused)) => corrupt(refused),
    };
    let popped = |room: usize, outcome: Result<usize, PopError>| match outcome {
        Ok(len) => assert!(len <= room && len <= largest),
        Err(PopError::TooSmall { needed }) => assert!(needed > room && needed <= largest),
        Err(PopError::Corrupt(refused)) => corrupt(refused),
        Err(PopError::Empty | PopError::BadFrame { .. }) => {}
    };
    let mut fresh = Fresh(0);
    for op in operations {
        match *op {
            Op::Push(len) => pushed(len.into(), producer.push(&fresh.message(len))),
            Op::PushMany(ref lengths) => {
                let messages: Vec<_> = lengths.iter().take(16).map(|len| fresh.message(*len)).collect();
                let (taken, outcome) = producer.push_many(messages.iter().map(Vec::as_slice));
                assert!(taken <= capacity);
                if outcome.is_err() {
                    pushed(messages[taken as usize].len(), outcome);
                }
            }
            Op::Reserve { len, used, forget: forgets } => {
                let outcome = producer.reserve(len.bytes()).map(|mut grant| {
                    assert!(grant.len() == len.bytes() && memory.holds(&grant, bytes));
                    grant.fill(used);
                    if forgets { forget(grant) } else { grant.commit(used.into()) }
                });
                pushed(len.bytes(), outcome);
            }
            Op::BatchPush { every, ref messages, in_place, forget: forgets } => {
                let mut batch = producer.batch(every.into());
                for len in messages.iter().take(16) {
                    let outcome = if in_place {
                        batch.reserve((*len).into()).map(|grant| grant.commit(usize::MAX))
                    } else {
                        batch.push(&fresh.message(*len))
                    };
                    pushed((*len).into(), outcome);
                }
                if forgets {
                    forget(batch);
                }
            }
            Op::Pop { room } => popped(room.into(), consumer.pop(&mut vec![0; room.into()])),
            Op::Peek { release } => {
                let outcome = consumer.peek().map(|frame| {
                    assert!(memory.holds(&frame, bytes));
                    let len = frame.len();
                    if release {
                        frame.release();
                    }
                    len
                });
                popped(largest, outcome);
            }
            Op::PeekMany { most, release } => match consumer.peek_many() {
                Ok(chunk) => {
                    let mut seen = 0;
                    for _ in 0..most {
                        match chunk.next() {
                            Ok(message) => assert!(memory.holds(&message, bytes) && message.len() <= largest),
                            Err(refused) => {
                                popped(largest, Err(refused));
                                break;
                            }
                        }
                        seen += 1;
                    }
                    assert!(seen <= capacity);
                    if release {
                        assert_eq!(chunk.release(), seen);
                    }
                }
                Err(refused) => popped(largest, Err(refused)),
            },
            Op::BatchPop { every, count, in_place, forget: forgets } => {
                let mut batch = consumer.batch(every.into());
                for _ in 0..count % 32 {
                    if in_place {
                        let outcome = batch.peek().map(|frame| {
                            assert!(memory.holds(&frame, bytes));
                            let len = frame.len();
                            frame.release();
                            len
                        });
                        popped(largest, outcome);
                    } else {
                        popped(count.into(), batch.pop(&mut vec![0; count.into()]));
                    }
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
            Op::PeerWritesSlot(place, number) => memory.write(48 + usize::from(place) % capacity as usize, number),
        }
        assert!(producer.free() <= bytes && consumer.available() <= bytes && consumer.len() <= bytes);
    }
}

fuzz_target!(|input: Input| {
    let layout = framed::layout(16 << (input.doublings % 5)).unwrap();
    let start = match input.start {
        Start::Near(steps) => steps.into(),
        Start::NearTheEnd(steps) => u64::MAX - u64::from(steps),
        Start::Any(start) => start,
    };
    let memory = Memory::formatted(&layout, start);
    match &input.peer {
        Peer::Honest => honest(&memory, layout.capacity(), start, &input.operations),
        Peer::Hostile(words) => {
            for (place, number) in words {
                memory.write((*place).into(), *number);
            }
            hostile(&memory, layout.capacity(), &input.operations);
        }
    }
});
