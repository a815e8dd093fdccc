use std::cell::RefCell;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use ringmem_layouts::ring::{flagged, mpsc, spsc};

const CAPACITY: usize = 4;
const STARTS: [u64; 3] = [0, 3, u64::MAX - 1];

type Dropped = Rc<RefCell<Vec<usize>>>;

struct Value(usize, Dropped);

impl Drop for Value {
    fn drop(&mut self) {
        self.1.borrow_mut().push(self.0);
    }
}

macro_rules! of_each_kind {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn a_drain_releases_exactly_the_taken_messages() {
                for start in STARTS {
                    for (most, taken) in (1..=CAPACITY).flat_map(|most| (0..=most).map(move |taken| (most, taken))) {
                        for is_dropped in [true, false] {
                            let dropped = Dropped::default();
                            let mut ring = $kind::Ring::<Value, CAPACITY>::starting_at(start);
                            let (mut producer, mut consumer) = ring.split();
                            (0..CAPACITY).for_each(|number| producer.push(Value(number, Rc::clone(&dropped))).unwrap());
                            let mut drain = consumer.peek(most).unwrap().into_iter();
                            assert_eq!(drain.len(), most);
                            let held: Vec<Value> = drain.by_ref().take(taken).collect();
                            assert!(held.iter().map(|value| value.0).eq(0..taken));
                            assert_eq!((producer.len(), drain.size_hint().0), (CAPACITY - taken, most - taken));
                            if is_dropped { drop(consumer) } else { forget(consumer) }
                            drop(producer);
                            let (mut producer, mut consumer) = ring.split();
                            (0..taken).for_each(|number| producer.push(Value(CAPACITY + number, Rc::clone(&dropped))).unwrap());
                            let rest = std::iter::from_fn(|| consumer.pop().ok()).map(|value| value.0);
                            assert!(rest.eq(taken..CAPACITY + taken), "{taken} of {most}");
                            drop((producer, consumer, held));
                            drop(ring);
                            let mut dropped = dropped.take();
                            dropped.sort_unstable();
                            assert!(dropped.into_iter().eq(0..CAPACITY + taken));
                        }
                    }
                }
            }

            #[test]
            fn a_panic_in_for_each_consumes_passed_messages() {
                for (start, taken) in STARTS.into_iter().flat_map(|start| (1..=CAPACITY).map(move |taken| (start, taken))) {
                    let dropped = Dropped::default();
                    let mut ring = $kind::Ring::<Value, CAPACITY>::starting_at(start);
                    let (mut producer, mut consumer) = ring.split();
                    (0..CAPACITY).for_each(|number| producer.push(Value(number, Rc::clone(&dropped))).unwrap());
                    let drain = consumer.peek(usize::MAX).unwrap().into_iter();
                    let panics = |value: Value| if value.0 + 1 == taken { resume_unwind(Box::new("asked to")) };
                    assert!(catch_unwind(AssertUnwindSafe(|| drain.for_each(panics))).is_err());
                    assert_eq!((producer.len(), consumer.len()), (CAPACITY - taken, CAPACITY - taken));
                    assert!(dropped.borrow().iter().copied().eq(0..taken));
                    drop((producer, consumer));
                    drop(ring);
                    let mut dropped = dropped.take();
                    dropped.sort_unstable();
                    assert!(dropped.into_iter().eq(0..CAPACITY));
                }
            }

            #[test]
            fn for_each_releases_slots_at_the_end() {
                for start in STARTS {
                    let mut ring = $kind::Ring::<usize, CAPACITY>::starting_at(start);
                    let (mut producer, mut consumer) = ring.split();
                    for (number, left) in (0..CAPACITY).zip((0..CAPACITY).rev()) {
                        (0..CAPACITY).for_each(|number| producer.push(number).unwrap());
                        let mut drain = consumer.peek(number + 1).unwrap().into_iter();
                        assert!((0..number).all(|_| drain.next().is_some()));
                        assert_eq!((producer.len(), drain.next(), producer.len()), (left + 1, Some(number), left));
                        assert_eq!((drain.next(), drain.next()), (None, None));
                        consumer.peek(usize::MAX).into_iter().flatten().for_each(|_| assert_eq!(producer.len(), left));
                        assert_eq!(producer.len(), 0);
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
}

#[test]
fn a_drain_yields_zero_sized_values() {
    let mut ring = spsc::Ring::<(), 4>::new();
    let (mut producer, mut consumer) = ring.split();
    (0..3).for_each(|_| producer.push(()).unwrap());
    assert_eq!(consumer.peek(2).unwrap().into_iter().count(), 2);
    assert_eq!(consumer.len(), 1);
}
