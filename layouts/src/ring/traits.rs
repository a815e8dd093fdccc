//! Traits over the ends of all rings, for waiting and generic code.

use super::error::{PopError, PushError};
use super::{RingHeader, framed};
use crate::RmwWord;

/// An end of a ring: where its sleepers are counted.
pub trait End: Sized {
    /// The words of its ring.
    type Word: RmwWord;

    /// The two words `waiting` of its ring.
    fn wait_words(&self) -> WaitWords<'_, Self::Word>;

    /// Returns whether the other end is closed.
    fn is_disconnected(&self) -> bool;

    /// Drops the end, then calls `after` with the wait word of the other side, which is still valid. Sleepers must see this end as closed, so they
    /// are woken after it.
    fn leave(self, after: impl FnOnce(&Self::Word));
}

/// The wait words: the number of sleepers in the low 32 bits, the number of wake-ups above.
#[derive(Debug)]
pub struct WaitWords<'a, W> {
    /// The other side's: read after each publish or release.
    pub theirs: &'a W,
    /// This side's: a sleeper counts itself here.
    pub ours: &'a W,
}

impl<'a, W> WaitWords<'a, W> {
    /// Returns the words of a producer if `FILLS`, otherwise of a consumer. An end reads the one in the header that it polls, and counts itself in
    /// the one that it writes.
    pub(super) const fn of<const FILLS: bool>(own: &'a RingHeader<W>, peer: &'a RingHeader<W>) -> Self {
        if FILLS {
            Self { theirs: &own.producer.waiting, ours: &peer.consumer.waiting }
        } else {
            Self { theirs: &own.consumer.waiting, ours: &peer.producer.waiting }
        }
    }
}

/// An end that fills.
pub trait Push: End {
    /// The type of the messages.
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
    /// The type of the messages.
    type Item;

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    fn pop(&mut self) -> Result<Self::Item, PopError>;
}

/// An end that fills with bytes, message by message.
pub trait PushBytes: End {
    /// Pushes a copy of `message` and publishes it.
    ///
    /// # Errors
    ///
    /// [`framed::PushError`]: not now, never, or corrupt.
    fn push_bytes(&mut self, message: &[u8]) -> Result<(), framed::PushError>;
}

/// An end that empties bytes, message by message.
pub trait PopBytes: End {
    /// Pops one message into the beginning of `into` and releases its frame: bytes of the message.
    ///
    /// # Errors
    ///
    /// [`framed::PopError`]; after `TooSmall` the message is still there.
    fn pop_bytes(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError>;
}

/// A writer that never waits and overwrites: it always has room, and knows no readers.
pub trait Publish {
    /// The type of the messages.
    type Item;

    /// Publishes one value over the oldest.
    fn publish(&mut self, value: Self::Item);
}

/// A reader that writes nothing, and so has no wait word in the ring.
pub trait Follow {
    /// The type of the messages.
    type Item;

    /// Reads the next new message.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    fn follow(&mut self) -> Result<Self::Item, PopError>;

    /// Whether the writer announced itself and has left.
    fn is_disconnected(&self) -> bool;
}

/// A borrowed end. It is dropped with its owner; until then a sleeper is woken in vain, once.
impl<E: End> End for &mut E {
    type Word = E::Word;
    fn wait_words(&self) -> WaitWords<'_, E::Word> {
        E::wait_words(self)
    }
    fn is_disconnected(&self) -> bool {
        E::is_disconnected(self)
    }
    fn leave(self, after: impl FnOnce(&E::Word)) {
        after(E::wait_words(self).theirs);
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

impl<E: PushBytes> PushBytes for &mut E {
    #[inline]
    fn push_bytes(&mut self, message: &[u8]) -> Result<(), framed::PushError> {
        E::push_bytes(self, message)
    }
}

impl<E: PopBytes> PopBytes for &mut E {
    #[inline]
    fn pop_bytes(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError> {
        E::pop_bytes(self, into)
    }
}

impl<E: Publish> Publish for &mut E {
    type Item = E::Item;
    #[inline]
    fn publish(&mut self, value: E::Item) {
        E::publish(self, value);
    }
}

impl<E: Follow> Follow for &mut E {
    type Item = E::Item;
    #[inline]
    fn follow(&mut self) -> Result<E::Item, PopError> {
        E::follow(self)
    }
    fn is_disconnected(&self) -> bool {
        E::is_disconnected(self)
    }
}
