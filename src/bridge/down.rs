//! [`Down`]: from the device to the host.
//!
//! | index | who knows it | what it says |
//! |---|---|---|
//! | the near ring's tail | this | arrived: copied, and seen to be |
//! | `taken` | this | copied, or about to be |
//! | the far ring's head | its kernel | slots that it may fill again: written only for what has arrived, so a failed copy can be repeated |
//! | the far ring's tail | this, as last seen | published by the kernel |

use std::collections::VecDeque;
use std::sync::Arc;

use super::carrier::Carrier;
use super::far::{Far, Line};
use super::near::Near;
use super::pair::Pair;
use crate::attach::{AttachError, Corrupt};
use crate::backend::Ticket;
use crate::ring::spsc::Producer;
use crate::wait::wake_sleepers;
use crate::{Host, Result, RingMessage, Word};

pub(super) struct Down<T: RingMessage> {
    // INVARIANT: 'static stands for as long as `pair`, which is dropped after it.
    ring: Producer<'static, T, Host>,
    pub pair: Pair,
    /// The next message to be copied.
    taken: u64,
    /// The kernel's index, as last seen.
    tail: u64,
    /// What the far ring's head says, as far as is known: never more than it does.
    released: u64,
    releasing: Option<(Ticket, u64)>,
    flights: VecDeque<Flight>,
    /// A copy has failed: others of its flight may still be under way.
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
        let ring = unsafe { near.producer()? };
        let start = ring.tail();
        let pair = Pair::new(near, far, carrier);
        let (taken, tail, released) = (start, start, start);
        Ok(Self { ring, pair, taken, tail, released, releasing: None, flights: VecDeque::new(), in_doubt: false })
    }

    /// Messages that were seen at the far ring and have not arrived.
    pub fn pending(&self) -> u64 {
        self.tail.wrapping_sub(self.ring.tail())
    }

    /// Whether the kernel may fill every slot whose message has arrived.
    pub fn is_settled(&self) -> bool {
        self.released == self.ring.tail() && self.releasing.is_none()
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
            // What is under way writes slots that nobody else touches, but it must not do so after they are published.
            self.pair.carrier.settle();
            self.flights.clear();
            // Settling has told nobody what became of the release: it is done again.
            (self.taken, self.releasing, self.in_doubt) = (self.ring.tail(), None, false);
        }
        self.reap()?;
        if self.pair.carrier.is_queued() {
            // In front of the copies; what these bring arrives later.
            self.release()?;
            return self.fetch();
        }
        let fetched = self.fetch();
        // Also what a flush before had brought and could not release: one word for both.
        self.release()?;
        fetched
    }

    /// Copies what waits and fits, or begins to.
    fn fetch(&mut self) -> Result<()> {
        if let Some(tail) = self.pair.carrier.look(self.pair.far.read(Line::Tail)?)? {
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
        let Self { pair: Pair { near, far, carrier }, taken, .. } = self;
        let layout = &near.layout;
        carrier.counts.flushes.add(1);
        self.in_doubt = true;
        let slots = [*taken, count, layout.capacity(), layout.slot_size()];
        // SAFETY: slots that the kernel published and does not fill before they are released; at the near ring, slots that its consumer has released and that are not
        // published. Both rings outlive what is queued: see `Pair`.
        let copies = unsafe { carrier.slots(slots, |index| far.slot(index), |index| Ok(near.slot(index))) }?;
        self.in_doubt = false;
        self.taken = taken.wrapping_add(count);
        if copies == [None; 2] {
            self.arrived(self.taken);
        } else {
            self.flights.push_back(Flight { copies, end: self.taken });
        }
        Ok(())
    }

    /// Publishes what has arrived at the near ring.
    fn reap(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front_mut() {
            for copy in &mut flight.copies {
                let Some(ticket) = *copy else { continue };
                match self.pair.carrier.is_over(ticket) {
                    Ok(false) => return Ok(()),
                    Ok(true) => *copy = None,
                    Err(error) => {
                        self.in_doubt = true;
                        return Err(error);
                    }
                }
            }
            let end = flight.end;
            self.flights.pop_front();
            self.arrived(end);
        }
        Ok(())
    }

    /// Tells the kernel which slots it may fill again.
    fn release(&mut self) -> Result<()> {
        if let Some((ticket, upto)) = self.releasing {
            match self.pair.carrier.is_over(ticket) {
                Ok(false) => return Ok(()),
                Ok(true) => self.released = upto,
                // It may have been stored or not: it is stored again, or a later one.
                Err(error) => {
                    self.releasing = None;
                    return Err(error);
                }
            }
            self.releasing = None;
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
        // SYNC POINT: slot published. Pairs with Consumer::poll.
        word.store_release(tail);
        wake_sleepers(&self.pair.near.header().producer.waiting);
        self.pair.carrier.counts.messages.add(count);
    }
}
