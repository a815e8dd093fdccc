//! [`Aggregated`]: an SPSC input ring per group, and one SPSC output ring for all groups. How a warp pushes in any kind of ring: `warp_rings.rs`.

use core::mem::ManuallyDrop;

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::aggregate::{Aggregate, Producer};
use ringmem_layouts::ring::spsc::Consumer;
use ringmem_layouts::{Counter, Machine, RingMessage, Word};

use super::{Corrupt, Patience, Rings, ring};
use crate::Lanes;
use crate::persistent::{Batch, COMMAND_POLL_ROUNDS, Handler};

/// Lane 0 reserves output slots, by one read-modify-write per batch.
pub struct Aggregated<'a, I, O, M: Machine> {
    input: ManuallyDrop<Consumer<'a, I, M>>,
    output: Producer<'a, O, M, M::Word>,
}

impl<'a, I: RingMessage, O: RingMessage, M: Machine<Word: Counter>> Rings<'a, I, O, M> for Aggregated<'a, I, O, M> {
    type Shared = u64;

    #[inline(always)]
    unsafe fn attach(machine: &M, input: RingHeaders, output: RingHeaders, shared: u64) -> Result<Self, Fault> {
        // SAFETY: the caller promises that memory mapped at the input's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let input = unsafe { ring::<M, I, _>(machine, RingFlags::SPSC, input)? };
        // SAFETY: the caller promises that memory mapped at the output's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let output = unsafe { ring::<M, O, _>(machine, RingFlags::SPSC, output)? };
        let shared = machine.at(shared, size_of::<Aggregate<u64>>() as u64, 128).ok_or(Fault::Address)?;
        // SAFETY: `at` mapped and aligned the counters; the caller promises that they are live for `'a` and accessed by the rings'
        // protocol, so only as words.
        let shared = unsafe { shared.cast::<Aggregate<M::Word>>().as_ref() };
        // SAFETY: checked, mapped for the whole ring; its only consumer.
        let input = unsafe { Consumer::over(input.own, input.peer, input.slots, input.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        // SAFETY: `ring` checked the output and mapped it whole; the other producers are groups of this launch, with the same counters.
        let output = unsafe { Producer::over(output.own, output.peer, output.slots, output.capacity, shared) };
        Ok(Self { input, output })
    }

    #[inline(always)]
    fn take<L: Lanes>(&mut self, lanes: &L, batch: u64) -> Result<u64, Corrupt> {
        let (mut tail, mut begin, mut count, mut whole) = (0, 0, 0, true);
        if lanes.lane() == 0 {
            tail = self.input.head().wrapping_add(self.input.available() as u64);
            if (self.input.available() as u64) < batch {
                tail = self.input.poll();
            }
            let waiting = tail.wrapping_sub(self.input.head());
            // A reservation waits only for earlier ones.
            if waiting > 0 && waiting <= self.input.capacity() as u64 {
                match self.output.reserve(waiting.min(batch)) {
                    Ok(reserved) => (begin, count) = reserved,
                    Err(_) => whole = false,
                }
            }
        }
        let (tail, begin, count) = (lanes.broadcast(tail), lanes.broadcast(begin), lanes.broadcast(count));
        let whole = lanes.broadcast(u64::from(whole)) != 0;
        lanes.barrier();
        // SAFETY: lane 0 polled it or held it; the barrier makes the writes that it acquired visible to all lanes.
        unsafe { self.input.accept(tail) }.map_err(|_| Corrupt)?;
        if !whole {
            return Err(Corrupt);
        }
        if count > 0 {
            // SAFETY: lane 0 reserved it on its copy of this end, and the barrier above ordered lane 0's loads before this call.
            unsafe { self.output.accept(begin, count) };
        }
        Ok(count)
    }

    #[inline(always)]
    unsafe fn answer<L: Lanes, H: Handler<M, L, Input = I, Output = O>>(&self, lanes: &L, count: u64, handler: &mut H) -> u64 {
        // SAFETY: available and reserved, by `take`.
        let mut batch = unsafe { Batch::new(self.input.row(), self.output.row(), count) };
        // SAFETY: every lane calls it once for these messages, with an equal batch, and publishes them after a barrier.
        unsafe { handler.answer(lanes, &mut batch) }
    }

    #[inline(always)]
    unsafe fn publish<L: Lanes>(&mut self, lanes: &L, count: u64, patience: Patience) -> Result<(), Fault> {
        // SAFETY: available, by `take`; every lane has finished with them.
        unsafe { self.input.advance(count) };
        let mut in_time = true;
        if lanes.lane() == 0 {
            in_time = wait_for_turn(&self.output, lanes, patience);
            if in_time {
                // SAFETY: published at once, in its turn; since the barrier no lane accesses these slots.
                let answers = unsafe { self.output.publication() };
                // SAFETY: published at once; since the barrier no lane accesses the input's slots.
                let slots = unsafe { self.input.publication() };
                // SYNC POINT: answers published and slots released. Pairs with the host's Consumer::poll and Producer::poll.
                M::Word::publish_all([answers, slots]);
                // SAFETY: just published.
                unsafe { self.output.pass() };
            }
        }
        if lanes.broadcast(u64::from(in_time)) != 0 { Ok(()) } else { Err(Fault::Deadline) }
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
        self.output.known_unread()
    }

    #[inline(always)]
    fn unread(&self) -> u64 {
        self.output.unread()
    }
}

#[inline(always)]
fn wait_for_turn<T: RingMessage, M: Machine<Word: Counter>, L: Lanes>(
    output: &Producer<'_, T, M, M::Word>,
    lanes: &L,
    patience: Patience,
) -> bool {
    let begun = lanes.now_ns();
    let mut times: u32 = 0;
    while !output.is_its_turn() {
        if times % COMMAND_POLL_ROUNDS == COMMAND_POLL_ROUNDS - 1 && lanes.now_ns().saturating_sub(begun) > patience.ns {
            return false;
        }
        lanes.pause(times);
        times = times.checked_add(1).unwrap_or(1 << 31);
    }
    true
}
