use ringmem_layouts::ring::{flagged, mpmc, mpsc, spsc};

use crate::CAPACITY;
use crate::kind::{ManyToMany, ManyToOne, Mpmc, Mpsc, Spsc, Work};
use crate::plain::Plain;

macro_rules! spsc {
    ($(#[$doc:meta])* $module:ident: $each:ident) => {
        $(#[$doc])*
        pub struct $each;

        impl<T: Plain> Spsc<T> for $each {
            fn spsc(work: impl Work<T>) -> f64 {
                let mut ring = Box::new($module::Ring::<T, CAPACITY>::new());
                let (mut producer, mut consumer) = ring.split();
                work.run(move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
            }
        }
    };
}

spsc!(
    spsc: Ours
);

spsc!(
    flagged: Flagged
);

pub struct OursMany;

impl<T: Plain> Mpmc<T> for OursMany {
    fn mpmc<const N: usize>(work: impl ManyToMany<T>) -> f64 {
        let ring = Box::new(mpmc::Ring::<T, N>::new());
        let (mut producer, mut consumer) = ring.split();
        work.run(move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
    }
}

pub struct OursToOne;

impl<T: Plain> Mpsc<T> for OursToOne {
    fn mpsc<const N: usize>(work: impl ManyToOne<T>) -> f64 {
        let mut ring = Box::new(mpsc::Ring::<T, N>::new());
        let (mut producer, mut consumer) = ring.split();
        work.run(move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
    }
}

/// Many producers that claim 32 slots at a time, for work that pushes 32 and has room.
pub struct Claiming;

impl<T: Plain> Mpsc<T> for Claiming {
    fn mpsc<const N: usize>(work: impl ManyToOne<T>) -> f64 {
        let mut ring = Box::new(mpsc::Ring::<T, N>::new());
        let (mut producer, mut consumer) = ring.split();
        let (mut values, mut count) = ([T::default(); 32], 0);
        let push = move |value| {
            values[count] = value;
            count = (count + 1) % values.len();
            count > 0 || producer.push_slice(&values) == values.len()
        };
        work.run(push, move || consumer.pop().ok())
    }
}
