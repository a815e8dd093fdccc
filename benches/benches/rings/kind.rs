//! A kind of ring passes its ends to the work as closures, and returns the work's figure.

use std::marker::PhantomData;

use crate::CAPACITY;

pub trait Work<T> {
    fn run(self, push: impl FnMut(T) -> bool + Send, pop: impl FnMut() -> Option<T> + Send) -> f64;
}

pub trait ManyToOne<T> {
    fn run(self, push: impl FnMut(T) -> bool + Send + Clone, pop: impl FnMut() -> Option<T> + Send) -> f64;
}

pub trait ManyToMany<T> {
    fn run(self, push: impl FnMut(T) -> bool + Send + Clone, pop: impl FnMut() -> Option<T> + Send + Clone) -> f64;
}

pub trait Spsc<T> {
    fn spsc(work: impl Work<T>) -> f64;
}

pub trait Mpsc<T> {
    fn mpsc<const N: usize>(work: impl ManyToOne<T>) -> f64;
}

pub trait Mpmc<T> {
    fn mpmc<const N: usize>(work: impl ManyToMany<T>) -> f64;
}

pub struct One<K>(PhantomData<K>);

impl<T, K: Mpmc<T>> Mpsc<T> for One<K> {
    fn mpsc<const N: usize>(work: impl ManyToOne<T>) -> f64 {
        K::mpmc::<N>(OneConsumer(work))
    }
}

impl<T, K: Mpmc<T>> Spsc<T> for One<K> {
    fn spsc(work: impl Work<T>) -> f64 {
        K::mpmc::<CAPACITY>(OneOfBoth(work))
    }
}

struct OneConsumer<W>(W);

impl<T, W: ManyToOne<T>> ManyToMany<T> for OneConsumer<W> {
    fn run(self, push: impl FnMut(T) -> bool + Send + Clone, pop: impl FnMut() -> Option<T> + Send + Clone) -> f64 {
        self.0.run(push, pop)
    }
}

struct OneOfBoth<W>(W);

impl<T, W: Work<T>> ManyToMany<T> for OneOfBoth<W> {
    fn run(self, push: impl FnMut(T) -> bool + Send + Clone, pop: impl FnMut() -> Option<T> + Send + Clone) -> f64 {
        self.0.run(push, pop)
    }
}
