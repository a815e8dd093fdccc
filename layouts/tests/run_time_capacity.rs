//! Rings whose capacity is known at run time: over memory that the caller lends, and over boxes. The models of the other tests run over lent
//! memory, too; here is what they do not see.
//!
//! 1. A number of slots that is no power of two is refused, with the number, before anything is written.
//! 2. The ring drops what is left in it, once; the memory is its owner's again, whatever was left or forgotten there.
//! 3. A boxed ring moves, is shared and is dropped as any value.

use std::mem::{MaybeUninit, forget};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringmem_layouts::ring::{BareSlot, LayoutError, PopError, PushError, WordSlot, flagged, mpmc, mpsc, spsc};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(spsc::Boxed<String>: Send, Sync);
assert_impl_all!(flagged::Boxed<String>: Send, Sync);
assert_impl_all!(mpsc::Boxed<String>: Send, Sync);
assert_impl_all!(mpmc::Boxed<String>: Send, Sync);
assert_not_impl_any!(spsc::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(flagged::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(mpsc::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(mpmc::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(spsc::RingIn<Rc<u8>, &'static mut [MaybeUninit<BareSlot<Rc<u8>>>]>: Send, Sync);
assert_not_impl_any!(mpmc::RingIn<Rc<u8>, &'static mut [MaybeUninit<WordSlot<Rc<u8>>>]>: Send, Sync);

/// Both ends; all rings but one are split by `&mut`.
macro_rules! ends {
    ($ring:ident) => {{
        let ring = &mut $ring;
        ring.split()
    }};
}

/// The same tests for each kind of ring.
macro_rules! of_each_kind {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn a_number_of_slots_that_is_no_power_of_two_is_refused() {
                let mut memory = [const { MaybeUninit::uninit() }; 9];
                for count in 0..=9 {
                    let made = $kind::RingIn::<String, _>::over(&mut memory[..count]).map(|mut ring| ends!(ring).0.capacity());
                    let capacity = count as u64;
                    if count.is_power_of_two() {
                        assert_eq!(made, Ok(capacity));
                    } else {
                        assert_eq!(made, Err(LayoutError::NotAPowerOfTwo { capacity }));
                    }
                }
            }

            #[test]
            fn what_is_left_is_dropped_once_and_the_memory_is_the_owner_s_again() {
                let value = Arc::new(());
                let mut memory = [const { MaybeUninit::uninit() }; 4];
                for start in [0, 3, u64::MAX - 1] {
                    let mut ring = $kind::RingIn::over_starting_at(&mut memory[..], start).unwrap();
                    let (mut producer, mut consumer) = ends!(ring);
                    for _ in 0..4 {
                        producer.push(Arc::clone(&value)).unwrap();
                    }
                    assert!(producer.push(Arc::clone(&value)).is_err());
                    drop(consumer.pop().unwrap());
                    drop((producer, consumer));
                    assert_eq!(Arc::strong_count(&value), 4);
                    drop(ring);
                    assert_eq!(Arc::strong_count(&value), 1);
                }
                // What is forgotten with its ring is never dropped, and not seen by the next one.
                let mut ring = $kind::RingIn::over(&mut memory).unwrap();
                ends!(ring).0.push(Arc::clone(&value)).unwrap();
                forget(ring);
                let mut ring = $kind::RingIn::<Arc<()>, _>::over(&mut memory).unwrap();
                assert_eq!(ends!(ring).1.pop(), Err(PopError::Empty));
                drop(ring);
                assert_eq!(Arc::strong_count(&value), 2);
            }

            #[test]
            fn a_boxed_ring_moves_with_what_is_in_it() {
                let capacity = std::hint::black_box(2);
                let mut ring = $kind::Boxed::<String>::over(Box::new_uninit_slice(capacity)).unwrap();
                ends!(ring).0.push("sent".to_owned()).unwrap();
                let mut ring = thread::spawn(move || {
                    let (mut producer, mut consumer) = ends!(ring);
                    assert_eq!(consumer.pop().as_deref(), Ok("sent"));
                    producer.push("answered".to_owned()).unwrap();
                    producer.push("left".to_owned()).unwrap();
                    assert_eq!(producer.push("too many".to_owned()), Err(PushError::Full("too many".to_owned())));
                    drop((producer, consumer));
                    ring
                })
                .join()
                .unwrap();
                assert_eq!(ends!(ring).1.pop().as_deref(), Ok("answered"));
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
fn indices_begin_where_they_are_told_to() {
    for start in [0, 5, u64::MAX] {
        let mut ring = spsc::RingIn::<u8, _>::over_starting_at([const { MaybeUninit::uninit() }; 2], start).unwrap();
        let (producer, consumer) = ring.split();
        assert_eq!((producer.tail(), consumer.head()), (start, start));
        let mut ring = flagged::RingIn::<u8, _>::over_starting_at([const { MaybeUninit::uninit() }; 2], start).unwrap();
        let (producer, consumer) = ring.split();
        assert_eq!((producer.tail(), consumer.head()), (start, start));
    }
}

/// The most slots that a slice can have: without bytes, that is no memory.
#[test]
fn values_without_bytes_may_be_as_many_as_a_slice_has() {
    let slots = Box::<[BareSlot<()>]>::new_uninit_slice(1 << (usize::BITS - 1));
    let mut ring = spsc::Boxed::<()>::over_starting_at(slots, u64::MAX).unwrap();
    let (mut producer, mut consumer) = ring.split();
    assert_eq!((producer.capacity(), producer.free()), (1 << 63, 1 << 63));
    assert_eq!((producer.push(()), producer.push(()), producer.len()), (Ok(()), Ok(()), 2));
    assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Ok(()), Ok(()), Err(PopError::Empty)));
}

#[test]
fn a_boxed_ring_is_shared_by_threads_that_outlive_their_maker() {
    const MESSAGES: u64 = 1_000;
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait = move || {
        thread::yield_now();
        assert!(Instant::now() < deadline, "no end in a minute");
    };
    let ring = Arc::new(mpmc::Boxed::<Box<u64>>::over(Box::new_uninit_slice(4)).unwrap());
    let theirs = Arc::clone(&ring);
    let writer = thread::spawn(move || {
        let mut producer = theirs.split().0;
        for number in 0..MESSAGES {
            let mut value = Box::new(number);
            while let Err(back) = producer.push(value) {
                value = back.into_inner();
                wait();
            }
        }
    });
    let reader = thread::spawn(move || {
        let mut consumer = ring.split().1;
        (0..MESSAGES)
            .map(|_| {
                loop {
                    match consumer.pop() {
                        Ok(value) => break *value,
                        Err(_) => wait(),
                    }
                }
            })
            .eq(0..MESSAGES)
    });
    writer.join().unwrap();
    assert!(reader.join().unwrap());
}
