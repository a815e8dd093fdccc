#[allow(dead_code)]
use crate::loom_machine;

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;
use loom_machine::{LoomCell, LoomWord, STRONG, check, must_fail};
use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::lossy::{LatestError, ReadError, Reader, Writer};
use ringmem_layouts::ring::{RingFlags, mailbox};
use ringmem_layouts::{Machine, RingHeader, RingLayout, Word};

const TAIL_STORED_RELAXED: u8 = 1;
const TAIL_LOADED_RELAXED: u8 = 2;
const PAYLOAD_STORED_RELAXED: u8 = 3;
const PAYLOAD_LOADED_RELAXED: u8 = 4;

struct Watched<const WEAK: u8> {
    word: LoomWord<STRONG>,
    in_slot: bool,
    /// A reader yields at its fifth poll: loom would explore 128 polls of one tail.
    looks: AtomicU32,
}

impl<const WEAK: u8> Watched<WEAK> {
    fn in_slot() -> Self {
        Self { in_slot: true, ..Self::new(0) }
    }
}

// SAFETY: each method is one access of the inner `LoomWord`. Some are weakened on purpose; loom refuses a racy access before it happens.
unsafe impl<const WEAK: u8> Word for Watched<WEAK> {
    fn new(value: u64) -> Self {
        Self { word: LoomWord::new(value), in_slot: false, looks: AtomicU32::new(0) }
    }
    fn load(&self) -> u64 {
        self.word.load()
    }
    fn load_acquire(&self) -> u64 {
        if !self.in_slot && self.looks.fetch_add(1, Relaxed) >= 4 {
            thread::yield_now();
        }
        match WEAK {
            TAIL_LOADED_RELAXED if !self.in_slot => self.word.load(),
            PAYLOAD_LOADED_RELAXED if self.in_slot => self.word.load(),
            _ => self.word.load_acquire(),
        }
    }
    fn store(&self, value: u64) {
        self.word.store(value);
    }
    fn store_release(&self, value: u64) {
        match WEAK {
            TAIL_STORED_RELAXED if !self.in_slot => self.word.store(value),
            PAYLOAD_STORED_RELAXED if self.in_slot => self.word.store(value),
            _ => self.word.store_release(value),
        }
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        for (word, value) in words {
            word.store_release(value);
        }
    }
}

struct Loom<const WEAK: u8>;

impl<const WEAK: u8> Machine for Loom<WEAK> {
    type Word = Watched<WEAK>;
    type Cell<T> = LoomCell<T>;
    type Corrupt = ringmem_layouts::attach::Corrupt;

    fn at(&self, _address: u64, _bytes: u64, _align: u64) -> Option<NonNull<u8>> {
        None
    }
}

type Message = [u64; 2];

const fn message(number: u64) -> Message {
    [number, !number]
}

fn is_whole(seen: Message, number: u64) {
    assert_eq!(seen, message(number), "torn or stale");
}

#[derive(Clone, Copy)]
struct Geometry {
    capacity: u64,
    messages: u64,
}

const START: u64 = u64::MAX - 1;
const ONE_SLOT: Geometry = Geometry { capacity: 1, messages: 3 };
const TWO_SLOTS: Geometry = Geometry { capacity: 2, messages: 4 };

struct Memory<const WEAK: u8> {
    header: RingHeader<Watched<WEAK>>,
    slots: Vec<Watched<WEAK>>,
}

impl<const WEAK: u8> Memory<WEAK> {
    fn new(kind: RingFlags, capacity: u64) -> &'static Self {
        let layout = RingLayout::of_kind::<Message>(kind, capacity).unwrap();
        let words = capacity * layout.slot_size() / 8;
        Box::leak(Box::new(Self {
            header: RingHeader::new::<Message>(&layout, START),
            slots: (0..words).map(|_| Watched::in_slot()).collect(),
        }))
    }
    fn slots(&self) -> NonNull<Watched<WEAK>> {
        NonNull::from(self.slots.as_slice()).cast()
    }
    fn reader(&'static self) -> Reader<'static, Message, Loom<WEAK>> {
        // SAFETY: the layout's words.
        unsafe { Reader::new(&self.header, self.slots()) }.unwrap()
    }
    /// # Safety
    ///
    /// Made by `new`, without ends.
    unsafe fn free(&'static self) {
        // SAFETY: the caller promises that `new` leaked this box and that no end borrows it, so it is freed once and unused.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

fn meet<const WEAK: u8>(
    geometry: Geometry,
    fill: fn(&mut Writer<Message, Loom<WEAK>>, Geometry),
    drain: fn(&mut Reader<Message, Loom<WEAK>>, Geometry),
) {
    let memory = Memory::<WEAK>::new(RingFlags::LOSSY, geometry.capacity);
    // Attached here: loom remembers only a word's last access, so a writer's own load would hide a race.
    let mut reader = memory.reader();
    // SAFETY: the layout's words; only writer.
    let mut writer = unsafe { Writer::new(&memory.header, memory.slots()) }.unwrap();
    writer.push(message(1));
    let writer = thread::spawn(move || fill(&mut writer, geometry));
    drain(&mut reader, geometry);
    writer.join().unwrap();
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn one_by_one<const WEAK: u8>(writer: &mut Writer<Message, Loom<WEAK>>, geometry: Geometry) {
    for number in 2..=geometry.messages {
        writer.push(message(number));
    }
}

fn by_slice<const WEAK: u8>(writer: &mut Writer<Message, Loom<WEAK>>, geometry: Geometry) {
    let messages: Vec<Message> = (2..=geometry.messages).map(message).collect();
    writer.push_slice(&messages);
}

fn in_a_batch<const WEAK: u8>(writer: &mut Writer<Message, Loom<WEAK>>, geometry: Geometry) {
    let mut batch = writer.batch(2);
    for number in 2..=geometry.messages {
        batch.push(message(number));
    }
}

fn follow<const WEAK: u8>(
    reader: &mut Reader<Message, Loom<WEAK>>,
    geometry: Geometry,
    mut read: impl FnMut(&mut Reader<Message, Loom<WEAK>>) -> Result<Vec<Message>, ReadError<Corrupt>>,
) {
    let number = |head: u64| head.wrapping_sub(START);
    let (mut count, mut lost) = (0, 0);
    while number(reader.head()) < geometry.messages {
        let before = number(reader.head());
        match read(reader) {
            Ok(messages) => {
                for (seen, number) in messages.iter().zip(before + 1..) {
                    is_whole(*seen, number);
                    count += 1;
                }
                if messages.is_empty() {
                    thread::yield_now();
                }
            }
            Err(ReadError::Overrun { lost: some }) => {
                assert!(some > 0);
                lost += some;
            }
            Err(ReadError::Empty) => thread::yield_now(),
            Err(corrupt) => panic!("{corrupt}"),
        }
        assert_eq!(count + lost, number(reader.head()));
    }
    assert_eq!((count + lost, lost), (geometry.messages, reader.lost()));
}

fn popping<const WEAK: u8>(reader: &mut Reader<Message, Loom<WEAK>>, geometry: Geometry) {
    follow(reader, geometry, |reader| reader.pop().map(|seen| vec![seen]));
}

fn peeking<const WEAK: u8>(reader: &mut Reader<Message, Loom<WEAK>>, geometry: Geometry) {
    follow(reader, geometry, |reader| {
        let number = reader.head().wrapping_sub(START) + 1;
        is_whole(reader.peek()?, number);
        reader.pop().map(|seen| vec![seen])
    });
}

fn by_slices<const WEAK: u8>(reader: &mut Reader<Message, Loom<WEAK>>, geometry: Geometry) {
    follow(reader, geometry, |reader| {
        let mut seen = [[0; 2]; 2];
        let count = reader.pop_slice(&mut seen)?;
        Ok(seen[..count].to_vec())
    });
}

fn the_latest<const WEAK: u8>(reader: &mut Reader<Message, Loom<WEAK>>, geometry: Geometry) {
    let mut last = 0;
    while last < geometry.messages {
        match reader.latest() {
            Ok((number, seen)) => {
                is_whole(seen, number);
                assert!(number >= last, "number {number} after {last}");
                last = number;
            }
            Err(LatestError::Empty) => assert_eq!(last, 0),
            Err(LatestError::Busy) => {}
        }
        thread::yield_now();
    }
}

fn a_mailbox<const WEAK: u8>() {
    const VALUES: u64 = 3;
    let memory = Memory::<WEAK>::new(RingFlags::MAILBOX, 2);
    // SAFETY: the layout's words.
    let mut reader = unsafe { mailbox::Reader::<Message, Loom<WEAK>>::new(&memory.header, memory.slots()) }.unwrap();
    // SAFETY: the layout's words; the only writer.
    let mut writer = unsafe { mailbox::Writer::<Message, Loom<WEAK>>::new(&memory.header, memory.slots()) }.unwrap();
    let writer = thread::spawn(move || (1..=VALUES).for_each(|version| writer.publish(message(version))));
    let mut seen = 0;
    while seen < VALUES {
        match reader.take_new() {
            Ok(new) => {
                is_whole(new.value, new.version);
                assert_eq!(new.skipped, new.version - seen - 1);
                seen = new.version;
                let (version, value) = reader.latest().unwrap();
                is_whole(value, version);
                assert!(version >= seen);
            }
            Err(nothing) => assert_eq!(nothing, LatestError::Empty),
        }
        thread::yield_now();
    }
    assert!(!reader.changed());
    writer.join().unwrap();
    // SAFETY: without ends.
    unsafe { memory.free() };
}

type Wide = [u64; 8];

fn a_group_of_words<const WEAK: u8>() {
    const fn wide(number: u64) -> Wide {
        [number; 8]
    }
    let layout = RingLayout::of_kind::<Wide>(RingFlags::LOSSY, 1).unwrap();
    let memory: &'static Memory<WEAK> = Box::leak(Box::new(Memory {
        header: RingHeader::new::<Wide>(&layout, START),
        slots: (0..layout.slot_size() / 8).map(|_| Watched::in_slot()).collect(),
    }));
    // SAFETY: the layout's words.
    let mut reader = unsafe { Reader::<Wide, Loom<WEAK>>::new(&memory.header, memory.slots()) }.unwrap();
    // SAFETY: the layout's words; the only writer.
    let mut writer = unsafe { Writer::<Wide, Loom<WEAK>>::new(&memory.header, memory.slots()) }.unwrap();
    writer.push(wide(1));
    let writer = thread::spawn(move || writer.push(wide(2)));
    let first = reader.pop();
    assert!(
        first == Ok(wide(1)) || first == Err(ReadError::Overrun { lost: 1 }) || first == Err(ReadError::Empty),
        "torn or stale: {first:?}"
    );
    writer.join().unwrap();
    // SAFETY: without ends.
    unsafe { memory.free() };
}

const PREEMPTIONS: usize = 2;

#[test]
fn a_group_of_words_is_never_torn() {
    check(1, a_group_of_words::<STRONG>);
}

#[test]
fn a_relaxed_group_of_words_is_torn() {
    must_fail("torn", 1, a_group_of_words::<PAYLOAD_STORED_RELAXED>);
    must_fail("torn", 1, a_group_of_words::<PAYLOAD_LOADED_RELAXED>);
}

macro_rules! models {
    ($($name:ident: $model:expr;)*) => {$(
        mod $name {
            use super::*;

            fn model<const WEAK: u8>() {
                $model;
            }

            #[test]
            fn every_message_is_read_whole_or_lost() {
                check(PREEMPTIONS, model::<STRONG>);
            }
            #[test]
            fn a_relaxed_tail_store_tears_a_message() {
                must_fail("torn", PREEMPTIONS, model::<TAIL_STORED_RELAXED>);
            }
            #[test]
            fn a_relaxed_tail_load_tears_a_message() {
                must_fail("torn", PREEMPTIONS, model::<TAIL_LOADED_RELAXED>);
            }
            #[test]
            fn a_relaxed_payload_store_tears_a_message() {
                must_fail("torn", PREEMPTIONS, model::<PAYLOAD_STORED_RELAXED>);
            }
            #[test]
            fn a_relaxed_payload_load_tears_a_message() {
                must_fail("torn", PREEMPTIONS, model::<PAYLOAD_LOADED_RELAXED>);
            }
        }
    )*};
}

models! {
    push_meets_pop: meet::<WEAK>(ONE_SLOT, one_by_one, popping);
    push_meets_peek: meet::<WEAK>(ONE_SLOT, one_by_one, peeking);
    push_meets_pop_slice: meet::<WEAK>(TWO_SLOTS, one_by_one, by_slices);
    push_meets_latest: meet::<WEAK>(TWO_SLOTS, one_by_one, the_latest);
    push_slice_meets_pop: meet::<WEAK>(ONE_SLOT, by_slice, popping);
    push_slice_meets_peek: meet::<WEAK>(TWO_SLOTS, by_slice, peeking);
    push_slice_meets_pop_slice: meet::<WEAK>(TWO_SLOTS, by_slice, by_slices);
    push_slice_meets_latest: meet::<WEAK>(TWO_SLOTS, by_slice, the_latest);
    batch_meets_pop: meet::<WEAK>(TWO_SLOTS, in_a_batch, popping);
    batch_meets_peek: meet::<WEAK>(TWO_SLOTS, in_a_batch, peeking);
    batch_meets_pop_slice: meet::<WEAK>(TWO_SLOTS, in_a_batch, by_slices);
    batch_meets_latest: meet::<WEAK>(TWO_SLOTS, in_a_batch, the_latest);
    publish_meets_latest: a_mailbox::<WEAK>();
}

#[test]
fn two_readers_are_independent() {
    fn thrice(mut reader: Reader<Message, Loom<STRONG>>) {
        for _ in 0..3 {
            let number = reader.head().wrapping_sub(START) + 1;
            if let Ok(seen) = reader.pop() {
                is_whole(seen, number);
            }
        }
        assert!(reader.head().wrapping_sub(START) <= 2 && reader.lost() <= 1);
    }
    check(1, || {
        let memory = Memory::<STRONG>::new(RingFlags::LOSSY, 1);
        // SAFETY: the layout's words; only writer.
        let mut writer = unsafe { Writer::<Message, Loom<STRONG>>::new(&memory.header, memory.slots()) }.unwrap();
        let reader = memory.reader();
        writer.push(message(1));
        let readers = [reader.clone(), reader].map(|reader| thread::spawn(move || thrice(reader)));
        writer.push(message(2));
        for reader in readers {
            reader.join().unwrap();
        }
        // SAFETY: without ends.
        unsafe { memory.free() };
    });
}
