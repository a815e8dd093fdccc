//! The kernels as host functions, and the image that carries both forms.

use core::ptr::NonNull;

use ringmem_layouts::align::is_aligned;
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::{Host, HostWord, Image, Machine, Word};

use crate::checks::{self, HOLD, INCREMENT};
use crate::echo::{self, ECHO, ECHO_AGGREGATED, ECHO_BARE, ECHO_FLAGGED, ECHO_SPLIT};
use crate::grid::{self, COPY, FILL, VECTOR_ADD};
use crate::histogram::{self, HISTOGRAM};
use crate::probe::{self, ORDER_OF_LOADS, ORDER_OF_STORES, PING_PONG, PUBLISH, Pairs};
use crate::reduce::{self, REDUCE};
use crate::transform::{self, TRANSFORM};
use crate::{ABI, Lanes, Launch, Split};

/// The kernels of this crate.
pub const IMAGE: Image = Image {
    ptx: include_bytes!("../ptx/ringmem.ptx"),
    host: &[
        ECHO.entry(run_echo),
        ECHO_SPLIT.entry(run_echo_split),
        ECHO_FLAGGED.entry(run_echo_flagged),
        ECHO_AGGREGATED.entry(run_echo_aggregated),
        ECHO_BARE.entry(run_echo_bare),
        HISTOGRAM.entry(run_histogram),
        TRANSFORM.entry(run_transform),
        REDUCE.entry(run_reduce),
        HOLD.entry(run_hold),
        INCREMENT.entry(run_increment),
        COPY.entry(run_copy),
        FILL.entry(run_fill),
        VECTOR_ADD.entry(run_vector_add),
        PING_PONG.entry(run_ping_pong),
        PUBLISH.entry(run_publish),
        ORDER_OF_STORES.entry(run_order_of_stores),
        ORDER_OF_LOADS.entry(run_order_of_loads),
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

unsafe fn run_echo(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch)) = ECHO.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_echo_split(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch, input_peer, input_slots, output_peer, output_slots)) = ECHO_SPLIT.arguments(words) else {
        return;
    };
    let split = Split {
        input_peer: input_peer.address(),
        input_slots: input_slots.address(),
        output_peer: output_peer.address(),
        output_slots: output_slots.address(),
    };
    let launch = Launch { split: Some(split), ..Launch::new(controls, epoch, idle_ns, batch) };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_echo_flagged(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch)) = ECHO_FLAGGED.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo_flagged(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_echo_aggregated(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch, shared)) = ECHO_AGGREGATED.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo_aggregated(&Simulated(host), &Single(host), &launch, shared.address()) }
}

unsafe fn run_echo_bare(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch)) = ECHO_BARE.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { echo::echo_bare(&Simulated(host), &Single(host), &launch) }
}

unsafe fn run_histogram(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch, data, length, work)) = HISTOGRAM.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { histogram::histogram(&Simulated(host), &Single(host), &launch, data.address(), length, work.address()) }
}

unsafe fn run_transform(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch, data, length)) = TRANSFORM.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { transform::transform(&Simulated(host), &Single(host), &launch, data.address(), length) }
}

unsafe fn run_reduce(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch, data, length, rows)) = REDUCE.arguments(words) else { return };
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { reduce::reduce(&Simulated(host), &Single(host), &launch, data.address(), length, rows.address()) }
}

unsafe fn run_copy(host: &dyn KernelHost, words: &[u64]) {
    let Some((to, from, bytes)) = COPY.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { grid::copy(&Simulated(host), &Single(host), to.address(), from.address(), bytes) }
}

unsafe fn run_fill(host: &dyn KernelHost, words: &[u64]) {
    let Some((to, count, value)) = FILL.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { grid::fill(&Simulated(host), &Single(host), to.address(), count, value) }
}

unsafe fn run_vector_add(host: &dyn KernelHost, words: &[u64]) {
    let Some((sums, a, b, count)) = VECTOR_ADD.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { grid::vector_add(&Simulated(host), &Single(host), sums.address(), a.address(), b.address(), count) }
}

unsafe fn run_hold(host: &dyn KernelHost, words: &[u64]) {
    let Some((words,)) = HOLD.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { checks::hold(&Simulated(host), &Single(host), words.address()) }
}

unsafe fn run_increment(host: &dyn KernelHost, words: &[u64]) {
    let Some((bytes, count)) = INCREMENT.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { checks::increment(&Simulated(host), &Single(host), bytes.address(), count) }
}

unsafe fn run_ping_pong(host: &dyn KernelHost, words: &[u64]) {
    let Some((words, start, rounds, idle_ns, mode)) = PING_PONG.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::ping_pong(&Simulated(host), &Single(host), words.address(), start, rounds, idle_ns, mode) }
}

unsafe fn run_publish(host: &dyn KernelHost, words: &[u64]) {
    let Some((words, count, mode)) = PUBLISH.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::publish(&Simulated(host), &Single(host), words.address(), count, mode) }
}

unsafe fn run_order_of_stores(host: &dyn KernelHost, words: &[u64]) {
    let Some((words, count, mode)) = ORDER_OF_STORES.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::order_of_stores(&Simulated(host), &Single(host), words.address(), count, mode) }
}

unsafe fn run_order_of_loads(host: &dyn KernelHost, words: &[u64]) {
    let Some((words, last, idle_ns, mode)) = ORDER_OF_LOADS.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { probe::order_of_loads(&Simulated(host), &Single(host), words.address(), last, idle_ns, mode) }
}
