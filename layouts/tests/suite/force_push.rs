use ringmem_layouts::ring::{PushError, mpmc};

#[test]
fn force_push_evicts_the_oldest() {
    for start in [0, 3, u64::MAX - 2] {
        let ring = mpmc::Ring::<String, 4>::starting_at(start);
        let (mut producer, mut consumer) = ring.split();
        let mut lost = Vec::new();
        for number in 0..10 {
            producer.force_push(number.to_string(), |old| lost.push(old)).unwrap();
        }
        assert_eq!(lost, ["0", "1", "2", "3", "4", "5"]);
        let left: Vec<String> = std::iter::from_fn(|| consumer.pop().ok()).collect();
        assert_eq!(left, ["6", "7", "8", "9"]);
    }
}

#[test]
fn force_push_returns_full_at_a_stalled_consumer() {
    let ring = mpmc::Ring::<u8, 2>::new();
    let (mut producer, mut consumer) = ring.split();
    producer.push(0).unwrap();
    producer.push(1).unwrap();
    let stalled = consumer.take(1).unwrap();
    assert_eq!(producer.force_push(2, |_| panic!("nothing is lost")), Err(PushError::Full(2)));
    assert_eq!(stalled.collect::<Vec<_>>(), [0]);
    producer.force_push(2, |_| panic!("there is room")).unwrap();
    assert_eq!([consumer.pop(), consumer.pop()], [Ok(1), Ok(2)]);
}

#[test]
fn force_push_returns_full_at_a_stalled_producer() {
    let ring = mpmc::Ring::<Box<u8>, 2>::new();
    let (mut producer, _consumer) = ring.split();
    let mut other = producer.clone();
    let stalled = producer.reserve(1).unwrap();
    other.push(Box::new(1)).unwrap();
    assert_eq!(other.force_push(Box::new(2), |_| panic!("nothing is lost")), Err(PushError::Full(Box::new(2))));
    drop(stalled);
    other.force_push(Box::new(2), |_| panic!("a slot that was given up has room")).unwrap();
}

#[test]
fn force_push_skips_abandoned_slots() {
    let ring = mpmc::Ring::<u8, 4>::new();
    let (mut producer, mut consumer) = ring.split();
    drop(producer.reserve(4).unwrap());
    let mut lost = Vec::new();
    (0..6).for_each(|number| producer.force_push(number, |oldest| lost.push(oldest)).unwrap());
    assert_eq!(lost, [0, 1]);
    assert_eq!(core::iter::from_fn(|| consumer.pop().ok()).collect::<Vec<_>>(), [2, 3, 4, 5]);
}

#[test]
fn overwritten_values_are_dropped_once() {
    use std::rc::Rc;
    let value = Rc::new(());
    {
        let ring = mpmc::Ring::<Rc<()>, 2>::new();
        let (mut producer, _consumer) = ring.split();
        for _ in 0..7 {
            producer.force_push(Rc::clone(&value), drop).unwrap();
        }
        assert_eq!(Rc::strong_count(&value), 3);
    }
    assert_eq!(Rc::strong_count(&value), 1);
}
