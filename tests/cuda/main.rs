//! The CUDA backend on the driver double. No GPU takes part, and no figure comes of it.
#![cfg(all(feature = "cuda", feature = "testing", target_os = "linux"))]

mod channel;
mod conformance;
mod ends;
mod faults;
mod held;
mod interop;
mod memory;
mod peers;
#[cfg(feature = "cli")]
mod program;
mod promises;
mod rig;
mod streams;
