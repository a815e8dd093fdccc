use crate::loom_machine;
use crate::models::paired::{Before, Op, follows_the_model};
use crate::ring_memory;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom_machine::{Loom, LoomWord, READER_RELEASES_RELAXED, STRONG, Side, WRITER_LOOKS_RELAXED, check, take_side};
use proptest::prelude::*;
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::paired::{Consumer, Pair, Producer, pairs_of};
use ringmem_layouts::ring::{PopError, PushError, RingFlags};
use ringmem_layouts::{Host, HostWord, Machine, RingHeader, RingLayout, RingMessage, Word};

const START: u64 = u64::MAX - 5;

fn ends<T: RingMessage>(memory: &Memory) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
    // SAFETY: as long as its layout; its only ends.
    let producer = unsafe { Producer::from_raw(memory.base, memory.len()) };
    // SAFETY: as long as its layout; its only ends.
    (producer.expect("a producer"), unsafe { Consumer::from_raw(memory.base, memory.len()) }.expect("a consumer"))
}

fn words<T>(memory: &Memory) -> &[HostWord] {
    let (first, count) = (memory.layout.slots_offset(), memory.layout.capacity() * pairs_of::<T>() * 2);
    // SAFETY: the slots are words, and live as long as the memory.
    unsafe { NonNull::slice_from_raw_parts(memory.base.add(first as usize).cast(), count as usize).as_ref() }
}

fn message<const N: usize>(number: u64) -> [u8; N] {
    std::array::from_fn(|place| (number as usize * 7 + place * 3 + 1) as u8)
}

fn in_order<const N: usize>()
where
    [u8; N]: RingMessage,
{
    for (capacity, start) in [(1, 0), (2, START), (8, 3), (8, u64::MAX), (4, (u64::MAX >> 31) << 2)] {
        let memory = Memory::formatted::<[u8; N]>(RingFlags::PAIRED, capacity, start);
        assert_eq!(memory.layout.slot_size(), N.next_multiple_of(8) as u64 * 2, "{N} bytes");
        let (mut producer, mut consumer) = ends::<[u8; N]>(&memory);
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..40 {
            for _ in 0..=round % (capacity + 1) {
                match producer.push(message(pushed)) {
                    Ok(()) => pushed += 1,
                    Err(error) => assert_eq!((error, pushed - popped), (PushError::Full(message(pushed)), capacity)),
                }
            }
            for _ in 0..round % 3 {
                match consumer.pop() {
                    Ok(value) => {
                        assert_eq!(value, message(popped), "{N} bytes, {popped} of a ring of {capacity}");
                        popped += 1;
                    }
                    Err(error) => assert_eq!((error, popped), (PopError::Empty, pushed)),
                }
            }
        }
        assert!(popped > 20 && consumer.next_index() == start.wrapping_add(popped), "{popped}");
    }
}

#[test]
fn messages_of_any_size_arrive_in_order_and_fill_the_ring() {
    in_order::<1>();
    in_order::<3>();
    in_order::<4>();
    in_order::<8>();
    in_order::<13>();
    in_order::<64>();
}

#[test]
fn an_incomplete_message_is_not_popped() {
    let memory = Memory::formatted::<[u8; 24]>(RingFlags::PAIRED, 2, START);
    let (mut producer, mut consumer) = ends::<[u8; 24]>(&memory);
    for number in 0..12 {
        producer.push(message(number)).expect("room");
        let slot = (START.wrapping_add(number) % 2) as usize * 6;
        let missing = &words::<[u8; 24]>(&memory)[slot + number as usize % 6];
        let value = Word::load(missing);
        for before in [0, value ^ 1 << 33] {
            Word::store(missing, before);
            assert_eq!(consumer.pop(), Err(PopError::Empty), "word {} of message {number}", number % 6);
        }
        Word::store(missing, value);
        assert_eq!(consumer.pop(), Ok(message(number)));
    }
}

#[test]
fn a_new_producer_continues_after_the_queued_messages() {
    let memory = Memory::formatted::<u64>(RingFlags::PAIRED, 4, START);
    let (mut producer, mut consumer) = ends::<u64>(&memory);
    (1..=3).for_each(|number| producer.push(number).expect("room"));
    assert_eq!(consumer.pop(), Ok(1));
    drop((producer, consumer));
    let (mut producer, mut consumer) = ends::<u64>(&memory);
    assert_eq!((producer.next_index(), consumer.next_index()), (START.wrapping_add(3), START.wrapping_add(1)));
    (4..=5).for_each(|number| producer.push(number).expect("room"));
    assert_eq!(producer.push(6), Err(PushError::Full(6)));
    for number in 2..=5 {
        assert_eq!(consumer.pop(), Ok(number));
    }
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn words_of_an_earlier_ring_are_not_messages() {
    let memory = Memory::formatted::<[u64; 2]>(RingFlags::PAIRED, 4, 0);
    let (mut producer, mut consumer) = ends::<[u64; 2]>(&memory);
    (0..4).for_each(|number| producer.push([number; 2]).expect("room"));
    (0..2).for_each(|number| assert_eq!(consumer.pop(), Ok([number; 2])));
    drop((producer, consumer));
    // SAFETY: no end is attached.
    unsafe { memory.header().format::<[u64; 2]>(&memory.layout, 0) };
    for slot in [0, 2] {
        Word::store(&words::<[u64; 2]>(&memory)[slot * 4], 0);
    }
    let (producer, mut consumer) = ends::<[u64; 2]>(&memory);
    assert_eq!((producer.next_index(), producer.free(), consumer.pop()), (0, 4, Err(PopError::Empty)));
    assert!(words::<[u64; 2]>(&memory).iter().all(|word| Word::load(word) == 0), "also of slots without their first word");
}

/// A producer dies within a push behind `queued` messages: it has stored the words that `is_stored` selects.
fn dies_within_a_push(start: u64, queued: u64, is_stored: impl Fn(usize) -> bool) {
    type Twelve = [u8; 12];
    let memory = Memory::formatted::<Twelve>(RingFlags::PAIRED, 4, start);
    let (mut producer, mut consumer) = ends::<Twelve>(&memory);
    for number in 0..6 {
        producer.push(message(number)).expect("room");
        assert_eq!(consumer.pop(), Ok(message(number)));
    }
    (0..queued).for_each(|number| producer.push(message(10 + number)).expect("room"));
    let slot = memory.slot(producer.next_index());
    let before: Vec<u64> = slot.iter().map(Word::load).collect();
    producer.push(message(50)).expect("room");
    for (number, word) in slot.iter().enumerate().filter(|(number, _)| !is_stored(*number)) {
        Word::store(word, before[number]);
    }
    drop((producer, consumer));

    let (mut producer, mut consumer) = ends::<Twelve>(&memory);
    assert_eq!((producer.next_index(), producer.unread()), (start.wrapping_add(6 + queued), queued as usize));
    for number in queued..4 {
        producer.push(message(10 + number)).expect("room");
    }
    assert_eq!(producer.push(message(14)), Err(PushError::Full(message(14))));
    for number in 0..4 {
        assert_eq!(consumer.pop(), Ok(message(10 + number)), "behind {queued} messages from {start}");
    }
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn a_new_producer_takes_the_slot_of_a_push_that_ended_early() {
    // The last of four words is padding.
    for (start, queued) in [(0, 0), (START, 1), (u64::MAX - 3, 3)] {
        for stored in 0..4 {
            dies_within_a_push(start, queued, |number| number >= 4 - stored);
            // The lanes of a warp store in any order.
            dies_within_a_push(start, queued, |number| number < stored);
            dies_within_a_push(start, queued, |number| number != stored);
        }
    }
}

thread_local! {
    /// Stores that are left to the thread's life.
    static LIFE: Cell<u32> = const { Cell::new(u32::MAX) };
}

struct MortalWord(AtomicU64);

// SAFETY: single atomic operations.
unsafe impl Word for MortalWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load(Relaxed)
    }
    fn load_acquire(&self) -> u64 {
        self.0.load(Acquire)
    }
    fn store(&self, value: u64) {
        self.store_release(value);
    }
    fn store_release(&self, value: u64) {
        LIFE.set(LIFE.get().checked_sub(1).unwrap_or_else(|| resume_unwind(Box::new("dead"))));
        self.0.store(value, Release);
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        words.into_iter().for_each(|(word, value)| word.store_release(value));
    }
}

struct Mortal;

impl Machine for Mortal {
    type Word = MortalWord;
    type Cell<T> = <Host as Machine>::Cell<T>;
    type Corrupt = Corrupt;

    fn at(&self, _: u64, _: u64, _: u64) -> Option<NonNull<u8>> {
        None
    }
}

#[test]
fn a_push_that_ends_early_shows_a_consumer_nothing() {
    type Twelve = [u8; 12];
    for stores in 0..4 {
        let layout = RingLayout::of_kind::<Twelve>(RingFlags::PAIRED, 2).unwrap();
        let header = RingHeader::<MortalWord>::new::<Twelve>(&layout, START);
        let pairs: [Pair<MortalWord>; 4] = std::array::from_fn(|_| Pair([Word::new(0), Word::new(0)]));
        let slots = NonNull::from(&pairs).cast();
        // SAFETY: two slots of two pairs; one producer at a time.
        let producer = || unsafe { Producer::<Twelve, Mortal>::new(&header, &header, slots) }.unwrap();
        // SAFETY: two slots of two pairs; the only consumer.
        let mut consumer = unsafe { Consumer::<Twelve, Mortal>::new(&header, &header, slots) }.unwrap();
        let mut first = producer();
        LIFE.set(stores);
        let died = catch_unwind(AssertUnwindSafe(|| first.push(message(1)))).is_err();
        LIFE.set(u32::MAX);
        assert!(died, "a push is four stores");
        assert_eq!(consumer.pop(), Err(PopError::Empty), "after {stores} stores");
        let mut second = producer();
        assert_eq!(consumer.pop(), Err(PopError::Empty), "after {stores} stores");
        second.push(message(2)).expect("room");
        assert_eq!((consumer.pop(), consumer.pop()), (Ok(message(2)), Err(PopError::Empty)), "after {stores} stores");
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Push),
        4 => Just(Op::Pop),
        1 => Just(Op::Refresh),
        1 => Just(Op::AttachProducer),
        1 => Just(Op::AttachConsumer),
        1 => any::<u64>().prop_map(Op::DieWithinPush),
    ]
}

fn before() -> impl Strategy<Value = Before> {
    (any::<u8>(), 0..20_u64, any::<usize>()).prop_map(|(byte, messages, zero)| Before { byte, messages, zero })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn paired_rings_follow_the_model(
        doublings in 0..4_u32,
        start in prop_oneof![0..3_u64, (0..40_u64).prop_map(|back| u64::MAX - back), any::<u64>()],
        before in before(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        follows_the_model::<u8>(1 << doublings, start, before, &ops);
        follows_the_model::<u64>(1 << doublings, start, before, &ops);
        follows_the_model::<[u8; 5]>(1 << doublings, start, before, &ops);
        follows_the_model::<[u64; 19]>(1 << doublings, start, before, &ops);
    }
}

#[test]
fn an_impossible_index_of_the_consumer_is_corrupt() {
    let memory = Memory::formatted::<u32>(RingFlags::PAIRED, 2, START);
    let (mut producer, _) = ends::<u32>(&memory);
    (0..2).for_each(|number| producer.push(number).expect("room"));
    let head = START.wrapping_sub(1);
    Word::store(&memory.header().consumer.head, head);
    let corrupt = Corrupt { head, tail: START.wrapping_add(2), capacity: 2 };
    assert_eq!((producer.refresh(), producer.push(2)), (Err(corrupt), Err(PushError::Corrupt(2, corrupt))));
}

#[test]
fn other_kinds_and_short_memory_are_errors() {
    let memory = Memory::formatted::<u64>(RingFlags::FLAGGED, 2, 0);
    // SAFETY: live memory, refused.
    let error = unsafe { Consumer::<u64, Host>::from_raw(memory.base, memory.len()) }.err();
    assert_eq!(error, Some(AttachError::Kind { expected: RingFlags::PAIRED.bits(), got: RingFlags::FLAGGED.bits() }));
    let memory = Memory::formatted::<u64>(RingFlags::PAIRED, 2, 0);
    // SAFETY: live memory; the ring refuses a length that is too short.
    let error = unsafe { Producer::<u64, Host>::from_raw(memory.base, memory.len() - 1) }.err();
    assert_eq!(error, Some(AttachError::TooSmall { needed: memory.len(), got: memory.len() - 1 }));
}

fn in_any_order<const WEAK: u8>(capacity: u64) {
    check(3, move || {
        let layout = RingLayout::of_kind::<u64>(RingFlags::PAIRED, capacity).unwrap();
        let pairs = (0..capacity).map(|_| Pair([Word::new(0), Word::new(0)])).collect();
        let memory: &'static (RingHeader<LoomWord<WEAK>>, Vec<Pair<LoomWord<WEAK>>>) =
            Box::leak(Box::new((RingHeader::new::<u64>(&layout, u64::MAX), pairs)));
        let slots = NonNull::from(memory.1.as_slice()).cast();
        // SAFETY: the layout's pairs; the only ends.
        let mut producer = unsafe { Producer::<u64, Loom<WEAK>>::new(&memory.0, &memory.0, slots) }.unwrap();
        // SAFETY: the layout's pairs; the only ends.
        let mut consumer = unsafe { Consumer::<u64, Loom<WEAK>>::new(&memory.0, &memory.0, slots) }.unwrap();
        let filler = loom::thread::spawn(move || {
            take_side(Side::Writer);
            for number in 1..=3_u64 {
                while producer.push(number << 32 | number).is_err() {
                    loom::thread::yield_now();
                }
            }
        });
        take_side(Side::Reader);
        for number in 1..=3_u64 {
            let popped = loop {
                match consumer.pop() {
                    Ok(popped) => break popped,
                    Err(_) => loom::thread::yield_now(),
                }
            };
            assert_eq!(popped, number << 32 | number, "torn or stale");
        }
        filler.join().unwrap();
        // SAFETY: leaked above; both ends are gone.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(memory).cast_mut()) });
    });
}

#[test]
fn no_order_of_accesses_tears_a_message() {
    in_any_order::<STRONG>(1);
    in_any_order::<STRONG>(2);
}

#[test]
fn relaxed_indices_tear_no_message() {
    in_any_order::<READER_RELEASES_RELAXED>(1);
    in_any_order::<WRITER_LOOKS_RELAXED>(1);
}
