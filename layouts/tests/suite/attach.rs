use crate::ring_memory;

use std::ptr::NonNull;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use ring_memory::Memory;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::{MAGIC, PopError, PushError, ReserveError, RingFlags, Slot, flagged, framed, mpmc, mpsc, spsc};
use ringmem_layouts::{Host, HostWord, Machine, RingHeader, RingLayout, RingMessage, SlotCell, Word};

const KINDS: [RingFlags; 8] = [
    RingFlags::SPSC,
    RingFlags::FLAGGED,
    RingFlags::MPSC,
    RingFlags::MPMC,
    RingFlags::FRAMED,
    RingFlags::LOSSY,
    RingFlags::MAILBOX,
    RingFlags::PAIRED,
];

/// # Safety
///
/// `layout.size()` bytes at `base`, aligned for the layout, are valid for reads and writes, and nothing is attached to them.
unsafe fn format_zeroed(base: NonNull<u8>, _len: u64, layout: &RingLayout, start: u64) -> Result<(), AttachError> {
    // SAFETY: the caller promises `layout.size()` aligned, writable bytes without ends; the zeroes initialise the header's words.
    unsafe {
        base.write_bytes(0, layout.size() as usize);
        base.cast::<RingHeader<HostWord>>().as_ref().format::<u64>(layout, start);
    }
    Ok(())
}

fn returns<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, end) = channel();
    thread::spawn(move || done.send(work()));
    end.recv_timeout(Duration::from_secs(60)).expect("it ends in a minute")
}

fn strange_indices() -> impl Iterator<Item = (u64, u64, u64)> {
    const BY: [u64; 12] = [1, 3, 4, 5, 1 << 20, 1 << 40, 1 << 60, 1 << 61, 1 << 62, (1 << 62) + 5, 1 << 63, (1 << 63) + 9];
    let pairs = BY.into_iter().flat_map(|by| [by, by.wrapping_neg()]).flat_map(|by| [(0, by), (by, 0), (by, by)]);
    pairs.flat_map(|(head, tail)| [0, 6, u64::MAX - 1].map(|start: u64| (start, start.wrapping_add(head), start.wrapping_add(tail))))
}

macro_rules! kinds {
    ($($name:ident: $kind:ident [$($message:ty)?] as $flags:expr, $slot_size:literal bytes, not $other:ty, formatted by $format:expr;)+) => {$(
        mod $name {
            use super::*;

            pub type Producer<'a> = $kind::Producer<'a, $($message,)? Host>;
            pub type Consumer<'a> = $kind::Consumer<'a, $($message,)? Host>;

            pub fn formatted(capacity: u64, start: u64) -> Memory {
                let memory = Memory::used($flags, capacity, 0xff);
                // SAFETY: live bytes without ends.
                unsafe { $format(memory.base, memory.len(), &memory.layout, start) }.unwrap();
                memory
            }

            pub fn objection(base: NonNull<u8>, len: u64) -> Option<AttachError> {
                // SAFETY: live memory, one thread; dropped at once.
                let producer = unsafe { Producer::from_raw(base, len) }.err();
                // SAFETY: live memory, one thread; dropped at once, and the producer is dropped already.
                let consumer = unsafe { Consumer::from_raw(base, len) }.err();
                assert_eq!(producer, consumer);
                producer
            }

            fn objection_to(word: impl Fn(&RingHeader<HostWord>) -> &HostWord, value: u64) -> Option<AttachError> {
                let memory = formatted(4, 0);
                assert_eq!(objection(memory.base, memory.len()), None);
                Word::store(word(memory.header()), value);
                objection(memory.base, memory.len())
            }

            #[test]
            fn unformatted_memory_is_a_magic_error() {
                let memory = Memory::used($flags, 4, 0);
                assert_eq!(objection(memory.base, memory.len()), Some(AttachError::Magic { expected: MAGIC, got: 0 }));
                for got in [0, MAGIC ^ 1] {
                    let refused = Some(AttachError::Magic { expected: MAGIC, got });
                    assert_eq!(objection_to(|header| &header.constants.magic, got), refused);
                }
            }

            #[test]
            fn another_abi_or_type_is_an_error() {
                let expected = Word::load(&formatted(4, 0).header().constants.abi);
                assert_eq!(objection_to(|header| &header.constants.abi, 1), Some(AttachError::Abi { expected, got: 1 }));
                let memory = Memory::used($flags, 4, 0);
                let layout = RingLayout::of_kind::<$other>($flags, 4).unwrap();
                // SAFETY: nothing is attached.
                unsafe { memory.header().format::<$other>(&layout, 0) };
                assert!(matches!(objection(memory.base, memory.len()), Some(AttachError::Abi { .. })));
            }

            #[test]
            fn another_ring_or_message_kind_is_rejected() {
                let expected = $flags.bits();
                let others = KINDS.into_iter().filter(|kind| *kind != $flags).map(|kind| kind.bits());
                for got in others.chain([0, expected | 1 << 40, u64::MAX]) {
                    assert_eq!(objection_to(|header| &header.constants.flags, got), Some(AttachError::Kind { expected, got }));
                }
                let expected = <u64 as RingMessage>::KIND;
                let got = expected + 1;
                assert_eq!(objection_to(|header| &header.constants.message_kind, got), Some(AttachError::Kind { expected, got }));
            }

            #[test]
            fn an_invalid_capacity_is_a_capacity_error() {
                for got in [0, 3, 5, u64::MAX / $slot_size + 1, 1 << 63, u64::MAX] {
                    assert_eq!(objection_to(|header| &header.constants.capacity, got), Some(AttachError::Capacity { got }));
                }
            }

            #[test]
            fn a_capacity_beyond_the_memory_is_an_error() {
                for capacity in [8, 1 << 20, (u64::MAX / $slot_size + 1) / 4] {
                    let (needed, got) = (384 + $slot_size * capacity, 384 + $slot_size * 4);
                    assert_eq!(objection_to(|header| &header.constants.capacity, capacity), Some(AttachError::TooSmall { needed, got }));
                }
            }

            #[test]
            fn wrong_slot_sizes_and_offsets_are_errors() {
                let expected = $slot_size;
                for got in [0, 1, 4, 9, 17, 24 - expected, u64::MAX] {
                    assert_eq!(objection_to(|header| &header.constants.slot_size, got), Some(AttachError::SlotSize { expected, got }));
                }
                for got in [0, 383, 388, 392, u64::MAX - 7] {
                    assert_eq!(objection_to(|header| &header.constants.slots_offset, got), Some(AttachError::Offset { got }));
                }
            }

            #[test]
            fn too_small_or_misaligned_memory_is_an_error() {
                let memory = formatted(4, 0);
                let needed = memory.len();
                for got in [0, 383] {
                    assert_eq!(objection(memory.base, got), Some(AttachError::TooSmall { needed: 384, got }));
                }
                assert_eq!(objection(memory.base, needed - 1), Some(AttachError::TooSmall { needed, got: needed - 1 }));
                for offset in [1, 8, 64] {
                    // SAFETY: within the allocation.
                    let base = unsafe { memory.base.add(offset) };
                    let address = base.as_ptr() as u64;
                    assert_eq!(objection(base, 384 - 64), Some(AttachError::Misaligned { address, align: 128 }));
                }
            }
        }
    )+};
}

kinds! {
    spsc_ring: spsc [u64] as RingFlags::SPSC, 8 bytes, not i64, formatted by format_zeroed;
    flagged_ring: flagged [u64] as RingFlags::FLAGGED, 16 bytes, not i64, formatted by format_zeroed;
    mpsc_ring: mpsc [u64] as RingFlags::MPSC, 16 bytes, not i64, formatted by mpsc::format::<u64, Host>;
    mpmc_ring: mpmc [u64] as RingFlags::MPMC, 16 bytes, not i64, formatted by mpmc::format::<u64, Host>;
    framed_ring: framed [] as RingFlags::FRAMED, 8 bytes, not u8, formatted by format_zeroed;
}

macro_rules! values {
    ($($name:ident: $ring:ident;)+) => {$(
        mod $name {
            use super::$ring::{Consumer, Producer, formatted};
            use super::*;

            pub fn producer(memory: &Memory) -> Result<Producer<'_>, AttachError> {
                // SAFETY: initialised bytes; one thread, one producer at a time.
                unsafe { Producer::from_raw(memory.base, memory.len()) }
            }

            pub fn consumer(memory: &Memory) -> Result<Consumer<'_>, AttachError> {
                // SAFETY: initialised bytes; one thread, one consumer at a time.
                unsafe { Consumer::from_raw(memory.base, memory.len()) }
            }

            #[test]
            fn formatted_memory_attaches_as_an_empty_ring() {
                for capacity in [1, 2, 4, 8] {
                    for start in [0, 1, 5, u64::MAX, u64::MAX - 2, 1 << 63] {
                        let memory = formatted(capacity, start);
                        let (mut producer, mut consumer) = (producer(&memory).unwrap(), consumer(&memory).unwrap());
                        assert_eq!([producer.capacity(), consumer.capacity()], [capacity as usize; 2]);
                        assert_eq!(consumer.pop(), Err(PopError::Empty));
                        for lap in 0..3 {
                            for number in 0..capacity {
                                assert_eq!(producer.push(lap << 32 | number), Ok(()));
                            }
                            assert_eq!(producer.push(9), Err(PushError::Full(9)));
                            for number in 0..capacity {
                                assert_eq!(consumer.pop(), Ok(lap << 32 | number));
                            }
                            assert_eq!(consumer.pop(), Err(PopError::Empty));
                        }
                        assert_eq!(producer.reserve(usize::MAX).map(drop), Err(ReserveError::TooLarge { capacity: capacity as usize }));
                    }
                }
            }

            #[test]
            fn a_later_attached_end_continues_the_ring() {
                let memory = formatted(4, u64::MAX);
                producer(&memory).unwrap().push(1).unwrap();
                producer(&memory).unwrap().push(2).unwrap();
                assert_eq!(consumer(&memory).unwrap().pop(), Ok(1));
                let mut consumer = consumer(&memory).unwrap();
                assert_eq!([consumer.pop(), consumer.pop()], [Ok(2), Err(PopError::Empty)]);
            }

            #[test]
            fn operations_terminate_with_arbitrary_indices() {
                returns(|| {
                    for (start, head, tail) in strange_indices() {
                        let memory = formatted(4, start);
                        Word::store(&memory.header().consumer.head, head);
                        Word::store(&memory.header().producer.tail, tail);
                        let (Ok(mut producer), Ok(mut consumer)) = (producer(&memory), consumer(&memory)) else { continue };
                        for number in 0..12 {
                            let _ = (producer.push(number), consumer.pop(), producer.reserve(2).map(drop));
                        }
                    }
                });
            }
        }
    )+};
}

values! {
    spsc_values: spsc_ring;
    flagged_values: flagged_ring;
    mpsc_values: mpsc_ring;
    mpmc_values: mpmc_ring;
}

type Cell = <Host as Machine>::Cell<u64>;

macro_rules! two_headers_that_disagree {
    ($($name:ident: $kind:ident [$($message:ty)?] as $flags:expr, $slot:expr;)+) => {$(
        #[test]
        fn $name() {
            let cells: Vec<_> = (0..8).map(|_| $slot).collect();
            let slots = NonNull::from(cells.as_slice()).cast();
            let header = |capacity| RingHeader::<HostWord>::new::<u64>(&RingLayout::of_kind::<u64>($flags, capacity).unwrap(), 0);
            let [four, eight, another_eight] = [4, 8, 8].map(header);
            let other = RingHeader::<HostWord>::new::<i64>(&RingLayout::of_kind::<i64>($flags, 8).unwrap(), 0);
            let attach = |own: &RingHeader<HostWord>, peer: &RingHeader<HostWord>| {
                // SAFETY: eight cells, the most of any header.
                let producer = unsafe { $kind::Producer::<$($message,)? Host>::new(own, peer, slots) }.err();
                // SAFETY: eight cells, the most of any header.
                let consumer = unsafe { $kind::Consumer::<$($message,)? Host>::new(own, peer, slots) }.err();
                assert_eq!(producer, consumer);
                producer
            };
            assert_eq!(attach(&eight, &another_eight), None);
            assert_eq!(attach(&eight, &four), Some(AttachError::Capacity { got: 4 }));
            assert_eq!(attach(&four, &eight), Some(AttachError::Capacity { got: 8 }));
            assert!(matches!(attach(&eight, &other), Some(AttachError::Abi { .. })));
            assert!(matches!(attach(&other, &eight), Some(AttachError::Abi { .. })));
        }
    )+};
}

two_headers_that_disagree! {
    mismatched_spsc_headers_are_an_error: spsc [u64] as RingFlags::SPSC, Cell::new(0);
    mismatched_flagged_headers_are_an_error: flagged [u64] as RingFlags::FLAGGED, Slot::new(HostWord::new(0), Cell::new(0));
    mismatched_framed_headers_are_an_error: framed [] as RingFlags::FRAMED, Cell::new(0);
}

macro_rules! hostile_heads {
    ($($name:ident: $ring:ident, $values:ident;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn a_producer_accepts_only_a_valid_head() {
                let memory = $ring::formatted(4, u64::MAX - 1);
                let mut producer = $values::producer(&memory).unwrap();
                let head = &memory.header().consumer.head;
                assert_eq!(producer.push_slice(&[1, 2, 3, 4]), Ok(4));
                let tail = producer.tail();
                for ahead in [1, 5, 1 << 63, u64::MAX - 4] {
                    Word::store(head, tail.wrapping_add(ahead));
                    let corrupt = Corrupt { head: tail.wrapping_add(ahead), tail, capacity: 4 };
                    assert_eq!(producer.push(5), Err(PushError::Corrupt(5, corrupt)));
                    assert!(producer.push_slice(&[5]).is_err());
                    assert!(matches!(producer.reserve(1).map(drop), Err(ReserveError::Corrupt(_))));
                    assert_eq!(producer.batch(2).push(5), Err(PushError::Corrupt(5, corrupt)));
                    assert_eq!(producer.push(6), Err(PushError::Corrupt(6, corrupt)));
                    assert!(producer.len() <= 4 && producer.free() == 0);
                }
                Word::store(head, tail.wrapping_sub(2));
                assert_eq!(producer.refresh(), Ok(2));
                Word::store(head, tail.wrapping_sub(3));
                assert_eq!(producer.refresh(), Ok(1));
                assert_eq!([producer.push(5), producer.push(6)], [Ok(()), Err(PushError::Full(6))]);
            }

            proptest! {
                #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn a_producer_rejects_every_head_outside_the_ring(start in any::<u64>(), lies in lies()) {
                    let memory = $ring::formatted(4, start);
                    let mut producer = $values::producer(&memory).unwrap();
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
                                Err(PushError::Corrupt(value, found)) => prop_assert!(known == 0 && used > 4 && value == 5 && found == corrupt),
                            },
                            1 => match producer.refresh() {
                                Ok(free) => prop_assert_eq!(free, 4 - used as usize),
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
                                    prop_assert_eq!(refused, ReserveError::Full { free: 4 - used as usize });
                                }
                            },
                        }
                        prop_assert!(producer.free() <= 4);
                    }
                }
            }
        }
    )+};
}

hostile_heads! {
    spsc_heads: spsc_ring, spsc_values;
    flagged_heads: flagged_ring, flagged_values;
}

fn lies() -> impl Strategy<Value = Vec<(i64, u8)>> {
    prop::collection::vec((prop_oneof![-9..9_i64, any::<i64>()], 0..4_u8), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn indices_too_far_apart_are_corrupt_at_attach(
        head in any::<u64>(),
        ahead in prop_oneof![0..12_u64, (0..12_u64).prop_map(|back| u64::MAX - back), any::<u64>()],
    ) {
        let tail = head.wrapping_add(ahead);
        let expected = (ahead > 4).then_some(AttachError::Corrupt(Corrupt { head, tail, capacity: 4 }));
        for (kind, objection) in [(RingFlags::SPSC, spsc_ring::objection as fn(_, _) -> _), (RingFlags::FRAMED, framed_ring::objection)] {
            let memory = Memory::formatted::<u64>(kind, 4, 0);
            Word::store(&memory.header().consumer.head, head);
            Word::store(&memory.header().producer.tail, tail);
            prop_assert_eq!(objection(memory.base, memory.len()), expected);
        }
    }

    #[test]
    fn a_consumer_rejects_every_tail_outside_the_ring(start in any::<u64>(), lies in lies()) {
        let memory = spsc_ring::formatted(4, start);
        let mut consumer = spsc_values::consumer(&memory).unwrap();
        for (lie, how) in lies {
            let (head, known) = (consumer.head(), consumer.available());
            let tail = head.wrapping_add(lie as u64);
            Word::store(&memory.header().producer.tail, tail);
            let claimed = tail.wrapping_sub(head);
            let corrupt = Corrupt { head, tail, capacity: 4 };
            match how {
                0 => match consumer.pop() {
                    Ok(value) => prop_assert!(value == 0 && (known > 0 || (1..=4).contains(&claimed))),
                    Err(PopError::Empty) => prop_assert!(known == 0 && claimed == 0),
                    Err(PopError::Corrupt(found)) => prop_assert!(known == 0 && claimed > 4 && found == corrupt),
                },
                1 => match consumer.refresh() {
                    Ok(waiting) => prop_assert!(waiting as u64 == claimed && waiting <= 4),
                    Err(found) => prop_assert!(claimed > 4 && found == corrupt && consumer.available() == known),
                },
                2 => {
                    let mut values = [7; 9];
                    match consumer.pop_slice(&mut values) {
                        Ok(count) => prop_assert!(count as u64 == claimed && values[..count].iter().all(|value| *value == 0)),
                        Err(found) => prop_assert!(claimed > 4 && found == corrupt),
                    }
                }
                _ => match consumer.peek(usize::MAX) {
                    Ok(chunk) => {
                        prop_assert!(chunk.len() as u64 == claimed && chunk.as_slices().concat().len() == chunk.len());
                        chunk.release(1);
                    }
                    Err(PopError::Empty) => prop_assert_eq!(claimed, 0),
                    Err(PopError::Corrupt(found)) => prop_assert!(claimed > 4 && found == corrupt),
                },
            }
            prop_assert!(consumer.available() <= 4);
        }
    }
}

#[test]
fn a_decreased_tail_within_the_ring_is_accepted() {
    let memory = spsc_ring::formatted(4, u64::MAX - 1);
    let (mut producer, mut consumer) = (spsc_values::producer(&memory).unwrap(), spsc_values::consumer(&memory).unwrap());
    assert_eq!(producer.push_slice(&[1, 2, 3, 4]), Ok(4));
    assert_eq!(consumer.refresh(), Ok(4));
    Word::store(&memory.header().producer.tail, 0);
    assert_eq!(consumer.refresh(), Ok(2), "believed, since it lies within the ring");
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(2), Err(PopError::Empty)]);
    for tail in [u64::MAX, 9] {
        Word::store(&memory.header().producer.tail, tail);
        let corrupt = PopError::Corrupt(Corrupt { head: 0, tail, capacity: 4 });
        assert_eq!(consumer.batch(4).pop(), Err(corrupt));
        assert_eq!(consumer.pop(), Err(corrupt));
    }
}

#[test]
fn a_rejected_format_leaves_memory_unchanged() {
    type Format = unsafe fn(NonNull<u8>, u64, &RingLayout, u64) -> Result<(), AttachError>;
    let formats: [(Format, RingFlags); 2] = [(mpmc::format::<u64, Host>, RingFlags::MPMC), (mpsc::format::<u64, Host>, RingFlags::MPSC)];
    for (format, kind) in formats {
        let memory = Memory::used(kind, 4, 0x55);
        let needed = memory.len();
        for got in [0, needed - 1] {
            // SAFETY: fewer than the live bytes; no end is attached.
            let outcome = unsafe { format(memory.base, got, &memory.layout, 0) };
            assert_eq!(outcome, Err(AttachError::TooSmall { needed, got }));
        }
        // SAFETY: within the allocation.
        let base = unsafe { memory.base.add(8) };
        let address = base.as_ptr() as u64;
        // SAFETY: live bytes without ends.
        let outcome = unsafe { format(base, needed - 8, &memory.layout, 0) };
        assert_eq!(outcome, Err(AttachError::Misaligned { address, align: 128 }));
        for other in KINDS.into_iter().filter(|other| *other != kind) {
            let layout = RingLayout::of_kind::<u64>(other, 4).unwrap();
            // SAFETY: writes nothing: the layout is another ring's.
            let outcome = unsafe { format(memory.base, needed, &layout, 0) };
            assert_eq!(outcome, Err(AttachError::Kind { expected: kind.bits(), got: other.bits() }));
        }
        // SAFETY: live bytes.
        let bytes = unsafe { std::slice::from_raw_parts(memory.base.as_ptr(), needed as usize) };
        assert!(bytes.iter().all(|byte| *byte == 0x55), "a refusal has written nothing");
    }
}

#[test]
fn a_new_producer_clears_flags_of_unpublished_messages() {
    let memory = flagged_ring::formatted(4, u64::MAX);
    let mut killed = flagged_values::producer(&memory).unwrap();
    killed.push(1).unwrap();
    let mut grant = killed.reserve(3).unwrap();
    assert_eq!(grant.fill([2, 3, 4]), 3);
    std::mem::forget(grant);
    std::mem::forget(killed);
    let (mut producer, mut consumer) = (flagged_values::producer(&memory).unwrap(), flagged_values::consumer(&memory).unwrap());
    producer.push(5).unwrap();
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(5), Err(PopError::Empty)]);
}

#[test]
fn indices_of_a_different_lap_are_corrupt() {
    let memory = Memory::used(RingFlags::MPMC, 4, 0);
    let len = memory.len();
    for (start, ahead, is_one) in
        [(0_u64, 0_u64, true), (9, 3, true), (9, 8, false), (u64::MAX, 8, false), (9, 1 << 40, false), (9, 1 << 62, false)]
    {
        for (index, is_one) in [(start.wrapping_add(ahead), is_one), (start.wrapping_sub(ahead), ahead == 0)] {
            // SAFETY: live bytes without ends.
            unsafe { mpmc::format::<u64, Host>(memory.base, len, &memory.layout, start) }.unwrap();
            Word::store(&memory.header().consumer.head, index);
            Word::store(&memory.header().producer.tail, index);
            // SAFETY: live bytes; dropped at once.
            let refused = unsafe { mpmc::Producer::<u64, Host>::from_raw(memory.base, len) }.err();
            let corrupt = AttachError::Corrupt(Corrupt { head: index, tail: index, capacity: 4 });
            assert_eq!(refused, (!is_one).then_some(corrupt), "{index} of a ring from {start}");
        }
    }
    assert_eq!(
        AttachError::Corrupt(Corrupt { head: 8, tail: 9, capacity: 4 }).to_string(),
        "ring is corrupt: head 8 and tail 9 are invalid for 4 slots"
    );
}

/// 2^40 abandoned indices precede the first message.
macro_rules! passes_over_what_was_given_up {
    ($($name:ident: $kind:ident as $flags:expr;)+) => {$(
        #[test]
        fn $name() {
            let memory = Memory::used($flags, 4, 0);
            for start in [1 << 40, u64::MAX - 1] {
                // SAFETY: live bytes without ends.
                unsafe { $kind::format::<u64, Host>(memory.base, memory.len(), &memory.layout, start) }.unwrap();
                Word::store(&memory.header().consumer.head, start.wrapping_sub(1 << 40));
                // SAFETY: formatted bytes; the only ends.
                let mut producer = unsafe { $kind::Producer::<u64, Host>::from_raw(memory.base, memory.len()) }.unwrap();
                // SAFETY: formatted bytes; the only ends.
                let mut consumer = unsafe { $kind::Consumer::<u64, Host>::from_raw(memory.base, memory.len()) }.unwrap();
                assert_eq!(consumer.pop(), Err(PopError::Empty));
                assert_eq!(Word::load(&memory.header().consumer.head), start);
                for number in 0..10 {
                    assert_eq!((producer.push(number), consumer.pop()), (Ok(()), Ok(number)));
                }
            }
        }
    )+};
}

passes_over_what_was_given_up! {
    mpsc_consumers_skip_long_runs_of_abandoned_indices: mpsc as RingFlags::MPSC;
    mpmc_consumers_skip_long_runs_of_abandoned_indices: mpmc as RingFlags::MPMC;
}
