//! Traits over the ends of all rings.

use core::time::Duration;

use super::error::{PopError, PushError};
use super::{RingHeader, framed};
use crate::RmwWord;
use crate::attach::Corruption;

/// An end of a ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{End, spsc};
///
/// fn is_alone(end: &impl End) -> bool {
///     end.is_disconnected()
/// }
///
/// let mut ring = spsc::Ring::<u32, 4>::new();
/// let (producer, consumer) = ring.split();
/// assert!(!is_alone(&producer));
/// drop(consumer);
/// assert!(is_alone(&producer));
/// ```
pub trait End: Sized {
    /// The words of its ring.
    type Word: RmwWord;
    /// [`Corrupt`](crate::attach::Corrupt), or `Infallible` for a ring that only ends in this process write.
    type Corrupt: Corruption;

    /// The longest sleep between polls of [`is_disconnected`](Self::is_disconnected), for an end whose peer can die without waking it.
    const LONGEST_SLEEP: Option<Duration> = None;

    /// Returns the two wait words of its ring. A caller that changes them can only delay wake-ups.
    fn wait_words(&self) -> WaitWords<'_, Self::Word>;

    /// Returns whether the other end is closed.
    fn is_disconnected(&self) -> bool;

    /// Whether this process has the ring's memory. Otherwise the end can only be dropped.
    #[doc(hidden)]
    fn is_here(&self) -> bool {
        true
    }

    /// Drops the end, then calls `after` with the other side's wait word, to wake its sleepers.
    fn leave(self, after: impl FnOnce(&Self::Word));

    /// Whether a value in the ring may own something, so that its sender should call
    /// [`discard_if_abandoned`](Self::discard_if_abandoned).
    #[doc(hidden)]
    const NEEDS_DROP: bool = false;

    /// Drops the values in the ring if no consumer is left. After a push, the caller executes a `SeqCst` fence, or a read-modify-write of
    /// [`theirs`](WaitWords::theirs), before it.
    #[doc(hidden)]
    fn discard_if_abandoned(&self) {}
}

/// The wait words: sleepers in the low 32 bits, wake-ups above.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{End, spsc};
/// use ringmem::{RmwWord, Word};
///
/// let mut ring = spsc::Ring::<u32, 4>::new();
/// let (producer, consumer) = ring.split();
/// RmwWord::fetch_add(consumer.wait_words().ours, 1); // a consumer that is about to sleep
/// assert_eq!(Word::load(producer.wait_words().theirs) as u32, 1); // as the producer sees it
/// ```
#[derive(Debug)]
pub struct WaitWords<'a, W> {
    /// The other side's: read after each publish or release.
    pub theirs: &'a W,
    /// This side's: a sleeper counts itself here.
    pub ours: &'a W,
}

impl<'a, W> WaitWords<'a, W> {
    /// Ends read the word in the header they poll, and count themselves in the one they write.
    pub(super) const fn of<const FILLS: bool>(own: &'a RingHeader<W>, peer: &'a RingHeader<W>) -> Self {
        if FILLS {
            Self { theirs: &own.producer.waiting, ours: &peer.consumer.waiting }
        } else {
            Self { theirs: &own.consumer.waiting, ours: &peer.producer.waiting }
        }
    }
}

/// A producer.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Push, PushError, mpmc, spsc};
///
/// fn send<E: Push>(end: &mut E, values: impl IntoIterator<Item = E::Item>) -> Result<(), PushError<E::Item, E::Corrupt>> {
///     values.into_iter().try_for_each(|value| end.push(value))
/// }
///
/// let (mut one, many) = (spsc::Ring::<u32, 4>::new(), mpmc::Ring::<u32, 4>::new());
/// send(&mut one.split().0, [1, 2, 3])?;
/// send(&mut many.split().0, [4, 5])?;
/// assert_eq!((one.split().1.len(), many.split().1.len()), (3, 2));
/// # Ok::<(), PushError<u32>>(())
/// ```
pub trait Push: End {
    /// The type of the messages.
    type Item;

    /// Pushes one value and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    fn push(&mut self, value: Self::Item) -> Result<(), PushError<Self::Item, Self::Corrupt>>;
}

/// A consumer.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Pop, mpsc};
///
/// fn drain<E: Pop>(end: &mut E) -> impl Iterator<Item = E::Item> {
///     std::iter::from_fn(|| end.pop().ok())
/// }
///
/// let mut ring = mpsc::Ring::<u32, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push_slice(&[1, 2, 3]);
/// assert_eq!(drain(&mut consumer).sum::<u32>(), 6);
/// ```
pub trait Pop: End {
    /// The type of the messages.
    type Item;

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    fn pop(&mut self) -> Result<Self::Item, PopError<Self::Corrupt>>;
}

/// A producer of byte messages.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::PushBytes;
/// use ringmem::ring::framed::{PushError, Ring};
///
/// fn log<E: PushBytes>(end: &mut E, line: &str) -> Result<(), PushError<E::Corrupt>> {
///     end.push_bytes(line.as_bytes())
/// }
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// log(&mut producer, "started")?;
/// assert_eq!(&*consumer.peek().unwrap(), b"started");
/// # Ok::<(), PushError>(())
/// ```
pub trait PushBytes: End {
    /// Pushes a copy of `message` and publishes it.
    ///
    /// # Errors
    ///
    /// [`framed::PushError`].
    fn push_bytes(&mut self, message: &[u8]) -> Result<(), framed::PushError<Self::Corrupt>>;
}

/// A consumer of byte messages.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::PopBytes;
/// use ringmem::ring::framed::{PopError, Ring};
///
/// fn line<E: PopBytes>(end: &mut E) -> Result<String, PopError<E::Corrupt>> {
///     let mut bytes = [0; 32];
///     let len = end.pop_bytes(&mut bytes)?;
///     Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
/// }
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"started").unwrap();
/// assert_eq!(line(&mut consumer)?, "started");
/// # Ok::<(), PopError>(())
/// ```
pub trait PopBytes: End {
    /// Pops one message into `into`; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// [`framed::PopError`]; after `TooSmall` the message remains.
    fn pop_bytes(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError<Self::Corrupt>>;
}

/// A writer that overwrites.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Publish, lossy, mailbox};
///
/// fn report(to: &mut impl Publish<Item = u32>) {
///     (1..=3).for_each(|value| to.publish(value));
/// }
///
/// let (mut all, mut latest) = (lossy::Ring::<u32, 4>::new(), mailbox::Mailbox::<u32>::new());
/// report(&mut all.split().0);
/// report(&mut latest.split().0);
/// assert_eq!((all.split().1.pop(), latest.split().1.latest()), (Ok(1), Ok((3, 3))));
/// ```
pub trait Publish {
    /// The type of the messages.
    type Item;

    /// Overwrites the oldest value and publishes.
    fn publish(&mut self, value: Self::Item);
}

/// A reader that writes nothing to the ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Follow, lossy, mailbox};
///
/// fn next<R: Follow>(reader: &mut R) -> Option<R::Item> {
///     reader.follow().ok()
/// }
///
/// let (mut all, mut latest) = (lossy::Ring::<u32, 4>::new(), mailbox::Mailbox::<u32>::new());
/// all.split().0.push_slice(&[1, 2]);
/// latest.split().0.publish(7);
/// assert_eq!(next(&mut all.split().1), Some(Ok(1))); // or the number of lost messages
/// assert_eq!(next(&mut latest.split().1).map(|new| new.value), Some(7));
/// ```
pub trait Follow {
    /// The type of the messages.
    type Item;
    /// As of an [`End`].
    type Corrupt: Corruption;

    /// Reads the next new message.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    fn follow(&mut self) -> Result<Self::Item, PopError<Self::Corrupt>>;

    /// Returns whether the announced writer was dropped.
    fn is_disconnected(&self) -> bool;
}

/// A borrowed end is not closed: `leave` wakes a sleeper in vain.
impl<E: End> End for &mut E {
    type Word = E::Word;
    type Corrupt = E::Corrupt;
    const LONGEST_SLEEP: Option<Duration> = E::LONGEST_SLEEP;
    const NEEDS_DROP: bool = E::NEEDS_DROP;
    fn wait_words(&self) -> WaitWords<'_, E::Word> {
        E::wait_words(self)
    }
    fn is_disconnected(&self) -> bool {
        E::is_disconnected(self)
    }
    fn is_here(&self) -> bool {
        E::is_here(self)
    }
    fn leave(self, after: impl FnOnce(&E::Word)) {
        after(E::wait_words(self).theirs);
    }
    fn discard_if_abandoned(&self) {
        E::discard_if_abandoned(self);
    }
}

impl<E: Push> Push for &mut E {
    type Item = E::Item;
    #[inline]
    fn push(&mut self, value: E::Item) -> Result<(), PushError<E::Item, E::Corrupt>> {
        E::push(self, value)
    }
}

impl<E: Pop> Pop for &mut E {
    type Item = E::Item;
    #[inline]
    fn pop(&mut self) -> Result<E::Item, PopError<E::Corrupt>> {
        E::pop(self)
    }
}

impl<E: PushBytes> PushBytes for &mut E {
    #[inline]
    fn push_bytes(&mut self, message: &[u8]) -> Result<(), framed::PushError<E::Corrupt>> {
        E::push_bytes(self, message)
    }
}

impl<E: PopBytes> PopBytes for &mut E {
    #[inline]
    fn pop_bytes(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError<E::Corrupt>> {
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
    type Corrupt = E::Corrupt;
    #[inline]
    fn follow(&mut self) -> Result<E::Item, PopError<E::Corrupt>> {
        E::follow(self)
    }
    fn is_disconnected(&self) -> bool {
        E::is_disconnected(self)
    }
}
