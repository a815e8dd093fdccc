//! A framed ring whose peer writes anything: no panic, no endless loop, no access outside.

use crate::ring_memory;

use std::ptr::NonNull;

use proptest::prelude::*;
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::framed::{self, Consumer, PopError, Producer, PushError, Ring};
use ringmem_layouts::ring::{LayoutError, RingFlags};
use ringmem_layouts::{Host, Word};

const SKIP: u64 = u64::MAX;

fn formatted(words: u64, start: u64) -> Memory {
    Memory::formatted::<u64>(RingFlags::FRAMED, words, start)
}

fn producer(memory: &Memory) -> Result<Producer<'_, Host>, AttachError> {
    memory.attach(Producer::from_raw)
}

fn consumer(memory: &Memory) -> Result<Consumer<'_, Host>, AttachError> {
    memory.attach(Consumer::from_raw)
}

fn ends(memory: &Memory) -> (Producer<'_, Host>, Consumer<'_, Host>) {
    (producer(memory).unwrap(), consumer(memory).unwrap())
}

fn write(memory: &Memory, index: u64, value: u64) {
    Word::store(&memory.slot(index)[0], value);
}

fn holds(memory: &Memory, bytes: &[u8]) -> bool {
    let slots = memory.base.as_ptr() as usize + memory.layout.slots_offset() as usize;
    let end = memory.base.as_ptr() as usize + memory.len() as usize;
    let at = bytes.as_ptr() as usize;
    at.is_multiple_of(8) && slots <= at && at + bytes.len() <= end
}

#[test]
fn a_ring_without_frame_space_is_an_error() {
    let objections = |words| [producer(&formatted(words, 0)).err(), consumer(&formatted(words, 0)).err()];
    assert_eq!(objections(1), [Some(AttachError::TooSmall { needed: 16, got: 8 }); 2]);
    assert_eq!(objections(2), [None; 2]);
    for bytes in [0, 1, 2, 4, 8] {
        assert_eq!(framed::layout(bytes), Err(LayoutError::NotAPowerOfTwo { capacity: 0 }));
    }
    for bytes in [3, 24, 1000, u64::MAX] {
        assert_eq!(framed::layout(bytes), Err(LayoutError::NotAPowerOfTwo { capacity: bytes }));
    }
    assert!(matches!(framed::layout(1 << 63), Err(LayoutError::TooLarge { .. })));
    assert_eq!(framed::layout(16).map(|layout| (layout.capacity(), layout.size())), Ok((2, 400)));
}

#[test]
fn a_raw_consumer_attaches_to_an_inline_ring() {
    let mut ring = Ring::<64>::starting_at(u64::MAX);
    ring.split().0.push(b"from within").unwrap();
    let len = size_of_val(&ring) as u64;
    // SAFETY: the ring's initialised bytes, without ends.
    let mut consumer = unsafe { Consumer::<Host>::from_raw(NonNull::from(&mut ring).cast(), 384 + 64) }.unwrap();
    assert_eq!(&*consumer.peek().unwrap(), b"from within");
    assert!(len >= 384 + 64);
}

fn found(head: u64, words: &[(u64, u64)], published: u64) -> Result<usize, PopError<Corrupt>> {
    let memory = formatted(8, head);
    for (index, value) in words {
        write(&memory, *index, *value);
    }
    Word::store(&memory.header().producer.tail, head.wrapping_add(published));
    let copied = consumer(&memory).unwrap().pop(&mut [0; 24]);
    let mut consumer = consumer(&memory).unwrap();
    if copied.is_err() {
        assert_eq!(consumer.peek().map(|frame| frame.len()), copied);
        assert_eq!(consumer.peek_many().map(|_| 0), copied);
        assert_eq!(consumer.batch(2).pop(&mut [0; 24]), copied);
        assert_eq!(consumer.head(), head, "nothing is taken");
    }
    copied
}

const fn bad(head: u64, published: u64, index: u64, word: u64) -> PopError<Corrupt> {
    PopError::BadFrame { index, word, indices: Corrupt { head, tail: head.wrapping_add(published), capacity: 8 } }
}

#[test]
fn lengths_beyond_the_tail_are_bad_frames() {
    assert_eq!(found(0, &[(0, 8)], 2), Ok(8));
    assert_eq!(found(0, &[(0, 8)], 1), Err(bad(0, 1, 0, 8)));
    assert_eq!(found(0, &[(0, 9)], 2), Err(bad(0, 2, 0, 9)));
    assert_eq!(found(0, &[(0, 0)], 1), Ok(0));
}

#[test]
fn lengths_beyond_the_largest_are_bad_frames() {
    assert_eq!(found(0, &[(0, 24)], 8), Ok(24));
    for word in [25, 32, 1 << 32, 1 << 61, u64::MAX / 2, u64::MAX - 8, u64::MAX - 7, u64::MAX - 1] {
        assert_eq!(found(0, &[(0, word)], 8), Err(bad(0, 8, 0, word)));
    }
}

#[test]
fn frames_across_the_wrap_are_bad_frames() {
    assert_eq!(found(6, &[(6, 8)], 8), Ok(8));
    assert_eq!(found(6, &[(6, 9)], 8), Err(bad(6, 8, 6, 9)));
    assert_eq!(found(u64::MAX, &[(7, 1)], 8), Err(bad(u64::MAX, 8, u64::MAX, 1)));
    assert_eq!(found(u64::MAX, &[(7, 0)], 8), Ok(0));
}

#[test]
fn a_misplaced_skip_marker_is_a_bad_frame() {
    assert_eq!(found(5, &[(5, SKIP), (0, 3)], 8), Ok(3));
    assert_eq!(found(4, &[(4, SKIP), (0, 3)], 8), Err(bad(4, 8, 4, SKIP)));
    assert_eq!(found(0, &[(0, SKIP)], 8), Err(bad(0, 8, 0, SKIP)));
    assert_eq!(found(5, &[(5, SKIP), (0, 3)], 3), Err(bad(5, 3, 5, SKIP)));
    assert_eq!(found(5, &[(5, SKIP), (0, 3)], 1), Err(bad(5, 1, 5, SKIP)));
    assert_eq!(found(5, &[(5, SKIP), (0, SKIP)], 8), Err(bad(5, 8, 8, SKIP)));
    assert_eq!(found(5, &[(5, SKIP), (0, 9)], 5), Err(bad(5, 5, 8, 9)));
}

#[test]
fn frames_before_a_bad_frame_are_released() {
    let memory = formatted(8, u64::MAX);
    let (mut producer, mut consumer) = ends(&memory);
    assert_eq!(producer.push_many([b"one".as_slice(), b"two", b"three"]), (3, Ok(())));
    write(&memory, 2, 77);
    let chunk = consumer.peek_many().unwrap();
    assert_eq!(chunk.next().unwrap().bytes(), b"one");
    assert_eq!([chunk.next().err(), chunk.next().err()], [Some(bad(2, 4, 2, 77)); 2]);
    assert_eq!(chunk.release(), 1);
    assert_eq!(consumer.peek().err(), Some(bad(2, 4, 2, 77)));
}

#[test]
fn decreased_indices_yield_no_wrong_frame() {
    let memory = formatted(8, 0);
    let (mut producer, mut consumer) = ends(&memory);
    producer.push(b"twelve bytes").unwrap();
    Word::store(&memory.header().producer.tail, 2);
    assert_eq!(consumer.peek().err(), Some(bad(0, 2, 0, 12)), "believed, and then the frame is not");
    Word::store(&memory.header().producer.tail, 9);
    assert_eq!(consumer.refresh(), Err(Corrupt { head: 0, tail: 9, capacity: 8 }));
    Word::store(&memory.header().producer.tail, 3);
    assert_eq!(consumer.refresh(), Ok(24));
    assert_eq!(&*consumer.peek().unwrap(), b"twelve bytes");
    Word::store(&memory.header().consumer.head, 4);
    assert_eq!(producer.refresh(), Err(Corrupt { head: 4, tail: 3, capacity: 8 }));
    assert_eq!(producer.free(), 40, "this end goes on with what it knew");
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Tail(u64),
    Head(u64),
    Slot(u64, u64),
    Push(usize),
    Reserve(usize, usize),
    BatchPush(usize),
    Pop(usize),
    Peek,
    PeekMany,
    BatchPop(usize),
    AttachAgain,
}

fn op() -> impl Strategy<Value = Op> {
    let step = || prop_oneof![4 => 0..12_u64, 2 => (0..12_u64).prop_map(|back| u64::MAX - back), 1 => any::<u64>()];
    let word = prop_oneof![4 => 0..40_u64, 3 => Just(SKIP), 1 => (0..20_u64).prop_map(|back| u64::MAX - back), 1 => any::<u64>()];
    let len = || prop_oneof![8 => 0..40_usize, 1 => (0..20_usize).prop_map(|back| usize::MAX - back)];
    prop_oneof![
        3 => step().prop_map(Op::Tail),
        2 => step().prop_map(Op::Head),
        4 => (0..8_u64, word).prop_map(|(place, word)| Op::Slot(place, word)),
        2 => (0..40_usize).prop_map(Op::Push),
        2 => (len(), len()).prop_map(|(len, used)| Op::Reserve(len, used)),
        1 => (0..40_usize).prop_map(Op::BatchPush),
        3 => (0..40_usize).prop_map(Op::Pop),
        3 => Just(Op::Peek),
        3 => Just(Op::PeekMany),
        1 => (0..40_usize).prop_map(Op::BatchPop),
        1 => Just(Op::AttachAgain),
    ]
}

fn survives(words: u64, start: u64, ops: &[Op]) {
    let memory = formatted(words, start);
    let (mut producer, mut consumer) = ends(&memory);
    let largest = (words as usize / 2 - 1) * 8;
    let corrupt = |corrupt: Corrupt| assert!(corrupt.capacity == words && corrupt.tail.wrapping_sub(corrupt.head) > words);
    let pushed = |len: usize, outcome: Result<(), PushError<Corrupt>>| match outcome {
        Ok(()) => assert!(len <= largest),
        Err(PushError::Full) => assert!(len <= largest),
        Err(PushError::TooLarge { largest: said, asked }) => assert!(said == largest && asked == len && len > largest),
        Err(PushError::Corrupt(refused)) => corrupt(refused),
    };
    let popped = |room: usize, outcome: Result<usize, PopError<Corrupt>>| match outcome {
        Ok(len) => assert!(len <= room && len <= largest),
        Err(PopError::Empty) => {}
        Err(PopError::TooSmall { needed }) => assert!(needed > room && needed <= largest),
        Err(PopError::Corrupt(refused)) => corrupt(refused),
        Err(PopError::BadFrame { .. }) => {}
    };
    for op in ops {
        let (head, tail) = (consumer.head(), producer.tail());
        match *op {
            Op::Tail(step) => Word::store(&memory.header().producer.tail, head.wrapping_add(step)),
            Op::Head(step) => Word::store(&memory.header().consumer.head, tail.wrapping_sub(step)),
            Op::Slot(place, word) => write(&memory, place, word),
            Op::Push(len) => pushed(len, producer.push(&vec![0x11; len])),
            Op::Reserve(len, used) => {
                let outcome = producer.reserve(len).map(|mut grant| {
                    assert!(holds(&memory, &grant) && grant.len() == len);
                    grant.fill(0x22);
                    grant.commit(used);
                });
                pushed(len, outcome);
            }
            Op::BatchPush(len) => pushed(len, producer.batch(2).push(&vec![0x33; len])),
            Op::Pop(room) => popped(room, consumer.pop(&mut vec![0; room])),
            Op::BatchPop(room) => popped(room, consumer.batch(2).pop(&mut vec![0; room])),
            Op::Peek => {
                let outcome = consumer.peek().map(|frame| {
                    assert!(holds(&memory, &frame));
                    let len = frame.len();
                    frame.release();
                    len
                });
                popped(largest, outcome);
            }
            Op::PeekMany => match consumer.peek_many() {
                Ok(chunk) => {
                    let mut seen = 0;
                    let end = loop {
                        match chunk.next() {
                            Ok(message) => assert!(holds(&memory, &message)),
                            Err(end) => break end,
                        }
                        seen += 1;
                        assert!(seen <= words, "more frames than words");
                    };
                    popped(largest, Err(end));
                    assert_eq!(chunk.release() as u64, seen);
                }
                Err(refused) => popped(largest, Err(refused)),
            },
            Op::AttachAgain => match (self::producer(&memory), self::consumer(&memory)) {
                (Ok(again), Ok(too)) => (producer, consumer) = (again, too),
                (Err(refused), _) | (_, Err(refused)) => {
                    return assert!(matches!(refused, AttachError::Corrupt(_)), "only indices have changed");
                }
            },
        }
        let [taken, filled] = [consumer.head().wrapping_sub(head), producer.tail().wrapping_sub(tail)];
        assert!(matches!(op, Op::AttachAgain) || taken <= words && filled <= words);
        assert!(producer.free() <= words as usize * 8 && consumer.available() <= words as usize * 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_header_and_slot_words_are_handled(
        start in prop_oneof![0..3_u64, (0..20_u64).prop_map(|back| u64::MAX - back), any::<u64>()],
        ops in prop::collection::vec(op(), 0..60),
    ) {
        survives(2, start, &ops);
        survives(4, start, &ops);
        survives(8, start, &ops);
    }
}
