//! The kernels as host functions, and the image that carries both forms.

use particles_shared::ABI;
use ringmem_kernels::{Launch, Simulated, Single};
use ringmem_layouts::Image;
use ringmem_layouts::image::{Entry, KernelHost};

/// What a backend loads.
pub const IMAGE: Image = Image {
    ptx: include_bytes!(concat!(env!("OUT_DIR"), "/kernels.ptx")),
    host: &[Entry { name: "step", arguments: 4, run: run_step }],
    abi: ABI,
};

unsafe fn run_step(host: &dyn KernelHost, arguments: &[u64]) {
    let &[controls, epoch, idle_ns, batch] = arguments else { return };
    let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, split: None };
    // SAFETY: the promise of `Entry::run`'s caller.
    unsafe { super::step(&Simulated(host), &Single(host), &launch) }
}
