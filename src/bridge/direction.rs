//! [`Direction`]: one direction of a bridge; [`Transfer`]: how messages get from its host ring to its device ring, or back.
//!
//! With a shared ring there is no transfer: the user's end and the kernel use the host ring. Otherwise the bridge is the consumer of the first ring and
//! the producer of the second.
//!
//! # Indices
//!
//! | index | towards the device | towards the host |
//! |---|---|---|
//! | the own index of the bridge's end (`own`) | head: arrived at the device ring, slots released to the sender | tail: arrived at the host ring, published to the receiver |
//! | `next` | copied, and published or about to be | copied, or about to be |
//! | `seen` | the device ring's head as last polled: popped by the kernel | the device ring's tail as last polled: published by the kernel |
//! | the device ring's index that the bridge writes | tail: published to the kernel after the copies | head: released to the kernel after the copies |
//!
//! INVARIANT: towards the device, `own` and `seen` are at most `next`; `next` is at most `own` + capacity, `seen` + capacity, and the sender's tail. `seen` may
//! be ahead of `own`: the kernel can pop messages before the bridge finds their copies complete. Towards the host, `own` <= `next` <= `seen` <= `own` +
//! capacity, and the kernel's ring is released up to `next` at most. (Indices are free-running: <= means "at most capacity behind".)
//! Unless `in_doubt`, the flights follow each other without a gap, the first from `own`, the last to `next`; without flights `own` is `next`. With `in_doubt`,
//! `next` may be beyond the last flight, by the span of the failed `send`.
//! A value of the kernel that breaks this is refused as corrupt and not stored: every copy stays within the rings.
//!
//! # A flush
//!
//! 1. After a failure that leaves messages in doubt, [`resync`](Transfer::resync) finds out which have arrived. (Failed polls and failed releases of slots do
//!    not, nor stores of the host to mapped rings, which cannot fail.)
//! 2. Queued copies that are complete are passed on: their slots are released to the sender, or published to the receiver. In the same way, towards the
//!    host, the kernel gets its slots back. Before that, neither may reuse them, since the copies may still read or write them.
//! 3. The tail of the first ring is polled; without new messages, the flush ends.
//! 4. If the known room does not suffice, the head of the second ring is polled: about once per lap of the ring, if its consumer keeps up, instead of once per
//!    flush.
//! 5. The copies begin, and the store of the index, which towards the host waits for step 2 if the copies are queued. Blocking ones have arrived; queued ones
//!    become a [`Flight`], for a later step 2.
//!
//! A flush that fails may have passed messages on in step 2: their slots are released or published, and they are counted, but the error hides their number.
//!
//! # Failures
//!
//! A failed call leaves unknown which copies and stores happen. `in_doubt` is set before the calls and cleared after them, so an error or a panic in between
//! leaves it set, and the next flush begins with `resync`: it waits until no copy is in flight (`settle`; without an answer of the driver it
//! goes on: copies that are still in flight come before the repeated ones, which copy the same), then reads the index word in the device ring. The bridge alone
//! writes that word, after the copies, so its value tells how much has arrived; it must be a value that the bridge can have written. Towards the host with
//! queued copies, that word is stored later than the arrival, and what has arrived is the bridge's own index: all later copies are repeated. A failed store of
//! the released head needs no such step: the next flush stores it again. So no message is lost or duplicated. [`failing`](Transfer::failing) counts failed
//! flushes until one shows progress; a pump gives up by it, and so does a channel.

use core::mem::ManuallyDrop;
use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::Arc;

use super::device_ring::{DeviceRing, IndexWord, Line, RingAddresses};
use super::host_ring::{HostEnd, HostRing};
use super::metrics::{Count, Counts, Metrics};
use super::options::Placement;
use super::strategy::TransferStrategy;
use super::transport::{IndexStore, Mapped, Span, Transport};
use crate::attach::{AttachError, Corrupt};
use crate::backend::{Address, Backend, Ticket, Uses};
use crate::dump::Indices;
use crate::sys::barrier::{Barrier, Full};
use crate::{Error, Result, Word};

/// One direction of a bridge.
pub(super) struct Direction<E: HostEnd> {
    pub host: Arc<HostRing>,
    pub counts: Arc<Counts>,
    /// `None` for a shared ring.
    pub transfer: Option<Transfer<E>>,
    /// The ring's first index.
    start: u64,
}

impl<E: HostEnd> Direction<E> {
    /// # Safety
    ///
    /// Once for a ring; the other end is the user's.
    pub unsafe fn open(
        backend: &Arc<dyn Backend>,
        device: u32,
        strategy: TransferStrategy,
        placement: Placement,
        host: Arc<HostRing>,
        start: u64,
    ) -> Result<Self> {
        let counts = Arc::<Counts>::default();
        let mut direction = Self { host, counts, transfer: None, start };
        if !strategy.shares() {
            let device_ring = DeviceRing::new::<E::Message>(backend, device, placement, direction.host.layout.capacity(), start)?;
            let mapped = || Rings::mapped(&direction.host, &device_ring, E::THEIRS, E::OURS);
            let transport = Transport::new(backend, device, strategy, Arc::clone(&direction.counts), mapped)?;
            // SAFETY: the caller promises that the other end of the host ring is the user's; that of the new device ring is the kernel's.
            direction.transfer = Some(unsafe { Transfer::new(Arc::clone(&direction.host), device_ring, transport) }?);
        }
        Ok(direction)
    }

    pub fn addresses(&self) -> Result<RingAddresses> {
        if let Some(transfer) = &self.transfer {
            return transfer.rings.device.addresses();
        }
        let own = self.host.pages.address()?.get();
        Ok(RingAddresses { own, peer: own, slots: own + self.host.layout.slots_offset() })
    }

    /// Keeps the kernel's ring until a launch is complete.
    pub fn used(&mut self, backend: &dyn Backend, ticket: Ticket) -> Result<()> {
        match &mut self.transfer {
            Some(transfer) => transfer.rings.device.used(ticket)?,
            None => backend.keep(Box::new(Arc::clone(&self.host)), &Uses::of(ticket), None),
        }
        Ok(())
    }

    /// Moves messages; returns the number of those whose copies began, towards the device, or that arrived, towards the host. For a shared ring: orders
    /// the host's earlier stores before its later loads; returns the messages in the ring.
    pub fn flush(&mut self) -> Result<u64> {
        if let Some(transfer) = &mut self.transfer {
            return transfer.flush();
        }
        fenced::<Full>(&self.counts.fences);
        let Indices { head, tail, capacity } = self.indices();
        // For a pump, which has the counters alone.
        self.counts.messages.set(tail.wrapping_sub(self.start));
        Ok(tail.wrapping_sub(head).min(capacity))
    }

    /// In a shared ring a message has arrived once it is published: the ring's index counts them, flushed or not.
    pub fn metrics(&self) -> Metrics {
        let counted = self.counts.read();
        match self.transfer {
            Some(_) => counted,
            None if !self.host.is_here() => counted,
            None => Metrics { messages: self.indices().tail.wrapping_sub(self.start), ..counted },
        }
    }

    pub fn pending(&self) -> u64 {
        self.transfer.as_ref().map_or(0, Transfer::pending)
    }

    pub fn failing(&self) -> u32 {
        self.transfer.as_ref().map_or(0, Transfer::failing)
    }

    pub fn indices(&self) -> Indices {
        self.host.indices::<E::Message>()
    }
}

/// Moves messages between a host ring and a device ring. The module documentation has the states and the steps.
pub(super) struct Transfer<E: HostEnd> {
    /// The bridge's end of the host ring.
    // INVARIANT: 'static stands for the lifetime of `rings`, which is dropped after it.
    bridge_end: E,
    /// A second end that only announces the bridge's presence to the user's end; `None` after the bridge has given up.
    // INVARIANT: as that of `bridge_end`.
    announced: Option<E>,
    pub rings: Rings,
    next: u64,
    seen: u64,
    /// Towards the host, with queued copies: the device ring's head, as far as it is known to be stored. At most the value of `releasing`, which is at most
    /// `own`. A failed store or query leaves it behind the stored head, which is stored again.
    released: u64,
    /// The queued store of that head, and its value.
    releasing: Option<(Ticket, u64)>,
    /// Queued copies that are not known to be complete, oldest first.
    flights: VecDeque<Flight>,
    /// A call has failed or panicked: copies up to `next` may be in flight, and it is unknown what has arrived.
    in_doubt: bool,
    failing: Failing,
}

/// The queued operations of one flush.
struct Flight {
    /// The first copy: if it fails, no later index is stored.
    first: Option<Ticket>,
    /// Operations that must complete before the messages have arrived: the store towards the device, the copies towards the host.
    left: [Option<Ticket>; 2],
    /// The index after the flight's messages.
    upto: u64,
}

/// Failed flushes since the last progress, with own index and number of polls at the last failure.
#[derive(Clone, Copy, Default)]
struct Failing {
    count: u32,
    index: u64,
    polls: u64,
}

impl<E: HostEnd> Transfer<E> {
    /// # Safety
    ///
    /// The bridge's end of the host ring, and all of the device ring except for the kernel's end, are this transfer's alone.
    pub unsafe fn new(host: Arc<HostRing>, device: DeviceRing, transport: Transport) -> Result<Self> {
        // SAFETY: the caller promises that no other end is used here; the second one is only announced.
        let (bridge_end, announced) = unsafe { (E::attach(&host)?, E::attach(&host)?.announced()) };
        let start = bridge_end.index();
        Ok(Self {
            bridge_end,
            announced: Some(announced),
            rings: Rings { host, device: ManuallyDrop::new(device), transport },
            next: start,
            seen: start,
            released: start,
            releasing: None,
            flights: VecDeque::new(),
            in_doubt: false,
            failing: Failing::default(),
        })
    }

    pub fn capacity(&self) -> u64 {
        self.bridge_end.capacity()
    }

    pub fn pending(&self) -> u64 {
        if !self.rings.host.is_here() {
            return 0;
        }
        let end = if E::TO_DEVICE { self.rings.host.header().producer.tail.load_acquire() } else { self.seen };
        end.wrapping_sub(self.bridge_end.index()).min(self.bridge_end.capacity())
    }

    /// Messages that the kernel had not popped at the last poll; some may not have arrived.
    pub fn untaken(&self) -> usize {
        self.bridge_end.index().wrapping_add(self.pending()).wrapping_sub(self.seen) as usize
    }

    /// Returns true if the kernel has got back all slots of arrived messages.
    pub fn is_settled(&self) -> bool {
        !self.releases_later() || self.released == self.bridge_end.index() && self.releasing.is_none()
    }

    /// Towards the host with queued copies: slots are released by a store of its own, after the copies.
    const fn releases_later(&self) -> bool {
        !E::TO_DEVICE && self.rings.transport.is_queued()
    }

    pub const fn failing(&self) -> u32 {
        self.failing.count
    }

    pub fn forget_failures(&mut self) {
        self.failing = Failing::default();
    }

    /// Disconnects the user's end, which wakes.
    pub fn disconnect(&mut self) {
        self.announced = None;
        self.rings.host.wake();
    }

    pub fn reconnect(&mut self) -> Result<()> {
        if self.announced.is_none() {
            // SAFETY: this end is only announced, and not used.
            self.announced = Some(unsafe { E::attach(&self.rings.host)? }.announced());
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<u64> {
        let before = self.bridge_end.index();
        let flushed = self.try_flush();
        match flushed {
            Err(_) => {
                self.rings.transport.counts.failures.add(1);
                let (count, polls) = (self.failing.count.saturating_add(1), self.rings.transport.begun());
                self.failing = Failing { count, index: self.bridge_end.index(), polls };
            }
            Ok(_) if self.failing.count > 0 && self.has_progressed() => self.failing.count = 0,
            Ok(_) => {}
        }
        flushed.map(|begun| if E::TO_DEVICE { begun } else { self.bridge_end.index().wrapping_sub(before) })
    }

    /// Returns true if messages have arrived since the last failure, or a poll that began after it had nothing to move or no room. A flush that only waits
    /// for operations in flight is no progress: they may fail too.
    fn has_progressed(&self) -> bool {
        let Failing { index, polls, .. } = self.failing;
        let is_idle = || E::TO_DEVICE && self.pending() == 0 || self.rings.transport.has_polled_since(polls);
        self.bridge_end.index() != index || !self.in_doubt && self.flights.is_empty() && self.is_settled() && is_idle()
    }

    fn try_flush(&mut self) -> Result<u64> {
        if self.in_doubt {
            self.resync()?;
        }
        if self.rings.transport.is_queued() {
            self.reap()?;
            if !E::TO_DEVICE {
                self.release()?;
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
            self.rings.transport.counts.full.add(1);
            return Ok(0);
        }
        self.send(count)?;
        Ok(count)
    }

    fn room(&self) -> u64 {
        self.bridge_end.capacity() - self.next.wrapping_sub(self.known(Line::Head))
    }

    fn known(&self, line: Line) -> u64 {
        match line {
            _ if line == E::THEIRS => self.seen,
            Line::Tail => self.bridge_end.index().wrapping_add(self.bridge_end.usable()),
            Line::Head => self.bridge_end.index().wrapping_add(self.bridge_end.usable()).wrapping_sub(self.bridge_end.capacity()),
        }
    }

    pub fn poll(&mut self, line: Line) -> Result<()> {
        if line != E::THEIRS {
            return self.bridge_end.refresh().map_err(|corrupt| AttachError::Corrupt(corrupt).into());
        }
        let Rings { device, transport, .. } = &mut self.rings;
        transport.poll(|| device.read(line))?.map_or(Ok(()), |index| self.accept(index))
    }

    /// Takes an index of the kernel over, unless it breaks the invariant.
    fn accept(&mut self, index: u64) -> Result<()> {
        let [from_seen, from_end] = [self.seen, self.bridge_end.index()].map(|known| index.wrapping_sub(known));
        if E::TO_DEVICE && from_seen > self.next.wrapping_sub(self.seen) {
            return Err(self.corrupt(index, self.next));
        }
        if !E::TO_DEVICE && from_seen.max(from_end) > self.bridge_end.capacity() {
            return Err(self.corrupt(self.bridge_end.index(), index));
        }
        self.seen = index;
        Ok(())
    }

    fn corrupt(&self, head: u64, tail: u64) -> Error {
        AttachError::Corrupt(Corrupt { head, tail, capacity: self.bridge_end.capacity() }).into()
    }

    /// Begins to move `count` messages, which are present at the first ring and have room at the second.
    fn send(&mut self, count: u64) -> Result<()> {
        let Self { rings: Rings { host, device, transport }, next, flights, .. } = self;
        let span = Span { start: *next, count, capacity: host.layout.capacity(), slot_size: host.layout.slot_size() };
        *next = span.end();
        if let Some(mapped) = transport.mapped() {
            // SAFETY: `mapped` is of this transport. By the invariant of the indices, the source's slots are published to the bridge and
            // not yet released, and the target's released to it and not yet published: neither the kernel nor the user's end accesses them.
            unsafe { transport.send_mapped(mapped, span, E::TO_DEVICE) };
            self.arrived(span.end());
            return Ok(());
        }
        let slot = |is_device: bool, index| if is_device { device.slot(index) } else { Ok(host.slot(index)) };
        let (from, to) = (|index| slot(!E::TO_DEVICE, index), |index| slot(E::TO_DEVICE, index));
        transport.counts.flushes.add(1);
        self.in_doubt = true;
        let since = flights.front().and_then(|flight| flight.first);
        let index = IndexStore { word: device.written(E::OURS)?, value: span.end(), since };
        if let Some(queue) = transport.queue() {
            // SAFETY: by the invariant of the indices, the source's slots are published to the bridge and not yet released, and the target's released to
            // it and not yet published: neither the kernel nor the user's end accesses them. `Rings` keeps both rings until the copies are complete.
            let copies = unsafe { queue.copy_slots(span, from, to) }?;
            let left = if E::TO_DEVICE {
                let index = IndexStore { since: since.or(copies[0]), ..index };
                // SAFETY: a word of the device ring's header, which `Rings` keeps until the store is complete. Only the bridge writes it.
                [Some(unsafe { queue.store_index(index) }?), None]
            } else {
                copies
            };
            self.in_doubt = false;
            flights.push_back(Flight { first: copies[0], left, upto: span.end() });
        } else {
            // SAFETY: by the invariant of the indices neither the kernel nor the user's end accesses the slots. Only the bridge writes the index, and both
            // rings are live.
            unsafe { transport.send(span, from, to, index) }?;
            self.in_doubt = false;
            self.arrived(span.end());
        }
        Ok(())
    }

    /// Passes on the flights that are complete, in order.
    fn reap(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front_mut() {
            for left in &mut flight.left {
                let Some(ticket) = *left else { continue };
                // Set before, since a panic of a user's clock in the wait counts as a failure.
                self.in_doubt = true;
                let is_complete = self.rings.transport.is_complete(ticket)?;
                self.in_doubt = false;
                if !is_complete {
                    return Ok(());
                }
                *left = None;
            }
            let upto = flight.upto;
            self.flights.pop_front();
            self.arrived(upto);
        }
        Ok(())
    }

    /// Finds out what has arrived after a failed call, and goes on from there.
    ///
    /// After an error, `in_doubt` and `flights` stay, whose indices tell which words are valid, and the next flush tries again. If a faulty kernel has
    /// overwritten the word, each flush fails. Without an answer of the driver in `settle`, a store in flight may be executed after the read: the kernel then
    /// gets ahead of `next`, and its index is refused as corrupt until `next` is there again.
    fn resync(&mut self) -> Result<()> {
        // A copy in flight must not write slots that are passed on below.
        self.rings.transport.settle();
        let index = self.bridge_end.index();
        let arrived = if self.releases_later() {
            self.releasing = None;
            index
        } else {
            // The word is stored after the copies. A faulty kernel can overwrite it: only values that the bridge has written are valid.
            let stored = self.rings.transport.read_now(self.rings.device.written(E::OURS)?)?;
            let is_ours = stored == index || stored == self.next || self.flights.iter().any(|flight| flight.upto == stored);
            if !is_ours || E::TO_DEVICE && stored.wrapping_sub(self.seen) > self.bridge_end.capacity() {
                return Err(if E::TO_DEVICE { self.corrupt(index, stored) } else { self.corrupt(stored, self.seen) });
            }
            stored
        };
        self.flights.clear();
        self.arrived(arrived);
        (self.next, self.in_doubt) = (arrived, false);
        Ok(())
    }

    /// Queues the store of the device ring's head, one at a time. Copies that precede it on the stream have read the slots.
    fn release(&mut self) -> Result<()> {
        // Taken first: after a failure or a panic, the index is stored again.
        if let Some((ticket, upto)) = self.releasing.take() {
            if !self.rings.transport.is_complete(ticket)? {
                self.releasing = Some((ticket, upto));
                return Ok(());
            }
            self.released = upto;
        }
        let upto = self.bridge_end.index();
        if upto != self.released {
            let index = IndexStore { word: self.rings.device.written(E::OURS)?, value: upto, since: None };
            let Some(queue) = self.rings.transport.queue() else { return Ok(()) };
            // SAFETY: a word of the device ring's header, which `Rings` keeps until the store is complete. Only the bridge writes it.
            self.releasing = Some((unsafe { queue.store_index(index) }?, upto));
        }
        Ok(())
    }

    /// Passes on all messages before `upto`, whose copies are complete, and wakes the user's end.
    fn arrived(&mut self, upto: u64) {
        let count = upto.wrapping_sub(self.bridge_end.index()).min(self.bridge_end.usable());
        // Before the check for sleepers, whose fence would wait for this store too.
        self.rings.transport.counts.messages.add(count);
        // SAFETY: at most the usable slots; the copies are complete.
        unsafe { self.bridge_end.pass(count) };
        let header = self.rings.host.header();
        self.rings.host.wake_at(if E::TO_DEVICE { &header.consumer.waiting } else { &header.producer.waiting });
    }
}

impl<E: HostEnd> Drop for Transfer<E> {
    fn drop(&mut self) {
        if !self.rings.host.is_here() {
            self.bridge_end.abandon();
            self.announced.as_mut().map(E::abandon);
        }
    }
}

/// The two rings of a transfer, which outlive its queued operations and the bridge's end of the host ring.
pub(super) struct Rings {
    pub host: Arc<HostRing>,
    pub device: ManuallyDrop<DeviceRing>,
    pub transport: Transport,
}

impl Rings {
    /// Returns both rings' addresses, if the host maps all of the device ring; the kernel writes the index `theirs`.
    fn mapped(host: &HostRing, device: &DeviceRing, theirs: Line, ours: Line) -> Result<Option<Mapped>> {
        let Some(device_slots) = device.slots() else { return Ok(None) };
        let (IndexWord::Mapped(theirs), Address::Host(ours)) = (device.read(theirs)?, device.written(ours)?) else { return Ok(None) };
        Ok(Some(Mapped { host_slots: host.slots(), device_slots, theirs, ours: ours.cast() }))
    }

    /// Reads both indices of the device ring by blocking copies.
    pub fn device_indices(&self, theirs: Line) -> Result<Indices> {
        let index = |line| {
            let word = if line == theirs { self.device.read(line)?.address() } else { self.device.written(line)? };
            self.transport.read_now(word)
        };
        Ok(Indices { head: index(Line::Head)?, tail: index(Line::Tail)?, capacity: self.host.layout.capacity() })
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // The bridge's ends are dropped: the user's end is disconnected, and may be asleep.
        self.host.wake();
        // SAFETY: not used again.
        let device = unsafe { ManuallyDrop::take(&mut self.device) };
        let backend = self.transport.backend();
        match self.transport.last().filter(|last| !backend.is_complete(*last)) {
            Some(last) => backend.keep(Box::new((device, Arc::clone(&self.host))), &Uses::of(last), None),
            None => drop(device),
        }
    }
}

/// Orders the host's earlier stores to a shared ring before its later loads.
fn fenced<B: Barrier>(fences: &Count) {
    B::often();
    fences.add(1);
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{Ordering, fence};
    use loom::thread;

    use super::*;
    use crate::Word;
    use crate::loom_machine::{LoomWord, STRONG};
    use crate::sys::barrier::tests::{Both, Weakened};

    /// Host and device each store, fence and load.
    fn scene<B: Barrier>() {
        loom::model(|| {
            let words = Arc::new((LoomWord::<STRONG>::new(0), LoomWord::<STRONG>::new(0)));
            let device = thread::spawn({
                let words = Arc::clone(&words);
                move || {
                    words.1.store(1);
                    fence(Ordering::SeqCst);
                    words.0.load() == 1
                }
            });
            words.0.store_release(1);
            fenced::<B>(&Count::default());
            let is_seen = words.1.load() == 1;
            assert!(device.join().unwrap() | is_seen, "neither side sees the other's store");
        });
    }

    #[test]
    fn a_counted_fence_puts_a_message_before_later_loads() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "neither side sees")]
    fn without_the_fence_neither_side_may_see_the_other() {
        scene::<Weakened>();
    }
}
