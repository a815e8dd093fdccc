//! Every interleaving of each pair of SPSC operations that can meet.
//!
//! 1. A way to fill and a way to empty are chosen; one body runs them against each other with slots that are reused, indices that wrap and
//!    a full ring, once over one header and once over two.
//! 2. Every pair runs on the strong machine and on four weakened twins: each half of each sync point once relaxed. A twin must fail.
//!
//! `push_slice` and `pop_slice` need cells that are plain bytes, which loom cannot watch; they publish through the same two stores.

mod loom_machine;

use std::ptr::NonNull;

use loom::thread;
use loom_machine::{
    Loom, LoomWord, READER_LOOKS_RELAXED, READER_RELEASES_RELAXED, STRONG, Side, WRITER_LOOKS_RELAXED, WRITER_PUBLISHES_RELAXED, check,
    leave_side, must_fail, take_side,
};
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, PushError, ReserveError};
use ringmem_layouts::{Machine, RingHeader, RingLayout, SlotCell, Word};

/// A ring and how much goes through it.
#[derive(Clone, Copy)]
struct Geometry {
    capacity: u64,
    start: u64,
    /// Two headers, each end polls its own.
    split: bool,
    messages: u64,
}

/// One slot that every message goes through, around the end of the index range.
const ONE_SLOT: Geometry = Geometry { capacity: 1, start: u64::MAX, split: false, messages: 2 };
/// A header for each end, two slots, and a run that wraps in both senses.
const TWO_HEADERS: Geometry = Geometry { capacity: 2, start: u64::MAX - 1, split: true, messages: 3 };

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
        let Geometry { capacity, start, split, .. } = geometry;
        let layout = RingLayout::of::<u64>(capacity).unwrap();
        let header = || RingHeader::new::<u64>(&layout, start);
        Box::leak(Box::new(Self {
            near_producer: header(),
            near_consumer: split.then(header),
            slots: (0..capacity).map(|_| M::Cell::new(u64::MAX)).collect(),
        }))
    }
    /// # Safety
    ///
    /// Once at a time.
    unsafe fn producer(&'static self) -> Producer<'static, u64, M> {
        // SAFETY: `capacity` cells, each with a value, and the caller's promise.
        unsafe { Producer::new(&self.near_producer, self.near_consumer(), self.slots()) }.unwrap()
    }
    /// # Safety
    ///
    /// Once at a time.
    unsafe fn consumer(&'static self) -> Consumer<'static, u64, M> {
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

/// Runs `fill` and `drain` against each other on two threads.
fn meet<M: Machine + 'static>(geometry: Geometry, fill: fn(&mut Producer<u64, M>, u64), drain: fn(&mut Consumer<u64, M>, u64)) {
    let Geometry { start, messages, .. } = geometry;
    let memory = Memory::<M>::new(geometry);
    // SAFETY: this model's only ends.
    let (mut producer, mut consumer) = unsafe { (memory.producer(), memory.consumer()) };
    let writer = thread::spawn(move || {
        take_side(Side::Writer);
        fill(&mut producer, messages);
    });
    take_side(Side::Reader);
    drain(&mut consumer, messages);
    writer.join().unwrap();
    assert_eq!(consumer.pop(), Err(PopError::Empty), "more came out than went in");
    assert_eq!(consumer.head(), start.wrapping_add(messages));
    // SAFETY: the writer has ended, and the consumer is not used any more.
    unsafe { memory.free() };
}

/// A consumer that attaches while the producer is at work sees of it what it would see later.
fn attach_while_it_is_filled<M: Machine + 'static>() {
    let memory = Memory::<M>::new(ONE_SLOT);
    // SAFETY: this model's only producer.
    let mut producer = unsafe { memory.producer() };
    let writer = thread::spawn(move || {
        take_side(Side::Writer);
        producer.push(1).unwrap();
    });
    take_side(Side::Reader);
    // SAFETY: this model's only consumer. (Its peer attached before: loom remembers only the last access to a word, and a writer's own
    // look at its index would hide from it that a reader raced.)
    let mut consumer = unsafe { memory.consumer() };
    match consumer.pop() {
        Ok(value) => assert_eq!(value, 1),
        Err(refused) => assert_eq!(refused, PopError::Empty),
    }
    writer.join().unwrap();
    // SAFETY: the writer has ended, and the consumer is not used any more.
    unsafe { memory.free() };
}

/// A producer that attaches while the consumer is at work, likewise.
fn attach_while_it_is_emptied<M: Machine + 'static>() {
    let memory = Memory::<M>::new(ONE_SLOT);
    // SAFETY: the only producer, and gone at once.
    unsafe { memory.producer() }.push(1).unwrap();
    // SAFETY: this model's only consumer.
    let mut consumer = unsafe { memory.consumer() };
    let reader = thread::spawn(move || {
        take_side(Side::Reader);
        assert_eq!(consumer.pop(), Ok(1));
    });
    take_side(Side::Writer);
    // SAFETY: the only producer now.
    let mut producer = unsafe { memory.producer() };
    if let Err(refused) = producer.push(2) {
        assert_eq!(refused, PushError::Full(2));
    }
    reader.join().unwrap();
    // SAFETY: the reader has ended, and the producer is not used any more.
    unsafe { memory.free() };
}

/// An end announces its close after everything that it published. The reader is a thread that has not seen the tail before it yields: loom
/// would not show it the same tail again. Only the close and the check for it are weakened.
fn leaving<M: Machine + 'static>() {
    let memory = Memory::<M>::new(ONE_SLOT);
    // SAFETY: these are the model's only ends.
    let (mut producer, mut consumer) = unsafe { (memory.producer().announce(), memory.consumer()) };
    let reader = thread::spawn(move || {
        take_side(Side::Reader);
        while !consumer.is_disconnected() {
            thread::yield_now();
        }
        leave_side();
        assert_eq!(consumer.pop(), Ok(0), "{LEFT}");
    });
    producer.push(0).unwrap();
    take_side(Side::Writer);
    drop(producer);
    reader.join().unwrap();
    // SAFETY: both ends are dropped.
    unsafe { memory.free() };
}

/// A reader that sees the magic of a ring during formatting also sees all of its geometry.
fn formatting<const WEAK: u8>() {
    let layout = RingLayout::of::<u64>(2).unwrap();
    let header = RingHeader::<LoomWord<WEAK>>::new::<u64>(&layout, 0);
    let constants = &header.constants;
    for word in [
        &constants.magic,
        &constants.abi,
        &constants.capacity,
        &constants.slot_size,
        &constants.slots_offset,
        &constants.flags,
        &constants.message_kind,
    ] {
        word.store(0);
    }
    let header = loom::sync::Arc::new(header);
    let attaches = thread::spawn({
        let header = loom::sync::Arc::clone(&header);
        move || {
            take_side(Side::Reader);
            loop {
                match header.geometry::<u64>() {
                    Err(AttachError::Magic { got: 0, .. }) => thread::yield_now(),
                    found => break assert_eq!(found, Ok(layout), "{HALF}"),
                }
            }
        }
    });
    take_side(Side::Writer);
    // SAFETY: no endpoint is attached.
    unsafe { header.format::<u64>(&layout, 0) };
    attaches.join().unwrap();
}

fn push<M: Machine>(producer: &mut Producer<u64, M>, messages: u64) {
    for value in 0..messages {
        while let Err(refused) = producer.push(value) {
            assert_eq!(refused, PushError::Full(value));
            thread::yield_now();
        }
    }
}

fn reserve<M: Machine>(producer: &mut Producer<u64, M>, messages: u64) {
    let mut sent = 0;
    while sent < messages {
        match producer.reserve(producer.capacity().min(messages - sent)) {
            Ok(mut grant) => {
                sent += grant.fill(sent..messages);
                grant.commit();
            }
            Err(ReserveError::Full { .. }) => thread::yield_now(),
            Err(refused) => panic!("{refused}"),
        }
    }
}

fn batch_push<M: Machine>(producer: &mut Producer<u64, M>, messages: u64) {
    // The last message is left to the drop, those before it to the bound, a full ring and a dry consumer.
    let mut batch = producer.batch(2);
    for value in 0..messages {
        while let Err(refused) = batch.push(value) {
            assert_eq!(refused, PushError::Full(value));
            thread::yield_now();
        }
        if value == 0 {
            batch.flush();
        }
    }
}

fn lanes_push<M: Machine>(producer: &mut Producer<u64, M>, messages: u64) {
    let mut sent = 0;
    while sent < messages {
        let polled = producer.poll();
        // SAFETY: polled on this ring, by this thread.
        let free = unsafe { producer.accept(polled) }.unwrap();
        let count = free.min(messages - sent);
        for offset in 0..count {
            // SAFETY: at most `free` slots after the tail, which are this end's.
            producer.slot(offset).with_mut(|slot| unsafe { slot.write(sent + offset) });
        }
        // SAFETY: so many were written.
        unsafe { producer.advance(count) };
        // SAFETY: stored at once; its slots have been dealt with.
        M::Word::publish_all([unsafe { producer.publication() }]);
        sent += count;
        if count == 0 {
            thread::yield_now();
        }
    }
}

fn pop<M: Machine>(consumer: &mut Consumer<u64, M>, messages: u64) {
    for expected in 0..messages {
        assert_eq!(until_there(|| consumer.pop()), expected);
    }
}

fn peek<M: Machine>(consumer: &mut Consumer<u64, M>, messages: u64) {
    let mut seen = 0;
    while seen < messages {
        match consumer.peek(u64::MAX) {
            Ok(chunk) => {
                let count = chunk.len();
                for offset in 0..count {
                    assert_eq!(chunk.with(offset, |value| *value), Some(seen + offset));
                }
                assert_eq!(chunk.with(count, |value| *value), None);
                chunk.release(count);
                seen += count;
            }
            Err(PopError::Empty) => thread::yield_now(),
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// By value: the first by itself, the others together.
fn drain<M: Machine>(consumer: &mut Consumer<u64, M>, messages: u64) {
    let mut expected = 0..messages;
    while !expected.is_empty() {
        match consumer.peek(u64::MAX) {
            Ok(chunk) => {
                let mut values = chunk.into_iter();
                assert_eq!(values.next(), expected.next());
                values.for_each(|value| assert_eq!(Some(value), expected.next()));
            }
            Err(PopError::Empty) => thread::yield_now(),
            Err(refused) => panic!("{refused}"),
        }
    }
}

fn batch_pop<M: Machine>(consumer: &mut Consumer<u64, M>, messages: u64) {
    let mut batch = consumer.batch(2);
    for expected in 0..messages {
        assert_eq!(until_there(|| batch.pop()), expected);
    }
}

fn lanes_pop<M: Machine>(consumer: &mut Consumer<u64, M>, messages: u64) {
    let mut seen = 0;
    while seen < messages {
        let polled = consumer.poll();
        // SAFETY: polled on this ring, by this thread.
        let count = unsafe { consumer.accept(polled) }.unwrap();
        for offset in 0..count {
            // SAFETY: at most `count` slots after the head, which are filled and this end's.
            assert_eq!(consumer.slot(offset).with(|slot| unsafe { slot.read() }), seen + offset);
        }
        // SAFETY: so many were read.
        unsafe { consumer.advance(count) };
        // SAFETY: stored at once; its slots have been dealt with.
        M::Word::publish_all([unsafe { consumer.publication() }]);
        seen += count;
        if count == 0 {
            thread::yield_now();
        }
    }
}

fn until_there(mut pop: impl FnMut() -> Result<u64, PopError>) -> u64 {
    loop {
        match pop() {
            Ok(value) => return value,
            Err(PopError::Empty) => thread::yield_now(),
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// What loom says when two threads reach a slot with nothing between them that orders them.
const RACE: &str = "Causality violation";
const LEFT: &str = "a closed end has published all its messages";
const HALF: &str = "half formatted";
const PREEMPTIONS: usize = 2;

#[test]
fn an_end_that_is_seen_closed_has_published_all() {
    check(PREEMPTIONS, leaving::<Loom<STRONG>>);
}

#[test]
fn an_end_that_is_closed_or_looked_for_relaxed_is_found() {
    must_fail(LEFT, PREEMPTIONS, leaving::<Loom<WRITER_PUBLISHES_RELAXED>>);
    must_fail(LEFT, PREEMPTIONS, leaving::<Loom<READER_LOOKS_RELAXED>>);
}

#[test]
fn a_ring_whose_magic_is_seen_is_formatted() {
    check(PREEMPTIONS, formatting::<STRONG>);
}

#[test]
fn a_magic_that_is_stored_or_loaded_relaxed_is_found() {
    must_fail(HALF, PREEMPTIONS, formatting::<WRITER_PUBLISHES_RELAXED>);
    must_fail(HALF, PREEMPTIONS, formatting::<READER_LOOKS_RELAXED>);
}

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
                check(PREEMPTIONS, model::<STRONG>(ONE_SLOT));
                check(PREEMPTIONS, model::<STRONG>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_publish_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(ONE_SLOT));
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_look_at_the_tail_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(ONE_SLOT));
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_release_of_a_slot_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(ONE_SLOT));
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_look_at_the_head_is_found() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(ONE_SLOT));
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(TWO_HEADERS));
            }
        }
    )+};
}

pairs! {
    push meets pop as push_meets_pop;
    push meets peek as push_meets_peek;
    push meets drain as push_meets_drain;
    push meets batch_pop as push_meets_batch_pop;
    push meets lanes_pop as push_meets_lanes;
    reserve meets pop as reserve_meets_pop;
    reserve meets peek as reserve_meets_peek;
    reserve meets drain as reserve_meets_drain;
    reserve meets batch_pop as reserve_meets_batch_pop;
    reserve meets lanes_pop as reserve_meets_lanes;
    batch_push meets pop as batch_push_meets_pop;
    batch_push meets peek as batch_push_meets_peek;
    batch_push meets drain as batch_push_meets_drain;
    batch_push meets batch_pop as batch_push_meets_batch_pop;
    batch_push meets lanes_pop as batch_push_meets_lanes;
    lanes_push meets pop as lanes_meet_pop;
    lanes_push meets peek as lanes_meet_peek;
    lanes_push meets batch_pop as lanes_meet_batch_pop;
    lanes_push meets lanes_pop as lanes_meet_lanes;
}
