use core::mem::ManuallyDrop;

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::flagged::{Consumer, Producer};
use ringmem_layouts::ring::groups::Over;
use ringmem_layouts::{Machine, RingMessage, Word};

use super::{CORRUPT, Patience, Rings, answer_each, ring};
use crate::WarpLanes;
use crate::persistent::Handler;

/// Never dropped: each lane would publish pending slots.
pub struct Flagged<'a, I, O, M: Machine>
where
    M::Cell<I>: 'a,
    M::Cell<O>: 'a,
{
    input: ManuallyDrop<Consumer<'a, I, M>>,
    output: ManuallyDrop<Producer<'a, O, M>>,
    /// Not yet answered.
    seen: u64,
}

impl<'a, I: RingMessage, O: RingMessage, M: Machine, L: WarpLanes> Rings<'a, I, O, M, L> for Flagged<'a, I, O, M> {
    type Argument = ();
    type Member = ();

    #[inline(always)]
    unsafe fn join(_: &M, _: &L, (): ()) -> Result<(), Fault> {
        Ok(())
    }

    #[inline(always)]
    unsafe fn attach(machine: &M, input: RingHeaders, output: RingHeaders, (): ()) -> Result<Self, Fault> {
        // SAFETY: the caller promises that memory mapped at the input's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let input = unsafe { ring::<M, I, _>(machine, RingFlags::FLAGGED, input)? };
        // SAFETY: the caller promises that memory mapped at the output's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let output = unsafe { ring::<M, O, _>(machine, RingFlags::FLAGGED, output)? };
        // SAFETY: checked, mapped for the whole ring; its only consumer. The error of `new` would go through local memory.
        let input = unsafe { Consumer::over(input.own, input.peer, input.slots, input.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        // SAFETY: `ring` checked the output and mapped it whole; the caller promises that this is its only producer.
        let mut output = unsafe { Producer::over(output.own, output.peer, output.slots, output.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        output.assume_full().map_err(|_| Fault::Ring)?;
        Ok(Self { input, output, seen: 0 })
    }

    #[inline(always)]
    fn take(&mut self, lanes: &L, batch: u64, _: u64) -> Result<u64, Over> {
        let most = batch.min(self.input.capacity() as u64);
        let width = u64::from(L::WIDTH);
        let mut seen = 0;
        while seen < most {
            let mine = seen + u64::from(lanes.lane());
            // A flag counts only after all before it: the host stores a batch's first flag last.
            let row = lanes.ballot(mine < most && self.input.is_there(mine)).trailing_ones();
            seen += u64::from(row);
            if u64::from(row) < width {
                break;
            }
        }
        // The lanes see what each of them acquired.
        lanes.barrier();
        self.seen = seen;
        // Only if answers lack slots: the poll is a second round trip. `seen` and the known free slots are equal on every lane.
        if (self.output.free() as u64) < seen {
            let head = lanes.broadcast(if lanes.lane() == 0 { self.output.poll() } else { 0 });
            lanes.barrier();
            // SAFETY: lane 0 polled it; the barrier orders its load before this lane's stores.
            unsafe { self.output.accept(head) }.map_err(|_| CORRUPT)?;
        }
        Ok(seen.min(self.output.free() as u64))
    }

    #[inline(always)]
    unsafe fn answer<H: Handler<M, L, Input = I, Output = O>>(&self, lanes: &L, count: u64, _: u64, handler: &mut H) -> (u64, u64) {
        // SAFETY: present and free, by `take`; every lane calls it once for these messages, and publishes them after a barrier.
        unsafe { answer_each(lanes, self.input.row(), self.output.row(), count, handler) }
    }

    #[inline(always)]
    unsafe fn prepare(&self, lanes: &L, count: u64) {
        // Not the first flag, which publishes the batch.
        let mut offset = if lanes.lane() == 0 { u64::from(L::WIDTH) } else { u64::from(lanes.lane()) };
        while offset < count {
            // SAFETY: not the first; free, and written before the barrier, which precedes the publication.
            unsafe { self.output.raise(offset) };
            offset += u64::from(L::WIDTH);
        }
    }

    #[inline(always)]
    unsafe fn publish(&mut self, lanes: &L, count: u64, _: u64, _: Patience) -> Result<(), Fault> {
        // SAFETY: present, by `take`; every lane has finished with them.
        unsafe { self.input.advance(count) };
        if lanes.lane() == 0 {
            // SAFETY: published at once; since the barrier all slots are written and all other flags set.
            let answers = unsafe { self.output.publication() };
            // SAFETY: published at once; since the barrier no lane accesses the input's slots.
            let slots = unsafe { self.input.publication() };
            // SYNC POINT: answers published and slots released. Pairs with the host's Consumer::is_there and Producer::poll.
            M::Word::publish_all([answers, slots]);
        }
        // SAFETY: free, by `take`, and published by lane 0.
        unsafe { self.output.advance(count) };
        self.seen -= count;
        Ok(())
    }

    #[inline(always)]
    fn taken(&self) -> u64 {
        self.input.head()
    }

    #[inline(always)]
    fn waiting(&self) -> u64 {
        self.seen
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
