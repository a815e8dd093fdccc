//! SPSC rings that the lanes of a warp use together. Lane 0 alone polls and publishes indices; all lanes read and write slots.

use core::mem::ManuallyDrop;

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::groups::Over;
use ringmem_layouts::ring::spsc::{Consumer, Producer};
use ringmem_layouts::{Machine, RingMessage, Word};

use super::{CORRUPT, Patience, Rings, ring};
use crate::Lanes;
use crate::persistent::{Batch, Handler};

/// Never dropped: no copy is announced.
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
