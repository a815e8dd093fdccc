//! Implementations of the [traits](super::traits) and `Debug` for all ends.

use core::convert::Infallible;
use core::fmt;

use super::error::{PopError, PushError};
use super::kind::{InPlace, OneConsumer, OneProducer};
use super::{BatchConsumer, BatchProducer, Chunk, Consumer, Drain, Grant, Producer, Slot};
use super::{End, Follow, Pop, PopBytes, Publish, Push, PushBytes, WaitWords, framed, lossy, mailbox, mpmc};
use crate::{Machine, RingMessage, RmwWord, SliceCell};

macro_rules! ends {
    ($([$($generic:tt)*] $end:ty, of $value:ty;)+) => {$(
        impl<'a, $($generic)*> End for $end {
            type Word = M::Word;
            type Corrupt = M::Corrupt;
            const NEEDS_DROP: bool = core::mem::needs_drop::<$value>();
            fn wait_words(&self) -> WaitWords<'_, M::Word> {
                self.wait_words()
            }
            fn is_disconnected(&self) -> bool {
                <$end>::is_disconnected(self)
            }
            fn leave(self, after: impl FnOnce(&M::Word)) {
                let theirs = self.wait_words().theirs;
                drop(self);
                after(theirs);
            }
        }
    )+};
}

ends! {
    [K: OneProducer<T, M>, T, M: Machine<Word: RmwWord>] Producer<'a, K, T, M>, of T;
    [K: OneConsumer<T, M>, T, M: Machine<Word: RmwWord>] Consumer<'a, K, T, M>, of T;
    [T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool] mpmc::Handle<'a, T, M, KIND, FILLS>, of T;
    [M: Machine<Word: RmwWord>, const FILLS: bool] framed::End<'a, M, FILLS>, of u8;
}

macro_rules! of_values {
    ($([$($generic:tt)*] $end:ty, $trait:ident $operation:ident($($argument:ident)?) -> $result:ty;)+) => {$(
        impl<$($generic)*> $trait for $end {
            type Item = T;
            #[inline]
            fn $operation(&mut self $(, $argument: T)?) -> $result {
                <$end>::$operation(self $(, $argument)?)
            }
        }
    )+};
}

of_values! {
    [K: OneProducer<T, M>, T, M: Machine<Word: RmwWord>] Producer<'_, K, T, M>, Push push(value) -> Result<(), PushError<T, M::Corrupt>>;
    [K: OneConsumer<T, M>, T, M: Machine<Word: RmwWord>] Consumer<'_, K, T, M>, Pop pop() -> Result<T, PopError<M::Corrupt>>;
    [T, M: Machine<Word: RmwWord>, const KIND: u64] mpmc::ManyProducer<'_, T, M, KIND>, Push push(value) -> Result<(), PushError<T, M::Corrupt>>;
    [T, M: Machine<Word: RmwWord>] mpmc::Consumer<'_, T, M>, Pop pop() -> Result<T, PopError<M::Corrupt>>;
}

impl<M: Machine<Word: RmwWord, Cell<u64>: SliceCell<u64>>> PushBytes for framed::Producer<'_, M> {
    #[inline]
    fn push_bytes(&mut self, message: &[u8]) -> Result<(), framed::PushError<M::Corrupt>> {
        self.push(message)
    }
}

impl<M: Machine<Word: RmwWord, Cell<u64>: SliceCell<u64>>> PopBytes for framed::Consumer<'_, M> {
    #[inline]
    fn pop_bytes(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError<M::Corrupt>> {
        self.pop(into)
    }
}

impl<T: RingMessage, M: Machine> Publish for lossy::Writer<'_, T, M> {
    type Item = T;
    #[inline]
    fn publish(&mut self, value: T) {
        self.push(value);
    }
}

impl<T: RingMessage, M: Machine> Publish for mailbox::Writer<'_, T, M> {
    type Item = T;
    #[inline]
    fn publish(&mut self, value: T) {
        Self::publish(self, value);
    }
}

impl<T: RingMessage, M: Machine> Follow for lossy::Reader<'_, T, M> {
    type Item = Result<T, lossy::Overrun>;
    type Corrupt = M::Corrupt;
    #[inline]
    fn follow(&mut self) -> Result<Self::Item, PopError<M::Corrupt>> {
        match self.pop() {
            Ok(value) => Ok(Ok(value)),
            Err(lossy::ReadError::Overrun { lost }) => Ok(Err(lossy::Overrun { lost })),
            Err(lossy::ReadError::Empty) => Err(PopError::Empty),
            Err(lossy::ReadError::Corrupt(corrupt)) => Err(PopError::Corrupt(corrupt)),
        }
    }
    fn is_disconnected(&self) -> bool {
        Self::is_disconnected(self)
    }
}

/// A value being overwritten is not new: its writer publishes a newer one.
impl<T: RingMessage, M: Machine> Follow for mailbox::Reader<'_, T, M> {
    type Item = mailbox::New<T>;
    type Corrupt = Infallible;
    #[inline]
    fn follow(&mut self) -> Result<Self::Item, PopError> {
        self.take_new().map_err(|_| PopError::Empty)
    }
    fn is_disconnected(&self) -> bool {
        Self::is_disconnected(self)
    }
}

macro_rules! shown {
    ($([$($generic:tt)*] $type:ty: $name:literal $($what:ident)*;)+) => {$(
        impl<$($generic)*> fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($name)$(.field(stringify!($what), &self.$what()))*.finish_non_exhaustive()
            }
        }
    )+};
}

shown! {
    [K: OneProducer<T, M>, T, M: Machine] Producer<'_, K, T, M>: "Producer" kind tail free capacity;
    [K: OneConsumer<T, M>, T, M: Machine] Consumer<'_, K, T, M>: "Consumer" kind head len capacity;
    [K: OneProducer<T, M>, T, M: Machine] Grant<'_, '_, K, T, M>: "Grant" len;
    [K: OneConsumer<T, M> + InPlace, T, M: Machine] Chunk<'_, '_, K, T, M>: "Chunk" len;
    [K: OneConsumer<T, M>, T, M: Machine] Drain<'_, '_, K, T, M>: "Drain" len;
    [K: OneProducer<T, M>, T, M: Machine] BatchProducer<'_, '_, K, T, M>: "BatchProducer";
    [K: OneConsumer<T, M>, T, M: Machine] BatchConsumer<'_, '_, K, T, M>: "BatchConsumer";


    [M: Machine, const FILLS: bool] framed::End<'_, M, FILLS>: "framed::End" len capacity;
    [M: Machine] framed::Message<'_, M>: "framed::Message" len;
    [M: Machine] framed::Frame<'_, '_, M>: "framed::Frame";
    [M: Machine] framed::Grant<'_, '_, M>: "framed::Grant" len;
    [M: Machine] framed::Chunk<'_, '_, M>: "framed::Chunk";
    [M: Machine] framed::BatchProducer<'_, '_, M>: "framed::BatchProducer";
    [M: Machine] framed::BatchConsumer<'_, '_, M>: "framed::BatchConsumer";

    [T: RingMessage, M: Machine] lossy::Writer<'_, T, M>: "lossy::Writer" tail capacity;
    [T: RingMessage, M: Machine] lossy::Reader<'_, T, M>: "lossy::Reader" head capacity;
    [T: RingMessage, M: Machine] lossy::BatchWriter<'_, '_, T, M>: "lossy::BatchWriter";

    [T, M: Machine] mailbox::Writer<'_, T, M>: "mailbox::Writer";
    [T, M: Machine] mailbox::Reader<'_, T, M>: "mailbox::Reader";

    [T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool] mpmc::Handle<'_, T, M, KIND, FILLS>: "Handle" len capacity;
    [T, M: Machine] mpmc::Taken<'_, '_, T, M>: "mpmc::Taken";
    [T, M: Machine<Word: RmwWord>] mpmc::Grant<'_, '_, T, M>: "Grant" len;
    [T, M: Machine<Word: RmwWord>] mpmc::BatchProducer<'_, '_, T, M>: "BatchProducer";

    [W, C] Slot<W, C>: "Slot";
}

#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub(super) use shown;

#[cfg(test)]
mod tests {
    use std::format;

    use crate::ring::spsc;

    #[test]
    fn debug_output_of_ends_omits_messages() {
        let mut ring = spsc::Ring::<&str, 8>::new();
        let (mut producer, consumer) = ring.split();
        assert!(producer.push("secret").is_ok());
        assert_eq!(format!("{producer:?}"), "Producer { kind: RingFlags(SPSC), tail: 1, free: 7, capacity: 8, .. }");
        assert_eq!(format!("{consumer:?}"), "Consumer { kind: RingFlags(SPSC), head: 0, len: 1, capacity: 8, .. }");
        let grant = producer.reserve(2).unwrap();
        assert_eq!(format!("{grant:?}"), "Grant { len: 2, .. }");
    }
}
