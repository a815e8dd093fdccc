//! Rings with a word in each slot, in memory that is what it was said to be, and in memory that is not.
//!
//! 1. A ring that `format` wrote is one, whatever stood there and wherever its indices begin.
//! 2. Each fact that formatting or attaching can object to is objected to, by its own name.
//! 3. An index that a peer wrote is believed only within the ring.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::{MAGIC, PopError, PushError, ReserveError, RingFlags, Slot, flagged, mpmc, mpsc};
use ringmem_layouts::{Host, HostWord, Machine, RingHeader, RingLayout, RingMessage, SlotCell, Word};

const KINDS: [RingFlags; 7] =
    [RingFlags::SPSC, RingFlags::FLAGGED, RingFlags::MPSC, RingFlags::MPMC, RingFlags::FRAMED, RingFlags::LOSSY, RingFlags::MAILBOX];

/// Memory for a ring of `u64`, reached as all sides reach it: through pointers.
struct Memory {
    base: NonNull<u8>,
    layout: RingLayout,
}

impl Memory {
    /// Full of what was there before.
    fn used(kind: RingFlags, capacity: u64, byte: u8) -> Self {
        let layout = RingLayout::of_kind::<u64>(kind, capacity).unwrap();
        // SAFETY: the size is not 0: there is a header.
        let base = NonNull::new(unsafe { alloc(Self::allocation(&layout)) }).expect("some memory");
        // SAFETY: so many bytes live there.
        unsafe { base.write_bytes(byte, layout.size() as usize) };
        Self { base, layout }
    }
    fn allocation(layout: &RingLayout) -> Layout {
        Layout::from_size_align(layout.size() as usize, layout.align() as usize).unwrap()
    }
    fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: aligned and long enough by its layout, initialised, and words are shared by their own accesses.
        unsafe { self.base.cast().as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), Self::allocation(&self.layout)) }
    }
}

/// A flagged ring has no `format` of its own: its slots are zeroed.
///
/// # Safety
///
/// As `format` of the other kinds.
unsafe fn format_flagged<T: RingMessage>(base: NonNull<u8>, _len: u64, layout: &RingLayout, start: u64) -> Result<(), AttachError> {
    // SAFETY: the caller's promise.
    unsafe {
        base.write_bytes(0, layout.size() as usize);
        base.cast::<RingHeader<HostWord>>().as_ref().format::<T>(layout, start);
    }
    Ok(())
}

/// What `work` gives, if it ends at all.
fn returns<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, end) = channel();
    thread::spawn(move || done.send(work()));
    end.recv_timeout(Duration::from_secs(60)).expect("it ends in a minute")
}

/// Where a ring began, and a head and a tail that may be any distance from there and from each other.
fn strange_indices() -> impl Iterator<Item = (u64, u64, u64)> {
    const BY: [u64; 12] = [1, 3, 4, 5, 1 << 20, 1 << 40, 1 << 60, 1 << 61, 1 << 62, (1 << 62) + 5, 1 << 63, (1 << 63) + 9];
    let pairs = BY.into_iter().flat_map(|by| [by, by.wrapping_neg()]).flat_map(|by| [(0, by), (by, 0), (by, by)]);
    pairs.flat_map(|(head, tail)| [0, 6, u64::MAX - 1].map(|start: u64| (start, start.wrapping_add(head), start.wrapping_add(tail))))
}

macro_rules! kinds {
    ($($name:ident: $kind:ident as $flags:expr, formatted by $format:expr;)+) => {$(
        mod $name {
            use $kind::{Consumer, Producer};

            use super::*;

            fn formatted(capacity: u64, start: u64) -> Memory {
                // As an older ring left it: every word of a slot looks full.
                let memory = Memory::used($flags, capacity, 0xff);
                // SAFETY: so many bytes live there, and nobody is attached.
                unsafe { $format(memory.base, memory.layout.size(), &memory.layout, start) }.unwrap();
                memory
            }

            /// What stops both ends, which object alike.
            fn objection(base: NonNull<u8>, len: u64) -> Option<AttachError> {
                // SAFETY: the tests give memory that lives, one thread uses it, and the ends are dropped at once.
                let producer = unsafe { Producer::<u64, Host>::from_raw(base, len) }.err();
                // SAFETY: as above.
                let consumer = unsafe { Consumer::<u64, Host>::from_raw(base, len) }.err();
                assert_eq!(producer, consumer);
                producer
            }

            fn objection_to(word: impl Fn(&RingHeader<HostWord>) -> &HostWord, value: u64) -> Option<AttachError> {
                let memory = formatted(4, 0);
                assert_eq!(objection(memory.base, memory.layout.size()), None);
                Word::store(word(memory.header()), value);
                objection(memory.base, memory.layout.size())
            }

            #[test]
            fn formatted_memory_is_an_empty_ring() {
                for capacity in [1, 2, 4, 8] {
                    for start in [0, 1, 5, u64::MAX, u64::MAX - 2, 1 << 63] {
                        let memory = formatted(capacity, start);
                        let len = memory.layout.size();
                        // SAFETY: so many bytes live there, formatted; the only ends.
                        let mut producer = unsafe { Producer::<u64, Host>::from_raw(memory.base, len) }.unwrap();
                        // SAFETY: as above.
                        let mut consumer = unsafe { Consumer::<u64, Host>::from_raw(memory.base, len) }.unwrap();
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
                        assert_eq!(producer.reserve(u64::MAX).map(drop), Err(ReserveError::TooLarge { capacity }));
                    }
                }
            }

            #[test]
            fn an_end_that_attaches_later_finds_what_is_there() {
                let memory = formatted(4, u64::MAX);
                let len = memory.layout.size();
                // SAFETY: so many bytes live there, formatted; one producer at a time.
                unsafe { Producer::<u64, Host>::from_raw(memory.base, len) }.unwrap().push(1).unwrap();
                // SAFETY: as above.
                unsafe { Producer::<u64, Host>::from_raw(memory.base, len) }.unwrap().push(2).unwrap();
                // SAFETY: as above; one consumer at a time.
                assert_eq!(unsafe { Consumer::<u64, Host>::from_raw(memory.base, len) }.unwrap().pop(), Ok(1));
                // SAFETY: as above.
                let mut consumer = unsafe { Consumer::<u64, Host>::from_raw(memory.base, len) }.unwrap();
                assert_eq!([consumer.pop(), consumer.pop()], [Ok(2), Err(PopError::Empty)]);
            }

            #[test]
            fn whatever_the_indices_say_an_end_is_refused_or_returns() {
                returns(|| {
                    for (start, head, tail) in strange_indices() {
                        let memory = formatted(4, start);
                        let len = memory.layout.size();
                        Word::store(&memory.header().consumer.head, head);
                        Word::store(&memory.header().producer.tail, tail);
                        // SAFETY: so many bytes live there; one thread uses them.
                        let Ok(mut producer) = (unsafe { Producer::<u64, Host>::from_raw(memory.base, len) }) else { continue };
                        // SAFETY: as above.
                        let Ok(mut consumer) = (unsafe { Consumer::<u64, Host>::from_raw(memory.base, len) }) else { continue };
                        for number in 0..12 {
                            let _ = (producer.push(number), consumer.pop(), producer.reserve(2).map(drop));
                        }
                    }
                });
            }

            #[test]
            fn another_kind_of_ring_is_refused() {
                for other in KINDS.into_iter().filter(|kind| *kind != $flags) {
                    let (expected, got) = ($flags.bits(), other.bits());
                    assert_eq!(objection_to(|header| &header.constants.flags, got), Some(AttachError::Kind { expected, got }));
                }
                let expected = <u64 as RingMessage>::KIND;
                let got = expected + 1;
                assert_eq!(objection_to(|header| &header.constants.message_kind, got), Some(AttachError::Kind { expected, got }));
            }

            #[test]
            fn constants_that_are_not_those_of_the_ring_are_refused() {
                assert_eq!(objection_to(|header| &header.constants.magic, 0), Some(AttachError::Magic { expected: MAGIC, got: 0 }));
                assert!(matches!(objection_to(|header| &header.constants.abi, 1), Some(AttachError::Abi { got: 1, .. })));
                for got in [0, 3, 1 << 60, 1 << 63, u64::MAX] {
                    assert_eq!(objection_to(|header| &header.constants.capacity, got), Some(AttachError::Capacity { got }));
                }
                for got in [0, 8, 17, u64::MAX] {
                    let expected = 16;
                    assert_eq!(objection_to(|header| &header.constants.slot_size, got), Some(AttachError::SlotSize { expected, got }));
                }
                for got in [0, 383, 392, u64::MAX - 7] {
                    assert_eq!(objection_to(|header| &header.constants.slots_offset, got), Some(AttachError::Offset { got }));
                }
            }

            #[test]
            fn memory_that_is_too_small_or_misaligned_is_refused() {
                let memory = formatted(4, 0);
                let needed = memory.layout.size();
                for got in [0, 383] {
                    assert_eq!(objection(memory.base, got), Some(AttachError::TooSmall { needed: 384, got }));
                }
                assert_eq!(objection(memory.base, needed - 1), Some(AttachError::TooSmall { needed, got: needed - 1 }));
                let larger = RingLayout::of_kind::<u64>($flags, 8).unwrap().size();
                let got = needed;
                assert_eq!(objection_to(|header| &header.constants.capacity, 8), Some(AttachError::TooSmall { needed: larger, got }));
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
    mpmc_ring: mpmc as RingFlags::MPMC, formatted by mpmc::format::<u64, Host>;
    mpsc_ring: mpsc as RingFlags::MPSC, formatted by mpsc::format::<u64, Host>;
    flagged_ring: flagged as RingFlags::FLAGGED, formatted by format_flagged::<u64>;
}

#[test]
fn formatting_objects_to_memory_and_to_layouts_of_other_rings() {
    type Format = unsafe fn(NonNull<u8>, u64, &RingLayout, u64) -> Result<(), AttachError>;
    let formats: [(Format, RingFlags); 2] = [(mpmc::format::<u64, Host>, RingFlags::MPMC), (mpsc::format::<u64, Host>, RingFlags::MPSC)];
    for (format, kind) in formats {
        let memory = Memory::used(kind, 4, 0x55);
        let needed = memory.layout.size();
        for got in [0, needed - 1] {
            // SAFETY: fewer bytes than live there, and nobody is attached.
            let outcome = unsafe { format(memory.base, got, &memory.layout, 0) };
            assert_eq!(outcome, Err(AttachError::TooSmall { needed, got }));
        }
        // SAFETY: within the allocation.
        let base = unsafe { memory.base.add(8) };
        let address = base.as_ptr() as u64;
        // SAFETY: so many bytes live there, and nobody is attached.
        let outcome = unsafe { format(base, needed - 8, &memory.layout, 0) };
        assert_eq!(outcome, Err(AttachError::Misaligned { address, align: 128 }));
        for other in KINDS.into_iter().filter(|other| *other != kind) {
            let layout = RingLayout::of_kind::<u64>(other, 4).unwrap();
            // SAFETY: nothing is written: the layout is another ring's.
            let outcome = unsafe { format(memory.base, needed, &layout, 0) };
            assert_eq!(outcome, Err(AttachError::Kind { expected: kind.bits(), got: other.bits() }));
        }
        // SAFETY: so many bytes live there.
        let bytes = unsafe { std::slice::from_raw_parts(memory.base.as_ptr(), needed as usize) };
        assert!(bytes.iter().all(|byte| *byte == 0x55), "a refusal has written nothing");
    }
}

#[test]
fn two_headers_that_disagree_are_refused() {
    type Cell = Slot<HostWord, <Host as Machine>::Cell<u64>>;
    let cells: Vec<Cell> = (0..8).map(|_| Slot::new(HostWord::new(0), <Host as Machine>::Cell::new(0))).collect();
    let slots = NonNull::from(cells.as_slice()).cast();
    let header = |capacity| RingHeader::<HostWord>::new::<u64>(&RingLayout::of_kind::<u64>(RingFlags::FLAGGED, capacity).unwrap(), 0);
    let [four, eight, another_eight] = [4, 8, 8].map(header);
    let attach = |own: &RingHeader<HostWord>, peer: &RingHeader<HostWord>| {
        // SAFETY: eight cells, as many as any of the headers says; the endpoints are dropped at once.
        let producer = unsafe { flagged::Producer::<u64, Host>::new(own, peer, slots) }.err();
        // SAFETY: as above.
        let consumer = unsafe { flagged::Consumer::<u64, Host>::new(own, peer, slots) }.err();
        assert_eq!(producer, consumer);
        producer
    };
    assert_eq!(attach(&eight, &another_eight), None);
    assert_eq!(attach(&eight, &four), Some(AttachError::Capacity { got: 4 }));
    assert_eq!(attach(&four, &eight), Some(AttachError::Capacity { got: 8 }));
}

#[test]
fn a_head_that_cannot_be_is_corrupt_and_one_that_can_is_believed() {
    let memory = Memory::used(RingFlags::FLAGGED, 4, 0);
    // SAFETY: so many bytes live there, and nobody is attached.
    unsafe { memory.header().format::<u64>(&memory.layout, u64::MAX - 1) };
    // SAFETY: so many bytes live there, formatted; one thread, whose peer writes the head.
    let mut producer = unsafe { flagged::Producer::<u64, Host>::from_raw(memory.base, memory.layout.size()) }.unwrap();
    let head = &memory.header().consumer.head;
    assert_eq!(producer.push_slice(&[1, 2, 3, 4]), Ok(4));
    let tail = producer.tail();
    for ahead in [1, 5, 1 << 63, u64::MAX - 4] {
        Word::store(head, tail.wrapping_add(ahead));
        assert_eq!(producer.push(5), Err(PushError::Corrupt(5)));
        assert!(producer.push_slice(&[5]).is_err());
        assert!(matches!(producer.reserve(1).map(drop), Err(ReserveError::Corrupt(_))));
        assert_eq!(producer.batch(2).push(5), Err(PushError::Corrupt(5)));
        assert!(producer.len() <= 4 && producer.free() == 0);
    }
    // Backwards within the ring: it claims less than it did.
    Word::store(head, tail.wrapping_sub(2));
    assert_eq!(producer.refresh(), Ok(2));
    Word::store(head, tail.wrapping_sub(3));
    assert_eq!(producer.refresh(), Ok(1));
    assert_eq!([producer.push(5), producer.push(6)], [Ok(()), Err(PushError::Full(6))]);
}

/// A producer that was killed after it wrote behind a message that it never published: its flags are taken back.
#[test]
fn flags_behind_a_message_that_was_never_published_are_taken_back() {
    let memory = Memory::used(RingFlags::FLAGGED, 4, 0);
    // SAFETY: so many bytes live there, and nobody is attached.
    unsafe { memory.header().format::<u64>(&memory.layout, u64::MAX) };
    let len = memory.layout.size();
    // SAFETY: so many bytes live there, formatted; one producer at a time.
    let mut killed = unsafe { flagged::Producer::<u64, Host>::from_raw(memory.base, len) }.unwrap();
    killed.push(1).unwrap();
    let mut grant = killed.reserve(3).unwrap();
    assert_eq!(grant.fill([2, 3, 4]), 3);
    std::mem::forget(grant);
    std::mem::forget(killed);
    // SAFETY: as above.
    let mut producer = unsafe { flagged::Producer::<u64, Host>::from_raw(memory.base, len) }.unwrap();
    // SAFETY: the only consumer.
    let mut consumer = unsafe { flagged::Consumer::<u64, Host>::from_raw(memory.base, len) }.unwrap();
    producer.push(5).unwrap();
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(5), Err(PopError::Empty)]);
}

/// Slots that are free say where the ring's next lap begins, so no index lies before that, or more than a lap behind.
#[test]
fn indices_of_other_laps_than_the_slots_are_corrupt() {
    let memory = Memory::used(RingFlags::MPMC, 4, 0);
    let len = memory.layout.size();
    for (start, ahead, is_one) in
        [(0_u64, 0_u64, true), (9, 3, true), (9, 8, false), (u64::MAX, 8, false), (9, 1 << 40, false), (9, 1 << 62, false)]
    {
        for (index, is_one) in [(start.wrapping_add(ahead), is_one), (start.wrapping_sub(ahead), ahead == 0)] {
            // SAFETY: so many bytes live there, and nobody is attached.
            unsafe { mpmc::format::<u64, Host>(memory.base, len, &memory.layout, start) }.unwrap();
            Word::store(&memory.header().consumer.head, index);
            Word::store(&memory.header().producer.tail, index);
            // SAFETY: so many bytes live there; the handle is dropped at once.
            let refused = unsafe { mpmc::Producer::<u64, Host>::from_raw(memory.base, len) }.err();
            let corrupt = AttachError::Corrupt(Corrupt { head: index, tail: index, capacity: 4 });
            assert_eq!(refused, (!is_one).then_some(corrupt), "{index} of a ring from {start}");
        }
    }
    assert_eq!(
        AttachError::Corrupt(Corrupt { head: 8, tail: 9, capacity: 4 }).to_string(),
        "ring is corrupt: head 8 and tail 9 are no indices of these 4 slots"
    );
}

/// The consumer finds 2^40 indices that were given up before the first that was not: it passes over a slot once at most.
macro_rules! passes_over_what_was_given_up {
    ($($name:ident: $kind:ident as $flags:expr;)+) => {$(
        #[test]
        fn $name() {
            let memory = Memory::used($flags, 4, 0);
            for start in [1 << 40, u64::MAX - 1] {
                // SAFETY: so many bytes live there, and nobody is attached.
                unsafe { $kind::format::<u64, Host>(memory.base, memory.layout.size(), &memory.layout, start) }.unwrap();
                Word::store(&memory.header().consumer.head, start.wrapping_sub(1 << 40));
                // SAFETY: so many bytes live there, formatted; the only ends.
                let mut producer = unsafe { $kind::Producer::<u64, Host>::from_raw(memory.base, memory.layout.size()) }.unwrap();
                // SAFETY: as above.
                let mut consumer = unsafe { $kind::Consumer::<u64, Host>::from_raw(memory.base, memory.layout.size()) }.unwrap();
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
    any_number_of_indices_that_were_given_up_is_passed_over_by_a_consumer: mpsc as RingFlags::MPSC;
    any_number_of_indices_that_were_given_up_is_passed_over_by_consumers: mpmc as RingFlags::MPMC;
}
