//! Each pair of operations that can meet on SPSC, flagged and framed rings, except copies of plain bytes.

use crate::loom_machine;

use std::ptr::NonNull;

use loom::thread;
use loom_machine::{
    Loom, LoomWord, READER_LOOKS_RELAXED, READER_RELEASES_RELAXED, STRONG, Side, WRITER_LOOKS_RELAXED, WRITER_PUBLISHES_RELAXED, check,
    leave_side, must_fail, take_side,
};
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::{PopError, PushError, ReserveError, RingFlags, Slot};
use ringmem_layouts::{Machine, RingHeader, RingLayout, SlotCell, Word};

const RACE: &str = "Causality violation";
const LEFT: &str = "a closed end has published all its messages";
const HALF: &str = "half formatted";
const PREEMPTIONS: usize = 2;

#[derive(Clone, Copy)]
struct Geometry<W> {
    capacity: u64,
    start: u64,
    split: bool,
    work: W,
    end: u64,
}

const ONE_HEADER: Geometry<u64> = Geometry { capacity: 1, start: u64::MAX, split: false, work: 2, end: 1 };
const TWO_HEADERS: Geometry<u64> = Geometry { capacity: 2, start: u64::MAX - 1, split: true, work: 3, end: 1 };
const FULL: (Geometry<u64>, u64) = (ONE_HEADER, 1);

struct Memory<M: Machine, S> {
    near_producer: RingHeader<M::Word>,
    near_consumer: Option<RingHeader<M::Word>>,
    slots: Vec<S>,
}

// SAFETY: loom checks whether the ring's protocol suffices.
unsafe impl<M: Machine, S> Sync for Memory<M, S> {}

impl<M: Machine, S> Memory<M, S> {
    fn new<W>(kind: RingFlags, geometry: Geometry<W>, slot: fn() -> S) -> &'static Self {
        let Geometry { capacity, start, split, .. } = geometry;
        let layout = RingLayout::of_kind::<u64>(kind, capacity).unwrap();
        let header = || RingHeader::new::<u64>(&layout, start);
        let slots = (0..capacity).map(|_| slot()).collect();
        Box::leak(Box::new(Self { near_producer: header(), near_consumer: split.then(header), slots }))
    }
    fn near_consumer(&self) -> &RingHeader<M::Word> {
        self.near_consumer.as_ref().unwrap_or(&self.near_producer)
    }
    fn slots(&self) -> NonNull<S> {
        NonNull::from(self.slots.as_slice()).cast()
    }
    /// # Safety
    ///
    /// Made by `new`, without ends.
    unsafe fn free(&'static self) {
        // SAFETY: the caller promises that `new` leaked this box and that no end borrows it, so it is freed once and unused.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

fn insist(mut attempt: impl FnMut() -> bool) {
    while !attempt() {
        thread::yield_now();
    }
}

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

#[test]
fn a_visible_magic_implies_a_formatted_ring() {
    check(PREEMPTIONS, formatting::<STRONG>);
}

#[test]
fn a_relaxed_magic_exposes_a_partly_formatted_ring() {
    must_fail(HALF, PREEMPTIONS, formatting::<WRITER_PUBLISHES_RELAXED>);
    must_fail(HALF, PREEMPTIONS, formatting::<READER_LOOKS_RELAXED>);
}

macro_rules! scenes {
    ($flags:expr) => {
        fn memory<M: Machine>(geometry: Geometry<Work>) -> &'static Memory<M, Cell<M>> {
            Memory::new($flags, geometry, slot::<M>)
        }

        /// # Safety
        ///
        /// Once at a time.
        unsafe fn producer<M: Machine<Corrupt = Corrupt>>(memory: &'static Memory<M, Cell<M>>) -> Producer<'static, M> {
            // SAFETY: the layout's slots, with values; the caller promises that this is the only producer at a time.
            unsafe { Producer::new(&memory.near_producer, memory.near_consumer(), memory.slots()) }.unwrap()
        }

        /// # Safety
        ///
        /// Once at a time.
        unsafe fn consumer<M: Machine<Corrupt = Corrupt>>(memory: &'static Memory<M, Cell<M>>) -> Consumer<'static, M> {
            // SAFETY: the layout's slots, with values; the caller promises that this is the only consumer at a time.
            unsafe { Consumer::new(memory.near_consumer(), &memory.near_producer, memory.slots()) }.unwrap()
        }

        fn meet<M: Machine<Corrupt = Corrupt> + 'static>(
            geometry: Geometry<Work>,
            fill: fn(&mut Producer<M>, Work),
            drain: fn(&mut Consumer<M>, Work),
        ) {
            let memory = memory::<M>(geometry);
            // SAFETY: the only ends.
            let (mut producer, mut consumer) = unsafe { (producer(memory), consumer(memory)) };
            let writer = thread::spawn(move || {
                take_side(Side::Writer);
                fill(&mut producer, geometry.work);
            });
            take_side(Side::Reader);
            drain(&mut consumer, geometry.work);
            writer.join().unwrap();
            assert!(!receive(&mut consumer, geometry.work, 0), "more came out than went in");
            assert_eq!(consumer.head(), geometry.end);
            // SAFETY: without ends.
            unsafe { memory.free() };
        }

        fn attach_while_it_is_filled<M: Machine<Corrupt = Corrupt> + 'static>() {
            let memory = memory::<M>(ONE_HEADER);
            // SAFETY: the only producer.
            let mut producer = unsafe { producer(memory) };
            let writer = thread::spawn(move || {
                take_side(Side::Writer);
                assert!(send(&mut producer, ONE_HEADER.work, 0));
            });
            take_side(Side::Reader);
            // SAFETY: the only consumer. Its peer attached before, as in `loom_lossy`.
            let mut consumer = unsafe { consumer(memory) };
            receive(&mut consumer, ONE_HEADER.work, 0);
            writer.join().unwrap();
            // SAFETY: without ends.
            unsafe { memory.free() };
        }

        fn attach_while_it_is_emptied<M: Machine<Corrupt = Corrupt> + 'static>() {
            let (geometry, before) = FULL;
            let memory = memory::<M>(geometry);
            {
                // SAFETY: the only producer, dropped in this block.
                let mut producer = unsafe { producer(memory) };
                assert!((0..before).all(|number| send(&mut producer, geometry.work, number)));
            }
            // SAFETY: the only consumer.
            let mut consumer = unsafe { consumer(memory) };
            let reader = thread::spawn(move || {
                take_side(Side::Reader);
                assert!((0..before).all(|number| receive(&mut consumer, geometry.work, number)));
            });
            take_side(Side::Writer);
            // SAFETY: the only producer now.
            let mut producer = unsafe { producer(memory) };
            send(&mut producer, geometry.work, before);
            reader.join().unwrap();
            // SAFETY: without ends.
            unsafe { memory.free() };
        }

        /// The reader has not seen the message before it yields: loom would not show it the word again.
        fn leaving<M: Machine<Corrupt = Corrupt> + 'static>() {
            let memory = memory::<M>(ONE_HEADER);
            // SAFETY: the only ends.
            let (mut producer, mut consumer) = unsafe { (producer(memory).announce(), consumer(memory)) };
            let reader = thread::spawn(move || {
                take_side(Side::Reader);
                insist(|| consumer.is_disconnected());
                leave_side();
                assert!(receive(&mut consumer, ONE_HEADER.work, 0), "{LEFT}");
            });
            assert!(send(&mut producer, ONE_HEADER.work, 0));
            take_side(Side::Writer);
            drop(producer);
            reader.join().unwrap();
            // SAFETY: without ends.
            unsafe { memory.free() };
        }

        #[test]
        fn a_closed_end_has_published_all_its_messages() {
            check(PREEMPTIONS, leaving::<Loom<STRONG>>);
        }

        #[test]
        fn a_relaxed_close_or_its_load_is_detected() {
            must_fail(LEFT, PREEMPTIONS, leaving::<Loom<WRITER_PUBLISHES_RELAXED>>);
            must_fail(LEFT, PREEMPTIONS, leaving::<Loom<READER_LOOKS_RELAXED>>);
        }

        #[test]
        fn attaching_to_an_active_ring_sees_whole_messages() {
            check(PREEMPTIONS, attach_while_it_is_filled::<Loom<STRONG>>);
            check(PREEMPTIONS, attach_while_it_is_emptied::<Loom<STRONG>>);
        }

        #[test]
        fn a_relaxed_access_at_attach_is_detected() {
            must_fail(RACE, PREEMPTIONS, attach_while_it_is_filled::<Loom<READER_LOOKS_RELAXED>>);
            must_fail(RACE, PREEMPTIONS, attach_while_it_is_filled::<Loom<WRITER_PUBLISHES_RELAXED>>);
            must_fail(RACE, PREEMPTIONS, attach_while_it_is_emptied::<Loom<WRITER_LOOKS_RELAXED>>);
            must_fail(RACE, PREEMPTIONS, attach_while_it_is_emptied::<Loom<READER_RELEASES_RELAXED>>);
        }
    };
}

macro_rules! pairs {
    ($($(#[$long:meta])? $fill:ident meets $drain:ident as $pair:ident;)+) => {$(
        mod $pair {
            use super::*;

            fn model<const WEAK: u8>(geometry: Geometry<Work>) -> impl Fn() + Send + Sync + 'static {
                move || meet::<Loom<WEAK>>(geometry, $fill, $drain)
            }

            #[test]
            $(#[$long])?
            fn every_message_arrives_once_whole_and_in_order() {
                check(PREEMPTIONS, model::<STRONG>(ONE_HEADER));
                check(PREEMPTIONS, model::<STRONG>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_publish_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_load_in_pop_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_slot_release_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(TWO_HEADERS));
            }

            #[test]
            fn a_relaxed_head_load_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(ONE_HEADER));
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(TWO_HEADERS));
            }
        }
    )+};
}

macro_rules! values {
    ($kind:ident) => {
        type Producer<'a, M> = ringmem_layouts::ring::$kind::Producer<'a, u64, M>;
        type Consumer<'a, M> = ringmem_layouts::ring::$kind::Consumer<'a, u64, M>;
        type Work = u64;

        fn send<M: Machine>(producer: &mut Producer<M>, _: u64, number: u64) -> bool {
            let outcome = producer.push(number);
            assert!(matches!(outcome, Ok(()) | Err(PushError::Full(_))), "{outcome:?}");
            outcome != Err(PushError::Full(number))
        }

        fn receive<M: Machine>(consumer: &mut Consumer<M>, _: u64, number: u64) -> bool {
            let outcome = consumer.pop();
            assert!(outcome == Ok(number) || outcome == Err(PopError::Empty), "{outcome:?}, not {number}");
            outcome.is_ok()
        }

        fn push<M: Machine>(producer: &mut Producer<M>, messages: u64) {
            (0..messages).for_each(|number| insist(|| send(producer, messages, number)));
        }

        fn reserve<M: Machine>(producer: &mut Producer<M>, messages: u64) {
            let mut sent = 0;
            while sent < messages {
                match producer.reserve(producer.capacity().min((messages - sent) as usize)) {
                    Ok(mut grant) => {
                        sent += grant.fill(sent..messages) as u64;
                        grant.commit();
                    }
                    Err(ReserveError::Full { .. }) => thread::yield_now(),
                    Err(refused) => panic!("{refused}"),
                }
            }
        }

        fn batch_push<M: Machine>(producer: &mut Producer<M>, messages: u64) {
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

        fn pop<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
            (0..messages).for_each(|number| insist(|| receive(consumer, messages, number)));
        }

        fn peek<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
            let mut seen = 0;
            while seen < messages {
                match consumer.peek(usize::MAX) {
                    Ok(chunk) => {
                        let count = chunk.len();
                        for offset in 0..count {
                            assert_eq!(chunk.with(offset, |value| *value), Some(seen + offset as u64));
                        }
                        assert_eq!(chunk.with(count, |value| *value), None);
                        chunk.release(count);
                        seen += count as u64;
                    }
                    Err(PopError::Empty) => thread::yield_now(),
                    Err(refused) => panic!("{refused}"),
                }
            }
        }

        fn drain<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
            let mut expected = 0..messages;
            while !expected.is_empty() {
                match consumer.peek(usize::MAX) {
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

        fn batch_pop<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
            let mut batch = consumer.batch(2);
            for expected in 0..messages {
                insist(|| match batch.pop() {
                    Ok(value) => value == expected || panic!("{value}, not {expected}"),
                    Err(PopError::Empty) => false,
                    Err(refused) => panic!("{refused}"),
                });
            }
        }

        fn leaving_a_batch<M: Machine<Corrupt = Corrupt> + 'static>() {
            let memory = memory::<M>(TWO_HEADERS);
            // SAFETY: the only ends.
            let (producer, mut consumer) = unsafe { (producer(memory), consumer(memory)) };
            let mut producer = producer.announce();
            let writer = thread::spawn(move || {
                take_side(Side::Writer);
                let mut batch = producer.batch(2);
                batch.push(1).unwrap();
                batch.push(2).unwrap();
            });
            take_side(Side::Reader);
            insist(|| consumer.is_disconnected());
            assert_eq!([consumer.pop(), consumer.pop()], [Ok(1), Ok(2)], "{LEFT}");
            writer.join().unwrap();
            // SAFETY: without ends.
            unsafe { memory.free() };
        }

        #[test]
        fn an_end_closes_after_its_last_message() {
            check(PREEMPTIONS, leaving_a_batch::<Loom<STRONG>>);
        }

        #[test]
        fn a_relaxed_batch_close_is_a_race() {
            must_fail(RACE, PREEMPTIONS, leaving_a_batch::<Loom<WRITER_PUBLISHES_RELAXED>>);
            must_fail(RACE, PREEMPTIONS, leaving_a_batch::<Loom<READER_LOOKS_RELAXED>>);
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
            batch_push meets pop as batch_push_meets_pop;
            batch_push meets peek as batch_push_meets_peek;
            batch_push meets drain as batch_push_meets_drain;
            batch_push meets batch_pop as batch_push_meets_batch_pop;
            #[ignore = "takes a minute"]
            batch_push meets lanes_pop as batch_push_meets_lanes;
            lanes_push meets pop as lanes_meet_pop;
            lanes_push meets peek as lanes_meet_peek;
            lanes_push meets lanes_pop as lanes_meet_lanes;
        }
    };
}

mod spsc {
    use super::*;

    type Cell<M> = <M as Machine>::Cell<u64>;

    fn slot<M: Machine>() -> Cell<M> {
        M::Cell::new(u64::MAX)
    }

    fn lanes_push<M: Machine>(producer: &mut Producer<M>, messages: u64) {
        let mut sent = 0;
        while sent < messages {
            let polled = producer.poll();
            // SAFETY: just polled.
            let free = unsafe { producer.accept(polled) }.unwrap() as u64;
            let count = free.min(messages - sent);
            for offset in 0..count {
                // SAFETY: a free slot.
                producer.slot(offset).with_mut(|slot| unsafe { slot.write(sent + offset) });
            }
            // SAFETY: all written.
            unsafe { producer.advance(count) };
            // SAFETY: stored once, after its slots.
            M::Word::publish_all([unsafe { producer.publication() }]);
            sent += count;
            if count == 0 {
                thread::yield_now();
            }
        }
    }

    fn lanes_pop<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
        let mut seen = 0;
        while seen < messages {
            let polled = consumer.poll();
            // SAFETY: just polled.
            let count = unsafe { consumer.accept(polled) }.unwrap() as u64;
            for offset in 0..count {
                // SAFETY: a filled slot.
                assert_eq!(consumer.slot(offset).with(|slot| unsafe { slot.read() }), seen + offset);
            }
            // SAFETY: all read.
            unsafe { consumer.advance(count) };
            // SAFETY: stored once, after its slots.
            M::Word::publish_all([unsafe { consumer.publication() }]);
            seen += count;
            if count == 0 {
                thread::yield_now();
            }
        }
    }

    scenes! { RingFlags::SPSC }
    values! { spsc }
    pairs! {
        reserve meets lanes_pop as reserve_meets_lanes;
        lanes_push meets batch_pop as lanes_meet_batch_pop;
    }
}

mod flagged {
    use super::*;

    type Cell<M> = Slot<<M as Machine>::Word, <M as Machine>::Cell<u64>>;

    fn slot<M: Machine>() -> Cell<M> {
        Slot::new(M::Word::new(0), M::Cell::new(u64::MAX))
    }

    fn push_slice<M: Machine>(producer: &mut Producer<M>, messages: u64) {
        let all: Vec<u64> = (0..messages).collect();
        let mut sent = 0;
        while sent < all.len() {
            let count = producer.push_slice(&all[sent..]).unwrap();
            sent += count;
            if count == 0 {
                thread::yield_now();
            }
        }
    }

    fn pop_slice<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
        let mut seen = 0;
        while seen < messages {
            let mut values = [u64::MAX; 2];
            let count = consumer.pop_slice(&mut values) as u64;
            assert!(values.into_iter().take(count as usize).eq(seen..seen + count));
            seen += count;
            if count == 0 {
                thread::yield_now();
            }
        }
    }

    fn lanes_push<M: Machine>(producer: &mut Producer<M>, messages: u64) {
        let mut sent = 0;
        while sent < messages {
            let polled = producer.poll();
            // SAFETY: just polled.
            let free = unsafe { producer.accept(polled) }.unwrap() as u64;
            let count = free.min(messages - sent);
            for offset in 0..count {
                // SAFETY: a free slot.
                producer.row().at(offset).with_mut(|slot| unsafe { slot.write(sent + offset) });
                if offset > 0 {
                    // SAFETY: not the first, and written.
                    unsafe { producer.raise(offset) };
                }
            }
            if count > 0 {
                // SAFETY: stored once, after slots and flags.
                M::Word::publish_all([unsafe { producer.publication() }]);
                // SAFETY: all written and published.
                unsafe { producer.advance(count) };
            } else {
                thread::yield_now();
            }
            sent += count;
        }
    }

    fn lanes_pop<M: Machine>(consumer: &mut Consumer<M>, messages: u64) {
        let mut seen = 0;
        while seen < messages {
            let count = (0..messages - seen).take_while(|offset| consumer.is_there(*offset)).count() as u64;
            for offset in 0..count {
                // SAFETY: available, and this end's.
                assert_eq!(consumer.row().at(offset).with(|slot| unsafe { slot.read() }), seen + offset);
            }
            if count > 0 {
                // SAFETY: all available and read.
                unsafe { consumer.advance(count) };
                // SAFETY: stored once, after its slots.
                M::Word::publish_all([unsafe { consumer.publication() }]);
            } else {
                thread::yield_now();
            }
            seen += count;
        }
    }

    scenes! { RingFlags::FLAGGED }
    values! { flagged }
    pairs! {
        push meets pop_slice as push_meets_pop_slice;
        push_slice meets pop as push_slice_meets_pop;
        push_slice meets pop_slice as push_slice_meets_pop_slice;
        push_slice meets peek as push_slice_meets_peek;
        push_slice meets batch_pop as push_slice_meets_batch_pop;
        reserve meets pop_slice as reserve_meets_pop_slice;
        batch_push meets pop_slice as batch_push_meets_pop_slice;
    }
}

mod framed {
    use ringmem_layouts::ring::framed::{self, Grant, Message, PopError, PushError};

    use super::*;

    type Producer<'a, M> = framed::Producer<'a, M>;
    type Consumer<'a, M> = framed::Consumer<'a, M>;
    type Cell<M> = <M as Machine>::Cell<u64>;
    type Work = [usize; 3];

    const ONE_HEADER: Geometry<Work> = Geometry { capacity: 4, start: u64::MAX - 4, split: false, work: [8, 8, 5], end: 2 };
    const TWO_HEADERS: Geometry<Work> = Geometry { capacity: 4, start: u64::MAX - 1, split: true, work: [0, 3, 8], end: 4 };
    const FULL: (Geometry<Work>, u64) = (Geometry { split: false, ..TWO_HEADERS }, 2);

    fn slot<M: Machine>() -> Cell<M> {
        M::Cell::new(0x5555)
    }

    fn write<M: Machine>(grant: &Grant<'_, '_, M>, number: u64) {
        if let Some(word) = grant.word(0) {
            // SAFETY: granted to the producer.
            word.with_mut(|word| unsafe { word.write(0x100 + number) });
        }
        assert!(grant.word(1).is_none());
    }

    fn verify<M: Machine>(message: &Message<'_, M>, lengths: Work, number: u64) {
        assert_eq!(message.len(), lengths[number as usize]);
        match message.word(0) {
            // SAFETY: seen and not released.
            Some(word) => assert_eq!(word.with(|word| unsafe { word.read() }), 0x100 + number),
            None => assert!(message.is_empty()),
        }
        assert!(message.word(1).is_none());
    }

    fn commit<M: Machine>(granted: Result<Grant<'_, '_, M>, PushError<M::Corrupt>>, lengths: Work, number: u64) -> bool {
        match granted {
            Ok(grant) => {
                write(&grant, number);
                grant.commit(lengths[number as usize]);
                true
            }
            Err(refused) => refused != PushError::Full && panic!("{refused}"),
        }
    }

    fn send<M: Machine>(producer: &mut Producer<M>, lengths: Work, number: u64) -> bool {
        commit(producer.reserve(lengths[number as usize]), lengths, number)
    }

    fn receive<M: Machine>(consumer: &mut Consumer<M>, lengths: Work, number: u64) -> bool {
        match consumer.peek() {
            Ok(frame) => {
                verify(&frame.message(), lengths, number);
                frame.release();
                true
            }
            Err(refused) => refused != PopError::Empty && panic!("{refused}"),
        }
    }

    fn reserve<M: Machine>(producer: &mut Producer<M>, lengths: Work) {
        (0..3).for_each(|number| insist(|| send(producer, lengths, number)));
    }

    fn commit_part<M: Machine>(producer: &mut Producer<M>, lengths: Work) {
        for number in 0..3 {
            if let Ok(grant) = producer.reserve(8) {
                write(&grant, 9);
            }
            insist(|| commit(producer.reserve(8), lengths, number));
        }
    }

    fn batch_reserve<M: Machine>(producer: &mut Producer<M>, lengths: Work) {
        let mut batch = producer.batch(2);
        for number in 0..3 {
            insist(|| commit(batch.reserve(lengths[number as usize]), lengths, number));
            if number == 0 {
                batch.flush();
            }
        }
    }

    fn peek<M: Machine>(consumer: &mut Consumer<M>, lengths: Work) {
        (0..3).for_each(|number| insist(|| receive(consumer, lengths, number)));
    }

    fn peek_many<M: Machine>(consumer: &mut Consumer<M>, lengths: Work) {
        let mut number = 0;
        while number < 3 {
            match consumer.peek_many() {
                Ok(chunk) => {
                    let mut seen = 0;
                    while let Ok(message) = chunk.next() {
                        verify(&message, lengths, number);
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

    fn batch_peek<M: Machine>(consumer: &mut Consumer<M>, lengths: Work) {
        let mut batch = consumer.batch(2);
        for number in 0..3 {
            insist(|| match batch.peek() {
                Ok(frame) => {
                    verify(&frame.message(), lengths, number);
                    frame.release();
                    true
                }
                Err(refused) => refused != PopError::Empty && panic!("{refused}"),
            });
        }
    }

    scenes! { RingFlags::FRAMED }
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
}
