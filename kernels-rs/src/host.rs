//! [`Simulated`], [`Single`] and [`Threads`]: a kernel on threads of the host.

use core::ptr::NonNull;

use ringmem_layouts::align::is_aligned;
use ringmem_layouts::image::{KernelHost, LANES};
use ringmem_layouts::{Host, HostWord, Machine, Word};

use crate::{Lanes, Pairs, WarpLanes};

/// A simulated device: it translates addresses, and its words are host atomics.
pub struct Simulated<'a>(pub &'a dyn KernelHost);

impl Machine for Simulated<'_> {
    type Word = HostWord;
    type Cell<T> = <Host as Machine>::Cell<T>;
    type Corrupt = <Host as Machine>::Corrupt;

    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>> {
        let place = self.0.translate(is_aligned(address, align).then_some(address)?, bytes)?;
        is_aligned(place.as_ptr() as u64, align).then_some(place)
    }
}

/// A group of one thread, which acts as a warp of one lane.
pub struct Single<'a>(pub &'a dyn KernelHost);

// SAFETY: one thread, with the number 0; no other lane writes before a barrier.
unsafe impl Lanes for Single<'_> {
    fn width(&self) -> u32 {
        Self::WIDTH
    }
    fn lane(&self) -> u32 {
        0
    }
    fn group(&self) -> u64 {
        self.0.group()
    }
    fn groups(&self) -> u64 {
        self.0.groups()
    }
    fn broadcast(&self, value: u64) -> u64 {
        value
    }
    fn sum(&self, value: u64) -> u64 {
        value
    }
    fn barrier(&self) {}
    fn barrier_and(&self, answer: bool) -> bool {
        answer
    }
    fn pause(&self, times: u32) {
        self.0.pause(times);
    }
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
    unsafe fn remember(&self, _control: u64, _epoch: u32, _groups: u64) {}
}

// SAFETY: one lane.
unsafe impl WarpLanes for Single<'_> {
    const WIDTH: u32 = 1;

    fn ballot(&self, answer: bool) -> u32 {
        u32::from(answer)
    }
}

/// A group of 32 threads, each a lane of a warp; or, without `IS_WARP`, of as many as a block of several warps has lanes.
pub struct Threads<'a, const IS_WARP: bool = true>(&'a dyn KernelHost);

impl<'a, const IS_WARP: bool> Threads<'a, IS_WARP> {
    /// Returns the lane of a host.
    ///
    /// # Safety
    ///
    /// [`on_each_lane`](KernelHost::on_each_lane) passed the host, to this thread alone. There are [`lanes`](KernelHost::lanes) of them, 32 if `IS_WARP`, with
    /// the numbers from 0 on, each once and always the same, and its [`all_gather`](KernelHost::all_gather) waits for all lanes and makes their earlier writes
    /// visible.
    #[must_use]
    pub const unsafe fn new(host: &'a dyn KernelHost) -> Self {
        Self(host)
    }
}

// SAFETY: the creator promises one lane for each number, and that `all_gather`, which is the barrier, waits for all and makes their writes visible.
unsafe impl<const IS_WARP: bool> Lanes for Threads<'_, IS_WARP> {
    fn width(&self) -> u32 {
        self.0.lanes()
    }
    fn lane(&self) -> u32 {
        self.0.lane()
    }
    fn group(&self) -> u64 {
        self.0.group()
    }
    fn groups(&self) -> u64 {
        self.0.groups()
    }
    fn broadcast(&self, value: u64) -> u64 {
        let mut first = None;
        self.0.all_gather(value, &mut |lane, value| first = if lane == 0 { value } else { first });
        // On a device any value would do. Here the lanes would wait on, each with its own.
        first.expect("lane 0 has ended")
    }
    fn sum(&self, value: u64) -> u64 {
        let mut sum: u64 = 0;
        self.0.all_gather(value, &mut |_, value| sum = sum.wrapping_add(value.unwrap_or(0)));
        sum
    }
    fn barrier(&self) {
        self.0.all_gather(0, &mut |_, _| ());
    }
    fn barrier_and(&self, answer: bool) -> bool {
        let mut all = true;
        self.0.all_gather(u64::from(answer), &mut |_, answer| all &= answer == Some(1));
        all
    }
    fn pause(&self, times: u32) {
        self.0.pause(times);
    }
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
    unsafe fn remember(&self, _control: u64, _epoch: u32, _groups: u64) {}
}

// SAFETY: 32 lanes, by the promise of the creator.
unsafe impl WarpLanes for Threads<'_, true> {
    const WIDTH: u32 = LANES as u32;

    fn ballot(&self, answer: bool) -> u32 {
        let mut votes = 0;
        self.0.all_gather(u64::from(answer), &mut |lane, answer| votes |= u32::from(answer == Some(1)) << lane);
        votes
    }
}

impl Pairs for Simulated<'_> {
    // The flag is stored last and loaded first.
    unsafe fn load_pair(pair: &[HostWord; 2]) -> [u64; 2] {
        let flag = Word::load_acquire(&pair[1]);
        [Word::load(&pair[0]), flag]
    }
    unsafe fn store_pair(pair: &[HostWord; 2], [payload, flag]: [u64; 2]) {
        Word::store(&pair[0], payload);
        Word::store_release(&pair[1], flag);
    }
}
