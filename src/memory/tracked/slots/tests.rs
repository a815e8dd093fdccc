use core::panic::Location;
use core::sync::atomic::AtomicBool;
use std::collections::HashSet;
use std::thread;
use std::vec::Vec;

use super::*;
use crate::backend::{MemoryLocation, StreamId};

#[track_caller]
fn record(number: u64) -> Record {
    Record {
        number,
        since: number + 1,
        bytes: number + 2,
        align: 1 << (number % 40),
        address: number + 3,
        tag: number + 4,
        stream: StreamId::numbered(number + 5),
        location: MemoryLocation::from_bits(number),
        name: (number + 6) as u32,
        has_note: number.is_multiple_of(3),
        caller: Location::caller(),
    }
}

fn give(slots: &Slots, number: u64) -> u64 {
    slots.claim().expect("a slot").fill(&record(number))
}

fn assert_whole(got: &Record) {
    let expected = record(got.number);
    let words = |record: &Record| (record.since, record.bytes, record.align, record.address, record.tag, record.stream);
    assert_eq!(words(got), words(&expected), "torn: {got:?}");
    let facts = |record: &Record| (record.location, record.name, record.has_note, record.caller.file());
    assert_eq!(facts(got), facts(&expected), "torn: {got:?}");
}

#[test]
fn a_ticket_returns_its_record_once() {
    let slots = Slots::new();
    let tickets: Vec<u64> = (0..1000).map(|number| give(&slots, number)).collect();
    assert_eq!(tickets.iter().collect::<HashSet<_>>().len(), 1000);
    for (number, &ticket) in tickets.iter().enumerate().rev() {
        let got = slots.take(ticket).expect("live");
        assert_eq!(got.number, number as u64);
        assert_whole(&got);
        assert!(slots.take(ticket).is_none());
    }
    // Tickets of the previous turn are unknown.
    let again: Vec<u64> = (0..1000).map(|number| give(&slots, number)).collect();
    assert!(tickets.iter().all(|&ticket| slots.take(ticket).is_none()));
    assert_eq!((again.len(), slots.records().count()), (1000, 1000));
    assert!(slots.take(u64::MAX).is_none() && slots.take(0).is_none());
}

#[test]
fn an_abandoned_claim_leaves_its_slot_free() {
    let slots = Slots::new();
    for _ in 0..10 * FIRST {
        drop(slots.claim());
    }
    assert_eq!((slots.len.load(Relaxed), slots.records().count()), (FIRST, 0));
}

#[test]
fn the_slot_count_is_at_most_8_thirds_of_the_peak_use() {
    let slots = Slots::new();
    let mut live = Vec::new();
    let mut most = 0;
    for round in 0_u64..20_000 {
        live.push(give(&slots, round));
        // Holes everywhere, half of them refilled.
        if round % 3 == 0 {
            let ticket = live.swap_remove((round * 7919) as usize % live.len());
            assert!(slots.take(ticket).is_some());
        }
        most = most.max(live.len() + 1);
        let len = slots.len.load(Relaxed);
        assert!(len == FIRST || len as usize * 3 <= most * 8, "{len} slots for {most}");
    }
    assert_eq!(slots.records().count(), live.len());
}

#[test]
fn a_list_with_free_slots_does_not_grow() {
    let slots = Slots::new();
    let mut live: Vec<u64> = (0..700).map(|number| give(&slots, number)).collect();
    assert_eq!(slots.len.load(Relaxed), 1024);
    for ticket in live.split_off(300) {
        assert!(slots.take(ticket).is_some());
    }
    // Several rounds of the cursor; a third of the claims take the slot freed last.
    for round in 0..5000 {
        let some = [0, 1, 2].map(|number| give(&slots, round * 3 + number));
        assert!(some.iter().all(|&ticket| slots.take(ticket).is_some()));
    }
    assert_eq!((slots.len.load(Relaxed), slots.records().count()), (1024, live.len()));
}

#[test]
fn records_are_read_whole_during_concurrent_changes() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 1_000_000;
    let slots = &Slots::new();
    let numbers = || THREADS * ROUNDS..THREADS * ROUNDS + 100;
    let kept: Vec<u64> = numbers().map(|number| give(slots, number)).collect();
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut live = Vec::new();
                    for round in 0..ROUNDS {
                        let number = round * THREADS + thread;
                        live.push((number, give(slots, number)));
                        if live.len() > (round % 50) as usize {
                            for (number, ticket) in live.drain(..) {
                                assert_eq!(slots.take(ticket).map(|record| record.number), Some(number));
                            }
                        }
                    }
                    for (_, ticket) in live {
                        assert!(slots.take(ticket).is_some());
                    }
                })
            })
            .collect();
        let reader = scope.spawn(move || {
            let mut rounds = 0_u64;
            while !done.load(Relaxed) || rounds == 0 {
                let mut seen = HashSet::new();
                for record in slots.records() {
                    assert_whole(&record);
                    assert!(seen.insert(record.number), "{} twice", record.number);
                }
                assert!(numbers().all(|number| seen.contains(&number)), "a block that is live is missed");
                rounds += 1;
            }
        });
        let ends: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Relaxed);
        assert!(reader.join().is_ok() && ends.iter().all(Result::is_ok));
    });
    assert_eq!(slots.records().count(), kept.len());
}

mod models {
    use super::super::slot::Slot;
    use super::{assert_whole, record};
    use crate::loom_machine::{LoomWord, READER_LOOKS_RELAXED, STRONG, Side, WRITER_PUBLISHES_RELAXED, check, must_fail, take_side};
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::Relaxed;
    use loom::sync::Arc;
    use loom::thread;

    const TORN: &str = "torn";

    static SEEN: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

    fn give<const WEAK: u8>(slot: &Slot<LoomWord<WEAK>>, number: u64) -> Option<u32> {
        slot.claim().map(|claim| claim.fill(&record(number)))
    }

    /// Two blocks in turn in one slot, and a concurrent reader.
    fn read_while_written<const WEAK: u8>() {
        let slot = Arc::new(Slot::<LoomWord<WEAK>>::new());
        // The reader is the other thread: for a load, loom explores older values, not stores after it.
        let reader = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                take_side(Side::Reader);
                let record = slot.read()?;
                assert_whole(&record);
                Some(record.number)
            }
        });
        take_side(Side::Writer);
        let turn = give(&slot, 1).expect("free");
        assert_eq!(slot.take(turn).map(|record| record.number), Some(1));
        assert!(slot.take(turn).is_none(), "once");
        give(&slot, 2).expect("free again");
        if let (STRONG, Some(number)) = (WEAK, reader.join().unwrap()) {
            SEEN[number as usize - 1].store(true, Relaxed);
        }
        assert_eq!(slot.read().map(|record| record.number), Some(2));
    }

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let is_explored = check(3, read_while_written::<STRONG>);
        assert!(!is_explored || SEEN.iter().all(|seen| seen.load(Relaxed)), "the model saw too little");
    }

    #[test]
    fn relaxed_record_words_are_torn() {
        must_fail(TORN, 3, read_while_written::<WRITER_PUBLISHES_RELAXED>);
        must_fail(TORN, 3, read_while_written::<READER_LOOKS_RELAXED>);
    }

    #[test]
    fn a_slot_belongs_to_one_claim_at_a_time() {
        check(3, || {
            let slot = Arc::new(Slot::<LoomWord<STRONG>>::new());
            let turn_of = |number| {
                let slot = Arc::clone(&slot);
                move || {
                    let turn = give(&slot, number)?;
                    let record = slot.take(turn).expect("its own");
                    assert_eq!(record.number, number);
                    assert_whole(&record);
                    Some(turn)
                }
            };
            let other = thread::spawn(turn_of(1));
            let one = turn_of(2)();
            let turns = [one, other.join().unwrap()];
            assert!(turns != [None, None] && (turns[0] != turns[1]), "{turns:?}");
            assert!(slot.is_free());
        });
    }
}
