//! `PartialEq` of ends: the ends of one ring are equal. Addresses are compared: ends in two mappings differ.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::{mpmc, spsc};
//!
//! let (producer, consumer) = spsc::bounded::<u32>(4);
//! let (other, _) = spsc::bounded::<u32>(4);
//! assert!(producer == consumer && producer != other);
//!
//! let ring = mpmc::Ring::<u32, 4>::new();
//! let (producer, consumer) = ring.split();
//! assert!(producer == producer.clone() && consumer == producer);
//! ```

use super::kind::{OneConsumer, OneProducer};
use super::{Consumer, Producer, RingFlags, framed, mpmc};
use crate::{Machine, RingHeader, RmwWord};

impl<K: OneProducer<T, M>, T, M: Machine> Producer<'_, K, T, M> {
    const fn headers(&self) -> [*const RingHeader<M::Word>; 2] {
        [self.port.own, self.port.peer]
    }
}

impl<K: OneConsumer<T, M>, T, M: Machine> Consumer<'_, K, T, M> {
    const fn headers(&self) -> [*const RingHeader<M::Word>; 2] {
        [self.port.peer, self.port.own]
    }
}

impl<T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> mpmc::Handle<'_, T, M, KIND, FILLS> {
    const fn headers(&self) -> [*const RingHeader<M::Word>; 2] {
        [self.turns.header, self.turns.header]
    }
}

impl<M: Machine, const FILLS: bool> framed::End<'_, M, FILLS> {
    const fn headers(&self) -> [*const RingHeader<M::Word>; 2] {
        if FILLS { [self.port.own, self.port.peer] } else { [self.port.peer, self.port.own] }
    }
}

macro_rules! same {
    ($([$($generic:tt)*] $end:ty, $other:ty;)+) => {$(
        impl<$($generic)*> PartialEq<$other> for $end {
            fn eq(&self, other: &$other) -> bool {
                self.headers() == other.headers()
            }
        }
    )+};
}

same! {
    [K: OneProducer<T, M>, T, M: Machine] Producer<'_, K, T, M>, Producer<'_, K, T, M>;
    [K: OneConsumer<T, M>, T, M: Machine] Consumer<'_, K, T, M>, Consumer<'_, K, T, M>;
    [K: OneProducer<T, M> + OneConsumer<T, M>, T, M: Machine] Producer<'_, K, T, M>, Consumer<'_, K, T, M>;
    [K: OneProducer<T, M> + OneConsumer<T, M>, T, M: Machine] Consumer<'_, K, T, M>, Producer<'_, K, T, M>;
    [T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool, const OTHER: bool]
        mpmc::Handle<'_, T, M, KIND, FILLS>, mpmc::Handle<'_, T, M, KIND, OTHER>;
    [T, M: Machine<Word: RmwWord>] mpmc::ManyProducer<'_, T, M, { RingFlags::MPSC.bits() }>, Consumer<'_, super::Mpsc, T, M>;
    [T, M: Machine<Word: RmwWord>] Consumer<'_, super::Mpsc, T, M>, mpmc::ManyProducer<'_, T, M, { RingFlags::MPSC.bits() }>;
    [M: Machine, const FILLS: bool, const OTHER: bool] framed::End<'_, M, FILLS>, framed::End<'_, M, OTHER>;
}

impl<K: OneProducer<T, M>, T, M: Machine> Eq for Producer<'_, K, T, M> {}
impl<K: OneConsumer<T, M>, T, M: Machine> Eq for Consumer<'_, K, T, M> {}
impl<T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> Eq for mpmc::Handle<'_, T, M, KIND, FILLS> {}
impl<M: Machine, const FILLS: bool> Eq for framed::End<'_, M, FILLS> {}
