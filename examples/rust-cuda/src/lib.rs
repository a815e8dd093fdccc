//! Kernels for Rust-CUDA, and their messages for the host.

// A cdylib for the host needs the panic handler of `std`.
#![cfg_attr(target_os = "cuda", no_std)]

use ringmem_layouts::{Abi, LAYOUTS, SharedLayout, layout_set};

/// Eight numbers.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(64))]
#[layout(size = 64, message = 1, writer = "the sender")]
pub struct Numbers {
    /// In the sender's order.
    pub values: [f64; 8],
}

/// The layouts of both sides.
pub const ABI: Abi = Abi::of(layout_set!(LAYOUTS; Numbers));

#[cfg(target_os = "cuda")]
mod kernels {
    use ringmem_kernels::device::{Device, Warp};
    use ringmem_kernels::{Each, Launch, persistent};

    use super::{ABI, Numbers};

    /// The host compares it when it loads the image.
    #[unsafe(no_mangle)]
    #[used]
    static RINGMEM_ABI: u64 = ABI.hash;

    /// Doubles all numbers of a message.
    ///
    /// # Safety
    ///
    /// `Channel` or `stream::Stream` launches it.
    #[cuda_std::kernel]
    pub unsafe fn doubled(controls: u64, epoch: u64, idle_ns: u64, batch: u64) {
        let launch = Launch { controls, epoch: epoch as u32, idle_ns, batch, abi: ABI.hash };
        let step = |message: &Numbers, answer: &mut Numbers| answer.values = message.values.map(|value| 2.0 * value);
        // SAFETY: `Channel` or the caller of `Stream::launch` keeps the rings and the telemetry alive, as their only host side, until this
        // returns; a block is one warp.
        unsafe { persistent(&Device, &Warp::new(), &launch, &mut Each::new(step)) }
    }
}
