//! How the lanes of a warp pop messages and push answers together: a type for each kind of ring.
//!
//! Every lane holds an equal copy of both ends and calls every method, in the same order. A round is:
//!
//! 1. [`take`](Rings::take): the lanes agree on a number of messages that have arrived and for whose answers there are slots, and all see the messages.
//! 2. [`answer`](Rings::answer): the lanes divide the messages, and read and write slots in place. [`prepare`](Rings::prepare) follows.
//! 3. A barrier: no lane accesses the slots any more.
//! 4. [`publish`](Rings::publish): every lane advances its copies, and lane 0 makes the answers visible and the input's slots free.
//!
//! | type | rings | `take` | what publishes the answers |
//! |---|---|---|---|
//! | [`Indexed`] | SPSC | lane 0 polls both indices and broadcasts them | lane 0 stores both indices |
//! | [`Flagged`] | SPSC with a flag in each slot | each lane polls the flags of its slots; a ballot counts those present from the first on | the lanes set all flags but the first before the barrier, lane 0 the first after it |
//! | [`Paired`] | SPSC with a flag in each word | each lane polls the words that it moves; a ballot, as above | each lane's stores publish themselves, before the barrier |
//! | [`Aggregated`] | an input ring per group, an output ring for all groups | lane 0 polls the input's index, and reserves slots by one read-modify-write in device memory | lane 0, once all earlier reservations are published |

mod aggregated;
mod flagged;
mod indexed;
mod paired;

use core::ptr::NonNull;

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::{Machine, RingHeader, RingMessage};

use super::Handler;
use crate::Lanes;

pub use aggregated::Aggregated;
pub use flagged::Flagged;
pub use indexed::Indexed;
pub use paired::Paired;

/// An impossible ring index.
pub struct Corrupt;

#[derive(Clone, Copy)]
pub struct Patience {
    pub ns: u64,
}

/// Two rings. Every lane holds an equal copy and calls every method, in the same order.
pub trait Rings<'a, I: RingMessage, O: RingMessage, M: Machine>: Sized {
    /// What the rings of several groups share.
    type Shared: Copy;

    /// # Safety
    ///
    /// Memory mapped at the headers' addresses, and for [`Aggregated`] at `shared`, is live for `'a` and accessed by the rings' protocol
    /// only. The lanes' copies of this value are together the only consumer of the input, and the only producer of the output or one of the
    /// producers that share `shared`.
    unsafe fn attach(machine: &M, input: RingHeaders, output: RingHeaders, shared: Self::Shared) -> Result<Self, Fault>;

    /// Polls both rings; returns how many messages all lanes take.
    fn take<L: Lanes>(&mut self, lanes: &L, batch: u64) -> Result<u64, Corrupt>;

    /// Lets the handler answer the messages; returns the number refused by this lane.
    ///
    /// # Safety
    ///
    /// `count` is the last result of [`take`](Self::take), not yet published. Every lane calls it once.
    unsafe fn answer<L: Lanes, H: Handler<M, L, Input = I, Output = O>>(&self, lanes: &L, count: u64, handler: &mut H) -> u64;

    /// Runs before the barrier.
    ///
    /// # Safety
    ///
    /// As [`answer`](Self::answer).
    #[inline(always)]
    unsafe fn prepare<L: Lanes>(&self, lanes: &L, count: u64) {
        let _ = (lanes, count);
    }

    /// Publishes the answers and releases the messages, with one fence. On an error nothing is published, but the messages are
    /// [taken](Self::taken).
    ///
    /// # Safety
    ///
    /// As [`answer`](Self::answer); every slot was answered and [prepared](Self::prepare) before a barrier.
    unsafe fn publish<L: Lanes>(&mut self, lanes: &L, count: u64, patience: Patience) -> Result<(), Fault>;

    fn taken(&self) -> u64;

    /// Messages seen and not yet taken.
    fn waiting(&self) -> u64;

    /// Answers that the host had not popped at the last poll, or more: [`take`](Self::take) polls its index only if too few slots are known to be free.
    fn known_unread(&self) -> u64;

    /// Answers that the host has not popped: loads its index. For lane 0, which may not accept the index, because every lane holds an equal copy.
    fn unread(&self) -> u64;
}

pub struct Parts<'a, S, M: Machine> {
    pub own: &'a RingHeader<M::Word>,
    pub peer: &'a RingHeader<M::Word>,
    pub slots: NonNull<S>,
    pub capacity: u64,
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
) -> Result<Parts<'a, S, M>, Fault> {
    let header = |address: u64| {
        let place = machine.at(address, 384, 128).ok_or(Fault::Address)?;
        // SAFETY: mapped and aligned by `at`; the rest is promised.
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
    Ok(Parts { own: found, peer, slots: slots.cast(), capacity: layout.capacity() })
}
