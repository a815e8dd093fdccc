//! The kernels of this crate, by name.

use ringmem_layouts::RingHeader;
use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::ring::aggregate::Aggregate;

use crate::echo::{self, Echo, Handle};
use crate::histogram::{self, Work};
use crate::probe::{self, Words};
use crate::reduce::{self, Rows};
use crate::{checks, grid, kernels, transform};

kernels! {
    abi: crate::ABI;
    ptx: "../ptx/ringmem.ptx";

    /// Answers each message with a copy of itself.
    pub persistent fn echo(Echo) -> Echo = Handle::<true>;

    /// As [`ECHO`], between rings with a header on each side: also takes the addresses of a [`Split`](crate::Split).
    pub persistent fn echo_split(
        input_peer: DevicePointer<RingHeader<u64>>,
        input_slots: DevicePointer<Echo>,
        output_peer: DevicePointer<RingHeader<u64>>,
        output_slots: DevicePointer<Echo>,
    ) = echo::echo_split;

    /// As [`ECHO`], between rings with a flag in each slot.
    pub flagged fn echo_flagged(Echo) -> Echo = Handle::<true>;

    /// As [`ECHO`], for several groups that share one output ring: takes their shared state.
    pub persistent fn echo_aggregated(shared: DevicePointer<Aggregate<u64>>) = echo::echo_aggregated;

    /// As [`ECHO`], without counters, clock, heartbeat and telemetry while it is busy, to measure their cost.
    pub persistent fn echo_bare(Echo) -> Echo = Handle::<false>;

    /// Counts bytes: takes the data, its length in bytes and working memory.
    pub persistent fn histogram(data: DevicePointer<u64>, length: u64, work: DevicePointer<Work>) = histogram::histogram;

    /// Changes bytes in place: takes the data and its length in bytes.
    pub persistent fn transform(data: DevicePointer<u8>, length: u64) = transform::transform;

    /// Sum, minimum and maximum of numbers: takes the data, its length in bytes and working memory.
    pub persistent fn reduce(data: DevicePointer<u64>, length: u64, rows: DevicePointer<Rows>) = reduce::reduce;

    /// Runs until it is released: takes two words.
    pub grid fn hold(words: DevicePointer<[u64; 2]>) = checks::hold;

    /// Adds 1 to each byte: takes the bytes and their count.
    pub grid fn increment(bytes: DevicePointer<u8>, count: u64) = checks::increment;

    /// Copies bytes: takes target, source and count. The two do not overlap.
    pub grid fn copy(to: DevicePointer<u8>, from: DevicePointer<u8>, bytes: u64) = grid::copy;

    /// Fills words: takes the target, the count and the word.
    pub grid fn fill(to: DevicePointer<u64>, count: u64, value: u64) = grid::fill;

    /// Adds floats: takes sums, both summands and their count. The sums may be one of the summands.
    pub grid fn vector_add(sums: DevicePointer<f32>, a: DevicePointer<f32>, b: DevicePointer<f32>, count: u64) = grid::vector_add;

    /// Takes words, first number, rounds, idle nanoseconds, [`mode`](crate::probe::mode).
    pub grid fn ping_pong(words: Words, start: u64, rounds: u64, idle_ns: u64, mode: u64) = probe::ping_pong;

    /// Takes words, count, [`mode`](crate::probe::mode).
    pub grid fn publish(words: Words, count: u64, mode: u64) = probe::publish;

    /// Takes words, count, [`mode`](crate::probe::mode).
    pub grid fn order_of_stores(words: Words, count: u64, mode: u64) = probe::order_of_stores;

    /// Takes words, last number, idle nanoseconds, [`mode`](crate::probe::mode).
    pub grid fn order_of_loads(words: Words, last: u64, idle_ns: u64, mode: u64) = probe::order_of_loads;
}
