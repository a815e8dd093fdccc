use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use super::park::{Os, Park};
use super::waiting::{WaitStrategy, Waiting};
use crate::ring::{End, Follow, Pop, PopError, Publish, Push, PushError, WaitWords};
use crate::{CacheLineAligned, HostWord, RmwWord};

/// A writer with its readers' wait word; never waits.
///
/// ```
/// use ringmem::ring::mailbox::Mailbox;
/// use ringmem::wait::{WaitStrategy, broadcast};
///
/// let (writer, reader) = Mailbox::<u64>::new().into_ends();
/// let (mut sender, mut receiver) = broadcast(writer, reader, WaitStrategy::default());
/// (0..1000).for_each(|number| sender.send(number).unwrap()); // never waits for a reader
/// assert_eq!(receiver.recv().map(|new| new.value), Ok(999)); // the latest
/// ```
pub struct Publisher<E, W = HostWord> {
    end: E,
    bell: Arc<CacheLineAligned<W>>,
    nobody: W,
}

/// A reader with its wait word. Cloning makes another reader, if the reader is `Clone`.
///
/// ```
/// use ringmem::ring::mailbox::Mailbox;
/// use ringmem::wait::{WaitStrategy, broadcast};
///
/// let (writer, reader) = Mailbox::<u64>::new().into_ends();
/// let (mut sender, first) = broadcast(writer, reader, WaitStrategy::default());
/// let second = first.clone();
/// sender.send(7).unwrap();
/// for mut reader in [first, second] {
///     assert_eq!(reader.recv().map(|new| new.value), Ok(7)); // each gets it
/// }
/// ```
pub struct Follower<E, W = HostWord> {
    end: E,
    bell: Arc<CacheLineAligned<W>>,
    nobody: W,
}

/// Connects a writer and a reader by a wait word.
pub fn connect<W: RmwWord, S: Publish, R: Follow>(writer: S, reader: R) -> (Publisher<S, W>, Follower<R, W>) {
    let bell = Arc::new(CacheLineAligned::new(W::new(0)));
    (Publisher { end: writer, bell: Arc::clone(&bell), nobody: W::new(0) }, Follower { end: reader, bell, nobody: W::new(0) })
}

/// Connects a writer with a waiting reader; clone that for more.
///
/// ```
/// use ringmem::ring::mailbox::Mailbox;
/// use ringmem::wait::{WaitStrategy, RecvError, broadcast};
/// let (writer, reader) = Mailbox::<u64>::new().into_ends();
/// let (mut sender, mut receiver) = broadcast(writer, reader, WaitStrategy::default());
/// let reads = std::thread::spawn(move || (receiver.recv().map(|new| new.value), receiver.recv().map(|new| new.value)));
/// sender.send(7).unwrap();
/// drop(sender);
/// assert_eq!(reads.join().unwrap(), (Ok(7), Err(RecvError::Disconnected)));
/// ```
pub fn broadcast<S: Publish, R: Follow>(writer: S, reader: R, how: WaitStrategy) -> (Waiting<Publisher<S>>, Waiting<Follower<R>>)
where
    Os: Park<HostWord>,
{
    let (writer, reader) = connect(writer, reader);
    Waiting::pair(writer, reader, how)
}

/// Wraps a reader whose writer does not wake it (on a device, in another process): it yields instead of sleeping; its futures poll.
#[must_use]
pub fn follow<R: Follow>(reader: R, how: WaitStrategy) -> Waiting<Follower<R>>
where
    Os: Park<HostWord>,
{
    let how = match how {
        WaitStrategy::Sleep { polls } => WaitStrategy::SpinYield { polls },
        polls => polls,
    };
    let follower = Follower { end: reader, bell: Arc::new(CacheLineAligned::new(HostWord::new(0))), nobody: HostWord::new(0) };
    Waiting::receiver(follower, how)
}

impl<E, W> Publisher<E, W> {
    /// Returns the writer.
    pub const fn end(&self) -> &E {
        &self.end
    }

    /// Returns the writer, mutably, for [`Waiting::with_end`], which wakes readers afterwards.
    pub const fn end_mut(&mut self) -> &mut E {
        &mut self.end
    }
}

impl<E, W> Follower<E, W> {
    /// Returns the reader.
    pub const fn end(&self) -> &E {
        &self.end
    }

    /// Returns the reader, mutably.
    pub const fn end_mut(&mut self) -> &mut E {
        &mut self.end
    }
}

impl<E, W: RmwWord> End for Publisher<E, W> {
    type Word = W;
    type Corrupt = Infallible;
    fn wait_words(&self) -> WaitWords<'_, W> {
        WaitWords { theirs: &self.bell, ours: &self.nobody }
    }
    fn is_disconnected(&self) -> bool {
        false
    }
    fn leave(self, after: impl FnOnce(&W)) {
        let Self { end, bell, .. } = self;
        drop(end);
        after(&bell);
    }
}

impl<E: Publish, W: RmwWord> Push for Publisher<E, W> {
    type Item = E::Item;
    /// Never fails.
    #[inline]
    fn push(&mut self, value: E::Item) -> Result<(), PushError<E::Item>> {
        self.end.publish(value);
        Ok(())
    }
}

impl<E: Follow, W: RmwWord> End for Follower<E, W> {
    type Word = W;
    type Corrupt = E::Corrupt;
    fn wait_words(&self) -> WaitWords<'_, W> {
        WaitWords { theirs: &self.nobody, ours: &self.bell }
    }
    fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
    fn leave(self, after: impl FnOnce(&W)) {
        let Self { end, nobody, .. } = self;
        drop(end);
        after(&nobody);
    }
}

impl<E: Follow, W: RmwWord> Pop for Follower<E, W> {
    type Item = E::Item;
    #[inline]
    fn pop(&mut self) -> Result<E::Item, PopError<E::Corrupt>> {
        self.end.follow()
    }
}

impl<E: Clone, W: RmwWord> Clone for Follower<E, W> {
    fn clone(&self) -> Self {
        Self { end: self.end.clone(), bell: Arc::clone(&self.bell), nobody: W::new(0) }
    }
}

impl<E: fmt::Debug, W> fmt::Debug for Publisher<E, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Publisher").field(&self.end).finish()
    }
}

impl<E: fmt::Debug, W> fmt::Debug for Follower<E, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Follower").field(&self.end).finish()
    }
}
