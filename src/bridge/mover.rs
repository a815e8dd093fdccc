//! [`Mover`]: moves the messages of one direction between its two rings.
//!
//! | index | towards the device | towards the host |
//! |---|---|---|
//! | the near ring's own (`ring`) | head: arrived at the far ring, slots released to the sender | tail: arrived at the near ring, published to the receiver |
//! | `next` | copied, and published or about to be | copied, or about to be |
//! | `seen` | the far ring's head as last polled: popped by the kernel | the far ring's tail as last polled: published by the kernel |
//! | the far ring's other index | tail: published to the kernel after the copies | head: released to the kernel after the copies |
//!
//! Only the bridge writes the other index, so it shows a failed call's outcome.

use std::collections::VecDeque;
use std::sync::Arc;

use super::carrier::Carrier;
use super::end::NearEnd;
use super::far::{Far, Line};
use super::near::Near;
use super::pair::{Direct, Pair};
use crate::attach::{AttachError, Corrupt};
use crate::backend::{StreamId, Ticket};
use crate::{Error, Result, Word};

pub(super) struct Mover<E: NearEnd> {
    // INVARIANT: 'static stands for as long as `pair`, dropped after it.
    ring: E,
    // INVARIANT: as of `ring`; not used.
    here: Option<E>,
    pub pair: Pair,
    next: u64,
    seen: u64,
    /// A lower bound of the far ring's head, if queued copies precede its store.
    released: u64,
    releasing: Option<(Ticket, u64)>,
    direct: Option<Direct>,
    flights: VecDeque<Flight>,
    /// After a failure, copies up to `next` may be in flight.
    in_doubt: bool,
    failing: Failing,
}

struct Flight {
    first: Option<Ticket>,
    left: [Option<Ticket>; 2],
    end: u64,
}

#[derive(Clone, Copy, Default)]
struct Failing {
    count: u32,
    index: u64,
    polls: u64,
}

impl<E: NearEnd> Mover<E> {
    /// # Safety
    ///
    /// Exclusive use of this end of the near ring and, with the kernel, of the far ring.
    pub unsafe fn new(near: Arc<Near>, far: Far, carrier: Carrier) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (ring, here) = unsafe { (E::attach(&near)?, E::attach(&near)?.announced()) };
        let start = ring.index();
        let pair = Pair::new(near, far, carrier);
        let direct = pair.direct(E::THEIRS, E::OURS)?;
        Ok(Self {
            ring,
            here: Some(here),
            pair,
            next: start,
            seen: start,
            released: start,
            releasing: None,
            direct,
            flights: VecDeque::new(),
            in_doubt: false,
            failing: Failing::default(),
        })
    }

    pub fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    pub fn pending(&self) -> u64 {
        let end = if E::TO_DEVICE { self.pair.near.header().producer.tail.load_acquire() } else { self.seen };
        end.wrapping_sub(self.ring.index()).min(self.ring.capacity())
    }

    /// As last polled; some may not have arrived.
    pub fn untaken(&self) -> usize {
        self.ring.index().wrapping_add(self.pending()).wrapping_sub(self.seen) as usize
    }

    pub fn is_settled(&self) -> bool {
        !self.releases_later() || self.released == self.ring.index() && self.releasing.is_none()
    }

    const fn releases_later(&self) -> bool {
        !E::TO_DEVICE && self.pair.carrier.is_queued()
    }

    pub const fn failing(&self) -> u32 {
        self.failing.count
    }

    pub fn forget_failures(&mut self) {
        self.failing = Failing::default();
    }

    pub fn leave(&mut self) {
        self.here = None;
        self.pair.near.wake();
    }

    pub fn come_back(&mut self) -> Result<()> {
        if self.here.is_none() {
            // SAFETY: only announced.
            self.here = Some(unsafe { E::attach(&self.pair.near)? }.announced());
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<u64> {
        let before = self.ring.index();
        let flushed = self.try_flush();
        match flushed {
            Err(_) => {
                self.pair.carrier.counts.failures.add(1);
                let (count, polls) = (self.failing.count.saturating_add(1), self.pair.carrier.begun());
                self.failing = Failing { count, index: self.ring.index(), polls };
            }
            Ok(_) if self.failing.count > 0 && self.has_progressed() => self.failing.count = 0,
            Ok(_) => {}
        }
        flushed.map(|begun| if E::TO_DEVICE { begun } else { self.ring.index().wrapping_sub(before) })
    }

    /// Messages arrived since the last failure, or a later poll had nothing to move or no room; waiting is no progress.
    fn has_progressed(&self) -> bool {
        let Failing { index, polls, .. } = self.failing;
        let is_idle = || E::TO_DEVICE && self.pending() == 0 || self.pair.carrier.has_polled_since(polls);
        self.ring.index() != index || !self.in_doubt && self.flights.is_empty() && self.is_settled() && is_idle()
    }

    fn try_flush(&mut self) -> Result<u64> {
        if self.in_doubt {
            self.resync()?;
        }
        if let Some(stream) = self.pair.carrier.queue() {
            self.reap()?;
            if !E::TO_DEVICE {
                self.release(stream)?;
            }
        }
        self.poll(Line::Tail)?;
        let waiting = self.known(Line::Tail).wrapping_sub(self.next);
        if waiting == 0 {
            return Ok(0);
        }
        if self.room() < waiting {
            self.poll(Line::Head)?;
        }
        let count = waiting.min(self.room());
        if count == 0 {
            self.pair.carrier.counts.full.add(1);
            return Ok(0);
        }
        self.send(count)?;
        Ok(count)
    }

    fn room(&self) -> u64 {
        self.ring.capacity() - self.next.wrapping_sub(self.known(Line::Head))
    }

    fn known(&self, line: Line) -> u64 {
        match line {
            _ if line == E::THEIRS => self.seen,
            Line::Tail => self.ring.index().wrapping_add(self.ring.usable()),
            Line::Head => self.ring.index().wrapping_add(self.ring.usable()).wrapping_sub(self.ring.capacity()),
        }
    }

    pub fn poll(&mut self, line: Line) -> Result<()> {
        if line != E::THEIRS {
            return self.ring.refresh().map_err(|corrupt| AttachError::Corrupt(corrupt).into());
        }
        let polled = match self.direct {
            Some(Direct { theirs, .. }) => Some(self.pair.carrier.poll_directly(theirs)),
            None => self.pair.carrier.poll(self.pair.far.read(line)?)?,
        };
        polled.map_or(Ok(()), |index| self.accept(index))
    }

    fn accept(&mut self, index: u64) -> Result<()> {
        let [from_seen, from_near] = [self.seen, self.ring.index()].map(|known| index.wrapping_sub(known));
        if E::TO_DEVICE && from_seen > self.next.wrapping_sub(self.seen) {
            return Err(self.corrupt(index, self.next));
        }
        if !E::TO_DEVICE && from_seen.max(from_near) > self.ring.capacity() {
            return Err(self.corrupt(self.ring.index(), index));
        }
        self.seen = index;
        Ok(())
    }

    fn corrupt(&self, head: u64, tail: u64) -> Error {
        AttachError::Corrupt(Corrupt { head, tail, capacity: self.ring.capacity() }).into()
    }

    fn send(&mut self, count: u64) -> Result<()> {
        let Self { ring, pair: Pair { near, far, carrier }, next, direct, flights, .. } = self;
        let (start, end) = (*next, next.wrapping_add(count));
        *next = end;
        if let Some(Direct { near, far, ours, slot_size, .. }) = *direct {
            let ends = if E::TO_DEVICE { [near, far] } else { [far, near] };
            // SAFETY: as below.
            unsafe { carrier.send_directly([start, count, ring.capacity(), slot_size], ends, (ours, end)) };
            self.arrived(end);
            return Ok(());
        }
        let slots = [start, count, near.layout.capacity(), near.layout.slot_size()];
        let slot = |is_far: bool, index| if is_far { far.slot(index) } else { Ok(near.slot(index)) };
        let (from, to) = (|index| slot(!E::TO_DEVICE, index), |index| slot(E::TO_DEVICE, index));
        carrier.counts.flushes.add(1);
        self.in_doubt = true;
        let queue = carrier.queue();
        let tickets = if let (Some(stream), false) = (queue, E::TO_DEVICE) {
            // SAFETY: here published to the bridge and not released; there released to it and not published. `Pair` keeps both rings.
            unsafe { carrier.slots(stream, slots, from, to) }
        } else {
            let index = (far.written(E::OURS)?, end, flights.front().and_then(|flight| flight.first));
            // SAFETY: as above; only the bridge writes this index.
            unsafe { carrier.send(slots, from, to, index) }
        }?;
        self.in_doubt = false;
        if queue.is_some() {
            let left = if E::TO_DEVICE { [tickets[1], None] } else { tickets };
            flights.push_back(Flight { first: tickets[0], left, end });
        } else {
            self.arrived(end);
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front_mut() {
            for left in &mut flight.left {
                let Some(ticket) = *left else { continue };
                // A user's clock may panic.
                self.in_doubt = true;
                let is_over = self.pair.carrier.is_over(ticket)?;
                self.in_doubt = false;
                if !is_over {
                    return Ok(());
                }
                *left = None;
            }
            let end = flight.end;
            self.flights.pop_front();
            self.arrived(end);
        }
        Ok(())
    }

    fn resync(&mut self) -> Result<()> {
        // Copies in flight must not write slots passed on.
        self.pair.carrier.settle();
        let index = self.ring.index();
        let arrived = if self.releases_later() {
            self.releasing = None;
            index
        } else {
            // Stored after the copies. The kernel can overwrite it: only the bridge's values are valid.
            let stored = self.pair.carrier.read_now(self.pair.far.written(E::OURS)?)?;
            let is_ours = stored == index || stored == self.next || self.flights.iter().any(|flight| flight.end == stored);
            if !is_ours || E::TO_DEVICE && stored.wrapping_sub(self.seen) > self.ring.capacity() {
                return Err(if E::TO_DEVICE { self.corrupt(index, stored) } else { self.corrupt(stored, self.seen) });
            }
            stored
        };
        self.flights.clear();
        self.arrived(arrived);
        (self.next, self.in_doubt) = (arrived, false);
        Ok(())
    }

    fn release(&mut self, stream: StreamId) -> Result<()> {
        // After a failure or a panic, the index is stored again.
        if let Some((ticket, upto)) = self.releasing.take() {
            if !self.pair.carrier.is_over(ticket)? {
                self.releasing = Some((ticket, upto));
                return Ok(());
            }
            self.released = upto;
        }
        let upto = self.ring.index();
        if upto != self.released {
            let word = self.pair.far.written(E::OURS)?;
            // SAFETY: only the bridge writes this index.
            self.releasing = Some((unsafe { self.pair.carrier.publish(stream, (word, upto, None)) }?, upto));
        }
        Ok(())
    }

    fn arrived(&mut self, end: u64) {
        let count = end.wrapping_sub(self.ring.index()).min(self.ring.usable());
        // Before the check for sleepers, which waits for all stores.
        self.pair.carrier.counts.messages.add(count);
        // SAFETY: usable, and the copies are complete.
        unsafe { self.ring.pass(count) };
        let header = self.pair.near.header();
        self.pair.near.ring_at(if E::TO_DEVICE { &header.consumer.waiting } else { &header.producer.waiting });
    }
}
