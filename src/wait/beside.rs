//! Waiting at rings whose readers write nothing: the bell stands beside the ring.
//!
//! A reader of [`lossy`](crate::ring::lossy) or [`mailbox`](crate::ring::mailbox) may see the ring in memory that it cannot
//! write, so it cannot count itself there. Ends that are waited at together share a word of this process instead, and whoever publishes looks at
//! it afterwards, as at the word in a ring's header.

use std::fmt;
use std::sync::Arc;

use super::park::{Os, Park};
use super::waiting::{How, Waiting};
use crate::ring::{Bells, End, Follow, Pop, PopError, Publish, Push, PushError};
use crate::{CacheLineAligned, HostWord, RmwWord};

/// A writer, and the bell of its readers. It never waits: `send` is as quick as `try_send`.
pub struct Publisher<E, W = HostWord> {
    end: E,
    bell: Arc<CacheLineAligned<W>>,
    /// The bell of this side, which never sleeps.
    nobody: W,
}

/// A reader, and the bell that it sleeps at. Clone it for another reader, if it can be cloned.
pub struct Follower<E, W = HostWord> {
    end: E,
    bell: Arc<CacheLineAligned<W>>,
    /// The bell of the other side, which never sleeps.
    nobody: W,
}

/// A writer and a reader of one ring, with a bell beside it, to be waited at as a [`pair`](super::pair).
pub fn beside<W: RmwWord, S: Publish, R: Follow>(writer: S, reader: R) -> (Publisher<S, W>, Follower<R, W>) {
    let bell = Arc::new(CacheLineAligned::new(W::new(0)));
    (Publisher { end: writer, bell: Arc::clone(&bell), nobody: W::new(0) }, Follower { end: reader, bell, nobody: W::new(0) })
}

/// A writer whose readers wait: the first of them, and its clones.
///
/// ```
/// use ringmem::ring::mailbox::Mailbox;
/// use ringmem::wait::{How, RecvError, broadcast};
/// let (writer, reader) = Mailbox::<u64>::new().into_ends();
/// let (mut sender, mut receiver) = broadcast(writer, reader, How::default());
/// let reads = std::thread::spawn(move || (receiver.recv().map(|new| new.value), receiver.recv().map(|new| new.value)));
/// sender.send(7).unwrap();
/// drop(sender);
/// assert_eq!(reads.join().unwrap(), (Ok(7), Err(RecvError::Disconnected)));
/// ```
pub fn broadcast<S: Publish, R: Follow>(writer: S, reader: R, how: How) -> (Waiting<Publisher<S>>, Waiting<Follower<R>>)
where
    Os: Park<HostWord>,
{
    let (writer, reader) = beside(writer, reader);
    Waiting::pair(writer, reader, how)
}

/// A reader whose writer is elsewhere: a device, another process. Nobody there looks at a bell, so it yields where it is told to sleep, and its
/// futures ask to be polled again.
#[must_use]
pub fn follow<R: Follow>(reader: R, how: How) -> Waiting<Follower<R>>
where
    Os: Park<HostWord>,
{
    let how = match how {
        How::Sleep { looks } => How::SpinYield { looks },
        polls => polls,
    };
    let follower = Follower { end: reader, bell: Arc::new(CacheLineAligned::new(HostWord::new(0))), nobody: HostWord::new(0) };
    Waiting::receiver(follower, how)
}

impl<E, W> Publisher<E, W> {
    /// The writer itself, to look at.
    pub const fn end(&self) -> &E {
        &self.end
    }

    /// The writer itself. Within [`Waiting::with_end`] its readers are woken afterwards.
    pub const fn end_mut(&mut self) -> &mut E {
        &mut self.end
    }
}

impl<E, W> Follower<E, W> {
    /// The reader itself, to look at.
    pub const fn end(&self) -> &E {
        &self.end
    }

    /// The reader itself.
    pub const fn end_mut(&mut self) -> &mut E {
        &mut self.end
    }
}

impl<E, W: RmwWord> End for Publisher<E, W> {
    type Word = W;
    fn bells(&self) -> Bells<'_, W> {
        Bells { theirs: &self.bell, ours: &self.nobody }
    }
    /// Never: it does not know who reads.
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
    /// Never refused.
    #[inline]
    fn push(&mut self, value: E::Item) -> Result<(), PushError<E::Item>> {
        self.end.publish(value);
        Ok(())
    }
}

impl<E: Follow, W: RmwWord> End for Follower<E, W> {
    type Word = W;
    fn bells(&self) -> Bells<'_, W> {
        Bells { theirs: &self.nobody, ours: &self.bell }
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
    fn pop(&mut self) -> Result<E::Item, PopError> {
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
