use std::mem::forget;
use std::ptr::NonNull;

use crate::models::lossy::{Op, Value, follows_the_model, reader, writer};
use crate::ring_memory::Memory;
use proptest::prelude::*;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::lossy::{LatestError, ReadError, Reader, Ring, Writer};
use ringmem_layouts::ring::mailbox::{Mailbox, New};
use ringmem_layouts::ring::{MAGIC, RingFlags, mailbox, spsc};
use ringmem_layouts::{Host, HostWord, RingHeader, RingLayout, RingMessage, Word};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Ring<u64, 4>: Send, Sync);
assert_not_impl_any!(Ring<u64, 4>: Clone);
assert_impl_all!(Reader<'static, u64, Host>: Send, Clone);
assert_impl_all!(mailbox::Reader<'static, u64, Host>: Send, Clone);
assert_impl_all!(Writer<'static, u64, Host>: Send);
assert_not_impl_any!(Writer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(mailbox::Writer<'static, u64, Host>: Clone, Sync);

fn lossy<T: RingMessage>(capacity: u64, start: u64) -> Memory {
    Memory::formatted::<T>(RingFlags::LOSSY, capacity, start)
}

fn op() -> impl Strategy<Value = Op> {
    let reader = 0..8_usize;
    prop_oneof![
        4 => Just(Op::Push),
        2 => (0..20_u64).prop_map(Op::PushSlice),
        2 => (0..10_usize, 0..20_u64, any::<bool>()).prop_map(|(every, count, forget)| Op::Batch { every, count, forget }),
        1 => Just(Op::AttachWriter),
        4 => reader.clone().prop_map(Op::Pop),
        2 => (reader.clone(), 0..10_usize).prop_map(|(reader, count)| Op::PopSlice(reader, count)),
        2 => reader.clone().prop_map(Op::Peek),
        2 => reader.clone().prop_map(Op::Latest),
        1 => (reader.clone(), prop_oneof![0..10_usize, Just(usize::MAX)]).prop_map(|(reader, keep)| Op::Skip(reader, keep)),
        1 => reader.prop_map(Op::CloneReader),
        1 => Just(Op::AttachReader),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, (0..40_u64).prop_map(|back| u64::MAX - back), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_follow_the_model(shift in 0..4_u32, start in start(), before in any::<u8>(), ops in prop::collection::vec(op(), 1..120)) {
        follows_the_model::<u8>(1 << shift, start, before, &ops);
    }

    #[test]
    fn words_follow_the_model(shift in 0..4_u32, start in start(), before in any::<u8>(), ops in prop::collection::vec(op(), 1..120)) {
        follows_the_model::<u64>(1 << shift, start, before, &ops);
    }

    #[test]
    fn five_bytes_follow_the_model(shift in 0..4_u32, start in start(), before in any::<u8>(), ops in prop::collection::vec(op(), 1..120)) {
        follows_the_model::<[u8; 5]>(1 << shift, start, before, &ops);
    }

    #[test]
    fn three_words_follow_the_model(shift in 0..4_u32, start in start(), before in any::<u8>(), ops in prop::collection::vec(op(), 1..120)) {
        follows_the_model::<[u64; 3]>(1 << shift, start, before, &ops);
    }

    #[test]
    fn groups_of_words_follow_the_model(shift in 0..4_u32, start in start(), before in any::<u8>(), ops in prop::collection::vec(op(), 1..60)) {
        follows_the_model::<[u64; 19]>(1 << shift, start, before, &ops);
    }

    #[test]
    fn a_mailbox_returns_each_new_version_once(start in start(), publishes in prop::collection::vec((0..4_u64, 0..3_u8), 1..40)) {
        let memory = Memory::formatted_over::<[u64; 3]>(0xa5, RingLayout::of_kind::<[u64; 3]>(RingFlags::MAILBOX, 2).unwrap(), start);
        let mut writer = memory.attach(mailbox::Writer::<[u64; 3], Host>::from_raw).unwrap();
        let mut reader = memory.attach(mailbox::Reader::<[u64; 3], Host>::from_raw).unwrap();
        let (mut version, mut seen) = (0_u64, 0);
        for (count, how) in publishes {
            for _ in 0..count {
                version += 1;
                writer.publish(Value::of(version));
            }
            prop_assert_eq!(writer.version(), version);
            prop_assert_eq!(reader.changed(), seen < version);
            match how {
                0 => {
                    let expected = New { version, value: Value::of(version), skipped: version.saturating_sub(seen + 1) };
                    prop_assert_eq!(reader.take_new(), if seen < version { Ok(expected) } else { Err(LatestError::Empty) });
                    seen = version;
                }
                1 => prop_assert_eq!(reader.latest(), if version > 0 { Ok((version, Value::of(version))) } else { Err(LatestError::Empty) }),
                _ => {
                    let mut late = memory.attach(mailbox::Reader::<[u64; 3], Host>::from_raw).unwrap();
                    let expected = New { version, value: Value::of(version), skipped: 0 };
                    prop_assert_eq!(late.take_new(), if version > 0 { Ok(expected) } else { Err(LatestError::Empty) });
                }
            }
        }
    }

    #[test]
    fn hostile_writers_keep_readers_within_the_ring(
        shift in 0..3_u32,
        start in start(),
        lies in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![-9..9_i64, any::<i64>()], 0..6_u8), 1..60),
    ) {
        let memory = lossy::<[u8; 5]>(1 << shift, start);
        let capacity = memory.layout.capacity();
        let mut reader = reader::<[u8; 5]>(&memory);
        for (place, lie, how) in lies {
            let slots = &memory.words()[memory.layout.slots_offset() as usize / 8..];
            let word = if lie & 1 == 0 { &memory.header().producer.tail } else { &slots[place.index(slots.len())] };
            Word::store(word, reader.head().wrapping_add_signed(lie));
            let (head, lost) = (reader.head(), reader.lost());
            let tail = reader.poll();
            let ahead = tail.wrapping_sub(head);
            let step = |reader: &Reader<'_, [u8; 5], Host>| reader.head().wrapping_sub(head);
            match how {
                0 | 1 => match reader.pop() {
                    Ok(_) => prop_assert_eq!(step(&reader), 1),
                    Err(ReadError::Empty) => prop_assert!(ahead == 0 && step(&reader) == 0),
                    Err(ReadError::Overrun { lost: some }) => {
                        prop_assert!(some > 0 && some <= ahead && step(&reader) == some && reader.lost() == lost.wrapping_add(some));
                    }
                    Err(ReadError::Corrupt(corrupt)) => {
                        let expected = Corrupt { head, tail, capacity };
                        prop_assert!(ahead > u64::MAX / 2 && corrupt == expected && step(&reader) == 0);
                    }
                },
                2 => match reader.pop_slice(&mut [[0; 5]; 9]) {
                    Ok(count) => prop_assert!(count as u64 <= capacity && step(&reader) == count as u64),
                    Err(ReadError::Overrun { lost }) => prop_assert!(step(&reader) == lost),
                    Err(_) => prop_assert_eq!(step(&reader), 0),
                },
                3 => match reader.latest() {
                    Ok((number, _)) => prop_assert_eq!(number, tail.wrapping_sub(start)),
                    Err(LatestError::Empty) => prop_assert_eq!(tail, start),
                    Err(LatestError::Busy) => {}
                },
                4 => {
                    let mut clone = reader.clone();
                    clone.skip(place.index(10));
                    prop_assert!(tail.wrapping_sub(clone.head()) <= capacity, "a skip brings every reader back");
                }
                _ => {
                    let _ = reader.peek();
                }
            }
            prop_assert!(reader.len() as u64 <= capacity);
        }
    }
}

#[test]
fn overrun_has_the_exact_lost_message_count() {
    for capacity in [1_u64, 2, 4, 8] {
        for behind in (0..=5 * capacity).chain((3..13).map(|laps| capacity << laps)) {
            let memory = lossy::<[u64; 3]>(capacity, u64::MAX - behind / 2);
            let (mut writer, mut reader) = (writer(&memory), reader(&memory));
            for number in 0..behind {
                writer.push(<[u64; 3]>::of(number));
            }
            let lost = behind.saturating_sub(capacity);
            if lost > 0 {
                assert_eq!(reader.pop(), Err(ReadError::Overrun { lost }));
            }
            for number in lost..behind {
                assert_eq!(reader.pop(), Ok(<[u64; 3]>::of(number)));
            }
            assert_eq!((reader.pop(), reader.lost()), (Err(ReadError::Empty), lost));
        }
    }
}

#[test]
fn overwriting_known_messages_returns_overrun() {
    let memory = lossy::<u64>(4, u64::MAX - 5);
    let (mut writer, mut reader) = (writer::<u64>(&memory), reader::<u64>(&memory));
    writer.push_slice(&[1, 2, 3, 4]);
    assert_eq!(reader.pop(), Ok(1));
    writer.push_slice(&[5, 6, 7, 8]);
    assert_eq!((reader.pop(), reader.pop()), (Err(ReadError::Overrun { lost: 3 }), Ok(5)));
    for number in 0..4 * 256 {
        writer.push(number);
    }
    assert_eq!(reader.pop(), Err(ReadError::Overrun { lost: 4 * 256 - 1 }));
    assert_eq!(reader.pop(), Ok(4 * 256 - 4));
}

#[test]
fn every_bit_of_the_lap_is_compared() {
    for capacity in [1, 4] {
        for bit in capacity..64 {
            let memory = lossy::<u64>(capacity, 0);
            let (mut writer, mut reader) = (writer::<u64>(&memory), reader::<u64>(&memory));
            writer.push(7);
            assert_eq!(reader.peek(), Ok(7));
            Word::store(&memory.slot(0)[0], (1 << bit) + 1);
            assert_eq!(reader.pop(), Err(ReadError::Overrun { lost: 1 }), "2^{bit} messages later");
        }
    }
}

#[test]
fn an_interrupted_push_loses_only_the_overwritten_message() {
    let memory = lossy::<[u64; 3]>(4, 6);
    let (mut writer, mut reader) = (writer(&memory), reader(&memory));
    (1..=4).for_each(|number| writer.push(<[u64; 3]>::of(number)));
    drop(writer);
    Word::store(&memory.slot(10)[0], 11);
    Word::store(&memory.slot(10)[1], 5);
    let mut other = reader.clone();
    assert_eq!(reader.pop(), Err(ReadError::Overrun { lost: 1 }));
    for number in 2..=4 {
        assert_eq!(reader.pop(), Ok(<[u64; 3]>::of(number)));
    }
    assert_eq!(reader.pop(), Err(ReadError::Empty));
    assert_eq!(reader.latest(), Ok((4, <[u64; 3]>::of(4))));
    crate::models::lossy::writer(&memory).push(<[u64; 3]>::of(9));
    assert_eq!((reader.pop(), reader.pop()), (Ok(<[u64; 3]>::of(9)), Err(ReadError::Empty)));
    assert_eq!((other.pop(), other.pop()), (Err(ReadError::Overrun { lost: 1 }), Ok(<[u64; 3]>::of(2))));
}

#[test]
fn latest_of_an_interrupted_single_slot_is_busy() {
    let memory = lossy::<u64>(1, 0);
    let (mut writer, mut reader) = (writer::<u64>(&memory), reader::<u64>(&memory));
    writer.push(1);
    assert_eq!((reader.peek(), reader.latest()), (Ok(1), Ok((1, 1))));
    Word::store(&memory.slot(1)[0], 2);
    assert_eq!(reader.latest(), Err(LatestError::Busy));
    assert_eq!((reader.pop(), reader.pop()), (Err(ReadError::Overrun { lost: 1 }), Err(ReadError::Empty)));
}

#[test]
fn a_mailbox_survives_an_interrupted_writer() {
    let memory = Memory::formatted::<u64>(RingFlags::MAILBOX, 2, u64::MAX);
    let mut writer = memory.attach(mailbox::Writer::<u64, Host>::from_raw).unwrap();
    let mut reader = memory.attach(mailbox::Reader::<u64, Host>::from_raw).unwrap();
    for value in 1..=3 {
        writer.publish(value);
        Word::store(&memory.slot(value - 1)[0], value);
        Word::store(&memory.slot(value - 1)[1], 77);
        assert_eq!(reader.latest(), Ok((value, value)));
        assert_eq!(reader.take_new(), Ok(New { version: value, value, skipped: 0 }));
    }
}

#[test]
fn a_decreased_tail_is_corrupt_until_skip() {
    let memory = lossy::<u64>(4, 0);
    let (mut writer, mut reader) = (writer::<u64>(&memory), reader::<u64>(&memory));
    writer.push_slice(&[1, 2, 3]);
    assert_eq!(reader.pop(), Ok(1));
    assert_eq!(reader.skip(0), 2);
    Word::store(&memory.header().producer.tail, 1);
    for _ in 0..2 {
        assert_eq!(reader.pop(), Err(ReadError::Corrupt(Corrupt { head: 3, tail: 1, capacity: 4 })));
        assert_eq!(reader.pop_slice(&mut [0; 4]), Err(ReadError::Corrupt(Corrupt { head: 3, tail: 1, capacity: 4 })));
    }
    assert_eq!(reader.skip(4), 0);
    assert_eq!((reader.head(), reader.pop()), (1, Err(ReadError::Empty)));
}

#[test]
fn push_slice_beyond_capacity_keeps_the_newest() {
    let memory = lossy::<u64>(4, u64::MAX - 2);
    let (mut writer, mut reader) = (writer::<u64>(&memory), reader::<u64>(&memory));
    writer.push_slice(&(0..1000).collect::<Vec<u64>>());
    assert_eq!(writer.written(), 1000);
    assert_eq!(reader.pop(), Err(ReadError::Overrun { lost: 996 }));
    let mut values = [0; 9];
    assert_eq!(reader.pop_slice(&mut values), Ok(4));
    assert_eq!(values[..4], [996, 997, 998, 999]);
    assert_eq!(reader.pop_slice(&mut values), Ok(0));
}

#[test]
fn a_batch_publishes_at_capacity_and_survives_forget() {
    let memory = lossy::<u64>(2, 0);
    let (mut writer, mut reader) = (writer::<u64>(&memory), reader::<u64>(&memory));
    let mut batch = writer.batch(usize::MAX);
    batch.push(1);
    assert_eq!(reader.pop(), Err(ReadError::Empty));
    batch.push(2);
    assert_eq!((reader.pop(), reader.pop()), (Ok(1), Ok(2)));
    batch.push(3);
    forget(batch);
    assert_eq!(reader.pop(), Err(ReadError::Empty));
    drop(writer.batch(2));
    assert_eq!(reader.pop(), Ok(3));
    let mut batch = writer.batch(2);
    batch.push(4);
    forget(batch);
    writer.push_slice(&[]);
    assert_eq!(reader.pop(), Ok(4));
    let mut batch = writer.batch(2);
    batch.push(5);
    batch.flush();
    assert_eq!(reader.pop(), Ok(5));
}

#[test]
fn the_last_word_is_zero_padded() {
    let memory = Memory::formatted_over::<[u8; 5]>(0xa5, RingLayout::of_kind::<[u8; 5]>(RingFlags::LOSSY, 1).unwrap(), 0);
    writer(&memory).push([0xff_u8; 5]);
    assert_eq!(Word::load(&memory.slot(0)[1]).to_ne_bytes(), [0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]);
}

#[test]
fn a_moved_ring_keeps_its_messages() {
    let mut ring = Box::new(Ring::<[u8; 5], 4>::starting_at(u64::MAX - 1));
    (1..=5).for_each(|number| ring.split().0.push(Value::of(number)));
    let mut moved = *ring;
    let (writer, mut reader) = moved.split();
    assert_eq!((reader.len(), writer.written()), (4, 5));
    for number in 2..=5 {
        assert_eq!(reader.pop(), Ok(<[u8; 5]>::of(number)));
    }
    assert!(!reader.is_disconnected());
    drop(writer);
    assert!(reader.is_disconnected());
    let mut mailbox = Mailbox::<u8>::default();
    mailbox.split().0.publish(9);
    let mut moved = mailbox;
    assert_eq!(moved.split().1.latest(), Ok((1, 9)));
}

fn objection_to(word: impl Fn(&RingHeader<HostWord>) -> &HostWord, value: u64) -> Option<AttachError> {
    let memory = lossy::<u64>(4, 0);
    Word::store(word(memory.header()), value);
    let writer = memory.attach(Writer::<u64, Host>::from_raw).err();
    assert_eq!(memory.attach(Reader::<u64, Host>::from_raw).err(), writer);
    let slots = NonNull::from(memory.slot(0)).cast();
    if !matches!(writer, Some(AttachError::TooSmall { .. })) {
        // SAFETY: an accepted header's words; dropped at once.
        assert_eq!(unsafe { Writer::<u64, Host>::new(memory.header(), slots) }.err(), writer);
        // SAFETY: an accepted header's words; dropped at once.
        assert_eq!(unsafe { Reader::<u64, Host>::new(memory.header(), slots) }.err(), writer);
    }
    writer
}

#[test]
fn attach_errors_identify_the_wrong_field() {
    assert_eq!(objection_to(|header| &header.constants.magic, MAGIC), None);
    assert_eq!(objection_to(|header| &header.constants.magic, 1), Some(AttachError::Magic { expected: MAGIC, got: 1 }));
    assert!(matches!(objection_to(|header| &header.constants.abi, 1), Some(AttachError::Abi { got: 1, .. })));
    for got in [0, 1, 33, 64] {
        assert_eq!(objection_to(|header| &header.constants.flags, got), Some(AttachError::Kind { expected: 32, got }));
    }
    for got in [0, 3, 1 << 60, u64::MAX] {
        assert_eq!(objection_to(|header| &header.constants.capacity, got), Some(AttachError::Capacity { got }));
    }
    assert_eq!(objection_to(|header| &header.constants.capacity, 8), Some(AttachError::TooSmall { needed: 512, got: 448 }));
    for got in [0, 8, 24] {
        assert_eq!(objection_to(|header| &header.constants.slot_size, got), Some(AttachError::SlotSize { expected: 16, got }));
    }
    assert_eq!(objection_to(|header| &header.constants.slots_offset, 392), Some(AttachError::Offset { got: 392 }));
    let memory = lossy::<u64>(4, 0);
    // SAFETY: within the memory.
    let inside = unsafe { memory.base.add(8) };
    // SAFETY: live bytes.
    let misaligned = unsafe { Reader::<u64, Host>::from_raw(inside, 384) }.err();
    assert_eq!(misaligned, Some(AttachError::Misaligned { address: inside.as_ptr() as u64, align: 128 }));
    // SAFETY: fewer than the live bytes.
    assert_eq!(unsafe { Writer::<u64, Host>::from_raw(memory.base, 447) }.err(), Some(AttachError::TooSmall { needed: 448, got: 447 }));
}

#[test]
fn attaching_to_another_ring_kind_is_an_error() {
    let lossy = lossy::<u64>(4, 0);
    let letters = Memory::formatted::<u64>(RingFlags::MAILBOX, 4, 0);
    let queue = Memory::formatted::<u64>(RingFlags::SPSC, 4, 0);
    let kind = |expected: RingFlags, got: RingFlags| Some(AttachError::Kind { expected: expected.bits(), got: got.bits() });
    assert_eq!(queue.attach(Writer::<u64, Host>::from_raw).err(), kind(RingFlags::LOSSY, RingFlags::SPSC));
    assert_eq!(lossy.attach(spsc::Consumer::<u64, Host>::from_raw).err(), kind(RingFlags::SPSC, RingFlags::LOSSY));
    assert_eq!(letters.attach(Reader::<u64, Host>::from_raw).err(), kind(RingFlags::LOSSY, RingFlags::MAILBOX));
    assert_eq!(lossy.attach(mailbox::Reader::<u64, Host>::from_raw).err(), kind(RingFlags::MAILBOX, RingFlags::LOSSY));
    assert_eq!(lossy.attach(mailbox::Writer::<u64, Host>::from_raw).err(), kind(RingFlags::MAILBOX, RingFlags::LOSSY));
}

#[test]
fn a_mailbox_of_one_slot_is_an_error() {
    let memory = Memory::formatted::<u64>(RingFlags::MAILBOX, 1, 0);
    let expected = Some(AttachError::Capacity { got: 1 });
    assert_eq!(memory.attach(mailbox::Writer::<u64, Host>::from_raw).err(), expected);
    assert_eq!(memory.attach(mailbox::Reader::<u64, Host>::from_raw).err(), expected);
    let slots = NonNull::from(memory.slot(0)).cast();
    // SAFETY: the header's words.
    assert_eq!(unsafe { mailbox::Writer::<u64, Host>::new(memory.header(), slots) }.err(), expected);
    // SAFETY: the header's words.
    assert_eq!(unsafe { mailbox::Reader::<u64, Host>::new(memory.header(), slots) }.err(), expected);
}
