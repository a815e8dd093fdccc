use crate::loom_machine;

use std::ptr::NonNull;

use loom::thread;
use loom_machine::{
    Loom, LoomWord, READER_LOOKS_RELAXED, READER_RELEASES_RELAXED, STRONG, Side, TURN_PASSED_RELAXED, WRITER_LOOKS_RELAXED,
    WRITER_PUBLISHES_RELAXED, check, leave_side, must_fail, take_side,
};
use ringmem_layouts::ring::groups::{self, Groups, Portion, first};
use ringmem_layouts::ring::spsc::{Consumer, Producer};
use ringmem_layouts::{Machine, RingHeader, RingLayout, SlotCell, Word};

const START: u64 = u64::MAX;
const EPOCH: u32 = 7;

type Group<const WEAK: u8> = groups::Group<'static, u64, u64, Loom<WEAK>, LoomWord<WEAK>>;

/// Two rings; groups are writers, and the host's ends readers.
struct Memory<const WEAK: u8> {
    headers: [RingHeader<LoomWord<WEAK>>; 2],
    shared: Groups<LoomWord<WEAK>>,
    /// For the host, by group 0.
    told: LoomWord<WEAK>,
    slots: [Vec<<Loom<WEAK> as Machine>::Cell<u64>>; 2],
}

// SAFETY: loom checks whether the rings' protocol suffices.
unsafe impl<const WEAK: u8> Sync for Memory<WEAK> {}

impl<const WEAK: u8> Memory<WEAK> {
    fn new(capacities: [u64; 2]) -> &'static Self {
        let header = |capacity| RingHeader::new::<u64>(&RingLayout::of::<u64>(capacity).unwrap(), START);
        Box::leak(Box::new(Self {
            headers: capacities.map(header),
            shared: Groups::new(),
            told: Word::new(0),
            slots: capacities.map(|capacity| (0..capacity).map(|_| SlotCell::new(u64::MAX)).collect()),
        }))
    }
    fn slots(&self, ring: usize) -> NonNull<<Loom<WEAK> as Machine>::Cell<u64>> {
        NonNull::from(self.slots[ring].as_slice()).cast()
    }
    fn side(&'static self, ring: usize) -> groups::Side<'static, LoomWord<WEAK>, <Loom<WEAK> as Machine>::Cell<u64>> {
        let header = &self.headers[ring];
        groups::Side { own: header, peer: header, slots: self.slots(ring), capacity: self.slots[ring].len() as u64 }
    }
    fn begin(&'static self) {
        // SAFETY: the only launch; each model calls it once.
        unsafe { self.shared.begin(EPOCH, first(&self.side(0), &self.side(1)).unwrap(), false) };
    }
    fn group(&'static self) -> Group<WEAK> {
        // SAFETY: slots with values; the host's ends and groups of one launch, which has begun.
        unsafe { groups::Group::over(self.side(0), self.side(1), self.shared.first(), &self.shared) }
    }
    fn sender(&'static self) -> Producer<'static, u64, Loom<WEAK>> {
        // SAFETY: slots with values; the only producer.
        unsafe { Producer::new(&self.headers[0], &self.headers[0], self.slots(0)) }.unwrap()
    }
    fn receiver(&'static self) -> Consumer<'static, u64, Loom<WEAK>> {
        // SAFETY: slots with values; the only consumer.
        unsafe { Consumer::new(&self.headers[1], &self.headers[1], self.slots(1)) }.unwrap()
    }
    /// # Safety
    ///
    /// Made by `new`, without ends.
    unsafe fn free(&'static self) {
        // SAFETY: the caller promises that `new` leaked this box and that no end borrows it, so it is freed once and unused.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

/// Answers one message, if there are one and a slot; returns whether it did.
fn answer<const WEAK: u8>(group: &mut Group<WEAK>) -> bool {
    let Ok((begin, count)) = group.reserve(Portion::of(1, 1, 1)) else { return false };
    if count == 0 {
        return false;
    }
    // SAFETY: just reserved by this thread.
    unsafe { group.accept(begin, count) };
    // SAFETY: a message of the reservation.
    let message = group.messages().at(0).with(|slot| unsafe { *slot });
    // SAFETY: a slot of the reservation.
    group.answers().at(0).with_mut(|slot| unsafe { slot.write(message + 10) });
    while !group.is_its_turn() {
        thread::yield_now();
    }
    // SAFETY: in its turn, finished, once.
    Word::publish_all(unsafe { group.publications() });
    // SAFETY: published.
    unsafe { group.pass() };
    true
}

fn two_groups<const WEAK: u8>() {
    let memory = Memory::<WEAK>::new([2, 2]);
    let (mut sender, mut receiver) = (memory.sender(), memory.receiver());
    [1, 2].into_iter().for_each(|value| sender.push(value).unwrap());
    memory.begin();
    memory.shared.permit(true);
    let groups = [(); 2].map(|()| {
        let mut group = memory.group();
        thread::spawn(move || {
            take_side(Side::Writer);
            assert!(answer(&mut group), "there is a message for each");
        })
    });
    take_side(Side::Reader);
    let mut got: Vec<u64> = (0..2).filter_map(|_| receiver.pop().ok()).collect();
    groups.into_iter().for_each(|group| group.join().unwrap());
    got.extend(std::iter::from_fn(|| receiver.pop().ok()));
    assert_eq!(got, [11, 12], "lost, doubled, torn or in another order");
    drop((sender, receiver));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

/// The host writes a slot of messages again, and a group one of answers.
fn one_slot_twice<const WEAK: u8>() {
    let memory = Memory::<WEAK>::new([1, 1]);
    let (mut sender, mut receiver) = (memory.sender(), memory.receiver());
    memory.begin();
    memory.shared.permit(true);
    sender.push(1).unwrap();
    let group = thread::spawn(move || {
        take_side(Side::Writer);
        let mut group = memory.group();
        [answer(&mut group), answer(&mut group)].into_iter().filter(|&answered| answered).count()
    });
    take_side(Side::Reader);
    let mut sent = 1 + usize::from(sender.push(2).is_ok());
    let mut got: Vec<u64> = receiver.pop().ok().into_iter().collect();
    sent += usize::from(sent == 1 && sender.push(2).is_ok());
    let answered = group.join().unwrap();
    got.extend(std::iter::from_fn(|| receiver.pop().ok()));
    assert!(answered <= sent && got == [11, 12][..answered], "{got:?} of {answered}");
    drop((sender, receiver));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

/// Another group waits for the beginning; group 0 stores it as a writer.
fn a_beginning<const WEAK: u8>() {
    let memory = Memory::<WEAK>::new([1, 1]);
    let (mut sender, mut receiver) = (memory.sender(), memory.receiver());
    sender.push(1).unwrap();
    let group = thread::spawn(move || {
        take_side(Side::Reader);
        if !memory.shared.has_begun(EPOCH) {
            return;
        }
        assert_eq!(memory.shared.first(), [START; 2], "of another launch");
    });
    take_side(Side::Writer);
    memory.begin();
    leave_side();
    memory.shared.permit(true);
    assert!(answer(&mut memory.group()));
    group.join().unwrap();
    assert_eq!(receiver.pop(), Ok(11));
    drop((sender, receiver));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

/// Group 0 tells the host of a pause, or of an end, once the other group's answer is there.
fn a_report<const WEAK: u8>(of_an_end: bool) {
    let memory = Memory::<WEAK>::new([1, 1]);
    let (mut sender, mut receiver) = (memory.sender(), memory.receiver());
    sender.push(1).unwrap();
    memory.begin();
    memory.shared.permit(true);
    let other = thread::spawn(move || {
        take_side(Side::Writer);
        answer(&mut memory.group());
        memory.shared.leave();
    });
    let first = thread::spawn(move || {
        take_side(Side::Writer);
        if of_an_end {
            memory.shared.end(None);
        } else {
            memory.shared.permit(false);
        }
        let is_over = || if of_an_end { memory.shared.left() == 1 } else { memory.shared.is_settled() };
        while !is_over() {
            thread::yield_now();
        }
        let answered = memory.shared.reserved();
        leave_side();
        memory.told.store_release(1 + answered);
    });
    let told = memory.told.load_acquire();
    if told > 0 {
        assert_eq!(receiver.pop().is_ok(), told == 2, "not what group 0 has told");
    }
    [other, first].into_iter().for_each(|group| group.join().unwrap());
    drop((sender, receiver));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

#[test]
fn answers_of_two_groups_arrive_once_whole_and_in_order() {
    check(3, two_groups::<STRONG>);
}

#[test]
fn a_slot_is_reused_after_its_release() {
    check(3, one_slot_twice::<STRONG>);
}

#[test]
fn a_group_sees_the_beginning_of_its_launch() {
    check(3, a_beginning::<STRONG>);
}

#[test]
fn a_pause_comes_after_all_answers() {
    check(3, || a_report::<STRONG>(false));
}

#[test]
fn an_end_comes_after_all_answers() {
    check(3, || a_report::<STRONG>(true));
}

#[test]
fn a_weakened_sync_point_is_a_race() {
    const RACE: &str = "Causality violation";
    must_fail(RACE, 3, two_groups::<WRITER_PUBLISHES_RELAXED>);
    must_fail(RACE, 3, two_groups::<READER_LOOKS_RELAXED>);
    must_fail(RACE, 3, one_slot_twice::<READER_RELEASES_RELAXED>);
    must_fail(RACE, 3, one_slot_twice::<WRITER_LOOKS_RELAXED>);
    must_fail(RACE, 3, one_slot_twice::<WRITER_PUBLISHES_RELAXED>);
}

#[test]
fn a_relaxed_turn_loses_answers() {
    const LOST: &str = "lost, doubled, torn or in another order";
    must_fail(LOST, 3, two_groups::<TURN_PASSED_RELAXED>);
}

#[test]
fn a_relaxed_beginning_is_seen_too_early() {
    const EARLY: &str = "of another launch";
    must_fail(EARLY, 3, a_beginning::<WRITER_PUBLISHES_RELAXED>);
    must_fail(EARLY, 3, a_beginning::<READER_LOOKS_RELAXED>);
}

#[test]
fn a_relaxed_report_comes_too_early() {
    const EARLY: &str = "not what group 0 has told";
    for of_an_end in [false, true] {
        must_fail(EARLY, 3, move || a_report::<TURN_PASSED_RELAXED>(of_an_end));
        must_fail(EARLY, 3, move || a_report::<WRITER_LOOKS_RELAXED>(of_an_end));
    }
}
