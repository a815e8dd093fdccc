use ringmem_kernels::IMAGE;
use ringmem_layouts::image::KernelHost;

pub fn run_image(name: &str, arguments: &[u64], device: &dyn KernelHost) {
    let entry = IMAGE.host.iter().find(|entry| entry.name == name).expect("a kernel of that name");
    assert_eq!(entry.arguments, arguments.len());
    // SAFETY: the kernel's arguments, which outlive it; the rig is the only peer.
    unsafe { (entry.run)(device, arguments) };
}

/// A simulated device refuses unmapped addresses; a GPU faults.
pub fn unmapped<T, const N: usize>(rows: [T; N]) -> impl Iterator<Item = T> {
    rows.into_iter()
}

pub const SLEEPS_IN_EACH_DRY_ROUND: bool = true;
