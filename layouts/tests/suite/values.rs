use std::array::from_fn;
use std::sync::Arc;

use ringmem_layouts::ring::{Pop, Push, flagged, mpmc, mpsc, spsc};

fn pass<T: PartialEq>((mut producer, mut consumer): (impl Push<Item = T>, impl Pop<Item = T>), value: impl Fn(usize) -> T) {
    for round in 0..5 {
        assert!(producer.push(value(round)).is_ok());
        assert!(consumer.pop().is_ok_and(|got| got == value(round)), "{} bytes", size_of::<T>());
    }
}

fn pass_all<T: PartialEq + Send + 'static>(value: impl Fn(usize) -> T) {
    pass(spsc::bounded(2), &value);
    pass(flagged::bounded(2), &value);
    pass(mpsc::bounded(2), &value);
    pass(mpmc::bounded(2), &value);
    let (mut producer, mut consumer) = mpsc::bounded(2);
    producer.with(|end| assert_eq!(end.reserve(1).map(|mut grant| grant.fill([value(9)])).ok(), Some(1)));
    assert!(consumer.pop().is_ok_and(|got| got == value(9)));
}

fn pass_bytes<const N: usize>() {
    pass_all(|round| from_fn::<u8, N, _>(|at| (round + at + 1) as u8));
}

#[test]
fn every_byte_of_values_of_any_length() {
    macro_rules! each { ($($n:literal)*) => { $(pass_bytes::<$n>();)* } }
    each!(0 1 7 8 9 12 15 16 17 20 24 28 32 40 48 56 64 72 80 96 104 120 128 136 160 184 192 200 224 240 248 249 255 256 257 264 272 512);
}

#[test]
fn words_padding_and_pointers() {
    pass_all(|round| from_fn::<u64, 3, _>(|at| u64::MAX - (round + at) as u64));
    pass_all(|round| from_fn::<u64, 32, _>(|at| u64::MAX - (round + at) as u64));
    pass_all(|round| (round as u8, u64::MAX, round as u16, Some(round as u64)));
    pass_all(|round| from_fn::<_, 4, _>(|at| format!("{round} {at}")));
    pass_all(|round| (Box::new(round), None::<Box<u8>>));
}

#[test]
fn a_value_is_dropped_once() {
    let shared = Arc::new(());
    {
        let (mut producer, mut consumer) = spsc::bounded(4);
        for _ in 0..4 {
            assert!(producer.push(from_fn::<_, 3, _>(|_| Arc::clone(&shared))).is_ok());
        }
        assert!(producer.push(from_fn(|_| Arc::clone(&shared))).is_err());
        assert_eq!(Arc::strong_count(&shared), 13);
        drop(consumer.pop());
        assert_eq!(Arc::strong_count(&shared), 10);
    }
    assert_eq!(Arc::strong_count(&shared), 1);
}
