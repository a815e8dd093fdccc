use crate::loom_machine;

use std::ptr::NonNull;

use loom::thread;
use loom_machine::{
    Loom, LoomWord, READER_LOOKS_RELAXED, READER_RELEASES_RELAXED, STRONG, Side, TURN_PASSED_RELAXED, WRITER_LOOKS_RELAXED,
    WRITER_PUBLISHES_RELAXED, check, leave_side, must_fail, take_side,
};
use ringmem_layouts::ring::aggregate::{Aggregate, Producer};
use ringmem_layouts::ring::spsc::Consumer;
use ringmem_layouts::{Machine, RingHeader, RingLayout, SlotCell, Word};

const START: u64 = u64::MAX;

struct Memory<const WEAK: u8> {
    header: RingHeader<LoomWord<WEAK>>,
    shared: Aggregate<LoomWord<WEAK>>,
    slots: Vec<<Loom<WEAK> as Machine>::Cell<u64>>,
}

// SAFETY: loom checks whether the ring's protocol suffices.
unsafe impl<const WEAK: u8> Sync for Memory<WEAK> {}

impl<const WEAK: u8> Memory<WEAK> {
    fn new(capacity: u64) -> &'static Self {
        let layout = RingLayout::of::<u64>(capacity).unwrap();
        Box::leak(Box::new(Self {
            header: RingHeader::new::<u64>(&layout, START),
            shared: Aggregate::starting_at(START),
            slots: (0..capacity).map(|_| SlotCell::new(u64::MAX)).collect(),
        }))
    }
    fn slots(&self) -> NonNull<<Loom<WEAK> as Machine>::Cell<u64>> {
        NonNull::from(self.slots.as_slice()).cast()
    }
    fn producer(&'static self) -> Producer<'static, u64, Loom<WEAK>, LoomWord<WEAK>> {
        // SAFETY: slots with values; one consumer, and producers with the same counters.
        unsafe { Producer::new(&self.header, &self.header, self.slots(), &self.shared) }.unwrap()
    }
    fn consumer(&'static self) -> Consumer<'static, u64, Loom<WEAK>> {
        // SAFETY: slots with values; this is the only consumer.
        unsafe { Consumer::new(&self.header, &self.header, self.slots()) }.unwrap()
    }
    /// # Safety
    ///
    /// Made by `new`, without ends.
    unsafe fn free(&'static self) {
        // SAFETY: the caller promises that `new` leaked this box and that no end borrows it, so it is freed once and unused.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

fn fill<const WEAK: u8>(producer: &mut Producer<'_, u64, Loom<WEAK>, LoomWord<WEAK>>, value: u64) -> bool {
    let (begin, count) = producer.reserve(1).unwrap();
    if count == 0 {
        return false;
    }
    // SAFETY: just reserved by this thread.
    unsafe { producer.accept(begin, count) };
    // SAFETY: a slot of the reservation.
    producer.row().at(0).with_mut(|slot| unsafe { slot.write(value) });
    while !producer.is_its_turn() {
        thread::yield_now();
    }
    // SAFETY: in its turn, written, once.
    Word::publish_all([unsafe { producer.publication() }]);
    // SAFETY: published.
    unsafe { producer.pass() };
    true
}

fn two_producers<const WEAK: u8>() {
    let memory = Memory::<WEAK>::new(2);
    let mut consumer = memory.consumer();
    let writers = [1, 2].map(|value| {
        let mut producer = memory.producer();
        thread::spawn(move || {
            take_side(Side::Writer);
            assert!(fill(&mut producer, value), "there is room for both");
        })
    });
    take_side(Side::Reader);
    let mut got: Vec<u64> = (0..2).filter_map(|_| consumer.pop().ok()).collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    got.extend(std::iter::from_fn(|| consumer.pop().ok()));
    got.sort_unstable();
    assert_eq!(got, [1, 2], "lost, doubled or torn");
    drop(consumer);
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn one_slot_twice<const WEAK: u8>() {
    let memory = Memory::<WEAK>::new(1);
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    assert!(fill(&mut producer, 1));
    let writer = thread::spawn(move || {
        take_side(Side::Writer);
        fill(&mut producer, 2)
    });
    take_side(Side::Reader);
    assert_eq!(consumer.pop(), Ok(1));
    let filled = writer.join().unwrap();
    assert_eq!(consumer.pop().ok(), filled.then_some(2));
    drop(consumer);
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn attach_while_it_is_emptied<const WEAK: u8>() {
    let memory = Memory::<WEAK>::new(1);
    let mut consumer = memory.consumer();
    assert!(fill(&mut memory.producer(), 1));
    let reader = thread::spawn(move || {
        take_side(Side::Reader);
        assert_eq!(consumer.pop(), Ok(1));
        consumer
    });
    take_side(Side::Writer);
    let mut producer = memory.producer();
    leave_side();
    let filled = fill(&mut producer, 2);
    let mut consumer = reader.join().unwrap();
    assert_eq!(consumer.pop().ok(), filled.then_some(2));
    drop(consumer);
    // SAFETY: without ends.
    unsafe { memory.free() };
}

#[test]
fn a_late_producer_writes_only_free_slots() {
    check(3, attach_while_it_is_emptied::<STRONG>);
}

#[test]
fn a_relaxed_access_at_attach_is_detected() {
    const RACE: &str = "Causality violation";
    must_fail(RACE, 3, attach_while_it_is_emptied::<WRITER_LOOKS_RELAXED>);
    must_fail(RACE, 3, attach_while_it_is_emptied::<READER_RELEASES_RELAXED>);
}

#[test]
fn messages_of_two_producers_arrive_once_and_whole() {
    check(3, two_producers::<STRONG>);
}

#[test]
fn a_slot_is_reused_after_its_release() {
    check(3, one_slot_twice::<STRONG>);
}

#[test]
fn a_weakened_sync_point_is_a_race() {
    const RACE: &str = "Causality violation";
    must_fail(RACE, 3, two_producers::<WRITER_PUBLISHES_RELAXED>);
    must_fail(RACE, 3, two_producers::<READER_LOOKS_RELAXED>);
    must_fail(RACE, 3, one_slot_twice::<READER_RELEASES_RELAXED>);
    must_fail(RACE, 3, one_slot_twice::<WRITER_LOOKS_RELAXED>);
}

#[test]
fn a_relaxed_turn_loses_messages() {
    const LOST: &str = "lost, doubled or torn";
    must_fail(LOST, 3, two_producers::<TURN_PASSED_RELAXED>);
    must_fail(LOST, 3, two_producers::<WRITER_LOOKS_RELAXED>);
}
