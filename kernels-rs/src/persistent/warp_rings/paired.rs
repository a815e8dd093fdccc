//! [`Paired`]: two rings with a flag in each word. A lane polls the words that it moves, by one load and one store of 16 bytes per pair.

use core::mem::ManuallyDrop;

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::groups::Over;
use ringmem_layouts::ring::paired::{Consumer, Pair, Producer, pairs_of};
use ringmem_layouts::{RingMessage, Word};

use super::{CORRUPT, Patience, Rings, ring};
use crate::persistent::Handler;
use crate::{Pairs, WarpLanes};

const PART: u64 = u32::MAX as u64;

/// Returns each message. Never dropped: code that closes an announced end would remain.
pub struct Paired<'a, T, M: Pairs> {
    input: ManuallyDrop<Consumer<'a, T, M>>,
    output: ManuallyDrop<Producer<'a, T, M>>,
    /// This lane's pair.
    held: [u64; 2],
    /// Not yet answered.
    seen: u64,
}

impl<T: RingMessage, M: Pairs> Paired<'_, T, M> {
    /// This lane's message of a row, and its pair in it. A lane of a narrow group has all pairs.
    #[inline(always)]
    fn place<L: WarpLanes>(lanes: &L) -> (u64, u64) {
        let lane = u64::from(lanes.lane());
        (lane / Self::each::<L>(), lane % Self::each::<L>())
    }

    #[inline(always)]
    const fn each<L: WarpLanes>() -> u64 {
        let (pairs, width) = (pairs_of::<T>(), L::WIDTH as u64);
        if pairs < width { pairs } else { width }
    }

    /// Returns also whether both words belong to the message.
    #[inline(always)]
    fn load(&self, message: u64, within: u64) -> ([u64; 2], bool) {
        // SAFETY: `within` is below the message's pairs.
        let (pair, flag) = unsafe { self.input.pair(message, within) };
        // SAFETY: `Pair` is aligned to 16 bytes.
        let [low, high] = unsafe { M::load_pair(pair) };
        ([low, high], low & !PART == flag && high & !PART == flag)
    }

    #[inline(always)]
    fn store(&self, message: u64, within: u64, [low, high]: [u64; 2]) {
        // SAFETY: `within` is below the message's pairs.
        let (pair, flag) = unsafe { self.output.pair(message, within) };
        // SAFETY: `Pair` is aligned to 16 bytes.
        unsafe { M::store_pair(pair, [flag | low & PART, flag | high & PART]) };
    }
}

impl<'a, T: RingMessage, M: Pairs, L: WarpLanes> Rings<'a, T, T, M, L> for Paired<'a, T, M> {
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
        let input = unsafe { ring::<M, T, Pair<M::Word>>(machine, RingFlags::PAIRED, input)? };
        // SAFETY: the caller promises that memory mapped at the output's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let output = unsafe { ring::<M, T, Pair<M::Word>>(machine, RingFlags::PAIRED, output)? };
        // SAFETY: checked, mapped for the whole ring; its only consumer.
        let input = unsafe { Consumer::over(input.own, input.peer, input.slots, input.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        // SAFETY: `ring` checked the output and mapped it whole; the caller promises that this is its only producer.
        let mut output = unsafe { Producer::over(output.own, output.peer, output.slots, output.capacity) }
            .map(ManuallyDrop::new)
            .map_err(|_| Fault::Ring)?;
        output.assume_full().map_err(|_| Fault::Ring)?;
        Ok(Self { input, output, held: [0; 2], seen: 0 })
    }

    /// At most a row, which the lanes poll together.
    #[inline(always)]
    fn take(&mut self, lanes: &L, batch: u64, _: u64) -> Result<u64, Over> {
        const { assert!(pairs_of::<T>().is_power_of_two() && L::WIDTH.is_power_of_two(), "lanes without a pair") };
        let row = u64::from(L::WIDTH) / Self::each::<L>();
        let most = row.min(batch).min(self.input.capacity() as u64);
        let (message, first) = Self::place(lanes);
        let (held, mut is_there) = self.load(message, first);
        self.held = held;
        let mut within = first + u64::from(L::WIDTH);
        while within < pairs_of::<T>() {
            is_there &= self.load(message, within).1;
            within += u64::from(L::WIDTH);
        }
        let lanes_ready = lanes.ballot(message < most && is_there).trailing_ones();
        self.seen = u64::from(lanes_ready) / Self::each::<L>();
        if (self.output.free() as u64) < self.seen {
            let head = lanes.broadcast(if lanes.lane() == 0 { self.output.poll() } else { 0 });
            lanes.barrier();
            // SAFETY: lane 0 polled it; the barrier orders its load before this lane's stores.
            unsafe { self.output.accept(head) }.map_err(|_| CORRUPT)?;
        }
        Ok(self.seen.min(self.output.free() as u64))
    }

    #[inline(always)]
    unsafe fn answer<H: Handler<M, L, Input = T, Output = T>>(&self, _: &L, count: u64, _: u64, _: &mut H) -> (u64, u64) {
        (0, count)
    }

    /// Each word is stored by one lane, and published by that store.
    #[inline(always)]
    unsafe fn prepare(&self, lanes: &L, count: u64) {
        let (message, first) = Self::place(lanes);
        if message >= count {
            return;
        }
        self.store(message, first, self.held);
        let mut within = first + u64::from(L::WIDTH);
        while within < pairs_of::<T>() {
            self.store(message, within, self.load(message, within).0);
            within += u64::from(L::WIDTH);
        }
    }

    #[inline(always)]
    unsafe fn publish(&mut self, lanes: &L, count: u64, _: u64, _: Patience) -> Result<(), Fault> {
        // SAFETY: every lane has loaded and stored them before the barrier; they were free.
        unsafe { self.input.advance(count) };
        // SAFETY: every lane has stored its part of the answers before the barrier, and `take` counted only free slots.
        unsafe { self.output.advance(count) };
        if lanes.lane() == 0 {
            let (head, next) = self.input.release();
            // SYNC POINT: slots released. Pairs with the host's Producer::poll. Relaxed if every word was loaded by `take`, on whose flags this depends.
            // `prepare` has loaded those of a longer message once more, on whose values nothing depends.
            if pairs_of::<T>() > u64::from(L::WIDTH) { head.store_release(next) } else { head.store(next) }
        }
        self.seen -= count;
        Ok(())
    }

    #[inline(always)]
    fn taken(&self) -> u64 {
        self.input.next_index()
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
