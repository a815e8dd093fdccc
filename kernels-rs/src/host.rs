//! The kernels as host functions, and the image that carries both forms.

use core::ptr::NonNull;

use ringmem_layouts::image::{Entry, KernelHost};
use ringmem_layouts::{Host, HostWord, Image, Machine};

use crate::{ABI, Lanes, Launch, echo, histogram};

/// The kernels of this crate.
pub const IMAGE: Image = Image {
    ptx: include_bytes!("../ptx/ringmem.ptx"),
    host: &[Entry { name: "echo", arguments: 4, run: run_echo }, Entry { name: "histogram", arguments: 7, run: run_histogram }],
    abi: ABI,
};

/// The machine of a backend that simulates a device: its addresses are translated, its words are the host's.
pub struct Simulated<'a>(pub &'a dyn KernelHost);

impl Machine for Simulated<'_> {
    type Word = HostWord;
    type Cell<T> = <Host as Machine>::Cell<T>;

    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>> {
        let aligned = align.is_power_of_two() && address & (align - 1) == 0;
        let place = self.0.translate(aligned.then_some(address)?, bytes)?;
        (place.as_ptr() as u64 & (align - 1) == 0).then_some(place)
    }
}

/// One thread that is its own warp.
pub struct Single<'a>(pub &'a dyn KernelHost);

impl Lanes for Single<'_> {
    const WIDTH: u32 = 1;

    fn lane(&self) -> u32 {
        0
    }
    fn group(&self) -> u64 {
        0
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
    fn remember(&self, _control: u64) {}
}

unsafe fn run_echo(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch] = arguments else { return };
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_histogram(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch, data, length, work] = arguments else { return };
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { histogram::histogram(&Simulated(host), &Single(host), &launch, data, length, work) }
}
