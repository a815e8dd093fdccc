use std::collections::BTreeSet;

use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Tally, Verb};
use ringmem::copy::Coalescer;
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};

use super::{Clean, backend, modelled, pinned, zeros};

type Table = Coalescer<u32, Device, Pinned>;

fn table(backend: &Clean, len: usize, capacity: usize) -> Table {
    Coalescer::new(zeros(backend, len), pinned(backend), capacity).expect("room")
}

fn uploads(backend: &Clean) -> Tally {
    backend.counters().uploads
}

#[test]
fn adjacent_writes_coalesce_into_one_copy_in_any_order() {
    let backend = backend();
    let mut table = table(&backend, 10_000, 10_000);
    // 7919 and 1000 are coprime: each row once, unordered.
    for order in [|row| row, |row| 999 - row, |row| (row * 7919) % 1000] {
        let before = uploads(&backend);
        for row in 0..1000 {
            let row: usize = order(row);
            table.write(10 * row, &[row as u32; 10]).expect("within");
        }
        assert_eq!((table.pending(), uploads(&backend)), (10_000, before), "nothing before the flush");
        assert_eq!(table.flush().expect("no fault"), 1);
        let after = uploads(&backend);
        assert_eq!((after.count - before.count, after.bytes - before.bytes), (1, 40_000));
        let elements = table.target().expect("no fault").to_vec().expect("no fault");
        assert!(elements.iter().enumerate().all(|(index, &element)| element as usize == index / 10));
        table.target().expect("no fault").zero().expect("no fault");
    }
    assert_eq!((table.flush().expect("no fault"), table.pending()), (0, 0), "nothing is pending");
}

#[test]
fn separate_runs_are_one_copy_each() {
    let backend = backend();
    let mut table = table(&backend, 1000, 1000);
    for row in (0..100).filter(|row| row % 2 == 0).chain((0..100).rev().filter(|row| row % 2 == 1)) {
        let run = row / 10;
        table.write(50 * run + row % 10, &[1]).expect("within");
    }
    assert_eq!((table.flush().expect("no fault"), uploads(&backend).count), (10, 10));
    assert_eq!(uploads(&backend).bytes, 400);
}

#[test]
fn the_last_write_of_an_element_wins() {
    let backend = backend();
    let mut table = table(&backend, 16, 64);
    for (at, elements) in [(4, &[1; 8][..]), (6, &[2; 2]), (2, &[3; 4]), (7, &[4; 9]), (0, &[5])] {
        table.write(at, elements).expect("within");
    }
    assert_eq!(table.flush().expect("no fault"), 2);
    let expected = [5, 0, 3, 3, 3, 3, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4];
    assert_eq!(table.close().expect("no fault").to_vec().expect("no fault"), expected);
}

#[test]
fn a_thousand_batches_reuse_one_pinned_block() {
    let backend = backend();
    let mut table = table(&backend, 1000, 100);
    let before = backend.counters();
    for batch in 0..1000_u32 {
        for row in (0..10).rev() {
            table.write(100 * row, &[batch; 10]).expect("within");
        }
        assert_eq!(table.flush().expect("no fault"), 10);
    }
    let after = backend.counters();
    assert_eq!((after.pinned_allocations.count, after.pinned_live), (1, before.pinned_live));
    assert_eq!((before.pinned_allocations.count, after.pinned_live.bytes), (1, 800), "twice as many elements as it collects");
}

#[test]
fn a_write_that_does_not_fit_flushes_the_staging_first() {
    let backend = backend();
    let mut table = table(&backend, 100, 10);
    table.write(0, &[1; 6]).expect("within");
    table.write(6, &[2; 5]).expect("within");
    assert_eq!((uploads(&backend).bytes, table.pending()), (24, 5), "the first went to make room");
    table.write(4, &[3; 11]).expect("within");
    assert_eq!((uploads(&backend).bytes, table.pending()), (24 + 20 + 44, 0), "both, in their order");
    let elements = table.close().expect("no fault").to_vec().expect("no fault");
    assert_eq!(elements[..16], [1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
}

#[test]
fn a_rejected_write_changes_nothing() {
    let backend = backend();
    let mut table = table(&backend, 10, 8);
    table.write(0, &[1]).expect("within");
    for (at, len) in [(9, 2), (11, 0), (usize::MAX, 1), (0, 11)] {
        assert!(matches!(table.write(at, &vec![2; len]), Err(Error::Range { .. })), "{len} at {at}");
    }
    table.write(10, &[]).expect("nothing, at the end");
    assert_eq!((table.pending(), uploads(&backend).count), (1, 0));

    let target = zeros(&backend, 4);
    let rejected = Coalescer::new(target, pinned(&backend), 0).expect_err("no room for anything");
    assert!(matches!(rejected.error, Error::Size { asked: 0, .. }), "{rejected:?}");
    let rejected = Coalescer::new(rejected.value, pinned(&backend), usize::MAX).expect_err("more than there are addresses");
    assert!(matches!(rejected.error, Error::Size { .. }), "{rejected:?}");
    let other = super::backend();
    let rejected = Coalescer::new(rejected.value, pinned(&other), 4).expect_err("another backend's");
    assert!(matches!(rejected.error, Error::OtherBackend { .. }), "{rejected:?}");
}

#[test]
fn a_failed_flush_keeps_uncopied_writes_pending() {
    let backend = backend();
    let mut table = table(&backend, 100, 50);
    for row in (0..5).rev() {
        table.write(20 * row, &[1 + row as u32; 5]).expect("within");
    }
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(3)));
    assert!(matches!(table.flush(), Err(Error::Injected { call: "copy", .. })));
    assert_eq!((uploads(&backend).count, table.pending()), (2, 15));
    table.write(0, &[9]).expect("within");
    table.write(84, &[9, 9]).expect("within");
    let rejected = {
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1)));
        table.close().expect_err("it strikes again")
    };
    let mut table = rejected.value;
    assert_eq!(table.flush().expect("no fault"), 4, "three that were left, one of them longer, and one");
    let elements = table.close().expect("no fault").to_vec().expect("no fault");
    for (index, element) in elements.into_iter().enumerate() {
        let expected = match index {
            0 | 84 | 85 => 9,
            _ if index % 20 < 5 => 1 + index as u32 / 20,
            _ => 0,
        };
        assert_eq!(element, expected, "{index}");
    }
}

#[test]
fn dropping_a_coalescer_copies_nothing() {
    let backend = backend();
    for forget in [false, true] {
        let mut table = table(&backend, 10, 10);
        table.write(3, &[7; 4]).expect("within");
        if forget {
            std::mem::forget(table);
            backend.forgets();
            backend.forgets();
        } else {
            drop(table);
        }
        assert_eq!(uploads(&backend).count, 0, "a destructor copies nothing");
    }
}

#[test]
fn a_coalescer_accepts_pooled_staging_and_empty_elements() {
    let backend = backend();
    let pool = ringmem::pool::Pool::builder(pinned(&backend)).build().expect("a pool");
    let mut table = Coalescer::new(zeros(&backend, 100), pool, 16).expect("room");
    table.write(10, &[1; 16]).expect("within");
    assert_eq!(table.flush().expect("no fault"), 1);
    drop(table);
    let nothing = GpuBuffer::<[u8; 0]>::new(Device::new(&backend, 0), 100).expect("no bytes");
    let mut nothing = Coalescer::new(nothing, pinned(&backend), 100).expect("no bytes");
    nothing.write(0, &[[]; 100]).expect("within");
    assert_eq!((nothing.flush().expect("nothing"), nothing.pending()), (0, 0));
}

#[test]
fn coalesced_writes_take_a_sixth_of_separate_copies() {
    let backend = Clean::build(modelled());
    let now = || backend.model_now().expect("a model");
    let rows = PinnedBuffer::<u32>::from_slice(pinned(&backend), &[7; 250]).expect("room");
    let mut target = zeros(&backend, 250_000);
    let begun = now();
    for row in 0..1000 {
        target.slice_mut(250 * row..250 * (row + 1)).expect("within").copy_from_view(rows.as_view()).expect("as many");
    }
    let single = now() - begun;
    let mut table = Coalescer::new(target, rows.memory().clone(), 250_000).expect("room");
    let begun = now();
    for row in 0..1000 {
        table.write(250 * row, rows.as_slice().expect("idle")).expect("within");
    }
    assert_eq!(table.flush().expect("no fault"), 1);
    let joined = now() - begun;
    assert_eq!((single, joined), (1_100_000, 101_000));
    assert!(single >= 6 * joined);
}

fn write() -> impl Strategy<Value = (usize, Vec<u32>, bool, Option<u64>)> {
    let elements = prop::collection::vec(any::<u32>(), 0..20);
    (0..60_usize, elements, prop::bool::weighted(0.2), prop::option::weighted(0.3, 1..4_u64))
}

fn runs(written: &BTreeSet<usize>) -> usize {
    written.iter().filter(|&&index| index == 0 || !written.contains(&(index - 1))).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_writes_follow_a_vector(writes in prop::collection::vec(write(), 0..60), capacity in 1..100_usize) {
        let backend = backend();
        backend.set_faults(&Faults::new());
        let mut table = table(&backend, 64, capacity);
        let (mut model, mut written) = (vec![0; 64], BTreeSet::new());
        for (at, elements, is_flushed, struck) in writes {
            let before = (uploads(&backend).count, table.pending());
            let outcome = table.write(at, &elements);
            prop_assert_eq!(outcome.is_ok(), at + elements.len() <= 64);
            if outcome.is_err() {
                continue;
            }
            if uploads(&backend).count > before.0 {
                prop_assert!(before.1 + elements.len() > capacity, "a copy only where there was no room");
                written.clear();
            }
            model[at..at + elements.len()].copy_from_slice(&elements);
            if elements.len() <= capacity {
                written.extend(at..at + elements.len());
            }
            if !is_flushed {
                continue;
            }
            let expected = runs(&written);
            if let Some(struck) = struck {
                backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(struck)));
                let outcome = table.flush();
                backend.set_faults(&Faults::new());
                prop_assert_eq!(outcome.is_err(), struck <= expected as u64);
                let copied = expected.min(struck as usize - 1);
                prop_assert_eq!(table.flush().expect("no fault"), expected - copied);
            } else {
                prop_assert_eq!(table.flush().expect("no fault"), expected);
            }
            written.clear();
            prop_assert_eq!(table.target().expect("no fault").to_vec().expect("no fault"), &model[..]);
        }
        prop_assert_eq!(table.close().expect("no fault").to_vec().expect("no fault"), model);
    }
}
