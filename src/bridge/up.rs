//! [`Up`]: from the host to the device.
//!
//! | index | who knows it | what it says |
//! |---|---|---|
//! | the near ring's head | this | sent, and known to have arrived: slots that the sender may fill again |
//! | `sent` | this | copied, and published or about to be |
//! | the far ring's tail | its kernel | published: this alone writes it, so what it says is what has happened, whatever was said of the calls |
//! | the far ring's head | this, as last seen | taken by the kernel |

use std::collections::VecDeque;
use std::sync::Arc;

use super::Mark;
use super::carrier::Carrier;
use super::far::{Far, Line};
use super::near::Near;
use super::pair::{Direct, Pair};
use crate::attach::{AttachError, Corrupt};
use crate::backend::Ticket;
use crate::ring::spsc::Consumer;
use crate::{Host, Result, RingMessage, Word};

pub(super) struct Up<T: RingMessage> {
    // INVARIANT: 'static stands for as long as `pair`, which is dropped after it.
    ring: Consumer<'static, T, Host>,
    /// Says that this is there, to the sender. `None` once nobody moves messages any more.
    // INVARIANT: as of `ring`, and not used.
    here: Option<Consumer<'static, T, Host>>,
    pub pair: Pair,
    /// The next message to be copied.
    sent: u64,
    /// The kernel's index, as last seen.
    head: u64,
    direct: Option<Direct>,
    flights: VecDeque<Flight>,
    /// Something has failed since `sent` was known to be true.
    in_doubt: bool,
}

/// Messages on their way.
struct Flight {
    first: Ticket,
    published: Ticket,
    /// The index after the last of them.
    end: u64,
}

impl<T: RingMessage> Up<T> {
    /// # Safety
    ///
    /// Nobody else is this near ring's consumer, or writes the far ring but for a kernel that consumes from it.
    pub unsafe fn new(near: Arc<Near>, far: Far, carrier: Carrier) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (ring, here) = unsafe { (near.consumer()?, near.consumer()?.announce()) };
        let start = ring.head();
        let pair = Pair::new(near, far, carrier);
        let (sent, head, direct) = (start, start, pair.direct(Line::Head, Line::Tail)?);
        Ok(Self { ring, here: Some(here), pair, sent, head, direct, flights: VecDeque::new(), in_doubt: false })
    }

    /// Messages that have not arrived at the far ring.
    pub fn pending(&self) -> u64 {
        self.ring.len()
    }

    /// Messages that were sent and that the kernel has not taken, as far as was looked. It may have taken some that are not known to have arrived.
    pub fn untaken(&self) -> u64 {
        self.ring.head().wrapping_add(self.ring.len()).wrapping_sub(self.head)
    }

    /// Where it is.
    pub const fn mark(&self) -> Mark {
        Mark { arrived: self.ring.head(), looks: self.pair.carrier.begun() }
    }

    /// Whether something has arrived since, or there was nothing to move, or no room by a look that was begun since.
    pub fn has_got_on(&self, since: Mark) -> bool {
        let has_found_none = || self.pending() == 0 || self.pair.carrier.has_looked_since(since.looks);
        self.ring.head() != since.arrived || !self.in_doubt && self.flights.is_empty() && has_found_none()
    }

    /// Looks how far the kernel is, or begins to, also where there is room.
    pub fn look(&mut self) -> Result<()> {
        if let Some(Direct { theirs, .. }) = self.direct {
            let head = self.pair.carrier.look_directly(theirs);
            return self.accept(head);
        }
        match self.pair.carrier.look(self.pair.far.read(Line::Head)?)? {
            Some(head) => self.accept(head),
            None => Ok(()),
        }
    }

    /// Says to the sender that nobody is here, and wakes it.
    pub fn leave(&mut self) {
        self.here = None;
        self.pair.near.wake();
    }

    /// Says that somebody is here again.
    pub fn come_back(&mut self) -> Result<()> {
        if self.here.is_none() {
            // SAFETY: it is used for nothing but to say so.
            self.here = Some(unsafe { self.pair.near.consumer()? }.announce());
        }
        Ok(())
    }

    /// Moves what waits and fits; how many messages it began to move, or moved.
    pub fn flush(&mut self) -> Result<u64> {
        let moved = self.try_flush();
        if moved.is_err() {
            self.pair.carrier.counts.failures.add(1);
        }
        moved
    }

    fn try_flush(&mut self) -> Result<u64> {
        self.resync()?;
        self.reap()?;
        self.ring.refresh().map_err(AttachError::Corrupt)?;
        let capacity = self.ring.capacity();
        let waiting = self.ring.head().wrapping_add(self.ring.available()).wrapping_sub(self.sent);
        if waiting == 0 {
            return Ok(0);
        }
        let mut free = capacity - self.sent.wrapping_sub(self.head);
        if free < waiting {
            self.look()?;
            free = capacity - self.sent.wrapping_sub(self.head);
        }
        let count = waiting.min(free);
        if count == 0 {
            self.pair.carrier.counts.full.add(1);
            return Ok(0);
        }
        self.send(count)?;
        Ok(count)
    }

    /// Takes note of the kernel's index, if it can be true.
    fn accept(&mut self, head: u64) -> Result<()> {
        if head.wrapping_sub(self.head) > self.sent.wrapping_sub(self.head) {
            return Err(AttachError::Corrupt(Corrupt { head, tail: self.sent, capacity: self.ring.capacity() }).into());
        }
        self.head = head;
        Ok(())
    }

    fn send(&mut self, count: u64) -> Result<()> {
        let Self { ring, pair: Pair { near, far, carrier }, sent, direct, .. } = self;
        let end = sent.wrapping_add(count);
        if let Some(Direct { near, far, ours, slot_size, .. }) = *direct {
            let slots = [*sent, count, ring.capacity(), slot_size];
            *sent = end;
            // SAFETY: as below.
            unsafe { carrier.send_directly(slots, [near, far], (ours, end)) };
            self.arrived(end);
            return Ok(());
        }
        let slots = [*sent, count, near.layout.capacity(), near.layout.slot_size()];
        carrier.counts.flushes.add(1);
        // Whatever fails from here on: how far it got, the far ring's tail says.
        self.in_doubt = true;
        let since = self.flights.front().map(|flight| flight.first);
        let index = (far.written(Line::Tail)?, end, since);
        // SAFETY: slots that were pushed and not released at the near ring; at the far ring, slots that its kernel has released and that are not published, and its
        // tail, which this alone writes. Both rings outlive what is queued: see `Pair`.
        let [first, published] = unsafe { carrier.send(slots, |index| Ok(near.slot(index)), |index| far.slot(index), index) }?;
        self.in_doubt = false;
        self.sent = end;
        match (first, published) {
            (Some(first), Some(published)) => self.flights.push_back(Flight { first, published, end }),
            _ => self.arrived(end),
        }
        Ok(())
    }

    /// Gives back the slots of what has arrived.
    fn reap(&mut self) -> Result<()> {
        while let Some(&Flight { published, end, .. }) = self.flights.front() {
            // Also where a clock of the user's panics: what had failed may have been told then.
            self.in_doubt = true;
            let is_over = self.pair.carrier.is_over(published)?;
            self.in_doubt = false;
            if !is_over {
                break;
            }
            self.flights.pop_front();
            self.arrived(end);
        }
        Ok(())
    }

    /// After a failure: goes back to what the far ring says has been published.
    fn resync(&mut self) -> Result<()> {
        if !self.in_doubt {
            return Ok(());
        }
        self.pair.carrier.settle();
        let published = self.pair.carrier.read_now(self.pair.far.written(Line::Tail)?)?;
        let waiting = self.ring.refresh().map_err(AttachError::Corrupt)?;
        let (known, capacity) = (self.ring.head(), self.ring.capacity());
        // It is a word of this side's, but in memory that the kernel can write: no more than was pushed, and no less than the kernel has taken.
        if published.wrapping_sub(known) > waiting || published.wrapping_sub(self.head) > capacity {
            return Err(AttachError::Corrupt(Corrupt { head: known, tail: published, capacity }).into());
        }
        self.flights.clear();
        self.arrived(published);
        (self.sent, self.in_doubt) = (published, false);
        Ok(())
    }

    fn arrived(&mut self, end: u64) {
        let count = end.wrapping_sub(self.ring.head()).min(self.ring.available());
        // SAFETY: available, by the line before, and their copies are over: nobody reads them any more.
        unsafe { self.ring.advance(count) };
        // SAFETY: this consumer is done with the slots before its head.
        let (word, head) = unsafe { self.ring.publication() };
        // Before the look for sleepers, which may wait until all is stored: what is read after it is waited for on top of that.
        self.pair.carrier.counts.messages.add(count);
        // SYNC POINT: slot released. Pairs with Producer::poll.
        word.store_release(head);
        self.pair.near.ring_at(&self.pair.near.header().consumer.waiting);
    }
}
