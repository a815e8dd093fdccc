use std::mem::forget;
use std::ptr::NonNull;
use std::thread;

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::{BareSlot, PopError, flagged, mpsc, spsc};
use ringmem_layouts::{Host, HostWord, RingHeader, RingLayout, SlotCell, Word};

use crate::patience::insist;

const CAPACITY: usize = 4;
const STARTS: [u64; 4] = [0, 1, u64::MAX - 2, u64::MAX];

macro_rules! of_each_kind {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn iter_yields_all_queued_messages_without_consuming() {
                for start in STARTS {
                    let mut ring = $kind::Ring::<String, CAPACITY>::starting_at(start);
                    let (mut producer, mut consumer) = ring.split();
                    assert_eq!((consumer.first(), consumer.iter().len()), (Err(PopError::Empty), 0));
                    let mut next = 0;
                    for count in [1, 2, 3, 4, 4, 3, 2, 1] {
                        let names: Vec<String> = (next..next + count).map(|number| number.to_string()).collect();
                        next += count;
                        names.iter().for_each(|name| producer.push(name.clone()).unwrap());
                        for seen in 0..names.len() {
                            assert_eq!(consumer.first(), Ok(&names[seen]));
                            assert!(consumer.iter().eq(&names[seen..]) && consumer.iter().rev().eq(names[seen..].iter().rev()));
                            assert_eq!((consumer.iter().len(), consumer.len()), (names.len() - seen, names.len() - seen));
                            assert_eq!(consumer.pop().as_ref(), Ok(&names[seen]));
                        }
                        assert_eq!(consumer.first(), Err(PopError::Empty));
                    }
                }
            }

            #[test]
            fn iter_during_pushes_yields_whole_messages_in_order() {
                const MESSAGES: u64 = 2_000 * crate::DEPTH;
                let (mut producer, mut consumer) = $kind::bounded::<[u64; 4]>(CAPACITY);
                let writer = thread::spawn(move || (0..MESSAGES).for_each(|number| insist(|| producer.push([number; 4]).ok())));
                for next in 0..MESSAGES {
                    insist(|| consumer.end().first().is_ok().then_some(()));
                    assert_eq!(consumer.end().first(), Ok(&[next; 4]));
                    assert!(consumer.end().iter().zip(next..).all(|(seen, number)| *seen == [number; 4]));
                    assert_eq!(consumer.pop(), Ok([next; 4]));
                }
                writer.join().unwrap();
            }
        }
    )+};
}

of_each_kind! {
    of_spsc: spsc;
    of_flagged: flagged;
    of_mpsc: mpsc;
}

#[test]
fn as_slices_splits_at_the_wrap() {
    for (start, first) in [(0, 3), (u64::MAX, 1), (u64::MAX - 1, 2), (1, 3), (2, 2), (3, 1)] {
        let mut ring = spsc::Ring::<u64, CAPACITY>::starting_at(start);
        let (mut producer, mut consumer) = ring.split();
        assert_eq!(consumer.as_slices(), Ok([&[][..], &[]]));
        producer.push_slice(&[1, 2, 3]).unwrap();
        assert_eq!(consumer.as_slices().map(|runs| runs.map(<[u64]>::len)), Ok([first, 3 - first]));
        let chunk = consumer.peek(2).unwrap();
        assert_eq!(chunk.as_slices().map(<[u64]>::len), [first.min(2), 2 - first.min(2)]);
        assert_eq!(consumer.as_slices().unwrap().concat(), [1, 2, 3]);
    }
}

#[test]
fn iter_skips_leading_abandoned_slots() {
    for start in STARTS {
        let mut ring = mpsc::Ring::<u64, 8>::starting_at(start);
        let (mut producer, mut consumer) = ring.split();
        for _ in 0..6 {
            drop(producer.reserve(2).unwrap());
            producer.push(1).unwrap();
            producer.push(2).unwrap();
            producer.reserve(2).unwrap().fill([3]);
            producer.push(4).unwrap();
            assert_eq!(consumer.first(), Ok(&1));
            assert!(consumer.iter().eq(&[1, 2, 3]), "up to the next slot that was given up");
            assert_eq!([(); 5].map(|()| consumer.pop().ok()), [Some(1), Some(2), Some(3), Some(4), None]);
        }
    }
}

#[test]
fn a_view_of_a_corrupt_ring_is_empty() {
    let header = RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(4).unwrap(), 0);
    let slots: [BareSlot<u64>; 4] = [1, 2, 3, 4].map(SlotCell::new);
    // SAFETY: initialised, and this consumer's only.
    let consumer = unsafe { spsc::Consumer::<u64, Host>::new(&header, &header, NonNull::from(&slots).cast()) }.unwrap();
    for tail in [5, u64::MAX, 1 << 63] {
        Word::store(&header.producer.tail, tail);
        let corrupt = Corrupt { head: 0, tail, capacity: 4 };
        assert_eq!((consumer.first(), consumer.as_slices()), (Err(PopError::Corrupt(corrupt)), Err(corrupt)));
        assert_eq!(consumer.iter().len(), 0);
    }
    Word::store(&header.producer.tail, 4);
    assert!(consumer.iter().eq(&[1, 2, 3, 4]));
}

#[test]
fn a_view_of_an_empty_ring_releases_the_slots_of_a_forgotten_batch() {
    let mut ring = flagged::Ring::<u64, 2>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    (1..=2).for_each(|number| producer.push(number).unwrap());
    let mut batch = consumer.batch(8);
    (1..=2).for_each(|number| assert_eq!(batch.pop(), Ok(number)));
    forget(batch);
    assert!(producer.push(3).is_err());
    assert_eq!(consumer.first(), Err(PopError::Empty));
    assert!(producer.push(3).is_ok());
    assert_eq!((consumer.first(), consumer.iter().len()), (Ok(&3), 1));
    assert_eq!((consumer.pop(), consumer.pop()), (Ok(3), Err(PopError::Empty)));
}
