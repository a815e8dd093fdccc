//! The kernels as a GPU runs them.

use particles_shared::ABI;
use ringmem_kernels::Launch;
use ringmem_kernels::device::{Device, Warp};
use ringmem_layouts::ControlBlock;
use ringmem_layouts::kernel::{DevicePointer, Epoch};

/// What the kernels were compiled with: the host refuses them where it was compiled with other layouts.
#[unsafe(no_mangle)]
#[used]
pub static RINGMEM_ABI: u64 = ABI.hash;

#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn step(controls: DevicePointer<ControlBlock<u64>>, epoch: Epoch, idle_ns: u64, batch: u64) {
    // SAFETY: the promise of whoever launches.
    unsafe { super::step(&Device, &Warp, &Launch::new(controls, epoch, idle_ns, batch)) }
}
