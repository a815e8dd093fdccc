use std::convert::Infallible;

use ringmem_layouts::ring::{Counts, End, Evict, OverflowPolicy, PopError, Push, PushError, WaitWords, flagged, mpmc, mpsc, spsc};
use ringmem_layouts::{HostWord, Local};

#[test]
fn refusing_returns_and_counts_the_value() {
    let mut ring = spsc::Ring::<String, 2>::starting_at(u64::MAX);
    let (producer, mut consumer) = ring.split();
    let mut end = OverflowPolicy::refusing(producer);
    for text in ["one", "two"] {
        end.push(text.to_owned(), |_| unreachable!()).unwrap();
    }
    assert_eq!(end.push("three".to_owned(), |_| unreachable!()), Err(PushError::Full("three".to_owned())));
    assert_eq!(end.counts(), Counts { taken: 2, refused: 1, dropped: 0, overwritten: 0 });
    assert_eq!(consumer.pop().unwrap(), "one");
}

#[test]
fn dropping_newest_drops_and_counts_the_newest() {
    let mut ring = flagged::Ring::<u8, 2>::starting_at(u64::MAX);
    let (producer, mut consumer) = ring.split();
    let mut end = OverflowPolicy::dropping_newest(producer);
    let mut lost = Vec::new();
    for value in 0..5 {
        end.push(value, |value| lost.push(value)).unwrap();
    }
    assert_eq!(lost, [2, 3, 4]);
    assert_eq!(end.counts(), Counts { taken: 2, refused: 0, dropped: 3, overwritten: 0 });
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(0), Ok(1), Err(PopError::Empty)]);
}

#[test]
fn dropping_newest_counts_per_producer() {
    let mut ring = mpsc::Ring::<u8, 1>::starting_at(u64::MAX);
    let (producer, mut consumer) = ring.split();
    let (mut one, mut two) = (OverflowPolicy::dropping_newest(producer.clone()), OverflowPolicy::dropping_newest(producer));
    one.push(1, |_| unreachable!()).unwrap();
    two.push(2, |value| assert_eq!(value, 2)).unwrap();
    assert_eq!((one.counts().taken, two.counts().dropped), (1, 1));
    assert_eq!([consumer.pop(), consumer.pop()], [Ok(1), Err(PopError::Empty)]);
}

#[test]
fn overwriting_oldest_evicts_and_counts_the_oldest() {
    for start in [0, 3, u64::MAX - 2] {
        let ring = mpmc::Ring::<String, 4>::starting_at(start);
        let (producer, mut consumer) = ring.split();
        let mut end = OverflowPolicy::overwriting_oldest(producer);
        let mut lost = Vec::new();
        for number in 0..10 {
            end.push(number.to_string(), |old| lost.push(old)).unwrap();
        }
        assert_eq!(lost, ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(end.counts(), Counts { taken: 10, refused: 0, dropped: 0, overwritten: 6 });
        let left: Vec<String> = std::iter::from_fn(|| consumer.pop().ok()).collect();
        assert_eq!(left, ["6", "7", "8", "9"]);
    }
}

#[test]
fn overwriting_oldest_returns_full_at_a_stalled_consumer() {
    let ring = mpmc::Ring::<u8, 2>::new();
    let (mut producer, mut consumer) = ring.split();
    producer.push(0).unwrap();
    producer.push(1).unwrap();
    let stalled = consumer.take(1).unwrap();
    let mut end = OverflowPolicy::<mpmc::Producer<'_, u8, Local>>::overwriting_oldest(producer);
    assert_eq!(end.push(2, |_| panic!("nothing is lost")), Err(PushError::Full(2)));
    assert_eq!(end.counts(), Counts { taken: 0, refused: 1, dropped: 0, overwritten: 0 });
    assert_eq!(stalled.collect::<Vec<_>>(), [0]);
    end.push(2, |_| panic!("there is room")).unwrap();
    assert_eq!([consumer.pop(), consumer.pop()], [Ok(1), Ok(2)]);
}

#[test]
fn overwriting_oldest_returns_full_at_a_stalled_producer() {
    let ring = mpmc::Ring::<Box<u8>, 2>::new();
    let (mut producer, _consumer) = ring.split();
    let mut other = producer.clone();
    let stalled = producer.reserve(1).unwrap();
    other.push(Box::new(1)).unwrap();
    let mut end = OverflowPolicy::overwriting_oldest(other);
    assert_eq!(end.push(Box::new(2), |_| panic!("nothing is lost")), Err(PushError::Full(Box::new(2))));
    drop(stalled);
    end.push(Box::new(2), |_| panic!("a slot that was given up has room")).unwrap();
}

#[test]
fn overwriting_oldest_skips_abandoned_slots() {
    let ring = mpmc::Ring::<u8, 4>::new();
    let (mut producer, mut consumer) = ring.split();
    drop(producer.reserve(4).unwrap());
    let mut end = OverflowPolicy::overwriting_oldest(producer);
    let mut lost = Vec::new();
    (0..6).for_each(|number| end.push(number, |oldest| lost.push(oldest)).unwrap());
    assert_eq!(lost, [0, 1]);
    assert_eq!(core::iter::from_fn(|| consumer.pop().ok()).collect::<Vec<_>>(), [2, 3, 4, 5]);
}

struct RoomAtTheSecondLook(u8);

impl End for RoomAtTheSecondLook {
    type Word = HostWord;
    type Corrupt = Infallible;
    fn wait_words(&self) -> WaitWords<'_, HostWord> {
        unreachable!("nobody waits")
    }
    fn leave(self, _after: impl FnOnce(&HostWord)) {
        unreachable!("nobody waits")
    }
    fn is_disconnected(&self) -> bool {
        false
    }
}

impl Push for RoomAtTheSecondLook {
    type Item = u8;
    fn push(&mut self, value: u8) -> Result<(), PushError<u8>> {
        self.0 += 1;
        if self.0 == 1 { Err(PushError::Full(value)) } else { Ok(()) }
    }
}

impl Evict for RoomAtTheSecondLook {
    fn evict(&mut self) -> Option<u8> {
        None
    }
}

#[test]
fn overwriting_oldest_retries_before_returning_full() {
    let mut policed = OverflowPolicy::overwriting_oldest(RoomAtTheSecondLook(0));
    policed.push(1, |_| panic!("nothing is lost")).unwrap();
    assert_eq!(policed.counts(), Counts { taken: 1, refused: 0, dropped: 0, overwritten: 0 });
}

#[test]
fn overwritten_values_are_dropped_once() {
    use std::rc::Rc;
    let value = Rc::new(());
    {
        let ring = mpmc::Ring::<Rc<()>, 2>::new();
        let (producer, _consumer) = ring.split();
        let mut end = OverflowPolicy::overwriting_oldest(producer);
        for _ in 0..7 {
            end.push(Rc::clone(&value), drop).unwrap();
        }
        assert_eq!(Rc::strong_count(&value), 3);
    }
    assert_eq!(Rc::strong_count(&value), 1);
}
