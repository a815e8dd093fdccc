//! [`Down`]: from the device to the host.
//!
//! | index | who knows it | what it says |
//! |---|---|---|
//! | the near ring's tail | this | arrived: copied, and seen to be |
//! | `taken` | this | copied, or about to be |
//! | the far ring's head | its kernel | slots that it may fill again: written after their copies, so a failed copy can be repeated |
//! | the far ring's tail | this, as last seen | published by the kernel |

use std::collections::VecDeque;
use std::sync::Arc;

use super::Mark;
use super::carrier::Carrier;
use super::far::{Far, Line};
use super::near::Near;
use super::pair::{Direct, Pair};
use crate::attach::{AttachError, Corrupt};
use crate::backend::Ticket;
use crate::ring::spsc::Producer;
use crate::{Host, Result, RingMessage, Word};

pub(super) struct Down<T: RingMessage> {
    // INVARIANT: 'static stands for as long as `pair`, which is dropped after it.
    ring: Producer<'static, T, Host>,
    /// Says that this is there, to the receiver. `None` once nobody moves messages any more.
    // INVARIANT: as of `ring`, and not used.
    here: Option<Producer<'static, T, Host>>,
    pub pair: Pair,
    /// The next message to be copied.
    taken: u64,
    /// The kernel's index, as last seen.
    tail: u64,
    /// What the far ring's head says, as far as is known: never more than it does.
    released: u64,
    releasing: Option<(Ticket, u64)>,
    direct: Option<Direct>,
    flights: VecDeque<Flight>,
    /// Something has failed since `taken` was known to be true: other copies of its flight may still be under way.
    in_doubt: bool,
}

/// Messages on their way.
struct Flight {
    copies: [Option<Ticket>; 2],
    /// The index after the last of them.
    end: u64,
}

impl<T: RingMessage> Down<T> {
    /// # Safety
    ///
    /// Nobody else is this near ring's producer, or writes the far ring but for a kernel that produces into it.
    pub unsafe fn new(near: Arc<Near>, far: Far, carrier: Carrier) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (ring, here) = unsafe { (near.producer()?, near.producer()?.announce()) };
        let start = ring.tail();
        let pair = Pair::new(near, far, carrier);
        let direct = pair.direct(Line::Tail, Line::Head)?;
        let (taken, tail, released) = (start, start, start);
        Ok(Self { ring, here: Some(here), pair, taken, tail, released, releasing: None, direct, flights: VecDeque::new(), in_doubt: false })
    }

    /// Slots of each of the two rings.
    pub const fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    /// Messages that were seen at the far ring and have not arrived.
    pub fn pending(&self) -> u64 {
        self.tail.wrapping_sub(self.ring.tail())
    }

    /// Whether the kernel may fill every slot whose message has arrived.
    pub fn is_settled(&self) -> bool {
        self.released == self.ring.tail() && self.releasing.is_none()
    }

    /// Where it is.
    pub const fn mark(&self) -> Mark {
        Mark { arrived: self.ring.tail(), looks: self.pair.carrier.begun() }
    }

    /// Whether something has arrived since, or there was nothing to move, or no room, by a look that was begun since, and nothing to give back.
    pub fn has_got_on(&self, since: Mark) -> bool {
        let has_looked = || self.pair.carrier.has_looked_since(since.looks);
        self.ring.tail() != since.arrived || !self.in_doubt && self.flights.is_empty() && self.is_settled() && has_looked()
    }

    /// Says to the receiver that nobody is here, and wakes it.
    pub fn leave(&mut self) {
        self.here = None;
        self.pair.near.wake();
    }

    /// Says that somebody is here again.
    pub fn come_back(&mut self) -> Result<()> {
        if self.here.is_none() {
            // SAFETY: it is used for nothing but to say so.
            self.here = Some(unsafe { self.pair.near.producer()? }.announce());
        }
        Ok(())
    }

    /// Moves what waits and fits; how many messages have arrived.
    pub fn flush(&mut self) -> Result<u64> {
        let before = self.ring.tail();
        let moved = self.try_flush();
        if moved.is_err() {
            self.pair.carrier.counts.failures.add(1);
        }
        moved.map(|()| self.ring.tail().wrapping_sub(before))
    }

    fn try_flush(&mut self) -> Result<()> {
        if self.in_doubt {
            self.resync()?;
        }
        if self.pair.carrier.is_queued() {
            self.reap()?;
            // In front of the copies; what these bring arrives later.
            self.release()?;
        }
        self.fetch()
    }

    /// Copies what waits and fits, or begins to.
    fn fetch(&mut self) -> Result<()> {
        let seen = match self.direct {
            Some(Direct { theirs, .. }) => Some(self.pair.carrier.look_directly(theirs)),
            None => self.pair.carrier.look(self.pair.far.read(Line::Tail)?)?,
        };
        if let Some(tail) = seen {
            self.accept(tail)?;
        }
        let waiting = self.tail.wrapping_sub(self.taken);
        if waiting == 0 {
            return Ok(());
        }
        let under_way = self.taken.wrapping_sub(self.ring.tail());
        if self.ring.free() - under_way < waiting {
            self.ring.refresh().map_err(AttachError::Corrupt)?;
        }
        let count = waiting.min(self.ring.free() - under_way);
        if count == 0 {
            self.pair.carrier.counts.full.add(1);
            return Ok(());
        }
        self.receive(count)
    }

    /// Takes note of the kernel's index, if it can be true.
    fn accept(&mut self, tail: u64) -> Result<()> {
        let capacity = self.ring.capacity();
        // What was published is not taken back, and is not more than there are slots that the kernel was given.
        if tail.wrapping_sub(self.tail) > capacity || tail.wrapping_sub(self.ring.tail()) > capacity {
            return Err(AttachError::Corrupt(Corrupt { head: self.ring.tail(), tail, capacity }).into());
        }
        self.tail = tail;
        Ok(())
    }

    fn receive(&mut self, count: u64) -> Result<()> {
        let Self { pair: Pair { near, far, carrier }, taken, direct, .. } = self;
        let layout = &near.layout;
        let slots = [*taken, count, layout.capacity(), layout.slot_size()];
        let end = taken.wrapping_add(count);
        *taken = end;
        if let Some(Direct { near, far, ours, .. }) = *direct {
            // SAFETY: as below.
            unsafe { carrier.send_directly(slots, [far, near], (ours, end)) };
            self.released = end;
            self.arrived(end);
            return Ok(());
        }
        carrier.counts.flushes.add(1);
        self.in_doubt = true;
        if carrier.is_queued() {
            // SAFETY: slots that the kernel published and does not fill before they are released; at the near ring, slots that its consumer has released and that are
            // not published. Both rings outlive what is queued: see `Pair`.
            let copies = unsafe { carrier.slots(slots, |index| far.slot(index), |index| Ok(near.slot(index))) }?;
            self.flights.push_back(Flight { copies, end });
        } else {
            let index = (far.written(Line::Head)?, end, None);
            // SAFETY: as above; the far ring's head, which this alone writes.
            unsafe { carrier.send(slots, |index| far.slot(index), |index| Ok(near.slot(index)), index) }?;
            self.released = end;
            self.arrived(end);
        }
        self.in_doubt = false;
        Ok(())
    }

    /// After a failure: goes back to what has arrived.
    fn resync(&mut self) -> Result<()> {
        // What is under way writes slots that nobody else touches, but it must not do so after they are published.
        self.pair.carrier.settle();
        self.flights.clear();
        if !self.pair.carrier.is_queued() {
            let released = self.pair.carrier.read_now(self.pair.far.written(Line::Head)?)?;
            // It comes after the copies: where it is stored, they were made, whatever was said of the call. It is a word of this side's, but in memory that the kernel
            // can write: it says one or the other.
            if released == self.taken {
                self.released = released;
                self.arrived(released);
            } else if released != self.released {
                let corrupt = Corrupt { head: released, tail: self.tail, capacity: self.ring.capacity() };
                return Err(AttachError::Corrupt(corrupt).into());
            }
        }
        // Settling has told nobody what became of a release that was queued: it is done again.
        (self.taken, self.releasing, self.in_doubt) = (self.ring.tail(), None, false);
        Ok(())
    }

    /// Publishes what has arrived at the near ring.
    fn reap(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front_mut() {
            for copy in &mut flight.copies {
                let Some(ticket) = *copy else { continue };
                // Also where a clock of the user's panics: what had failed may have been told then.
                self.in_doubt = true;
                let is_over = self.pair.carrier.is_over(ticket)?;
                self.in_doubt = false;
                if !is_over {
                    return Ok(());
                }
                *copy = None;
            }
            let end = flight.end;
            self.flights.pop_front();
            self.arrived(end);
        }
        Ok(())
    }

    /// Tells the kernel which slots it may fill again, where copies are queued.
    fn release(&mut self) -> Result<()> {
        // Where it fails, or a clock of the user's panics, it may have been stored or not: it is stored again, or a later one.
        if let Some((ticket, upto)) = self.releasing.take() {
            if !self.pair.carrier.is_over(ticket)? {
                self.releasing = Some((ticket, upto));
                return Ok(());
            }
            self.released = upto;
        }
        let upto = self.ring.tail();
        if upto == self.released {
            return Ok(());
        }
        // SAFETY: the far ring's head, which this alone writes.
        match unsafe { self.pair.carrier.publish(self.pair.far.written(Line::Head)?, upto, None) }? {
            Some(ticket) => self.releasing = Some((ticket, upto)),
            None => self.released = upto,
        }
        Ok(())
    }

    fn arrived(&mut self, end: u64) {
        let count = end.wrapping_sub(self.ring.tail()).min(self.ring.free());
        // SAFETY: free, by the line before, and copied into, which is over.
        unsafe { self.ring.advance(count) };
        // SAFETY: this producer is done with the slots before its tail.
        let (word, tail) = unsafe { self.ring.publication() };
        // Before the look for sleepers, as in `Up`.
        self.pair.carrier.counts.messages.add(count);
        // SYNC POINT: slot published. Pairs with Consumer::poll.
        word.store_release(tail);
        self.pair.near.ring_at(&self.pair.near.header().producer.waiting);
    }
}
