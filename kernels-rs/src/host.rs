//! [`Simulated`], [`Single`] and [`Threads`]: a kernel on threads of the host.

use core::ptr::NonNull;

use ringmem_layouts::align::is_aligned;
use ringmem_layouts::image::{KernelHost, LANES};
use ringmem_layouts::{Host, HostWord, Machine, Word};

use crate::Lanes;
use crate::probe::Pairs;

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
    const WIDTH: u32 = 1;

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
    fn ballot(&self, answer: bool) -> u32 {
        u32::from(answer)
    }
    fn barrier(&self) {}
    fn pause(&self, times: u32) {
        self.0.pause(times);
    }
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
    fn remember(&self, _control: u64, _epoch: u32, _groups: u64) {}
}

/// A group of 32 threads, each a lane of a warp.
pub struct Threads<'a>(&'a dyn KernelHost);

impl<'a> Threads<'a> {
    /// Returns the lane of a host.
    ///
    /// # Safety
    ///
    /// [`on_each_lane`](KernelHost::on_each_lane) passed the host, to this thread alone. Its lanes have the numbers 0 to 31, each once and always the same, and
    /// its [`all_gather`](KernelHost::all_gather) waits for all lanes and makes their earlier writes visible.
    #[must_use]
    pub const unsafe fn new(host: &'a dyn KernelHost) -> Self {
        Self(host)
    }
}

// SAFETY: the creator promises one lane for each number, and that `all_gather`, which is the barrier, waits for all and makes their writes visible.
unsafe impl Lanes for Threads<'_> {
    const WIDTH: u32 = LANES as u32;

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
        // On a device any value would do. Here the lanes would wait on, each with its own.
        self.0.all_gather(value)[0].expect("lane 0 has ended")
    }
    fn sum(&self, value: u64) -> u64 {
        self.0.all_gather(value).into_iter().flatten().fold(0, u64::wrapping_add)
    }
    fn ballot(&self, answer: bool) -> u32 {
        let answers = self.0.all_gather(u64::from(answer));
        answers.into_iter().zip(0..).fold(0, |votes, (answer, lane)| votes | u32::from(answer == Some(1)) << lane)
    }
    fn barrier(&self) {
        self.0.all_gather(0);
    }
    fn pause(&self, times: u32) {
        self.0.pause(times);
    }
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
    fn remember(&self, _control: u64, _epoch: u32, _groups: u64) {}
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
