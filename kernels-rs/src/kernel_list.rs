use ringmem_layouts::kernel::DevicePointer;

use crate::burst::{Backlog, Burst, Report};
use crate::echo::{self, Echo, Handle};
use crate::histogram::{self, Work};
use crate::probe::{self, Words};
use crate::reduce::{self, Rows};
use crate::{Index, conformance, grid, kernels, transform};

kernels! {
    abi: crate::ABI;
    ptx: "../ptx/ringmem.ptx";

    /// Returns each message.
    pub persistent fn echo(Echo) -> Echo = Handle::<true>;

    /// [`ECHO`] between rings with a flag in each slot.
    pub flagged fn echo_flagged(Echo) -> Echo = Handle::<true>;

    /// [`ECHO`] between rings with a flag in each word.
    pub unsafe persistent fn echo_paired() = echo::echo_paired;

    /// [`ECHO`] by several groups.
    pub grouped fn echo_grouped(Echo) -> Echo = Handle::<true>;

    /// [`ECHO`] by a block of several warps.
    pub block fn echo_block(Echo) -> Echo = Handle::<true>;

    /// [`ECHO`] without accounts while it is busy: see [`Handler`](crate::Handler).
    pub persistent fn echo_bare(Echo) -> Echo = Handle::<false>;

    /// Sends numbered reports: as many as all [`Burst`]s have asked for.
    pub persistent fn burst(backlog: &mut Backlog, now: Option<&Burst>) -> Option<Report> {
        if let Some(burst) = now {
            backlog.end = backlog.end.saturating_add(burst.count);
            return None;
        }
        let number = backlog.next;
        (number < backlog.end).then(|| {
            backlog.next += 1;
            Report { number }
        })
    }

    /// Counts bytes.
    pub unsafe persistent fn histogram(data: DevicePointer<u64>, length: u64, work: DevicePointer<Work>) = histogram::histogram;

    /// Changes bytes in place.
    pub unsafe persistent fn transform(data: DevicePointer<u8>, length: u64) = transform::transform;

    /// Sum, minimum and maximum of numbers.
    pub unsafe persistent fn reduce(data: DevicePointer<u64>, length: u64, rows: DevicePointer<Rows>) = reduce::reduce;

    /// Runs until released through its words.
    pub unsafe grid fn hold(words: DevicePointer<[u64; 2]>) = conformance::hold;

    /// Adds 1 to each byte.
    pub unsafe grid fn increment(bytes: DevicePointer<u8>, count: u64) = conformance::increment;

    /// Copies bytes between ranges that do not overlap.
    pub unsafe grid fn copy(to: DevicePointer<u8>, from: DevicePointer<u8>, bytes: u64) = grid::copy;

    /// Fills words.
    pub unsafe grid fn fill(to: DevicePointer<u64>, count: u64, value: u64) = grid::fill;

    /// Adds floats; `sums` may be a summand.
    pub unsafe grid fn vector_add(sums: DevicePointer<f32>, a: DevicePointer<f32>, b: DevicePointer<f32>, count: u64) = grid::vector_add;

    /// Adds `a x` to `y`.
    pub grid fn saxpy(x: &f32, y: &mut f32, a: f32) {
        *y += a * *x;
    }

    /// Writes the mean of each element and its neighbours. `x` has as many elements as `y`, or its ends are those of `x`.
    pub grid fn smooth(at: Index, x: &[f32], y: &mut f32) {
        let (mut sum, mut count) = (0.0, 0.0);
        for near in [at.get().wrapping_sub(1), at.get(), at.get() + 1] {
            if let Some(value) = x.get(near) {
                sum += value;
                count += 1.0;
            }
        }
        *y = sum / count;
    }

    /// Measures round trips. See [`mode`](crate::probe::mode).
    pub unsafe grid fn ping_pong(words: Words, start: u64, rounds: u64, idle_ns: u64, mode: u64) = probe::ping_pong;

    /// Measures stores. See [`mode`](crate::probe::mode).
    pub unsafe grid fn publish(words: Words, count: u64, mode: u64) = probe::publish;

    /// Detects reordered stores. See [`mode`](crate::probe::mode).
    pub unsafe grid fn order_of_stores(words: Words, count: u64, mode: u64) = probe::order_of_stores;

    /// Detects reordered loads. See [`mode`](crate::probe::mode).
    pub unsafe grid fn order_of_loads(words: Words, last: u64, idle_ns: u64, mode: u64) = probe::order_of_loads;
}
