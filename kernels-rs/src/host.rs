//! [`Simulated`] and [`Single`]: a kernel on a host thread.

use core::ptr::NonNull;

use ringmem_layouts::align::is_aligned;
use ringmem_layouts::image::KernelHost;
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

/// A group of one thread.
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
    fn remember(&self, _control: u64, _epoch: u32) {}
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
