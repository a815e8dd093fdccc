//! The kernels of this crate by name, and what they were compiled with. A crate with kernels of its own leaves out the feature `entries`, and has its own.

use ringmem_layouts::kernel::{Argument, DevicePointer, Epoch, Kernel};
use ringmem_layouts::ring::aggregate::Aggregate;
use ringmem_layouts::{ControlBlock, RingHeader};

use super::{Device, Warp};
use crate::echo::{self, Echo};
use crate::histogram::{self, Work};
use crate::probe::{self, Words};
use crate::reduce::{self, Rows};
use crate::{ABI, Launch, Split, checks, grid, transform};

/// What this image was compiled with; the host compares it on load.
#[unsafe(no_mangle)]
#[used]
pub static RINGMEM_ABI: u64 = ABI.hash;

type Controls = DevicePointer<ControlBlock<u64>>;

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn echo(controls: Controls, epoch: Epoch, idle_ns: u64, batch: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { echo::echo(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch)) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn echo_split(
    controls: Controls,
    epoch: Epoch,
    idle_ns: u64,
    batch: u64,
    input_peer: DevicePointer<RingHeader<u64>>,
    input_slots: DevicePointer<Echo>,
    output_peer: DevicePointer<RingHeader<u64>>,
    output_slots: DevicePointer<Echo>,
) {
    let split = Split {
        input_peer: input_peer.address(),
        input_slots: input_slots.address(),
        output_peer: output_peer.address(),
        output_slots: output_slots.address(),
    };
    let launch = Launch { split: Some(split), ..Launch::new(controls, epoch, idle_ns, batch) };
    // SAFETY: the promise of whoever launches.
    unsafe { echo::echo(&Device, &Warp, &launch) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn echo_flagged(controls: Controls, epoch: Epoch, idle_ns: u64, batch: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { echo::echo_flagged(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch)) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn echo_aggregated(
    controls: Controls,
    epoch: Epoch,
    idle_ns: u64,
    batch: u64,
    shared: DevicePointer<Aggregate<u64>>,
) {
    // SAFETY: the promise of whoever launches.
    unsafe { echo::echo_aggregated(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch), shared.address()) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn echo_bare(controls: Controls, epoch: Epoch, idle_ns: u64, batch: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { echo::echo_bare(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch)) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn histogram(
    controls: Controls,
    epoch: Epoch,
    idle_ns: u64,
    batch: u64,
    data: DevicePointer<u64>,
    length: u64,
    work: DevicePointer<Work>,
) {
    let launch = Launch::new(controls, epoch, idle_ns, batch);
    // SAFETY: the promise of whoever launches.
    unsafe { histogram::histogram(&Device, &Warp, &launch, data.address(), length, work.address()) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn copy(to: DevicePointer<u8>, from: DevicePointer<u8>, bytes: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { grid::copy(&Device, &Warp, to.address(), from.address(), bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn fill(to: DevicePointer<u64>, count: u64, value: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { grid::fill(&Device, &Warp, to.address(), count, value) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn vector_add(sums: DevicePointer<f32>, a: DevicePointer<f32>, b: DevicePointer<f32>, count: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { grid::vector_add(&Device, &Warp, sums.address(), a.address(), b.address(), count) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn hold(words: DevicePointer<[u64; 2]>) {
    // SAFETY: the promise of whoever launches.
    unsafe { checks::hold(&Device, &Warp, words.address()) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn increment(bytes: DevicePointer<u8>, count: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { checks::increment(&Device, &Warp, bytes.address(), count) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn transform(controls: Controls, epoch: Epoch, idle_ns: u64, batch: u64, data: DevicePointer<u8>, length: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { transform::transform(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch), data.address(), length) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn reduce(
    controls: Controls,
    epoch: Epoch,
    idle_ns: u64,
    batch: u64,
    data: DevicePointer<u64>,
    length: u64,
    rows: DevicePointer<Rows>,
) {
    // SAFETY: the promise of whoever launches.
    unsafe { reduce::reduce(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch), data.address(), length, rows.address()) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn ping_pong(words: Words, start: u64, rounds: u64, idle_ns: u64, mode: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { probe::ping_pong(&Device, &Warp, words.address(), start, rounds, idle_ns, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn publish(words: Words, count: u64, mode: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { probe::publish(&Device, &Warp, words.address(), count, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn order_of_stores(words: Words, count: u64, mode: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { probe::order_of_stores(&Device, &Warp, words.address(), count, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn order_of_loads(words: Words, last: u64, idle_ns: u64, mode: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { probe::order_of_loads(&Device, &Warp, words.address(), last, idle_ns, mode) }
}

/// A device function with the types of `A`, each as wide as a word.
trait Takes<A> {}

macro_rules! takes {
    ($(($($t:ident),*))*) => {$(
        impl<$($t: Argument),*> Takes<($($t,)*)> for unsafe extern "ptx-kernel" fn($($t),*) {}
    )*};
}

takes! { (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) (A, B, C, D, E, F, G) (A, B, C, D, E, F, G, H) }

const fn same<A, F: Takes<A> + Copy>(_: &Kernel<A>, _: F) {}

// What the host hands over is what the device takes: neither compiles with the other's types.
const _: () = {
    same(&echo::ECHO, echo as unsafe extern "ptx-kernel" fn(_, _, _, _));
    same(&echo::ECHO_SPLIT, echo_split as unsafe extern "ptx-kernel" fn(_, _, _, _, _, _, _, _));
    same(&echo::ECHO_FLAGGED, echo_flagged as unsafe extern "ptx-kernel" fn(_, _, _, _));
    same(&echo::ECHO_AGGREGATED, echo_aggregated as unsafe extern "ptx-kernel" fn(_, _, _, _, _));
    same(&echo::ECHO_BARE, echo_bare as unsafe extern "ptx-kernel" fn(_, _, _, _));
    same(&histogram::HISTOGRAM, histogram as unsafe extern "ptx-kernel" fn(_, _, _, _, _, _, _));
    same(&transform::TRANSFORM, transform as unsafe extern "ptx-kernel" fn(_, _, _, _, _, _));
    same(&reduce::REDUCE, reduce as unsafe extern "ptx-kernel" fn(_, _, _, _, _, _, _));
    same(&checks::HOLD, hold as unsafe extern "ptx-kernel" fn(_));
    same(&checks::INCREMENT, increment as unsafe extern "ptx-kernel" fn(_, _));
    same(&grid::COPY, copy as unsafe extern "ptx-kernel" fn(_, _, _));
    same(&grid::FILL, fill as unsafe extern "ptx-kernel" fn(_, _, _));
    same(&grid::VECTOR_ADD, vector_add as unsafe extern "ptx-kernel" fn(_, _, _, _));
    same(&probe::PING_PONG, ping_pong as unsafe extern "ptx-kernel" fn(_, _, _, _, _));
    same(&probe::PUBLISH, publish as unsafe extern "ptx-kernel" fn(_, _, _));
    same(&probe::ORDER_OF_STORES, order_of_stores as unsafe extern "ptx-kernel" fn(_, _, _));
    same(&probe::ORDER_OF_LOADS, order_of_loads as unsafe extern "ptx-kernel" fn(_, _, _, _));
};
