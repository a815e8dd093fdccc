//! Untrusting ends: a dishonest peer causes at most wrong messages.

use crate::ring_memory;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use ring_memory::Memory as RingMemory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::spsc::{self, untrusted};
use ringmem_layouts::ring::{End, PopError, PushError, RingFlags, WaitWords};
use ringmem_layouts::{Host, HostWord, RingHeader, RingMessage};

struct Memory(RingMemory);

impl Memory {
    fn formatted<T: RingMessage>(capacity: u64, start: u64) -> Self {
        Self(RingMemory::formatted::<T>(RingFlags::SPSC, capacity, start))
    }
    fn header(&self) -> &RingHeader<HostWord> {
        self.0.header()
    }
    fn words(&self) -> &[HostWord] {
        self.0.words()
    }
    fn producer<T: RingMessage>(&self) -> Result<untrusted::Producer<'_, T>, AttachError> {
        self.0.attach(untrusted::Producer::attach)
    }
    fn consumer<T: RingMessage>(&self) -> Result<untrusted::Consumer<'_, T>, AttachError> {
        self.0.attach(untrusted::Consumer::attach)
    }
    fn index(&self, producer: bool) -> &HostWord {
        let header = self.header();
        if producer { &header.producer.tail } else { &header.consumer.head }
    }
    fn slot<T: RingMessage>(&self, index: u64, capacity: u64) -> Vec<u8> {
        let from = 384 + (index % capacity) as usize * size_of::<T>();
        let bytes = self.words().iter().flat_map(|word| word.load(Relaxed).to_ne_bytes());
        bytes.skip(from).take(size_of::<T>()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    Pop,
    PushSlice(usize),
    PopSlice(usize),
    Look,
    AttachAgain,
}

fn operations() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        3 => Just(Op::Push),
        3 => Just(Op::Pop),
        2 => (0..12_usize).prop_map(Op::PushSlice),
        2 => (0..12_usize).prop_map(Op::PopSlice),
        1 => Just(Op::Look),
        1 => Just(Op::AttachAgain),
    ];
    prop::collection::vec(one, 0..80)
}

fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![0..9_u64, (0..40_u64).prop_map(|back| u64::MAX - back), any::<u64>()]
}

fn numbered<T: RingMessage>(number: u64) -> T {
    let mut message = T::zeroed();
    for (place, byte) in message.as_bytes_mut().iter_mut().enumerate() {
        *byte = (number as u8).wrapping_mul(31).wrapping_add(place as u8 ^ 0x5A);
    }
    message
}

trait Message: RingMessage + PartialEq + Debug {}
impl<T: RingMessage + PartialEq + Debug> Message for T {}

fn honest<T: Message>(capacity: u64, start: u64, operations: &[Op]) {
    let memory = Memory::formatted::<T>(capacity, start);
    let (mut producer, mut consumer) = (memory.producer::<T>().unwrap(), memory.consumer::<T>().unwrap());
    let mut model = VecDeque::new();
    let mut numbers = 0..;
    let mut fresh = || numbered::<T>(numbers.next().unwrap());
    for op in operations {
        let free = capacity as usize - model.len();
        match *op {
            Op::Push => {
                let value = fresh();
                let expected = if free == 0 { Err(PushError::Full(value)) } else { Ok(()) };
                assert_eq!(producer.push(value), expected);
                model.extend(expected.is_ok().then_some(value));
            }
            Op::Pop => assert_eq!(consumer.pop(), model.pop_front().ok_or(PopError::Empty)),
            Op::PushSlice(count) => {
                let values: Vec<T> = (0..count).map(|_| fresh()).collect();
                assert_eq!(producer.push_slice(&values), Ok(count.min(free)));
                model.extend(&values[..count.min(free)]);
            }
            Op::PopSlice(count) => {
                let mut values = vec![numbered::<T>(255); count];
                let taken = consumer.pop_slice(&mut values).unwrap();
                assert!(values[..taken].iter().copied().eq(model.drain(..count.min(model.len()))));
                assert!(values[taken..].iter().all(|value| *value == numbered::<T>(255)), "no more is written");
            }
            Op::Look => {
                assert_eq!(producer.refresh(), Ok(free));
                assert_eq!(consumer.refresh(), Ok(model.len()));
            }
            Op::AttachAgain => (producer, consumer) = (memory.producer().unwrap(), memory.consumer().unwrap()),
        }
        let len = model.len();
        assert_eq!((producer.len(), consumer.len(), producer.is_empty(), consumer.is_empty()), (len, len, len == 0, len == 0));
        assert_eq!(producer.tail().wrapping_sub(consumer.head()), len as u64);
        assert!(producer.free() <= capacity as usize - len && consumer.available() <= len);
    }
}

fn mixed<T: Message>(capacity: u64, start: u64, count: u64) {
    let memory = Memory::formatted::<T>(capacity, start);
    // SAFETY: initialised bytes; one thread.
    let mut trusting = unsafe { spsc::Consumer::<T, Host>::from_raw(memory.0.base, memory.0.len()) }.unwrap();
    let mut producer = memory.producer::<T>().unwrap();
    for number in 0..count {
        producer.push(numbered(number)).unwrap();
        assert_eq!(trusting.pop(), Ok(numbered(number)));
    }
    drop((trusting, producer));
    // SAFETY: initialised bytes; one thread.
    let mut trusting = unsafe { spsc::Producer::<T, Host>::from_raw(memory.0.base, memory.0.len()) }.unwrap();
    let mut consumer = memory.consumer::<T>().unwrap();
    for number in 0..count {
        trusting.push(numbered(number)).unwrap();
        assert_eq!(consumer.pop(), Ok(numbered(number)));
    }
}

#[derive(Clone, Debug)]
enum Hostile {
    Do(Op),
    Index { producer: bool, ahead: u64 },
    Word { place: prop::sample::Index, value: u64 },
}

fn hostilities() -> impl Strategy<Value = Vec<Hostile>> {
    let number = prop_oneof![0..12_u64, (0..12_u64).prop_map(|back| u64::MAX - back), any::<u64>()];
    let one = prop_oneof![
        4 => operations().prop_filter_map("none", |all| all.first().copied().map(Hostile::Do)),
        2 => (any::<bool>(), number).prop_map(|(producer, ahead)| Hostile::Index { producer, ahead }),
        2 => (any::<prop::sample::Index>(), any::<u64>()).prop_map(|(place, value)| Hostile::Word { place, value }),
    ];
    prop::collection::vec(one, 0..60)
}

fn hostile<T: Message>(capacity: u64, start: u64, hostilities: &[Hostile]) {
    let memory = Memory::formatted::<T>(capacity, start);
    let (mut producer, mut consumer) = (memory.producer::<T>().unwrap(), memory.consumer::<T>().unwrap());
    let (mut tail, mut head) = (start, start);
    let value = numbered::<T>(7);
    for hostility in hostilities {
        let (claimed_head, claimed_tail) = (memory.index(false).load(Relaxed), memory.index(true).load(Relaxed));
        let (known_free, known) = (producer.free(), consumer.available());
        let (used, waiting) = (tail.wrapping_sub(claimed_head), claimed_tail.wrapping_sub(head));
        let corrupt_head = Corrupt { head: claimed_head, tail, capacity };
        let corrupt_tail = Corrupt { head, tail: claimed_tail, capacity };
        match hostility {
            Hostile::Do(Op::Push) => {
                let expected = match used {
                    _ if known_free > 0 => Ok(()),
                    used if used > capacity => Err(PushError::Corrupt(value, corrupt_head)),
                    used if used == capacity => Err(PushError::Full(value)),
                    _ => Ok(()),
                };
                assert_eq!(producer.push(value), expected);
                if expected.is_ok() {
                    assert_eq!(memory.slot::<T>(tail, capacity), value.as_bytes(), "whole, in its slot");
                    tail = tail.wrapping_add(1);
                    assert_eq!(memory.index(true).load(Relaxed), tail, "its own index as it keeps it, not as it stood there");
                }
            }
            Hostile::Do(Op::Pop) => {
                let expected = match waiting {
                    _ if known > 0 => Ok(()),
                    waiting if waiting > capacity => Err(PopError::Corrupt(corrupt_tail)),
                    0 => Err(PopError::Empty),
                    _ => Ok(()),
                };
                let slot = memory.slot::<T>(head, capacity);
                assert_eq!(consumer.pop().map(|popped| assert_eq!(popped.as_bytes(), slot, "what stands in its slot")), expected);
                if expected.is_ok() {
                    head = head.wrapping_add(1);
                    assert_eq!(memory.index(false).load(Relaxed), head);
                }
            }
            Hostile::Do(Op::PushSlice(count)) => {
                let expected = match used {
                    _ if known_free >= *count => Ok(*count),
                    used if used > capacity => Err(corrupt_head),
                    used => Ok((capacity - used).min(*count as u64) as usize),
                };
                assert_eq!(producer.push_slice(&vec![value; *count]), expected);
                tail = tail.wrapping_add(expected.unwrap_or(0) as u64);
            }
            Hostile::Do(Op::PopSlice(count)) => {
                let expected = match waiting {
                    _ if known >= *count => Ok(*count),
                    waiting if waiting > capacity => Err(corrupt_tail),
                    waiting => Ok(waiting.min(*count as u64) as usize),
                };
                assert_eq!(consumer.pop_slice(&mut vec![value; *count]), expected);
                head = head.wrapping_add(expected.unwrap_or(0) as u64);
            }
            Hostile::Do(Op::Look) => {
                let (free, available) = (producer.refresh(), consumer.refresh());
                assert_eq!(free, if used > capacity { Err(corrupt_head) } else { Ok((capacity - used) as usize) });
                assert_eq!(available, if waiting > capacity { Err(corrupt_tail) } else { Ok(waiting as usize) });
                assert_eq!((producer.free(), consumer.available()), (free.unwrap_or(known_free), available.unwrap_or(known)));
            }
            Hostile::Do(Op::AttachAgain) => {
                let ends = (memory.producer::<T>(), memory.consumer::<T>());
                assert_eq!(ends.0.as_ref().err(), ends.1.as_ref().err(), "both object alike");
                if let (Ok(new_producer), Ok(new_consumer)) = ends {
                    assert!(claimed_tail.wrapping_sub(claimed_head) <= new_producer.capacity() as u64);
                    if new_producer.capacity() as u64 == capacity {
                        (producer, consumer) = (new_producer, new_consumer);
                        (tail, head) = (claimed_tail, claimed_head);
                    }
                }
            }
            Hostile::Index { producer: true, ahead } => memory.index(true).store(head.wrapping_add(*ahead), Relaxed),
            Hostile::Index { producer: false, ahead } => memory.index(false).store(tail.wrapping_sub(*ahead), Relaxed),
            Hostile::Word { place, value } => place.get(memory.words()).store(*value, Relaxed),
        }
        assert_eq!((producer.tail(), consumer.head()), (tail, head));
        let capacity = capacity as usize;
        assert_eq!((producer.capacity(), consumer.capacity()), (capacity, capacity), "constants are read once");
        assert!(producer.free() <= capacity && consumer.available() <= capacity);
        assert!(producer.len() <= capacity && consumer.len() <= capacity);
    }
}

macro_rules! of_every_message {
    ($run:ident($capacity:expr $(, $argument:expr)*)) => {{
        $run::<u8>($capacity $(, $argument)*);
        $run::<u64>($capacity $(, $argument)*);
        $run::<[u8; 5]>($capacity $(, $argument)*);
        $run::<[u8; 12]>($capacity $(, $argument)*);
        $run::<[u16; 7]>($capacity $(, $argument)*);
        $run::<[u32; 3]>($capacity $(, $argument)*);
        $run::<[u8; 24]>($capacity $(, $argument)*);
        $run::<[u64; 3]>($capacity $(, $argument)*);
    }};
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn untrusted_rings_follow_the_queue_model(doublings in 0..4_u32, start in starts(), operations in operations()) {
        of_every_message!(honest(1 << doublings, start, &operations));
    }

    #[test]
    fn untrusted_ends_interoperate_with_spsc_ends(doublings in 0..4_u32, start in starts(), count in 0..40_u64) {
        of_every_message!(mixed(1 << doublings, start, count));
    }

    #[test]
    fn hostile_shared_words_keep_ends_within_bounds(
        doublings in 0..4_u32,
        start in starts(),
        hostilities in hostilities(),
    ) {
        of_every_message!(hostile(1 << doublings, start, &hostilities));
    }
}

#[test]
fn announce_opens_and_closes_the_owner_word() {
    let memory = Memory::formatted::<u64>(4, 0);
    let owners = || [&memory.header().producer.owner, &memory.header().consumer.owner].map(|word| word.load(Relaxed));
    let (producer, consumer) = (memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap());
    assert_eq!(owners(), [0, 0]);
    let (producer, consumer) = (producer.announce(), consumer.announce());
    assert_eq!(owners(), [4 | 1, 4 | 1]);
    assert!(!producer.is_disconnected() && !consumer.is_disconnected());
    drop(consumer);
    assert!(producer.is_disconnected() && owners() == [4 | 1, 4 | 2]);
    let consumer = memory.consumer::<u64>().unwrap().announce();
    assert!(!producer.is_disconnected() && owners() == [4 | 1, 8 | 1]);
    drop(producer);
    assert!(consumer.is_disconnected());
    drop(memory.producer::<u64>().unwrap());
    assert_eq!(owners(), [4 | 2, 8 | 1], "an end that is not announced says nothing");
}

#[test]
fn wait_words_of_both_ends_match() {
    let memory = Memory::formatted::<u64>(4, 0);
    let (producer, consumer) = (memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap());
    let WaitWords { theirs, ours } = producer.wait_words();
    let consumers = consumer.wait_words();
    assert!(std::ptr::eq(theirs, consumers.ours) && std::ptr::eq(ours, consumers.theirs) && !std::ptr::eq(ours, theirs));
}

#[test]
fn untrusted_ends_report_their_len() {
    let memory = Memory::formatted::<u64>(4, u64::MAX - 1);
    let (mut producer, mut consumer) = (memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap());
    for len in 0..=4 {
        assert_eq!((producer.len(), producer.is_full(), producer.is_empty()), (len, len == 4, len == 0));
        assert_eq!((consumer.len(), consumer.is_full(), consumer.is_empty(), consumer.free()), (len, len == 4, len == 0, 4 - len));
        assert_eq!(producer.push(len as u64).is_ok(), len < 4);
    }
    assert_eq!((consumer.pop(), consumer.is_full(), producer.is_full()), (Ok(0), false, false));
}

#[test]
fn header_loads_the_words_from_memory() {
    let memory = Memory::formatted::<u64>(4, u64::MAX);
    let (mut producer, consumer) = (memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap());
    producer.push(7).unwrap();
    for header in [producer.header(), consumer.header()] {
        assert_eq!((header.producer.tail.load(), header.consumer.head.load_acquire()), (0, u64::MAX));
        assert_eq!(header.constants.capacity.load(), 4);
    }
}

#[test]
fn pop_slice_releases_the_slots_of_a_forgotten_batch() {
    let memory = Memory::formatted::<u64>(2, 0);
    let (mut producer, mut consumer) = (memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap());
    assert_eq!(producer.push_slice(&[1, 2]), Ok(2));
    let mut batch = consumer.batch(8);
    assert_eq!([batch.pop(), batch.pop()], [Ok(1), Ok(2)]);
    std::mem::forget(batch);
    assert_eq!(producer.push(3), Err(PushError::Full(3)));
    assert_eq!(consumer.pop_slice(&mut [0; 2]), Ok(0));
    assert_eq!(producer.push(3), Ok(()));
}
