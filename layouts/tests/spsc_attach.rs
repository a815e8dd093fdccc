//! Memory that is not what it was said to be, and a peer that writes anything into its index.
//!
//! 1. Each fact that attaching can object to is objected to, by its own name.
//! 2. An index that claims more than the capacity is `Corrupt`. One that lies within it, forwards or backwards, is believed and harms nothing.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use proptest::prelude::*;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, PushError, ReserveError};
use ringmem_layouts::ring::{MAGIC, RingFlags};
use ringmem_layouts::{Host, HostWord, Machine, RingHeader, RingLayout, RingMessage, SlotCell, Word};

/// Zeroed memory for a ring of `u64`, reached as both sides reach it: through pointers.
struct Memory {
    base: NonNull<u8>,
    layout: RingLayout,
}

impl Memory {
    fn zeroed(capacity: u64) -> Self {
        let layout = RingLayout::of::<u64>(capacity).unwrap();
        // SAFETY: the size is not 0: there is a header.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::allocation(&layout)) }).expect("some memory");
        Self { base, layout }
    }
    fn formatted(capacity: u64, start: u64) -> Self {
        let memory = Self::zeroed(capacity);
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
    fn producer(&self) -> Result<Producer<'_, u64, Host>, AttachError> {
        self.attach(Producer::<u64, Host>::from_raw)
    }
    fn consumer(&self) -> Result<Consumer<'_, u64, Host>, AttachError> {
        self.attach(Consumer::<u64, Host>::from_raw)
    }
    fn attach<E>(&self, from_raw: unsafe fn(NonNull<u8>, u64) -> Result<E, AttachError>) -> Result<E, AttachError> {
        // SAFETY: so many bytes live there, zeroed; the test is one thread, and its peers write indices only.
        unsafe { from_raw(self.base, self.layout.size()) }
    }
    /// What stops both ends, which object alike.
    fn objection(&self) -> Option<AttachError> {
        let [producer, consumer] = [self.producer().err(), self.consumer().err()];
        assert_eq!(producer, consumer);
        producer
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
    let memory = Memory::formatted(4, 0);
    assert_eq!(memory.objection(), None);
    Word::store(word(memory.header()), value);
    memory.objection()
}

#[test]
fn memory_that_nobody_formatted_has_no_magic() {
    assert_eq!(Memory::zeroed(4).objection(), Some(AttachError::Magic { expected: MAGIC, got: 0 }));
    let got = MAGIC ^ 1;
    assert_eq!(objection_to(|header| &header.constants.magic, got), Some(AttachError::Magic { expected: MAGIC, got }));
}

#[test]
fn another_abi_is_refused() {
    let expected = Memory::formatted(4, 0).header().constants.abi.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(objection_to(|header| &header.constants.abi, 1), Some(AttachError::Abi { expected, got: 1 }));
}

#[test]
fn a_ring_of_another_message_type_of_equal_size_is_refused() {
    let memory = Memory::zeroed(4);
    // SAFETY: nothing is attached.
    unsafe { memory.header().format::<i64>(&RingLayout::of::<i64>(4).unwrap(), 0) };
    assert!(matches!(memory.objection(), Some(AttachError::Abi { .. })));
}

#[test]
fn another_kind_of_ring_or_message_is_refused() {
    let expected = RingFlags::SPSC.bits();
    for got in [0, 2, 3, u64::MAX] {
        assert_eq!(objection_to(|header| &header.constants.flags, got), Some(AttachError::Kind { expected, got }));
    }
    let expected = <u64 as RingMessage>::KIND;
    assert_eq!(objection_to(|header| &header.constants.message_kind, 9), Some(AttachError::Kind { expected, got: 9 }));
}

#[test]
fn a_capacity_that_is_no_power_of_two_or_fits_no_memory_is_refused() {
    for got in [0, 3, 5, 1 << 61, 1 << 63, u64::MAX] {
        assert_eq!(objection_to(|header| &header.constants.capacity, got), Some(AttachError::Capacity { got }));
    }
}

#[test]
fn a_capacity_beyond_the_memory_is_too_small() {
    for capacity in [8, 1 << 20, 1 << 59] {
        let needed = RingLayout::of::<u64>(capacity).unwrap().size();
        let got = RingLayout::of::<u64>(4).unwrap().size();
        assert_eq!(objection_to(|header| &header.constants.capacity, capacity), Some(AttachError::TooSmall { needed, got }));
    }
}

#[test]
fn slots_of_another_size_are_refused() {
    for got in [0, 4, 9, u64::MAX] {
        assert_eq!(objection_to(|header| &header.constants.slot_size, got), Some(AttachError::SlotSize { expected: 8, got }));
    }
}

#[test]
fn slots_at_another_offset_are_refused() {
    for got in [0, 383, 392, u64::MAX - 7] {
        assert_eq!(objection_to(|header| &header.constants.slots_offset, got), Some(AttachError::Offset { got }));
    }
}

#[test]
fn memory_that_is_too_short_for_a_header_is_not_read() {
    let memory = Memory::formatted(4, 0);
    for got in [0, 383] {
        // SAFETY: fewer bytes than live there.
        let objection = unsafe { Producer::<u64, Host>::from_raw(memory.base, got) }.err();
        assert_eq!(objection, Some(AttachError::TooSmall { needed: 384, got }));
    }
    let needed = memory.layout.size();
    // SAFETY: as above.
    let objection = unsafe { Consumer::<u64, Host>::from_raw(memory.base, needed - 1) }.err();
    assert_eq!(objection, Some(AttachError::TooSmall { needed, got: needed - 1 }));
}

#[test]
fn a_misaligned_address_is_refused() {
    let memory = Memory::formatted(4, 0);
    for offset in [1, 8, 64] {
        // SAFETY: within the allocation.
        let base = unsafe { memory.base.add(offset) };
        let expected = Some(AttachError::Misaligned { address: base.as_ptr() as u64, align: 128 });
        // SAFETY: so many bytes live there.
        assert_eq!(unsafe { Producer::<u64, Host>::from_raw(base, 384 - 64) }.err(), expected);
        // SAFETY: as above.
        assert_eq!(unsafe { Consumer::<u64, Host>::from_raw(base, 384 - 64) }.err(), expected);
    }
}

#[test]
fn two_headers_that_disagree_are_refused() {
    type Cell = <Host as Machine>::Cell<u64>;
    let cells: Vec<Cell> = (0..8).map(Cell::new).collect();
    let slots = NonNull::from(cells.as_slice()).cast();
    let header = |capacity| RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(capacity).unwrap(), 0);
    let [four, eight, another_eight] = [4, 8, 8].map(header);
    let other = RingHeader::<HostWord>::new::<i64>(&RingLayout::of::<i64>(8).unwrap(), 0);
    let attach = |own: &RingHeader<HostWord>, peer: &RingHeader<HostWord>| {
        // SAFETY: eight cells, as many as any of the headers says; the endpoints are dropped at once.
        let producer = unsafe { Producer::<u64, Host>::new(own, peer, slots) }.err();
        // SAFETY: as above.
        let consumer = unsafe { Consumer::<u64, Host>::new(own, peer, slots) }.err();
        assert_eq!(producer, consumer);
        producer
    };
    assert_eq!(attach(&eight, &another_eight), None);
    assert_eq!(attach(&eight, &four), Some(AttachError::Capacity { got: 4 }));
    assert_eq!(attach(&four, &eight), Some(AttachError::Capacity { got: 8 }));
    assert!(matches!(attach(&eight, &other), Some(AttachError::Abi { .. })));
    assert!(matches!(attach(&other, &eight), Some(AttachError::Abi { .. })));
}

proptest! {
    // A failure is printed in full; a file of seeds beside the sources would say no more.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
    fn a_consumer_believes_only_what_lies_within_the_ring(
        start in any::<u64>(),
        lies in prop::collection::vec((prop_oneof![-9..9_i64, any::<i64>()], 0..4_u8), 1..40),
    ) {
        let memory = Memory::formatted(4, start);
        let mut consumer = memory.consumer().unwrap();
        for (lie, how) in lies {
            let (head, known) = (consumer.head(), consumer.available());
            let tail = head.wrapping_add(lie as u64);
            Word::store(&memory.header().producer.tail, tail);
            let claimed = tail.wrapping_sub(head);
            let corrupt = Corrupt { head, tail, capacity: 4 };
            // Slots that nobody wrote hold what the memory was given with: zero.
            match how {
                0 => match consumer.pop() {
                    Ok(value) => prop_assert!(value == 0 && (known > 0 || (1..=4).contains(&claimed))),
                    Err(PopError::Empty) => prop_assert!(known == 0 && claimed == 0),
                    Err(PopError::Corrupt(found)) => prop_assert!(known == 0 && claimed > 4 && found == corrupt),
                },
                1 => match consumer.refresh() {
                    Ok(waiting) => prop_assert!(waiting == claimed && waiting <= 4),
                    Err(found) => prop_assert!(claimed > 4 && found == corrupt && consumer.available() == known),
                },
                2 => {
                    let mut values = [7; 9];
                    match consumer.pop_slice(&mut values) {
                        Ok(count) => prop_assert!(count as u64 == claimed && values[..count].iter().all(|value| *value == 0)),
                        Err(found) => prop_assert!(claimed > 4 && found == corrupt),
                    }
                }
                _ => match consumer.peek(u64::MAX) {
                    Ok(chunk) => {
                        prop_assert!(chunk.len() == claimed && chunk.as_slices().concat().len() as u64 == claimed);
                        chunk.release(1);
                    }
                    Err(PopError::Empty) => prop_assert_eq!(claimed, 0),
                    Err(PopError::Corrupt(found)) => prop_assert!(claimed > 4 && found == corrupt),
                },
            }
            prop_assert!(consumer.available() <= 4);
        }
    }

    #[test]
    fn a_producer_believes_only_what_lies_within_the_ring(
        start in any::<u64>(),
        lies in prop::collection::vec((prop_oneof![-9..9_i64, any::<i64>()], 0..4_u8), 1..40),
    ) {
        let memory = Memory::formatted(4, start);
        let mut producer = memory.producer().unwrap();
        for (lie, how) in lies {
            let (tail, known) = (producer.tail(), producer.free());
            let head = tail.wrapping_add(lie as u64);
            Word::store(&memory.header().consumer.head, head);
            let used = tail.wrapping_sub(head);
            let corrupt = Corrupt { head, tail, capacity: 4 };
            match how {
                0 => match producer.push(5) {
                    Ok(()) => prop_assert!(known > 0 || used < 4),
                    Err(PushError::Full(value)) => prop_assert!(known == 0 && used == 4 && value == 5),
                    Err(PushError::Corrupt(value)) => prop_assert!(known == 0 && used > 4 && value == 5),
                },
                1 => match producer.refresh() {
                    Ok(free) => prop_assert_eq!(free, 4 - used),
                    Err(found) => prop_assert!(used > 4 && found == corrupt && producer.free() == known),
                },
                2 => match producer.push_slice(&[5; 9]) {
                    Ok(count) => prop_assert_eq!(count as u64, 4 - used),
                    Err(found) => prop_assert!(used > 4 && found == corrupt),
                },
                _ => match producer.reserve(3) {
                    Ok(mut grant) => {
                        prop_assert!(known >= 3 || used <= 1);
                        prop_assert_eq!(grant.fill([5; 9]), 3);
                    }
                    Err(ReserveError::Corrupt(found)) => prop_assert!(known < 3 && used > 4 && found == corrupt),
                    Err(refused) => {
                        prop_assert!(known < 3 && used > 1);
                        prop_assert_eq!(refused, ReserveError::Full { free: 4 - used });
                    }
                },
            }
            prop_assert!(producer.free() <= 4);
        }
    }
}

#[test]
fn an_index_that_goes_back_within_the_ring_gives_old_messages_again_and_no_more() {
    let memory = Memory::formatted(4, u64::MAX - 1);
    let (mut producer, mut consumer) = (memory.producer().unwrap(), memory.consumer().unwrap());
    assert_eq!(producer.push_slice(&[1, 2, 3, 4]), Ok(4));
    assert_eq!(consumer.refresh(), Ok(4));
    Word::store(&memory.header().producer.tail, 0);
    assert_eq!(consumer.refresh(), Ok(2), "believed, since it lies within the ring");
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(2), Err(PopError::Empty)]);
    Word::store(&memory.header().producer.tail, u64::MAX);
    let corrupt = Corrupt { head: 0, tail: u64::MAX, capacity: 4 };
    assert_eq!(consumer.pop(), Err(PopError::Corrupt(corrupt)));
}

#[test]
fn a_batch_says_what_is_corrupt_and_keeps_the_value() {
    let memory = Memory::formatted(1, 0);
    let (mut producer, mut consumer) = (memory.producer().unwrap(), memory.consumer().unwrap());
    producer.push(1).unwrap();
    Word::store(&memory.header().consumer.head, 9);
    assert_eq!(producer.batch(4).push(2), Err(PushError::Corrupt(2)));
    assert_eq!(producer.push(3), Err(PushError::Corrupt(3)));
    Word::store(&memory.header().producer.tail, 9);
    assert_eq!(consumer.batch(4).pop(), Err(PopError::Corrupt(Corrupt { head: 0, tail: 9, capacity: 1 })));
}
