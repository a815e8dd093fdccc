use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use ringmem_layouts::Local;
use ringmem_layouts::ring::lossy::{self, ReadError};
use ringmem_layouts::ring::{PopError, PushError, flagged, mpmc, mpsc, spsc};

use crate::patience::insist;

pub struct Counted(pub u64, pub Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}

macro_rules! of_each_kind {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn an_array_ring_is_full_and_in_order() {
                let ring = &mut $kind::Ring::from([1, 2, 3, 4]);
                let (mut producer, mut consumer) = ring.split();
                assert_eq!((producer.push(5), producer.capacity(), consumer.len()), (Err(PushError::Full(5)), 4, 4));
                assert!(!producer.is_disconnected() && !consumer.is_disconnected());
                for round in 1..10 {
                    assert_eq!(consumer.pop(), Ok(round));
                    assert_eq!(producer.push(round + 4), Ok(()));
                }
                drop(producer);
                assert!(consumer.is_disconnected());
            }

            #[test]
            fn an_array_ring_drops_each_value_once() {
                let drops = Arc::default();
                let values = || [1, 2].map(|number| Counted(number, Arc::clone(&drops)));
                drop($kind::Ring::from(values()));
                assert_eq!(drops.swap(0, SeqCst), 2);
                let ring = &mut $kind::Ring::from(values());
                let (producer, mut consumer) = ring.split();
                assert_eq!(consumer.pop().map(|value| value.0).ok(), Some(1));
                assert_eq!(drops.swap(0, SeqCst), 1);
                drop((producer, consumer));
                assert_eq!(Arc::strong_count(&drops), 2);
            }

            #[cfg(feature = "alloc")]
            #[test]
            fn a_vec_ring_rounds_its_capacity_up() {
                for count in 0..9 {
                    let values: Vec<String> = (0..count).map(|number: u32| number.to_string()).collect();
                    for ring in [$kind::Boxed::from(values.clone()), values.iter().cloned().collect()] {
                        let (mut producer, mut consumer) = ring.into_ends();
                        let capacity = values.len().next_power_of_two();
                        assert_eq!((producer.capacity(), consumer.len()), (capacity, values.len()));
                        for free in (0..=capacity - values.len()).rev() {
                            assert_eq!(producer.push("new".to_owned()).is_ok(), free > 0);
                        }
                        assert!(consumer.try_iter().take(values.len()).eq(values.iter().cloned()));
                    }
                }
            }
        }
    )+};
}

of_each_kind! {
    of_spsc: spsc;
    of_flagged: flagged;
    of_mpsc: mpsc;
    of_mpmc: mpmc;
}

#[test]
fn extending_a_lossy_ring_overwrites_its_oldest_values() {
    let mut ring = lossy::Ring::<u64, 4>::starting_at(u64::MAX - 1);
    let (mut writer, mut reader) = ring.split();
    writer.extend(0..3);
    assert_eq!((reader.pop(), writer.len()), (Ok(0), 3));
    writer.extend(3..8);
    assert_eq!((reader.pop(), reader.pop()), (Err(ReadError::Overrun { lost: 3 }), Ok(4)));
}

type Ends<T> = Mutex<Option<(spsc::Producer<'static, T, Local>, spsc::Consumer<'static, T, Local>)>>;

#[test]
fn split_const_splits_a_static_ring() {
    static ENDS: Ends<u64> = {
        static RING: spsc::Ring<u64, 4> = spsc::Ring::new();
        // SAFETY: the ring has no other name.
        Mutex::new(Some(unsafe { RING.split_const() }))
    };
    let (mut producer, mut consumer) = ENDS.lock().unwrap().take().expect("taken once");
    assert_eq!((producer.capacity(), producer.len(), consumer.len(), consumer.pop()), (4, 0, 0, Err(PopError::Empty)));
    assert!(!producer.is_disconnected() && !consumer.is_disconnected());
    let writer = thread::spawn(move || {
        (0..100).for_each(|number| insist(|| producer.push(number).ok()));
        assert!(!producer.is_disconnected());
    });
    (0..100).for_each(|number| assert_eq!(insist(|| consumer.pop().ok()), number));
    writer.join().unwrap();
    assert!(consumer.is_disconnected());
}

#[test]
fn a_const_producer_detects_a_dropped_consumer() {
    static ENDS: Ends<String> = {
        static RING: spsc::Ring<String, 2> = spsc::Ring::new();
        // SAFETY: the ring has no other name.
        Mutex::new(Some(unsafe { RING.split_const() }))
    };
    let (mut producer, consumer) = ENDS.lock().unwrap().take().expect("taken once");
    drop(consumer);
    assert!(producer.is_disconnected());
    assert_eq!([(); 3].map(|()| producer.push(String::new()).is_ok()), [true, true, false]);
}
