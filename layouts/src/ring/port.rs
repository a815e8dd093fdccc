use super::{WaitWords, owner};
use crate::{RingHeader, Word};

/// The headers of an end: a producer's if `FILLS`, else a consumer's.
pub(super) struct Port<'a, W: Word, const FILLS: bool> {
    pub(super) own: &'a RingHeader<W>,
    pub(super) peer: &'a RingHeader<W>,
    /// The header says open; drop must close it.
    announced: bool,
}

impl<'a, W: Word, const FILLS: bool> Port<'a, W, FILLS> {
    #[inline(always)]
    pub(super) const fn new(own: &'a RingHeader<W>, peer: &'a RingHeader<W>) -> Self {
        Self { own, peer, announced: false }
    }

    /// For a ring in a `static`, whose header says neither open nor closed.
    #[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
    pub(super) const fn in_static(header: &'a RingHeader<W>) -> Self {
        Self { own: header, peer: header, announced: true }
    }

    const fn owner(&self) -> &'a W {
        if FILLS { &self.peer.producer.owner } else { &self.peer.consumer.owner }
    }

    pub(super) fn announce(&mut self) {
        owner::open(self.owner());
        self.announced = true;
    }

    pub(super) const fn abandon(&mut self) {
        self.announced = false;
    }

    pub(super) fn is_disconnected(&self) -> bool {
        owner::is_closed(if FILLS { &self.own.consumer.owner } else { &self.own.producer.owner })
    }

    pub(super) const fn wait_words(&self) -> WaitWords<'a, W> {
        WaitWords::of::<FILLS>(self.own, self.peer)
    }
}

impl<W: Word, const FILLS: bool> Drop for Port<'_, W, FILLS> {
    fn drop(&mut self) {
        if self.announced {
            owner::close(self.owner());
        }
    }
}
