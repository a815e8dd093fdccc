//! How the lanes of a warp pop messages and push answers together: a type for each kind of ring. That of SPSC rings, [`Indexed`], is in this file.
//!
//! Every lane holds a copy of both ends, with equal indices, and calls the methods of a round in the same order:
//!
//! 1. [`take`](Rings::take): the lanes agree on a number of messages that have arrived and for whose answers there are slots.
//! 2. [`answer`](Rings::answer): the lanes divide the messages, and read and write slots in place. [`prepare`](Rings::prepare) follows.
//! 3. A barrier: after it no lane reads messages or writes answers of this round (but lane 0 may still set the first answer's flag).
//! 4. [`publish`](Rings::publish): every lane advances its copies, and lane 0 makes the answers visible and the input's slots free.
//!
//! # A push by the warp
//!
//! In SPSC rings ([`Indexed`]) and with the handler [`Each`](super::Each), the answers of a round get from the lanes of a warp to the host like this. The pop
//! of their messages takes the same steps, with head and tail exchanged. Step 3 is in `handlers.rs`, the others are below.
//!
//! | step | lane 0 | every lane | orders |
//! |---|---|---|---|
//! | 1 | loads the output's head with acquire, if too few slots are known to be free | | the host's reads of freed slots, before all that lane 0 does next |
//! | 2 | | the head comes by a shuffle, which orders nothing; barrier of the warp | the same, before what all lanes do next |
//! | 3 | | lane `l` writes the slots `tail + l`, `tail + l + 32`, ... with plain stores | |
//! | 4 | | barrier of the warp | all lanes' accesses to slots, before what lane 0 does next |
//! | 5 | `fence.acq_rel.sys`, then stores `tail + count` and the input's new head, relaxed | advances its copy | the slots before the tail, for the host, which acquires the tail |
//!
//! Steps 1 and 2 are right because causality order is transitive: what an acquire of lane 0 has ordered, the barrier orders for all lanes. Without a load in
//! step 1, that of an earlier round holds. Steps 4 and 5 are right for the same reason: the fence releases lane 0's own earlier stores, and all that the
//! barrier put before it. So after step 4 no lane may write an answer, which could arrive after the tail, or read a message, whose slot step 5 frees.
//!
//! One fence and two stores of indices publish a round, however many lanes it has. In a block of several warps the same steps use the block's barrier, and
//! lanes are numbered through all its warps.
//!
//! # Kinds of rings
//!
//! | type | rings | `take` | what publishes the answers |
//! |---|---|---|---|
//! | [`Indexed`] | SPSC | lane 0 polls the indices that it needs, and broadcasts them | lane 0 stores both indices |
//! | [`Flagged`] | SPSC with a flag in each slot | each lane polls the flags of its slots; a ballot counts those present from the first on | the lanes set all flags but the first before the barrier, lane 0 the first after it |
//! | [`Paired`] | SPSC with a flag in each word | each lane polls the words that it moves; a ballot, as above | each lane's stores publish themselves, before the barrier |
//! | [`Grouped`] | two SPSC rings for all groups | lane 0 polls the indices that it needs, and reserves messages and slots by one read-modify-write in device memory | lane 0, once all earlier reservations are published |

mod flagged;
mod grouped;
mod paired;

use core::mem::ManuallyDrop;

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::groups::{Over, Side};
use ringmem_layouts::ring::spsc::{Consumer, Producer};
use ringmem_layouts::ring::{RingFlags, Row};
use ringmem_layouts::{Machine, RingHeader, RingMessage, Word};

use super::{Batch, COMMAND_POLL_ROUNDS, Handler};
use crate::Lanes;

pub use flagged::Flagged;
pub use grouped::Grouped;
pub use paired::Paired;

/// An impossible ring index.
pub const CORRUPT: Over = Over { fault: Some(Fault::Corrupt) };

/// The longest wait for another group.
#[derive(Clone, Copy)]
pub struct Patience {
    pub ns: u64,
}

impl Patience {
    /// Waits on one lane until it is done, until the limit, or until the wait is in vain; returns whether it is done then.
    #[inline(always)]
    fn until<L: Lanes>(self, lanes: &L, is_done: impl Fn() -> bool, is_vain: impl Fn() -> bool) -> bool {
        let begun = lanes.now_ns();
        let mut times: u32 = 0;
        while !is_done() {
            let looks = times % COMMAND_POLL_ROUNDS == COMMAND_POLL_ROUNDS - 1;
            if looks && (is_vain() || lanes.now_ns().saturating_sub(begun) > self.ns) {
                // Perhaps since the look above: this lane may have been held up before it read the clock.
                return is_done();
            }
            lanes.pause(times);
            times = times.checked_add(1).unwrap_or(1 << 31);
        }
        true
    }
}

/// How a group belongs to its launch: with its own rings and control block (`()`), or sharing both with the others ([`Grouped`]).
pub trait Membership: Copy {
    const IS_SHARED: bool = false;

    /// Returns the device address of the groups' counters, or 0.
    #[inline(always)]
    fn address(&self) -> u64 {
        0
    }

    /// On one lane of the first group, which does not run: lets the others leave.
    #[inline(always)]
    fn refuse(&self, epoch: u32) {
        let _ = epoch;
    }

    /// On one lane: waits until the first group has begun; returns whether it runs.
    #[inline(always)]
    fn has_begun<L: Lanes>(&self, lanes: &L, epoch: u32) -> bool {
        let _ = (lanes, epoch);
        true
    }

    /// On any lane: lets all groups leave.
    #[inline(always)]
    fn end(&self, fault: Option<Fault>) {
        let _ = fault;
    }
}

impl Membership for () {}

/// Two rings. Every lane holds a copy with equal indices, and calls the methods that are not of one lane in the same order.
pub trait Rings<'a, I: RingMessage, O: RingMessage, M: Machine, L: Lanes>: Sized {
    /// A kernel's argument: the address of its groups' counters, or nothing.
    type Argument: Copy;
    type Member: Membership;
    /// Whether the number of messages sent may differ from that of messages taken.
    const IS_FREE: bool = false;

    /// # Safety
    ///
    /// Memory mapped at the argument is live for `'a`, and accessed by the groups of this launch only.
    unsafe fn join(machine: &M, lanes: &L, argument: Self::Argument) -> Result<Self::Member, Fault>;

    /// # Safety
    ///
    /// Memory mapped at the headers' addresses is live for `'a` and accessed by the rings' protocol only. The lanes' copies of this value, for [`Grouped`]
    /// those of all groups of the launch, are together the only consumer of the input and the only producer of the output.
    unsafe fn attach(machine: &M, input: RingHeaders, output: RingHeaders, member: Self::Member) -> Result<Self, Fault>;

    /// Runs once all lanes have attached.
    #[inline(always)]
    fn begin(&mut self, lanes: &L, epoch: u32) {
        let _ = (lanes, epoch);
    }

    /// Polls the rings, unless enough is known; returns how many messages all lanes take. Looks for `own` slots beyond those of the answers.
    fn take(&mut self, lanes: &L, batch: u64, own: u64) -> Result<u64, Over>;

    /// Returns the known number of free slots, at most those for the answers to `count` messages and `own` more.
    #[inline(always)]
    fn room(&self, count: u64, own: u64) -> u64 {
        let _ = own;
        count
    }

    /// Lets the handler answer the messages, and send up to `own` more. Returns the number refused by this lane, and that of the messages to publish, which
    /// is at most [`room`](Self::room), and right on lane 0 if it is not `count`.
    ///
    /// # Safety
    ///
    /// `count` is the last result of [`take`](Self::take), with this `own`, and not yet published. Every lane calls it once.
    unsafe fn answer<H: Handler<M, L, Input = I, Output = O>>(&self, lanes: &L, count: u64, own: u64, handler: &mut H) -> (u64, u64);

    /// Runs before the barrier.
    ///
    /// # Safety
    ///
    /// As [`answer`](Self::answer).
    #[inline(always)]
    unsafe fn prepare(&self, lanes: &L, count: u64) {
        let _ = (lanes, count);
    }

    /// Publishes the first `sent` slots and releases the messages, with at most one fence. On an error, which only [`Grouped`] returns, nothing is published.
    ///
    /// # Safety
    ///
    /// As [`answer`](Self::answer); every slot was answered and [prepared](Self::prepare) before a barrier. `sent` is what lane 0's call of it returned.
    unsafe fn publish(&mut self, lanes: &L, count: u64, sent: u64, patience: Patience) -> Result<(), Fault>;

    /// The number after the last message that was answered and published; for [`Grouped`], by any group.
    fn taken(&self) -> u64;

    /// Messages taken and not yet answered, of which `count` by this group.
    #[inline(always)]
    fn in_flight(&self, count: u64) -> u64 {
        count
    }

    /// Messages seen and not yet taken.
    fn waiting(&self) -> u64;

    /// Answers that the host had not popped at the last poll, or more: [`take`](Self::take) polls its index only if too few slots are known to be free.
    fn known_unread(&self) -> u64;

    /// Answers that the host has not popped: loads its index. For lane 0, which may not accept the index, because every lane holds an equal copy.
    fn unread(&self) -> u64;

    /// Messages that the other groups have refused.
    #[inline(always)]
    fn refused_by_others(&self) -> u64 {
        0
    }

    /// On one lane of a group that is not the first: counts messages that it refused.
    #[inline(always)]
    fn refuse(&self, count: u64) {
        let _ = count;
    }

    /// On any lane: lets all groups leave, and waits for none.
    #[inline(always)]
    fn end(&self, fault: Option<Fault>) {
        let _ = fault;
    }

    /// On one lane of the first group: lets all groups take messages, or waits until none has any.
    #[inline(always)]
    fn permit(&self, lanes: &L, takes: bool, patience: Patience) -> Result<(), Fault> {
        let _ = (lanes, takes, patience);
        Ok(())
    }

    /// On one lane, after all else that this group does with the rings. The first group lets the others leave, and waits for them unless there is a fault.
    /// Returns the fault to report.
    #[inline(always)]
    fn leave(&self, lanes: &L, fault: Option<Fault>, patience: Patience) -> Option<Fault> {
        let _ = (lanes, patience);
        fault
    }
}

/// Lets the handler answer `count` messages, each with one answer.
///
/// # Safety
///
/// The first `count` messages are full and the first `count` slots free. Every lane calls it once, with equal arguments, and publishes them after a barrier.
#[inline(always)]
unsafe fn answer_each<M: Machine, L: Lanes, H: Handler<M, L>>(
    lanes: &L,
    input: Row<'_, M::Cell<H::Input>>,
    output: Row<'_, M::Cell<H::Output>>,
    count: u64,
    handler: &mut H,
) -> (u64, u64) {
    // SAFETY: the caller promises full messages and free slots.
    let mut batch = unsafe { Batch::new(input, output, count, count, false) };
    // SAFETY: the caller promises that every lane calls this once, with an equal batch, and that a barrier follows.
    let refused = unsafe { handler.answer(lanes, &mut batch) };
    (refused, count)
}

/// # Safety
///
/// Memory mapped at the addresses, with as many slots as the ring's own header says, is live for `'a`; the headers are accessed only as
/// words.
#[inline(always)]
pub unsafe fn ring<'a, M: Machine, T: RingMessage, S>(
    machine: &M,
    kind: RingFlags,
    headers: RingHeaders,
) -> Result<Side<'a, M::Word, S>, Fault> {
    let header = |address: u64| {
        let place = machine.at(address, 384, 128).ok_or(Fault::Address)?;
        // SAFETY: mapped and aligned by `at`; live for `'a` and accessed only as words, as the caller promises.
        Ok::<_, Fault>(unsafe { place.cast::<RingHeader<M::Word>>().as_ref() })
    };
    let found = header(headers.own)?;
    let layout = found.geometry_of::<T>(kind).map_err(|_| Fault::Ring)?;
    let bytes = layout.capacity() * layout.slot_size();
    let slots = machine.at(headers.ring.wrapping_add(layout.slots_offset()), bytes, align_of::<S>() as u64).ok_or(Fault::Address)?;
    let peer = header(headers.peer)?;
    if !core::ptr::eq(peer, found) && peer.geometry_of::<T>(kind) != Ok(layout) {
        return Err(Fault::Ring);
    }
    Ok(Side { own: found, peer, slots: slots.cast(), capacity: layout.capacity() })
}

/// SPSC rings that the lanes of a warp use together: see "A push by the warp". Lane 0 alone polls and publishes indices; all lanes read and write slots.
///
/// The ends are never dropped: no copy is announced.
pub struct Indexed<'a, I, O, M: Machine> {
    input: ManuallyDrop<Consumer<'a, I, M>>,
    output: ManuallyDrop<Producer<'a, O, M>>,
}

impl<'a, I: RingMessage, O: RingMessage, M: Machine, L: Lanes> Rings<'a, I, O, M, L> for Indexed<'a, I, O, M> {
    type Argument = ();
    type Member = ();
    const IS_FREE: bool = true;

    #[inline(always)]
    unsafe fn join(_: &M, _: &L, (): ()) -> Result<(), Fault> {
        Ok(())
    }

    #[inline(always)]
    unsafe fn attach(machine: &M, input: RingHeaders, output: RingHeaders, (): ()) -> Result<Self, Fault> {
        // SAFETY: the caller promises that memory mapped at the input's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let input = unsafe { ring::<M, I, _>(machine, RingFlags::SPSC, input)? };
        // SAFETY: the caller promises that memory mapped at the output's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let output = unsafe { ring::<M, O, _>(machine, RingFlags::SPSC, output)? };
        // SAFETY: checked, mapped for the whole ring; its only consumer.
        let input = unsafe { Consumer::over(input.own, input.peer, input.slots, input.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        // SAFETY: `ring` checked the output and mapped it whole; the caller promises that this is its only producer.
        let mut output = unsafe { Producer::over(output.own, output.peer, output.slots, output.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        // The lanes may have read different heads: the first round polls one for all of them.
        output.assume_full().map_err(|_| Fault::Ring)?;
        Ok(Self { input, output })
    }

    #[inline(always)]
    fn take(&mut self, lanes: &L, batch: u64, own: u64) -> Result<u64, Over> {
        let (mut tail, mut head) = (0, 0);
        if lanes.lane() == 0 {
            tail = self.input.head().wrapping_add(self.input.available() as u64);
            head = self.output.tail().wrapping_add(self.output.free() as u64).wrapping_sub(self.output.capacity() as u64);
            if (self.input.available() as u64) < batch {
                tail = self.input.poll();
            }
            // Only if answers could lack slots: in a dry round, or while the ring has room, this poll would be a second round trip after the first.
            let mut wanted = tail.wrapping_sub(self.input.head()).min(batch);
            if own > 0 {
                wanted = wanted.saturating_add(own).min(self.output.capacity() as u64);
            }
            if (self.output.free() as u64) < wanted {
                head = self.output.poll();
            }
        }
        let (tail, head) = (lanes.broadcast(tail), lanes.broadcast(head));
        lanes.barrier();
        // SAFETY: lane 0 polled it or held it; the barrier makes the writes that it acquired visible to all lanes.
        let available = unsafe { self.input.accept(tail) }.map_err(|_| CORRUPT)?;
        // SAFETY: lane 0 polled the head or held it; the barrier orders its load before the stores of all lanes into the freed slots.
        let free = unsafe { self.output.accept(head) }.map_err(|_| CORRUPT)?;
        Ok((available.min(free) as u64).min(batch))
    }

    #[inline(always)]
    fn room(&self, count: u64, own: u64) -> u64 {
        (self.output.free() as u64).min(count.saturating_add(own))
    }

    #[inline(always)]
    unsafe fn answer<H: Handler<M, L, Input = I, Output = O>>(&self, lanes: &L, count: u64, own: u64, handler: &mut H) -> (u64, u64) {
        let room = if H::INITIATES { Rings::<'a, I, O, M, L>::room(self, count, own) } else { count };
        // SAFETY: available and free, by `take`; more than `count` by `room`.
        let mut batch = unsafe { Batch::new(self.input.row(), self.output.row(), count, room, own > 0) };
        // SAFETY: every lane calls it once for these messages, with an equal batch, and publishes them after a barrier.
        let refused = unsafe { handler.answer(lanes, &mut batch) };
        (refused, if H::INITIATES { batch.sent } else { count })
    }

    #[inline(always)]
    unsafe fn publish(&mut self, lanes: &L, count: u64, sent: u64, _: Patience) -> Result<(), Fault> {
        // SAFETY: available, by `take`; every lane has finished with them.
        unsafe { self.input.advance(count) };
        // SAFETY: free: `count` by `take`, or at most the room.
        unsafe { self.output.advance(sent) };
        if lanes.lane() == 0 {
            // SAFETY: published at once; since the barrier no lane accesses these slots.
            let answers = unsafe { self.output.publication() };
            // SAFETY: published at once; since the barrier no lane accesses the input's slots.
            let slots = unsafe { self.input.publication() };
            // SYNC POINT: answers published and slots released. Pairs with the host's Consumer::poll and Producer::poll.
            M::Word::publish_all([answers, slots]);
        }
        Ok(())
    }

    #[inline(always)]
    fn taken(&self) -> u64 {
        self.input.head()
    }

    #[inline(always)]
    fn waiting(&self) -> u64 {
        self.input.available() as u64
    }

    #[inline(always)]
    fn known_unread(&self) -> u64 {
        (self.output.capacity() - self.output.free()) as u64
    }

    #[inline(always)]
    fn unread(&self) -> u64 {
        self.output.unread() as u64
    }
}
