//! The kernels as host functions, and the image that carries both forms.

use particles_shared::ABI;
use ringmem_kernels::{Launch, Simulated, Single};
use ringmem_layouts::Image;
use ringmem_layouts::image::KernelHost;

use super::STEP;

/// What a backend loads.
pub const IMAGE: Image =
    Image { ptx: include_bytes!(concat!(env!("OUT_DIR"), "/kernels.ptx")), host: &[STEP.entry(run_step)], abi: ABI };

unsafe fn run_step(host: &dyn KernelHost, words: &[u64]) {
    let Some((controls, epoch, idle_ns, batch)) = STEP.arguments(words) else { return };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { super::step(&Simulated(host), &Single(host), &Launch::new(controls, epoch, idle_ns, batch)) }
}
