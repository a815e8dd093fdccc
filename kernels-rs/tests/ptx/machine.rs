//! The PTX of the image on a machine.

use std::sync::LazyLock;

use ringmem_kernels::IMAGE;
use ringmem_layouts::image::KernelHost;
use ringmem_ptx_machine::{Device, Image};

static PTX: LazyLock<Image> =
    LazyLock::new(|| Image::parse(std::str::from_utf8(IMAGE.ptx).expect("PTX is text")).unwrap_or_else(|fault| panic!("{fault}")));
static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::new(0x5eed));

pub fn run_image(name: &str, arguments: &[u64], host: &dyn KernelHost) {
    // Unique among concurrent launches.
    DEVICE.run(&PTX, name, arguments, host, 32, arguments[0]).unwrap_or_else(|fault| panic!("{fault}"));
}

/// Runs something; returns also what lanes stored to a word meanwhile.
pub fn recorded<R>(word: u64, run: impl FnOnce() -> R) -> (R, Vec<u64>) {
    DEVICE.record(word);
    let result = run();
    (result, DEVICE.recorded(word))
}

/// None: a kernel on a device cannot refuse unmapped addresses.
pub fn unmapped<T, const N: usize>(rows: [T; N]) -> impl Iterator<Item = T> {
    rows.into_iter().take(0)
}

pub const SLEEPS_IN_EACH_DRY_ROUND: bool = false;
