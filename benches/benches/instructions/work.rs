use std::hint::black_box;

use crate::CAPACITY;
use crate::kind::{ManyToMany, ManyToOne, Work};
use crate::plain::Plain;

pub struct Alone<const BURST: usize>(pub u64);

impl<const BURST: usize> Alone<BURST> {
    #[inline(always)]
    fn run<T: Plain>(self, push: impl FnMut(T) -> bool, pop: impl FnMut() -> Option<T>) -> f64 {
        // Opaque: hides the capacity and that both ends share a header.
        let (mut push, mut pop) = black_box((push, pop));
        let value = T::default();
        for _ in 0..self.0 / BURST as u64 {
            for _ in 0..BURST {
                assert!(push(*black_box(&value)));
            }
            for _ in 0..BURST {
                let got = pop().expect("what was pushed is there");
                black_box(&got);
            }
        }
        0.0
    }
}

impl<T: Plain, const BURST: usize> Work<T> for Alone<BURST> {
    fn run(self, push: impl FnMut(T) -> bool + Send, pop: impl FnMut() -> Option<T> + Send) -> f64 {
        self.run(push, pop)
    }
}

impl<T: Plain, const BURST: usize> ManyToOne<T> for Alone<BURST> {
    fn run(self, push: impl FnMut(T) -> bool + Send + Clone, pop: impl FnMut() -> Option<T> + Send) -> f64 {
        self.run(push, pop)
    }
}

impl<T: Plain, const BURST: usize> ManyToMany<T> for Alone<BURST> {
    fn run(self, push: impl FnMut(T) -> bool + Send + Clone, pop: impl FnMut() -> Option<T> + Send + Clone) -> f64 {
        self.run(push, pop)
    }
}

pub struct Drained(pub u64);

impl<T: Plain> Work<T> for Drained {
    fn run(self, push: impl FnMut(T) -> bool + Send, pop: impl FnMut() -> Option<T> + Send) -> f64 {
        let (mut push, mut pop) = black_box((push, pop));
        let value = T::default();
        for _ in 0..self.0 {
            assert!(push(*black_box(&value)));
            while let Some(got) = pop() {
                black_box(&got);
            }
        }
        0.0
    }
}

/// The compiler may know the first indices.
pub struct Known(pub u64);

impl<T: Plain> Work<T> for Known {
    fn run(self, mut push: impl FnMut(T) -> bool + Send, mut pop: impl FnMut() -> Option<T> + Send) -> f64 {
        let value = T::default();
        for _ in 0..self.0 {
            assert!(push(*black_box(&value)));
            match pop() {
                Some(got) => _ = black_box(&got),
                None => panic!("what was pushed is not there"),
            }
        }
        0.0
    }
}

pub struct Called(pub u64);

impl<T: Plain> Work<T> for Called {
    fn run(self, mut push: impl FnMut(T) -> bool + Send, mut pop: impl FnMut() -> Option<T> + Send) -> f64 {
        #[inline(never)]
        fn call_push<T>(push: &mut impl FnMut(T) -> bool, value: T) -> bool {
            push(value)
        }
        #[inline(never)]
        fn call_pop<T>(pop: &mut impl FnMut() -> Option<T>) -> Option<T> {
            pop()
        }
        let value = T::default();
        for _ in 0..self.0 {
            assert!(call_push(black_box(&mut push), *black_box(&value)));
            let got = call_pop(black_box(&mut pop)).expect("what was pushed is there");
            black_box(&got);
        }
        0.0
    }
}

pub fn slots<T: Plain, const BURST: usize>(messages: u64) -> f64 {
    let slots = std::cell::UnsafeCell::new([T::default(); CAPACITY]);
    let slot = |index: &mut usize| {
        let slot = slots.get().cast::<T>().wrapping_add(*index % CAPACITY);
        *index += 1;
        slot
    };
    let (mut tail, mut head) = (0, 0);
    // SAFETY: within the array, one access at a time.
    let push = |value| unsafe { slot(&mut tail).write_volatile(value) };
    // SAFETY: within the array, one access at a time.
    let pop = || unsafe { slot(&mut head).read_volatile() };
    let (mut push, mut pop) = black_box((push, pop));
    let value = T::default();
    for _ in 0..messages / BURST as u64 {
        for _ in 0..BURST {
            push(*black_box(&value));
        }
        for _ in 0..BURST {
            black_box(&pop());
        }
    }
    0.0
}
