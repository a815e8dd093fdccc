//! The kernels as host functions, and the image that carries both forms.

use core::ptr::NonNull;

use ringmem_layouts::align::is_aligned;
use ringmem_layouts::image::{Entry, KernelHost};
use ringmem_layouts::{Host, HostWord, Image, Machine, Word};

use crate::probe::{self, Pairs};
use crate::{ABI, Lanes, Launch, Split, echo, histogram};

/// The kernels of this crate.
pub const IMAGE: Image = Image {
    ptx: include_bytes!("../ptx/ringmem.ptx"),
    host: &[
        Entry { name: "echo", arguments: 4, run: run_echo },
        Entry { name: "echo_split", arguments: 8, run: run_echo_split },
        Entry { name: "histogram", arguments: 7, run: run_histogram },
        Entry { name: "ping_pong", arguments: 5, run: run_ping_pong },
        Entry { name: "publish", arguments: 3, run: run_publish },
        Entry { name: "order_of_stores", arguments: 3, run: run_order_of_stores },
        Entry { name: "order_of_loads", arguments: 4, run: run_order_of_loads },
    ],
    abi: ABI,
};

/// The machine of a backend that simulates a device: its addresses are translated, its words are the host's.
pub struct Simulated<'a>(pub &'a dyn KernelHost);

impl Machine for Simulated<'_> {
    type Word = HostWord;
    type Cell<T> = <Host as Machine>::Cell<T>;

    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>> {
        let place = self.0.translate(is_aligned(address, align).then_some(address)?, bytes)?;
        is_aligned(place.as_ptr() as u64, align).then_some(place)
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
        self.0.group()
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
    // Not one access, but the flag comes last and is looked at first.
    fn load_pair(pair: &[HostWord; 2]) -> [u64; 2] {
        let flag = Word::load_acquire(&pair[1]);
        [Word::load(&pair[0]), flag]
    }
    fn store_pair(pair: &[HostWord; 2], [payload, flag]: [u64; 2]) {
        Word::store(&pair[0], payload);
        Word::store_release(&pair[1], flag);
    }
}

unsafe fn run_echo(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch] = arguments else { return };
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, split: None };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_echo_split(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch, input_peer, input_slots, output_peer, output_slots] = arguments else { return };
    let split = Some(Split { input_peer, input_slots, output_peer, output_slots });
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, split };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_histogram(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch, data, length, work] = arguments else { return };
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, split: None };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { histogram::histogram(&Simulated(host), &Single(host), &launch, data, length, work) }
}

unsafe fn run_ping_pong(host: &dyn KernelHost, arguments: &[u64]) {
    let &[words, start, rounds, idle_ns, mode] = arguments else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::ping_pong(&Simulated(host), &Single(host), words, start, rounds, idle_ns, mode) }
}

unsafe fn run_publish(host: &dyn KernelHost, arguments: &[u64]) {
    let &[words, count, mode] = arguments else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::publish(&Simulated(host), &Single(host), words, count, mode) }
}

unsafe fn run_order_of_stores(host: &dyn KernelHost, arguments: &[u64]) {
    let &[words, count, mode] = arguments else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::order_of_stores(&Simulated(host), &Single(host), words, count, mode) }
}

unsafe fn run_order_of_loads(host: &dyn KernelHost, arguments: &[u64]) {
    let &[words, last, idle_ns, mode] = arguments else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::order_of_loads(&Simulated(host), &Single(host), words, last, idle_ns, mode) }
}
