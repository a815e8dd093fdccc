use std::mem::{MaybeUninit, forget};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringmem_layouts::HostWord;
use ringmem_layouts::ring::{BareSlot, LayoutError, PopError, PushError, WordSlot, flagged, framed, lossy, mpmc, mpsc, spsc};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(spsc::Boxed<String>: Send, Sync);
assert_impl_all!(flagged::Boxed<String>: Send, Sync);
assert_impl_all!(mpsc::Boxed<String>: Send, Sync);
assert_impl_all!(mpmc::Boxed<String>: Send, Sync);
assert_impl_all!(framed::Boxed: Send, Sync);
assert_impl_all!(lossy::Boxed<[u8; 3]>: Send, Sync);
assert_not_impl_any!(spsc::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(flagged::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(mpsc::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(mpmc::Boxed<Rc<u8>>: Send, Sync);
assert_not_impl_any!(spsc::RingIn<Rc<u8>, &'static mut [MaybeUninit<BareSlot<Rc<u8>>>]>: Send, Sync);
assert_not_impl_any!(mpmc::RingIn<Rc<u8>, &'static mut [MaybeUninit<WordSlot<Rc<u8>>>]>: Send, Sync);

macro_rules! ends {
    ($ring:ident) => {{
        let ring = &mut $ring;
        ring.split()
    }};
}

struct Bomb(#[allow(dead_code, reason = "counts the drop")] Arc<()>, bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.1 {
            resume_unwind(Box::new("bomb"));
        }
    }
}

macro_rules! of_each_kind {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn slot_count_is_a_power_of_two() {
                let mut memory = [const { MaybeUninit::uninit() }; 9];
                for count in 0..=9 {
                    let made = $kind::RingIn::<String, _>::over(&mut memory[..count]).map(|mut ring| ends!(ring).0.capacity());
                    let capacity = count as u64;
                    if count.is_power_of_two() {
                        assert_eq!(made, Ok(count));
                    } else {
                        assert_eq!(made, Err(LayoutError::NotAPowerOfTwo { capacity }));
                    }
                }
            }

            #[test]
            fn a_panicking_drop_of_a_value_in_a_dropped_ring_leaks_no_other() {
                for bomb in 0..4 {
                    let value = Arc::new(());
                    let mut memory = [const { MaybeUninit::uninit() }; 4];
                    let mut ring = $kind::RingIn::over(&mut memory[..]).unwrap();
                    let (mut producer, consumer) = ends!(ring);
                    for place in 0..4 {
                        assert!(producer.push(Bomb(Arc::clone(&value), place == bomb)).is_ok());
                    }
                    drop((producer, consumer));
                    assert!(catch_unwind(AssertUnwindSafe(|| drop(ring))).is_err());
                    assert_eq!(Arc::strong_count(&value), 1, "value {bomb} panics");
                }
            }

            #[test]
            fn dropping_a_ring_drops_remaining_values_once() {
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
                let mut ring = $kind::RingIn::over(&mut memory).unwrap();
                ends!(ring).0.push(Arc::clone(&value)).unwrap();
                forget(ring);
                let mut ring = $kind::RingIn::<Arc<()>, _>::over(&mut memory).unwrap();
                assert_eq!(ends!(ring).1.pop(), Err(PopError::Empty));
                drop(ring);
                assert_eq!(Arc::strong_count(&value), 2);
            }

            #[test]
            fn a_moved_boxed_ring_keeps_its_messages() {
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

fn used<const N: usize>() -> [u64; N] {
    [0x5555_5555_5555_5555; N]
}

fn lent<C>(words: &mut [u64]) -> &mut [MaybeUninit<C>] {
    assert_eq!((size_of::<C>(), align_of::<C>()), (size_of::<u64>(), align_of::<u64>()));
    // SAFETY: the same bytes, any of which are valid.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

#[test]
fn framed_ring_capacity_is_a_power_of_two() {
    let mut memory = used::<9>();
    for count in 0..=9 {
        let made = framed::RingIn::over(lent(&mut memory[..count])).map(|mut ring| ring.split().0.capacity());
        let bytes = count * 8;
        if count >= 2 && count.is_power_of_two() {
            assert_eq!(made, Ok(bytes));
        } else {
            let capacity = if count == 1 { 0 } else { bytes as u64 };
            assert_eq!(made, Err(LayoutError::NotAPowerOfTwo { capacity }), "{count} words");
        }
    }
}

#[test]
fn a_framed_ring_hides_earlier_memory_contents() {
    let mut memory = used::<8>();
    for start in [0, 5, u64::MAX - 3] {
        memory.fill(0x5555_5555_5555_5555);
        let mut ring = framed::RingIn::over_starting_at(lent(&mut memory), start).unwrap();
        let (mut producer, mut consumer) = ring.split();
        assert_eq!((producer.tail(), consumer.head(), producer.largest()), (start, start, 24));
        assert_eq!(consumer.peek().map(drop), Err(framed::PopError::Empty));
        assert_eq!(&*producer.reserve(24).unwrap(), [0; 24]);
        let mut into = [0; 24];
        for len in [0, 1, 8, 24, 7, 16, 3] {
            producer.push(&[len as u8; 24][..len]).unwrap();
            assert_eq!(consumer.pop(&mut into), Ok(len));
            assert_eq!(into[..len], [len as u8; 24][..len]);
        }
    }
}

#[test]
fn owned_framed_ends_keep_the_ring_messages() {
    let mut ring = framed::Boxed::over(Box::new_uninit_slice(std::hint::black_box(4))).unwrap();
    ring.split().0.push(b"sent").unwrap();
    let (mut producer, mut consumer) = thread::spawn(move || ring.into_ends()).join().unwrap();
    assert_eq!(consumer.with(|end| end.pop(&mut [0; 8])), Ok(4));
    let refused = framed::PushError::TooLarge { largest: 8, asked: 9 };
    assert_eq!(producer.with(|end| (end.push(&[0; 8]), end.push(&[0; 9]))), (Ok(()), Err(refused)));
}

#[test]
fn lossy_ring_capacity_is_a_power_of_two() {
    type Message = [u8; 9];
    let mut memory = used::<28>();
    for count in 0..=28 {
        let made = lossy::RingIn::<Message, _>::over(lent(&mut memory[..count])).map(|mut ring| ring.split().0.capacity());
        let capacity = count as u64 / 3;
        if capacity.is_power_of_two() {
            assert_eq!(made, Ok(count / 3), "{count} words");
        } else {
            assert_eq!(made, Err(LayoutError::NotAPowerOfTwo { capacity }), "{count} words");
        }
    }
    assert_eq!(lossy::words::<Message>(8), Ok(24));
    assert_eq!(lossy::words::<Message>(6), Err(LayoutError::NotAPowerOfTwo { capacity: 6 }));
    assert_eq!(lossy::words::<[u8; 0]>(8), Err(LayoutError::ZeroSized));
    assert_eq!(lossy::words::<Message>(1 << 62), Err(LayoutError::TooLarge { capacity: 1 << 62, slot_size: 24 }));
    assert_eq!(lossy::RingIn::<[u8; 0], _>::over([const { MaybeUninit::uninit() }; 2]).err(), Some(LayoutError::ZeroSized));
}

#[test]
fn lossy_rings_ignore_earlier_memory_contents() {
    type Message = [u8; 9];
    let mut memory = used::<13>();
    for start in [0, 5, u64::MAX - 1] {
        memory.fill(0x5555_5555_5555_5555);
        let mut ring = lossy::RingIn::<Message, _>::over_starting_at(lent::<HostWord>(&mut memory), start).unwrap();
        let (mut writer, mut reader) = ring.split();
        assert_eq!((writer.tail(), reader.head(), reader.pop()), (start, start, Err(lossy::ReadError::Empty)));
        for number in 0..6 {
            writer.push([number; 9]);
        }
        assert_eq!(reader.pop(), Err(lossy::ReadError::Overrun { lost: 2 }));
        for number in 2..6 {
            assert_eq!(reader.pop(), Ok([number; 9]));
        }
    }
}

#[test]
fn owned_lossy_ends_keep_the_ring_messages() {
    let capacity = std::hint::black_box(2);
    let words = lossy::words::<[u8; 9]>(capacity).unwrap();
    let mut ring = lossy::Boxed::<[u8; 9]>::over(Box::new_uninit_slice(words)).unwrap();
    ring.split().0.push([7; 9]);
    let (writer, mut reader) = thread::spawn(move || ring.into_ends()).join().unwrap();
    assert_eq!((writer.end().capacity() as u64, reader.with(|end| end.pop())), (capacity, Ok([7; 9])));
}

#[test]
fn indices_begin_at_the_given_start() {
    for start in [0, 5, u64::MAX] {
        let mut ring = spsc::RingIn::<u8, _>::over_starting_at([const { MaybeUninit::uninit() }; 2], start).unwrap();
        let (producer, consumer) = ring.split();
        assert_eq!((producer.tail(), consumer.head()), (start, start));
        let mut ring = flagged::RingIn::<u8, _>::over_starting_at([const { MaybeUninit::uninit() }; 2], start).unwrap();
        let (producer, consumer) = ring.split();
        assert_eq!((producer.tail(), consumer.head()), (start, start));
    }
}

#[test]
fn zero_sized_values_allow_the_largest_capacity() {
    let slots = Box::<[BareSlot<()>]>::new_uninit_slice(1 << (usize::BITS - 1));
    let mut ring = spsc::Boxed::<()>::over_starting_at(slots, u64::MAX).unwrap();
    let (mut producer, mut consumer) = ring.split();
    assert_eq!((producer.capacity(), producer.free()), (1 << 63, 1 << 63));
    assert_eq!((producer.push(()), producer.push(()), producer.len()), (Ok(()), Ok(()), 2));
    assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Ok(()), Ok(()), Err(PopError::Empty)));
}

#[test]
fn a_boxed_ring_is_shared_between_threads() {
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

#[test]
#[should_panic(expected = "capacity overflow: ")]
fn slots_without_bytes_may_not_exceed_the_greatest_power_of_two() {
    let _ = spsc::bounded::<()>(usize::MAX);
}
