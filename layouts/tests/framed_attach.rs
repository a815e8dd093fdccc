//! Memory that is not what it was said to be, and a peer that writes anything into its index, the lengths and the markers.
//!
//! 1. Each fact that attaching can object to is objected to, by its own name.
//! 2. Whatever stands in the header and in the slots: no panic, no byte outside the ring, no frame across the wrap, no endless loop. What cannot
//!    be is `Corrupt` or `BadFrame`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use proptest::prelude::*;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::framed::{self, Consumer, PopError, Producer, PushError, Ring};
use ringmem_layouts::ring::{LayoutError, MAGIC, RingFlags};
use ringmem_layouts::{Host, HostWord, Machine, RingHeader, RingLayout, SlotCell, Word};

const SKIP: u64 = u64::MAX;

/// Zeroed memory for a framed ring and no byte more, reached as both sides reach it: through pointers.
struct Memory {
    base: NonNull<u8>,
    layout: RingLayout,
}

impl Memory {
    fn zeroed(words: u64) -> Self {
        let layout = RingLayout::of_kind::<u64>(RingFlags::FRAMED, words).unwrap();
        // SAFETY: the size is not 0: there is a header.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::allocation(&layout)) }).expect("some memory");
        Self { base, layout }
    }
    fn formatted(words: u64, start: u64) -> Self {
        let memory = Self::zeroed(words);
        // SAFETY: nothing is attached yet.
        unsafe { memory.header().format::<u64>(&memory.layout, start) };
        memory
    }
    fn allocation(layout: &RingLayout) -> Layout {
        Layout::from_size_align(layout.size() as usize, layout.align() as usize).unwrap()
    }
    fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: aligned and long enough by its layout, zeroed, and words are shared by their own accesses.
        unsafe { self.base.cast().as_ref() }
    }
    /// Writes a word of the slots, as a peer could.
    fn write(&self, index: u64, value: u64) {
        let place = (index % self.layout.capacity()) as usize;
        // SAFETY: within the slots; one thread, and no reference to them lives.
        unsafe { self.base.add(self.layout.slots_offset() as usize).cast::<u64>().add(place).write(value) };
    }
    fn producer(&self) -> Result<Producer<'_, Host>, AttachError> {
        // SAFETY: so many bytes live there, zeroed; the test is one thread, whose peers write between operations.
        unsafe { Producer::from_raw(self.base, self.layout.size()) }
    }
    fn consumer(&self) -> Result<Consumer<'_, Host>, AttachError> {
        // SAFETY: as above.
        unsafe { Consumer::from_raw(self.base, self.layout.size()) }
    }
    /// What stops both ends, which object alike.
    fn objection(&self) -> Option<AttachError> {
        let [producer, consumer] = [self.producer().err(), self.consumer().err()];
        assert_eq!(producer, consumer);
        producer
    }
    /// Whether a message lies in the slots, in one piece, on a multiple of 8.
    fn holds(&self, bytes: &[u8]) -> bool {
        let slots = self.base.as_ptr() as usize + self.layout.slots_offset() as usize;
        let end = self.base.as_ptr() as usize + self.layout.size() as usize;
        let at = bytes.as_ptr() as usize;
        at.is_multiple_of(8) && slots <= at && at + bytes.len() <= end
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), Self::allocation(&self.layout)) }
    }
}

/// Writes a constant and gives the objection to it.
fn objection_to(word: impl Fn(&RingHeader<HostWord>) -> &HostWord, value: u64) -> Option<AttachError> {
    let memory = Memory::formatted(8, 0);
    assert_eq!(memory.objection(), None);
    Word::store(word(memory.header()), value);
    memory.objection()
}

#[test]
fn memory_that_nobody_formatted_has_no_magic() {
    assert_eq!(Memory::zeroed(8).objection(), Some(AttachError::Magic { expected: MAGIC, got: 0 }));
}

#[test]
fn a_ring_without_room_for_a_frame_is_too_small() {
    assert_eq!(Memory::formatted(1, 0).objection(), Some(AttachError::TooSmall { needed: 16, got: 8 }));
    assert_eq!(Memory::formatted(2, 0).objection(), None);
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
fn another_kind_of_ring_is_refused() {
    let expected = RingFlags::FRAMED.bits();
    for got in [0, RingFlags::SPSC.bits(), expected | 1, u64::MAX] {
        assert_eq!(objection_to(|header| &header.constants.flags, got), Some(AttachError::Kind { expected, got }));
    }
    let memory = Memory::zeroed(8);
    // SAFETY: nothing is attached.
    unsafe { memory.header().format::<u64>(&RingLayout::of::<u64>(8).unwrap(), 0) };
    assert_eq!(memory.objection(), Some(AttachError::Kind { expected, got: RingFlags::SPSC.bits() }));
    // SAFETY: nothing is attached.
    unsafe { memory.header().format::<u8>(&RingLayout::of_kind::<u8>(RingFlags::FRAMED, 64).unwrap(), 0) };
    assert!(matches!(memory.objection(), Some(AttachError::Abi { .. })), "an index counts words, not bytes");
}

#[test]
fn a_capacity_that_is_no_power_of_two_or_beyond_the_memory_is_refused() {
    for got in [0, 3, 5, 1 << 61, 1 << 63, u64::MAX] {
        assert_eq!(objection_to(|header| &header.constants.capacity, got), Some(AttachError::Capacity { got }));
    }
    for capacity in [16, 1 << 20, 1 << 59] {
        assert_eq!(
            objection_to(|header| &header.constants.capacity, capacity),
            Some(AttachError::TooSmall { needed: 384 + 8 * capacity, got: 384 + 64 })
        );
    }
}

#[test]
fn slots_of_another_size_or_at_another_offset_are_refused() {
    assert_eq!(objection_to(|header| &header.constants.slot_size, 1), Some(AttachError::SlotSize { expected: 8, got: 1 }));
    for got in [0, 388, u64::MAX - 7] {
        assert_eq!(objection_to(|header| &header.constants.slots_offset, got), Some(AttachError::Offset { got }));
    }
}

#[test]
fn a_misaligned_address_is_refused() {
    let memory = Memory::formatted(8, 0);
    for offset in [1, 8, 64] {
        // SAFETY: within the allocation.
        let base = unsafe { memory.base.add(offset) };
        let expected = Some(AttachError::Misaligned { address: base.as_ptr() as u64, align: 128 });
        // SAFETY: so many bytes live there.
        assert_eq!(unsafe { Producer::<Host>::from_raw(base, 384 - 64) }.err(), expected);
        // SAFETY: as above.
        assert_eq!(unsafe { Consumer::<Host>::from_raw(base, 384 - 64) }.err(), expected);
    }
}

#[test]
fn two_headers_that_disagree_are_refused() {
    type Cell = <Host as Machine>::Cell<u64>;
    let cells: Vec<Cell> = (0..8).map(|_| Cell::new(0)).collect();
    let slots = NonNull::from(cells.as_slice()).cast();
    let header = |bytes| RingHeader::<HostWord>::new::<u64>(&framed::layout(bytes).unwrap(), 0);
    let [half, whole, another] = [32, 64, 64].map(header);
    let attach = |own: &RingHeader<HostWord>, peer: &RingHeader<HostWord>| {
        // SAFETY: eight cells, as many as any of the headers says; the endpoints are dropped at once.
        let producer = unsafe { Producer::<Host>::new(own, peer, slots) }.err();
        // SAFETY: as above.
        let consumer = unsafe { Consumer::<Host>::new(own, peer, slots) }.err();
        assert_eq!(producer, consumer);
        producer
    };
    assert_eq!(attach(&whole, &another), None);
    assert_eq!(attach(&whole, &half), Some(AttachError::Capacity { got: 4 }));
    assert_eq!(attach(&half, &whole), Some(AttachError::Capacity { got: 8 }));
}

#[test]
fn a_ring_in_one_value_is_what_others_attach_to() {
    let mut ring = Ring::<64>::starting_at(u64::MAX);
    ring.split().0.push(b"from within").unwrap();
    let len = size_of_val(&ring) as u64;
    // SAFETY: the ring's own bytes, initialised, and its own ends are gone.
    let mut consumer = unsafe { Consumer::<Host>::from_raw(NonNull::from(&mut ring).cast(), 384 + 64) }.unwrap();
    assert_eq!(&*consumer.peek().unwrap(), b"from within");
    assert!(len >= 384 + 64);
}

/// A consumer over eight words that says what it finds at a head where these words stand, so many of them published.
fn found(head: u64, words: &[(u64, u64)], published: u64) -> Result<usize, PopError> {
    let memory = Memory::formatted(8, head);
    for (index, value) in words {
        memory.write(*index, *value);
    }
    Word::store(&memory.header().producer.tail, head.wrapping_add(published));
    let mut consumer = memory.consumer().unwrap();
    let copied = consumer.pop(&mut [0; 24]);
    let mut consumer = memory.consumer().unwrap();
    // A consumer that pops has moved on, so only refusals can be compared.
    if copied.is_err() {
        assert_eq!(consumer.peek().map(|frame| frame.len()), copied);
        assert_eq!(consumer.peek_many().map(|_| 0), copied);
        assert_eq!(consumer.batch(2).pop(&mut [0; 24]), copied);
        assert_eq!(consumer.head(), head, "nothing is taken");
    }
    copied
}

#[test]
fn a_length_beyond_what_was_published_is_no_frame() {
    assert_eq!(found(0, &[(0, 8)], 2), Ok(8));
    assert_eq!(found(0, &[(0, 8)], 1), Err(PopError::BadFrame { index: 0, word: 8 }));
    assert_eq!(found(0, &[(0, 9)], 2), Err(PopError::BadFrame { index: 0, word: 9 }));
    assert_eq!(found(0, &[(0, 0)], 1), Ok(0));
}

#[test]
fn a_length_beyond_the_largest_is_no_frame_also_near_the_end_of_numbers() {
    assert_eq!(found(0, &[(0, 24)], 8), Ok(24));
    for word in [25, 32, 1 << 32, 1 << 61, u64::MAX / 2, u64::MAX - 8, u64::MAX - 7, u64::MAX - 1] {
        assert_eq!(found(0, &[(0, word)], 8), Err(PopError::BadFrame { index: 0, word }));
    }
}

#[test]
fn a_frame_across_the_wrap_is_no_frame() {
    assert_eq!(found(6, &[(6, 8)], 8), Ok(8));
    assert_eq!(found(6, &[(6, 9)], 8), Err(PopError::BadFrame { index: 6, word: 9 }));
    assert_eq!(found(u64::MAX, &[(7, 1)], 8), Err(PopError::BadFrame { index: u64::MAX, word: 1 }));
    assert_eq!(found(u64::MAX, &[(7, 0)], 8), Ok(0));
}

#[test]
fn a_marker_where_there_can_be_none_is_no_frame() {
    // Less than half is skipped: from the sixth word, not from the fifth, and not from the first.
    assert_eq!(found(5, &[(5, SKIP), (0, 3)], 8), Ok(3));
    assert_eq!(found(4, &[(4, SKIP), (0, 3)], 8), Err(PopError::BadFrame { index: 4, word: SKIP }));
    assert_eq!(found(0, &[(0, SKIP)], 8), Err(PopError::BadFrame { index: 0, word: SKIP }));
    // A marker does not stand alone, and neither does it cut short what it skips.
    assert_eq!(found(5, &[(5, SKIP), (0, 3)], 3), Err(PopError::BadFrame { index: 5, word: SKIP }));
    assert_eq!(found(5, &[(5, SKIP), (0, 3)], 1), Err(PopError::BadFrame { index: 5, word: SKIP }));
    // What follows it is a frame, and all of it is there.
    assert_eq!(found(5, &[(5, SKIP), (0, SKIP)], 8), Err(PopError::BadFrame { index: 8, word: SKIP }));
    assert_eq!(found(5, &[(5, SKIP), (0, 9)], 5), Err(PopError::BadFrame { index: 8, word: 9 }));
}

#[test]
fn what_stands_before_a_bad_frame_can_be_seen_and_released() {
    let memory = Memory::formatted(8, u64::MAX);
    let (mut producer, mut consumer) = (memory.producer().unwrap(), memory.consumer().unwrap());
    assert_eq!(producer.push_many([b"one".as_slice(), b"two", b"three"]), (3, Ok(())));
    memory.write(2, 77);
    let bad = PopError::BadFrame { index: 2, word: 77 };
    let chunk = consumer.peek_many().unwrap();
    assert_eq!(chunk.next().unwrap().bytes(), b"one");
    assert_eq!([chunk.next().err(), chunk.next().err()], [Some(bad), Some(bad)]);
    assert_eq!(chunk.release(), 1);
    assert_eq!(consumer.peek().err(), Some(bad));
}

#[test]
fn an_index_that_goes_back_within_the_ring_harms_nothing() {
    let memory = Memory::formatted(8, 0);
    let (mut producer, mut consumer) = (memory.producer().unwrap(), memory.consumer().unwrap());
    producer.push(b"twelve bytes").unwrap();
    Word::store(&memory.header().producer.tail, 2);
    assert_eq!(consumer.peek().err(), Some(PopError::BadFrame { index: 0, word: 12 }), "believed, and then the frame is not");
    Word::store(&memory.header().producer.tail, 9);
    assert_eq!(consumer.refresh(), Err(Corrupt { head: 0, tail: 9, capacity: 8 }));
    Word::store(&memory.header().producer.tail, 3);
    assert_eq!(consumer.refresh(), Ok(24));
    assert_eq!(&*consumer.peek().unwrap(), b"twelve bytes");
    Word::store(&memory.header().consumer.head, 4);
    assert_eq!(producer.refresh(), Err(Corrupt { head: 4, tail: 3, capacity: 8 }));
    assert_eq!(producer.free(), 40, "this end goes on with what it knew");
}

/// What a peer writes, and what is done then.
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
    // Near what stands there, or anything.
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
    let memory = Memory::formatted(words, start);
    let (mut producer, mut consumer) = (memory.producer().unwrap(), memory.consumer().unwrap());
    let largest = (words as usize / 2 - 1) * 8;
    let corrupt = |corrupt: Corrupt| assert!(corrupt.capacity == words && corrupt.tail.wrapping_sub(corrupt.head) > words);
    let pushed = |len: usize, outcome: Result<(), PushError>| match outcome {
        Ok(()) => assert!(len <= largest),
        Err(PushError::Full) => assert!(len <= largest),
        Err(PushError::TooLarge { largest: said, asked }) => assert!(said == largest && asked == len && len > largest),
        Err(PushError::Corrupt(refused)) => corrupt(refused),
    };
    let popped = |room: usize, outcome: Result<usize, PopError>| match outcome {
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
            Op::Slot(place, word) => memory.write(place, word),
            Op::Push(len) => pushed(len, producer.push(&vec![0x11; len])),
            Op::Reserve(len, used) => {
                let outcome = producer.reserve(len).map(|mut grant| {
                    assert!(memory.holds(&grant) && grant.len() == len);
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
                    assert!(memory.holds(&frame));
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
                            Ok(message) => assert!(memory.holds(&message)),
                            Err(end) => break end,
                        }
                        seen += 1;
                        assert!(seen <= words, "more frames than words");
                    };
                    popped(largest, Err(end));
                    assert_eq!(chunk.release(), seen);
                }
                Err(refused) => popped(largest, Err(refused)),
            },
            Op::AttachAgain => match (memory.producer(), memory.consumer()) {
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
    // A failure is printed in full; a file of seeds beside the sources would say no more.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn indices_too_far_apart_are_corrupt_at_attach(
        head in any::<u64>(),
        ahead in prop_oneof![0..12_u64, (0..12_u64).prop_map(|back| u64::MAX - back), any::<u64>()],
    ) {
        let tail = head.wrapping_add(ahead);
        let memory = Memory::formatted(4, 0);
        Word::store(&memory.header().consumer.head, head);
        Word::store(&memory.header().producer.tail, tail);
        let expected = (ahead > 4).then_some(AttachError::Corrupt(Corrupt { head, tail, capacity: 4 }));
        prop_assert_eq!(memory.objection(), expected);
    }

    #[test]
    fn any_words_in_the_header_and_the_slots_are_survived(
        start in prop_oneof![0..3_u64, (0..20_u64).prop_map(|back| u64::MAX - back), any::<u64>()],
        ops in prop::collection::vec(op(), 0..60),
    ) {
        survives(2, start, &ops);
        survives(4, start, &ops);
        survives(8, start, &ops);
    }
}
