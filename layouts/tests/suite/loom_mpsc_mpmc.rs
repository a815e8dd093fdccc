//! MPSC and MPMC rings under every interleaving with a bounded number of preemptions and every reordering that loom knows, and weakened twins that must fail
//! (`loom_machine.rs` weakens them).

use crate::loom_machine;

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use loom::thread;
use loom_machine::{
    EXCHANGE_RELAXED, Loom, READER_LOOKS_RELAXED, READER_RELEASES_RELAXED, STRONG, Side, WRITER_LOOKS_RELAXED, WRITER_PUBLISHES_RELAXED,
    check, must_fail, take_side,
};
use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::mpmc::ManyProducer;
use ringmem_layouts::ring::{PushError, ReserveError, RingFlags, Slot, mpmc, mpsc};
use ringmem_layouts::{Machine, RingHeader, RingLayout, RmwWord, SlotCell};

const MPMC: u64 = RingFlags::MPMC.bits();
const MPSC: u64 = RingFlags::MPSC.bits();

const RACE: &str = "Causality violation";
const PREEMPTIONS: usize = 2;

struct Memory<M: Machine> {
    header: RingHeader<M::Word>,
    slots: Vec<Slot<M::Word, M::Cell<u64>>>,
}

// SAFETY: loom checks whether the ring's protocol suffices.
unsafe impl<M: Machine> Sync for Memory<M> {}

impl<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static> Memory<M> {
    fn new(kind: u64, capacity: u64, start: u64) -> &'static Self {
        let layout = RingLayout::of_kind::<u64>(RingFlags::from_bits_retain(kind), capacity).unwrap();
        Box::leak(Box::new(Self {
            header: RingHeader::new::<u64>(&layout, start),
            slots: (0..capacity).map(|place| Slot::vacant(M::Cell::new(u64::MAX), place, capacity, start)).collect(),
        }))
    }
    fn slots(&self) -> NonNull<Slot<M::Word, M::Cell<u64>>> {
        NonNull::from(self.slots.as_slice()).cast()
    }
    fn producer<const KIND: u64>(&'static self) -> ManyProducer<'static, u64, M, KIND> {
        // SAFETY: `capacity` vacant slots, until `free`.
        unsafe { ManyProducer::new(&self.header, self.slots()) }.unwrap()
    }
    fn consumer(&'static self) -> mpmc::Consumer<'static, u64, M> {
        // SAFETY: `capacity` vacant slots, until `free`.
        unsafe { mpmc::Consumer::new(&self.header, self.slots()) }.unwrap()
    }
    /// # Safety
    ///
    /// Once at a time.
    unsafe fn only_consumer(&'static self) -> mpsc::Consumer<'static, u64, M> {
        // SAFETY: `capacity` vacant slots, until `free`; the caller promises that this is the only consumer at a time.
        unsafe { mpsc::Consumer::new(&self.header, &self.header, self.slots()) }.unwrap()
    }
    /// # Safety
    ///
    /// Made by `new`, without handles.
    unsafe fn free(&'static self) {
        // SAFETY: the caller promises that `new` leaked this box and that no handle borrows it, so it is freed once and unused.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

type Many<'a, M, const KIND: u64> = ManyProducer<'a, u64, M, KIND>;

fn push<M: Machine<Word: RmwWord>, const KIND: u64>(producer: &mut Many<M, KIND>, messages: &[u64]) -> Vec<u64> {
    let taken = |value: &u64| match producer.push(*value) {
        Ok(()) => true,
        Err(refused) => {
            assert_eq!(refused, PushError::Full(*value));
            false
        }
    };
    messages.iter().copied().filter(taken).collect()
}

fn push_slice<M: Machine<Word: RmwWord>, const KIND: u64>(producer: &mut Many<M, KIND>, messages: &[u64]) -> Vec<u64> {
    let count = producer.push_slice(messages);
    messages[..count].to_vec()
}

fn reserve<M: Machine<Word: RmwWord>, const KIND: u64>(producer: &mut Many<M, KIND>, messages: &[u64]) -> Vec<u64> {
    match producer.reserve(producer.capacity().min(2)) {
        Ok(mut grant) => {
            assert_eq!(grant.fill([messages[0]]), 1);
            vec![messages[0]]
        }
        Err(ReserveError::Full { .. }) => Vec::new(),
        Err(refused) => panic!("{refused}"),
    }
}

fn give_up<M: Machine<Word: RmwWord>, const KIND: u64>(producer: &mut Many<M, KIND>, messages: &[u64]) -> Vec<u64> {
    drop(producer.reserve(1));
    push(producer, messages)
}

fn batch<M: Machine<Word: RmwWord>, const KIND: u64>(producer: &mut Many<M, KIND>, messages: &[u64]) -> Vec<u64> {
    let mut batch = producer.batch(2);
    messages.iter().copied().filter(|value| batch.push(*value).is_ok()).collect()
}

const EVICTED: u64 = 100;

fn overwrite<M: Machine<Word: RmwWord>>(producer: &mut Many<M, MPMC>, messages: &[u64]) -> Vec<u64> {
    let mut done = Vec::new();
    for value in &messages[..1] {
        if producer.push(*value).is_err() {
            done.extend(producer.evict().map(|oldest| oldest + EVICTED));
            if producer.push(*value).is_err() {
                continue;
            }
        }
        done.push(*value);
    }
    done
}

macro_rules! drains {
    ($consumer:ty: $pop:ident, $pop_slice:ident) => {
        fn $pop<M: Machine<Word: RmwWord>>(consumer: &mut $consumer, tries: usize) -> Vec<u64> {
            (0..tries).filter_map(|_| consumer.pop().ok()).collect()
        }

        fn $pop_slice<M: Machine<Word: RmwWord>>(consumer: &mut $consumer, tries: usize) -> Vec<u64> {
            let slice = |_| {
                let mut into = [0; 2];
                let count = consumer.pop_slice(&mut into);
                into[..count].to_vec()
            };
            (0..tries).flat_map(slice).collect()
        }
    };
}

drains! { mpmc::Consumer<u64, M>: pop, pop_slice }
drains! { mpsc::Consumer<u64, M>: pop_alone, pop_slice_alone }

fn take<M: Machine<Word: RmwWord>>(consumer: &mut mpmc::Consumer<u64, M>, tries: usize) -> Vec<u64> {
    (0..tries).flat_map(|_| consumer.take(2).map_or_else(|_| Vec::new(), |taken| ManuallyDrop::new(taken).by_ref().collect())).collect()
}

fn peek_alone<M: Machine<Word: RmwWord>>(consumer: &mut mpsc::Consumer<u64, M>, tries: usize) -> Vec<u64> {
    let mut got = Vec::new();
    for _ in 0..tries {
        if let Ok(chunk) = consumer.peek(usize::MAX) {
            got.extend((0..chunk.len()).map(|offset| chunk.with(offset, |value| *value).unwrap()));
            chunk.release(usize::MAX);
        }
    }
    got
}

fn drain_alone<M: Machine<Word: RmwWord>>(consumer: &mut mpsc::Consumer<u64, M>, tries: usize) -> Vec<u64> {
    let mut got = Vec::new();
    for _ in 0..tries {
        if let Ok(chunk) = consumer.peek(usize::MAX) {
            let mut values = chunk.into_iter();
            got.extend(values.next());
            values.for_each(|value| got.push(value));
        }
    }
    got
}

fn batch_alone<M: Machine<Word: RmwWord>>(consumer: &mut mpsc::Consumer<u64, M>, tries: usize) -> Vec<u64> {
    let mut batch = consumer.batch(2);
    (0..tries).filter_map(|_| batch.pop().ok()).collect()
}

fn assert_whole(went_in: &[Vec<u64>], came_out: &[Vec<u64>]) {
    for got in came_out {
        for tens in [0, 10] {
            assert!(got.iter().filter(|value| **value / 10 * 10 == tens).is_sorted(), "out of order: {got:?}");
        }
    }
    let (evicted, mut went_in): (Vec<u64>, Vec<u64>) = went_in.concat().into_iter().partition(|value| *value >= EVICTED);
    let mut came_out = came_out.concat();
    came_out.extend(evicted.iter().map(|value| value - EVICTED));
    came_out.sort_unstable();
    went_in.sort_unstable();
    assert_eq!(came_out, went_in);
}

/// A failed model must not call loom.
struct Kept<H>(ManuallyDrop<H>);

impl<H> Kept<H> {
    fn new(handle: H) -> Self {
        Self(ManuallyDrop::new(handle))
    }
}

impl<H> Drop for Kept<H> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: once; unused afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

fn on<H: Send + 'static>(
    side: Side,
    mut handle: Kept<H>,
    work: impl FnOnce(&mut H) -> Vec<u64> + Send + 'static,
) -> thread::JoinHandle<(Kept<H>, Vec<u64>)> {
    thread::spawn(move || {
        take_side(side);
        let done = work(&mut handle.0);
        (handle, done)
    })
}

type Fill<M, const KIND: u64> = fn(&mut Many<M, KIND>, &[u64]) -> Vec<u64>;

#[derive(Clone, Copy, PartialEq)]
enum Scene {
    Publish,
    Reuse,
}

impl Scene {
    fn capacity(self) -> u64 {
        if self == Self::Publish { 2 } else { 1 }
    }
    fn before(self, mut push: impl FnMut(u64) -> bool) -> Vec<u64> {
        if self == Self::Publish {
            return Vec::new();
        }
        assert!(push(0));
        vec![0]
    }
    fn drain(self, mut drain: impl FnMut() -> Vec<u64>) -> Vec<u64> {
        let mut got = drain();
        while self == Self::Publish && got.is_empty() {
            thread::yield_now();
            got = drain();
        }
        got
    }
}

fn two_fill<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static, C: Send + 'static, const KIND: u64>(
    scene: Scene,
    consumer: impl FnOnce(&'static Memory<M>) -> C,
    fill: Fill<M, KIND>,
    drain: fn(&mut C, usize) -> Vec<u64>,
    rest: fn(&mut C, usize) -> Vec<u64>,
) {
    let memory = Memory::<M>::new(KIND, scene.capacity(), u64::MAX);
    let consumer = Kept::new(consumer(memory));
    let mut first = Kept::new(memory.producer::<KIND>());
    let second = Kept::new(first.0.clone());
    let before = scene.before(|value| first.0.push(value).is_ok());
    let one = on(Side::Writer, first, move |producer| fill(producer, &[1, 2]));
    let two = on(Side::Writer, second, move |producer| fill(producer, &[11]));
    let reader = on(Side::Reader, consumer, move |consumer| scene.drain(|| drain(consumer, 1)));
    let ((first, one), (second, two)) = (one.join().unwrap(), two.join().unwrap());
    let (mut consumer, mut got) = reader.join().unwrap();
    take_side(Side::Reader);
    got.extend(rest(&mut consumer.0, 4));
    assert_whole(&[before, one, two], &[got]);
    drop((first, second, consumer));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn two_producers<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static>(
    scene: Scene,
    fill: Fill<M, MPMC>,
    drain: fn(&mut mpmc::Consumer<u64, M>, usize) -> Vec<u64>,
) {
    two_fill(scene, Memory::<M>::consumer, fill, drain, pop);
}

fn one_consumer<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static>(
    scene: Scene,
    fill: Fill<M, MPSC>,
    drain: fn(&mut mpsc::Consumer<u64, M>, usize) -> Vec<u64>,
) {
    // SAFETY: the only consumer.
    two_fill(scene, |memory: &'static Memory<M>| unsafe { memory.only_consumer() }, fill, drain, pop_alone);
}

fn two_consumers<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static>(
    scene: Scene,
    fill: Fill<M, MPMC>,
    drain: fn(&mut mpmc::Consumer<u64, M>, usize) -> Vec<u64>,
) {
    let memory = Memory::<M>::new(MPMC, scene.capacity(), u64::MAX);
    let mut consumer = Kept::new(memory.consumer());
    let other = Kept::new(consumer.0.clone());
    let mut producer = Kept::new(memory.producer::<MPMC>());
    let before = scene.before(|value| producer.0.push(value).is_ok());
    let writer = on(Side::Writer, producer, move |producer| fill(producer, &[1, 2]));
    let reader = on(Side::Reader, other, move |other| drain(other, 1));
    take_side(Side::Reader);
    let mut got = drain(&mut consumer.0, 1);
    thread::yield_now();
    got.extend(drain(&mut consumer.0, 1));
    let ((producer, sent), (other, theirs)) = (writer.join().unwrap(), reader.join().unwrap());
    got.extend(pop(&mut consumer.0, 4));
    assert_whole(&[before, sent], &[got, theirs]);
    drop((producer, other, consumer));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

/// Loom would not show a slot again that the reader has seen empty.
fn leaving<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static>() {
    let memory = Memory::<M>::new(MPMC, 2, u64::MAX);
    let mut consumer = Kept::new(memory.consumer());
    let mut first = memory.producer::<MPMC>();
    let mut second = first.clone();
    let reader = thread::spawn(move || {
        take_side(Side::Reader);
        while !consumer.0.is_disconnected() {
            thread::yield_now();
        }
        assert_eq!(pop(&mut consumer.0, 3).len(), 2, "{LEFT}");
    });
    let writer = thread::spawn(move || {
        take_side(Side::Writer);
        first.push(1).unwrap();
    });
    take_side(Side::Writer);
    second.push(11).unwrap();
    drop(second);
    writer.join().unwrap();
    reader.join().unwrap();
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn attaching<M: Machine<Word: RmwWord, Corrupt = Corrupt> + 'static>() {
    let memory = Memory::<M>::new(MPMC, 1, u64::MAX);
    let (mut producer, mut consumer) = (Kept::new(memory.producer::<MPMC>()), Kept::new(memory.consumer()));
    let others = thread::spawn(move || {
        take_side(Side::Reader);
        for value in 0..2 {
            producer.0.push(value).unwrap();
            assert_eq!(consumer.0.pop(), Ok(value));
        }
        (producer, consumer)
    });
    take_side(Side::Writer);
    let late = Kept::new(memory.producer::<MPMC>());
    drop((late, others.join().unwrap()));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

#[test]
fn attaching_to_an_active_ring_succeeds() {
    check(PREEMPTIONS, attaching::<Loom<STRONG>>);
}

#[test]
fn a_relaxed_access_at_attach_is_detected() {
    must_fail("Corrupt(Corrupt {", PREEMPTIONS, attaching::<Loom<WRITER_LOOKS_RELAXED>>);
}

const LEFT: &str = "who has left has left its messages";

#[test]
fn an_end_closes_after_its_last_handle() {
    check(PREEMPTIONS, leaving::<Loom<STRONG>>);
}

#[test]
fn a_relaxed_close_or_its_load_is_detected() {
    must_fail(LEFT, PREEMPTIONS, leaving::<Loom<EXCHANGE_RELAXED>>);
    must_fail(LEFT, PREEMPTIONS, leaving::<Loom<READER_LOOKS_RELAXED>>);
}

macro_rules! pairs {
    ($($(#[$long:meta])? $shape:ident: $fill:ident meets $drain:ident as $pair:ident;)+) => {$(
        mod $pair {
            use super::*;

            fn model<const WEAK: u8>(scene: Scene) -> impl Fn() + Send + Sync + 'static {
                move || $shape::<Loom<WEAK>>(scene, $fill, $drain)
            }

            /// Claims order no memory: strong exchanges would hide a relaxed release of a slot.
            #[test]
            $(#[$long])?
            fn every_message_arrives_once_whole_and_in_order() {
                check(PREEMPTIONS, model::<EXCHANGE_RELAXED>(Scene::Publish));
                check(PREEMPTIONS, model::<EXCHANGE_RELAXED>(Scene::Reuse));
            }

            #[test]
            fn a_relaxed_publish_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_PUBLISHES_RELAXED>(Scene::Publish));
            }

            #[test]
            fn a_relaxed_load_in_pop_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<READER_LOOKS_RELAXED>(Scene::Publish));
            }

            #[test]
            fn a_relaxed_slot_release_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<READER_RELEASES_RELAXED>(Scene::Reuse));
            }

            #[test]
            fn a_relaxed_load_in_push_is_a_race() {
                must_fail(RACE, PREEMPTIONS, model::<WRITER_LOOKS_RELAXED>(Scene::Reuse));
            }
        }
    )+};
}

pairs! {
    two_producers: push meets pop as two_push_one_pops;
    two_producers: push_slice meets pop as two_push_slices_one_pops;
    two_producers: reserve meets pop as two_reserve_one_pops;
    two_producers: batch meets pop as two_batch_one_pops;
    two_producers: push meets pop_slice as two_push_one_pops_slices;
    two_producers: push_slice meets pop_slice as two_push_slices_one_pops_slices;
    two_producers: reserve meets pop_slice as two_reserve_one_pops_slices;
    two_producers: batch meets pop_slice as two_batch_one_pops_slices;
    two_producers: push meets take as two_push_one_takes;
    two_producers: push_slice meets take as two_push_slices_one_takes;
    two_producers: reserve meets take as two_reserve_one_takes;
    two_producers: batch meets take as two_batch_one_takes;
    #[ignore = "takes a minute"]
    two_producers: overwrite meets pop as two_overwrite_one_pops;
    two_consumers: overwrite meets pop as one_overwrites_two_pop;
    #[ignore = "takes a minute"]
    two_producers: give_up meets pop as two_give_up_one_pops;
    two_consumers: give_up meets pop as one_gives_up_two_pop;
    #[ignore = "takes a minute"]
    one_consumer: give_up meets pop_alone as giving_up_meets_the_only_pop;
    two_consumers: push meets pop as one_pushes_two_pop;
    two_consumers: push_slice meets pop as one_pushes_slices_two_pop;
    two_consumers: reserve meets pop as one_reserves_two_pop;
    two_consumers: batch meets pop as one_batches_two_pop;
    two_consumers: push meets take as one_pushes_two_take;
    two_consumers: push_slice meets take as one_pushes_slices_two_take;
    two_consumers: reserve meets take as one_reserves_two_take;
    two_consumers: batch meets take as one_batches_two_take;
    two_consumers: push_slice meets pop_slice as one_pushes_slices_two_pop_slices;
    one_consumer: push meets pop_alone as push_meets_the_only_pop;
    one_consumer: push_slice meets pop_alone as push_slice_meets_the_only_pop;
    one_consumer: reserve meets pop_alone as reserve_meets_the_only_pop;
    one_consumer: batch meets pop_alone as batch_meets_the_only_pop;
    one_consumer: push meets pop_slice_alone as push_meets_the_only_pop_slice;
    one_consumer: push_slice meets pop_slice_alone as push_slice_meets_the_only_pop_slice;
    one_consumer: reserve meets pop_slice_alone as reserve_meets_the_only_pop_slice;
    one_consumer: batch meets pop_slice_alone as batch_meets_the_only_pop_slice;
    one_consumer: push meets peek_alone as push_meets_the_only_peek;
    one_consumer: push meets drain_alone as push_meets_the_only_drain;
    one_consumer: push_slice meets peek_alone as push_slice_meets_the_only_peek;
    one_consumer: reserve meets peek_alone as reserve_meets_the_only_peek;
    one_consumer: reserve meets drain_alone as reserve_meets_the_only_drain;
    one_consumer: batch meets peek_alone as batch_meets_the_only_peek;
    one_consumer: batch meets drain_alone as batch_meets_the_only_drain;
    one_consumer: push meets batch_alone as push_meets_the_only_batch;
    one_consumer: push_slice meets batch_alone as push_slice_meets_the_only_batch;
    one_consumer: reserve meets batch_alone as reserve_meets_the_only_batch;
    one_consumer: batch meets batch_alone as batches_meet_alone;
}
