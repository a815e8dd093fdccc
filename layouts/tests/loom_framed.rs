//! Every interleaving of each pair of framed operations that can meet.
//!
//! 1. A way to fill and a way to empty are chosen; one body runs them against each other with words that are reused, indices that wrap, a
//!    frame that goes with a marker, and a full ring, once over one header and once over two.
//! 2. Lengths, markers and payload are words in loom's cells: loom sees each access to them.
//! 3. Every pair runs on the strong machine and on four weakened twins: each half of each sync point once relaxed. A twin must fail.
//!
//! `push`, `push_many` and `pop` need cells that are plain bytes, which loom cannot watch; they find, fill and publish by the same code.

mod loom_machine;

use std::ptr::NonNull;

use loom::thread;
use loom_machine::{
    Loom, READER_LOOKS_RELAXED, READER_RELEASES_RELAXED, STRONG, Side, WRITER_LOOKS_RELAXED, WRITER_PUBLISHES_RELAXED, check, must_fail,
    take_side,
};
use ringmem_layouts::ring::framed::{self, Consumer, Grant, Message, PopError, Producer, PushError};
use ringmem_layouts::{Machine, RingHeader, SlotCell};

/// A ring of four words, where it begins, and the lengths of what goes through it.
#[derive(Clone, Copy)]
struct Geometry {
    start: u64,
    /// Two headers, each end polls its own.
    split: bool,
    lengths: [usize; 3],
    /// Where all of them end.
    end: u64,
}

const WORDS: u64 = 4;

/// One header. From the last word of the ring: the first message skips it, the second begins behind, the third where the first was, with an
/// index that has wrapped.
const ONE_HEADER: Geometry = Geometry { start: u64::MAX - 4, split: false, lengths: [8, 8, 5], end: 2 };
/// A header for each end. From the middle: a message without bytes, one that skips the last word and the end of the index range, and one where
/// the first and the marker were.
const TWO_HEADERS: Geometry = Geometry { start: u64::MAX - 1, split: true, lengths: [0, 3, 8], end: 4 };

/// A ring's words and slots, as long as a model runs.
struct Memory<M: Machine> {
    /// Where the producer polls and the consumer publishes; with one header, both do both.
    near_producer: RingHeader<M::Word>,
    near_consumer: Option<RingHeader<M::Word>>,
    slots: Vec<M::Cell<u64>>,
}

// SAFETY: the words are shared by their own accesses, the slots by the ring's protocol; whether that is enough is what loom finds out.
unsafe impl<M: Machine> Sync for Memory<M> {}

impl<M: Machine> Memory<M> {
    /// Leaked until [`free`](Self::free); a model that fails leaves it so.
    fn new(geometry: Geometry) -> &'static Self {
        let Geometry { start, split, .. } = geometry;
        let layout = framed::layout(8 * WORDS).unwrap();
        let header = || RingHeader::new::<u64>(&layout, start);
        Box::leak(Box::new(Self {
            near_producer: header(),
            near_consumer: split.then(header),
            // No length that could pass for one.
            slots: (0..WORDS).map(|_| M::Cell::new(0x5555)).collect(),
        }))
    }
    /// # Safety
    ///
    /// Once at a time.
    unsafe fn producer(&'static self) -> Producer<'static, M> {
        // SAFETY: as many cells as the layout says, each with a value, and the caller's promise.
        unsafe { Producer::new(&self.near_producer, self.near_consumer(), self.slots()) }.unwrap()
    }
    /// # Safety
    ///
    /// Once at a time.
    unsafe fn consumer(&'static self) -> Consumer<'static, M> {
        // SAFETY: as above.
        unsafe { Consumer::new(self.near_consumer(), &self.near_producer, self.slots()) }.unwrap()
    }
    fn near_consumer(&self) -> &RingHeader<M::Word> {
        self.near_consumer.as_ref().unwrap_or(&self.near_producer)
    }
    fn slots(&self) -> NonNull<M::Cell<u64>> {
        NonNull::from(self.slots.as_slice()).cast()
    }
    /// # Safety
    ///
    /// Made by `new`, and all ends are gone.
    unsafe fn free(&'static self) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

type Lengths = [usize; 3];

/// Runs `fill` and `drain` against each other on two threads.
fn meet<M: Machine + 'static>(geometry: Geometry, fill: fn(&mut Producer<M>, Lengths), drain: fn(&mut Consumer<M>, Lengths)) {
    let Geometry { lengths, end, .. } = geometry;
    let memory = Memory::<M>::new(geometry);
    // SAFETY: this model's only ends.
    let (mut producer, mut consumer) = unsafe { (memory.producer(), memory.consumer()) };
    let writer = thread::spawn(move || {
        take_side(Side::Writer);
        fill(&mut producer, lengths);
    });
    take_side(Side::Reader);
    drain(&mut consumer, lengths);
    writer.join().unwrap();
    assert_eq!(consumer.peek().map(drop), Err(PopError::Empty), "more came out than went in");
    assert_eq!(consumer.head(), end);
    // SAFETY: the writer has ended, and the consumer is not used any more.
    unsafe { memory.free() };
}

/// What a message of this number says.
fn value(number: usize) -> u64 {
    0x100 + number as u64
}

/// Writes the one word of a message, if it has one.
fn write<M: Machine>(grant: &Grant<'_, '_, M>, number: usize) {
    if let Some(word) = grant.word(0) {
        // SAFETY: granted, and so the producer's.
        word.with_mut(|word| unsafe { word.write(value(number)) });
    }
    assert!(grant.word(1).is_none());
}

fn verify<M: Machine>(message: &Message<'_, M>, number: usize, lengths: Lengths) {
    assert_eq!(message.len(), lengths[number]);
    match message.word(0) {
        // SAFETY: seen, not released, and so the consumer's.
        Some(word) => assert_eq!(word.with(|word| unsafe { word.read() }), value(number)),
        None => assert!(message.is_empty()),
    }
    assert!(message.word(1).is_none());
}

/// Until there is room.
fn wait(refused: PushError) {
    assert_eq!(refused, PushError::Full);
    thread::yield_now();
}

fn reserve<M: Machine>(producer: &mut Producer<M>, lengths: Lengths) {
    for (number, len) in lengths.into_iter().enumerate() {
        loop {
            match producer.reserve(len) {
                Ok(grant) => {
                    write(&grant, number);
                    break grant.commit(len);
                }
                Err(refused) => wait(refused),
            }
        }
    }
}

/// Asks for the largest, takes back what it does not need; and lets go of a grant on the way.
fn commit_part<M: Machine>(producer: &mut Producer<M>, lengths: Lengths) {
    for (number, len) in lengths.into_iter().enumerate() {
        if let Ok(grant) = producer.reserve(8) {
            write(&grant, 9);
        }
        loop {
            match producer.reserve(8) {
                Ok(grant) => {
                    write(&grant, number);
                    break grant.commit(len);
                }
                Err(refused) => wait(refused),
            }
        }
    }
}

fn batch_reserve<M: Machine>(producer: &mut Producer<M>, lengths: Lengths) {
    // The last message is left to the drop, those before it to the bound, a full ring and a dry consumer.
    let mut batch = producer.batch(2);
    for (number, len) in lengths.into_iter().enumerate() {
        loop {
            match batch.reserve(len) {
                Ok(grant) => {
                    write(&grant, number);
                    break grant.commit(len);
                }
                Err(refused) => wait(refused),
            }
        }
        if number == 0 {
            batch.flush();
        }
    }
}

fn peek<M: Machine>(consumer: &mut Consumer<M>, lengths: Lengths) {
    for number in 0..lengths.len() {
        loop {
            match consumer.peek() {
                Ok(frame) => {
                    verify(&frame.message(), number, lengths);
                    break frame.release();
                }
                Err(refused) => assert_eq!(refused, PopError::Empty),
            }
            thread::yield_now();
        }
    }
}

fn peek_many<M: Machine>(consumer: &mut Consumer<M>, lengths: Lengths) {
    let mut number = 0;
    while number < lengths.len() {
        match consumer.peek_many() {
            Ok(chunk) => {
                let mut seen = 0;
                while let Ok(message) = chunk.next() {
                    verify(&message, number, lengths);
                    number += 1;
                    seen += 1;
                }
                assert_eq!(chunk.release(), seen);
            }
            Err(refused) => {
                assert_eq!(refused, PopError::Empty);
                thread::yield_now();
            }
        }
    }
}

fn batch_peek<M: Machine>(consumer: &mut Consumer<M>, lengths: Lengths) {
    let mut batch = consumer.batch(2);
    for number in 0..lengths.len() {
        loop {
            match batch.peek() {
                Ok(frame) => {
                    verify(&frame.message(), number, lengths);
                    break frame.release();
                }
                Err(refused) => assert_eq!(refused, PopError::Empty),
            }
            thread::yield_now();
        }
    }
}

/// A consumer that attaches while the producer is at work sees of it what it would see later.
fn attach_while_it_is_filled<M: Machine + 'static>() {
    let lengths = ONE_HEADER.lengths;
    let memory = Memory::<M>::new(ONE_HEADER);
    // SAFETY: this model's only producer.
    let mut producer = unsafe { memory.producer() };
    let writer = thread::spawn(move || {
        take_side(Side::Writer);
        let grant = producer.reserve(lengths[0]).unwrap();
        write(&grant, 0);
        grant.commit(lengths[0]);
    });
    take_side(Side::Reader);
    // SAFETY: this model's only consumer. (Its peer attached before: loom remembers only the last access to a word, and a writer's own
    // look at its index would hide from it that a reader raced.)
    let mut consumer = unsafe { memory.consumer() };
    match consumer.peek() {
        Ok(frame) => verify(&frame.message(), 0, lengths),
        Err(refused) => assert_eq!(refused, PopError::Empty),
    }
    writer.join().unwrap();
    // SAFETY: the writer has ended, and the consumer is not used any more.
    unsafe { memory.free() };
}

/// A producer that attaches while the consumer is at work, likewise.
fn attach_while_it_is_emptied<M: Machine + 'static>() {
    let lengths = TWO_HEADERS.lengths;
    let memory = Memory::<M>::new(Geometry { split: false, ..TWO_HEADERS });
    {
        // SAFETY: the only producer, and gone at the end of the block.
        let mut producer = unsafe { memory.producer() };
        for (number, len) in lengths.into_iter().enumerate().take(2) {
            let grant = producer.reserve(len).unwrap();
            write(&grant, number);
            grant.commit(len);
        }
    }
    // SAFETY: this model's only consumer.
    let mut consumer = unsafe { memory.consumer() };
    let reader = thread::spawn(move || {
        take_side(Side::Reader);
        for number in 0..2 {
            let frame = consumer.peek().unwrap();
            verify(&frame.message(), number, lengths);
            frame.release();
        }
    });
    take_side(Side::Writer);
    // SAFETY: the only producer now.
    let mut producer = unsafe { memory.producer() };
    match producer.reserve(lengths[2]) {
        Ok(grant) => {
            write(&grant, 2);
            grant.commit(lengths[2]);
        }
        Err(refused) => assert_eq!(refused, PushError::Full),
    }
    reader.join().unwrap();
    // SAFETY: the reader has ended, and the producer is not used any more.
    unsafe { memory.free() };
}

/// What loom says when two threads reach a slot with nothing between them that orders them.
const RACE: &str = "Causality violation";
const PREEMPTIONS: usize = 2;

#[test]
fn attaching_to_a_ring_at_work_sees_whole_messages() {
    check(PREEMPTIONS, attach_while_it_is_filled::<Loom<STRONG>>);
    check(PREEMPTIONS, attach_while_it_is_emptied::<Loom<STRONG>>);
}

#[test]
fn attaching_with_a_relaxed_look_is_found() {
    must_fail(RACE, PREEMPTIONS, attach_while_it_is_filled::<Loom<READER_LOOKS_RELAXED>>);
    must_fail(RACE, PREEMPTIONS, attach_while_it_is_filled::<Loom<WRITER_PUBLISHES_RELAXED>>);
    must_fail(RACE, PREEMPTIONS, attach_while_it_is_emptied::<Loom<WRITER_LOOKS_RELAXED>>);
    must_fail(RACE, PREEMPTIONS, attach_while_it_is_emptied::<Loom<READER_RELEASES_RELAXED>>);
}

macro_rules! pairs {
    ($($fill:ident meets $drain:ident as $pair:ident;)+) => {$(
        mod $pair {
            use super::*;

            fn model<const WEAK: u8>(geometry: Geometry) -> impl Fn() + Send + Sync + 'static {
                move || meet::<Loom<WEAK>>(geometry, $fill, $drain)
            }

            #[test]
            fn every_message_arrives_once_whole_and_in_order() {
                check(PREEMPTIONS, model::<STRONG>(ONE_HEADER));
                check(PREEMPTIONS, model::<STRONG>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_publish_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_look_at_the_tail_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_release_of_a_frame_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_look_at_the_head_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(TWO_HEADERS));
            }
        }
    )+};
}

pairs! {
    reserve meets peek as reserve_meets_peek;
    reserve meets peek_many as reserve_meets_peek_many;
    reserve meets batch_peek as reserve_meets_batch_peek;
    commit_part meets peek as commit_part_meets_peek;
    commit_part meets peek_many as commit_part_meets_peek_many;
    commit_part meets batch_peek as commit_part_meets_batch_peek;
    batch_reserve meets peek as batch_reserve_meets_peek;
    batch_reserve meets peek_many as batch_reserve_meets_peek_many;
    batch_reserve meets batch_peek as batch_reserve_meets_batch_peek;
}
