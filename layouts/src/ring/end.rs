//! What all ends of rings have in common, for those who wait at them.

use super::refusal::{PopError, PushError};
use super::{RingHeader, flagged, mpmc, mpsc, spsc};
use crate::{Machine, RmwWord};

/// An end of a ring: where its sleepers are counted.
pub trait End: Sized {
    /// The words of its ring.
    type Word: RmwWord;

    /// The two words `waiting` of its ring.
    fn bells(&self) -> Bells<'_, Self::Word>;

    /// Whether nobody is at the other end any more.
    fn is_disconnected(&self) -> bool;

    /// Drops the end; then `after` looks at the bell of the other side, while there still is one. Who sleeps there is to see that this one
    /// has left, so not before.
    fn leave(self, after: impl FnOnce(&Self::Word));
}

/// Who sleeps: how many in the low 32 bits, how often they were woken above.
#[derive(Debug)]
pub struct Bells<'a, W> {
    /// Those of the other side: looked at after each publish or release.
    pub theirs: &'a W,
    /// Those of this side: where one that goes to sleep counts itself.
    pub ours: &'a W,
}

/// An end that fills.
pub trait Push: End {
    /// What goes in.
    type Item;

    /// Pushes one value and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    fn push(&mut self, value: Self::Item) -> Result<(), PushError<Self::Item>>;
}

/// An end that empties.
pub trait Pop: End {
    /// What comes out.
    type Item;

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    fn pop(&mut self) -> Result<Self::Item, PopError>;
}

/// An end that somebody has borrowed. It leaves when its owner does; until then a sleeper is woken for nothing, once.
impl<E: End> End for &mut E {
    type Word = E::Word;
    fn bells(&self) -> Bells<'_, E::Word> {
        E::bells(self)
    }
    fn is_disconnected(&self) -> bool {
        E::is_disconnected(self)
    }
    fn leave(self, after: impl FnOnce(&E::Word)) {
        after(E::bells(self).theirs);
    }
}

impl<E: Push> Push for &mut E {
    type Item = E::Item;
    #[inline]
    fn push(&mut self, value: E::Item) -> Result<(), PushError<E::Item>> {
        E::push(self, value)
    }
}

impl<E: Pop> Pop for &mut E {
    type Item = E::Item;
    #[inline]
    fn pop(&mut self) -> Result<E::Item, PopError> {
        E::pop(self)
    }
}

/// The bells of a producer: it looks at the header that it polls, and counts itself in the one that it writes.
pub(super) const fn of_producer<'a, W>(own: &'a RingHeader<W>, peer: &'a RingHeader<W>) -> Bells<'a, W> {
    Bells { theirs: &own.producer.waiting, ours: &peer.consumer.waiting }
}

/// The bells of a consumer, likewise.
pub(super) const fn of_consumer<'a, W>(own: &'a RingHeader<W>, peer: &'a RingHeader<W>) -> Bells<'a, W> {
    Bells { theirs: &own.consumer.waiting, ours: &peer.producer.waiting }
}

macro_rules! ends {
    ($($end:ty, [$($generic:tt)*], $trait:ident $operation:ident($($argument:ident)?) -> $result:ty;)+) => {$(
        impl<'a, T, M: Machine<Word: RmwWord>, $($generic)*> End for $end {
            type Word = M::Word;
            fn bells(&self) -> Bells<'_, M::Word> {
                <$end>::bells(self)
            }
            fn is_disconnected(&self) -> bool {
                <$end>::is_disconnected(self)
            }
            fn leave(self, after: impl FnOnce(&M::Word)) {
                // The ring outlives the end.
                let theirs = <$end>::bells(&self).theirs;
                drop(self);
                after(theirs);
            }
        }
        impl<'a, T, M: Machine<Word: RmwWord>, $($generic)*> $trait for $end {
            type Item = T;
            #[inline]
            fn $operation(&mut self $(, $argument: T)?) -> $result {
                <$end>::$operation(self $(, $argument)?)
            }
        }
    )+};
}

ends! {
    spsc::Producer<'a, T, M>, [], Push push(value) -> Result<(), PushError<T>>;
    spsc::Consumer<'a, T, M>, [], Pop pop() -> Result<T, PopError>;
    flagged::Producer<'a, T, M>, [], Push push(value) -> Result<(), PushError<T>>;
    flagged::Consumer<'a, T, M>, [], Pop pop() -> Result<T, PopError>;
    mpmc::ManyProducer<'a, T, M, KIND>, [const KIND: u64], Push push(value) -> Result<(), PushError<T>>;
    mpmc::Consumer<'a, T, M>, [], Pop pop() -> Result<T, PopError>;
    mpsc::Consumer<'a, T, M>, [], Pop pop() -> Result<T, PopError>;
}
