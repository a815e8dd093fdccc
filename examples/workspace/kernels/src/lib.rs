//! The kernels. [`step`] knows neither host nor device; [`IMAGE`] holds it for both.
#![no_std]
#![cfg_attr(target_os = "cuda", feature(abi_ptx))]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(target_os = "cuda")]
mod device;
#[cfg(not(target_os = "cuda"))]
mod host;

#[cfg(not(target_os = "cuda"))]
pub use host::IMAGE;

use particles_shared::{ABI, Particle, Vector};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, persistent};
use ringmem_layouts::kernel::{DevicePointer, Epoch, Kernel};
use ringmem_layouts::{ControlBlock, Machine};

/// What every persistent kernel takes: its control block, its epoch, nanoseconds until it leaves an idle ring, messages a batch.
pub const STEP: Kernel<(DevicePointer<ControlBlock<u64>>, Epoch, u64, u64)> = Kernel::new("step");

/// Moves each particle by one second.
struct Step;

impl<M: Machine, L: Lanes> Handler<M, L> for Step {
    type Input = Particle;
    type Output = Particle;
    const ABI: u64 = ABI.hash;

    #[inline(always)]
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, Particle, Particle, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            // SAFETY: below the length; the lanes take turns, so no other is here.
            unsafe { batch.exchange(index, a_second_later) };
            index += u64::from(L::WIDTH);
        }
        0
    }
}

#[inline(always)]
fn a_second_later(now: &Particle, then: &mut Particle) {
    let Vector { x, y, z } = now.position;
    *then = *now;
    then.position = Vector { x: x + now.velocity.x, y: y + now.velocity.y, z: z + now.velocity.z };
    then.seconds_left = now.seconds_left.saturating_sub(1);
}

/// The kernel, for any machine.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn step<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch) {
    // SAFETY: the caller's promise.
    unsafe { persistent(machine, lanes, launch, &mut Step) }
}
