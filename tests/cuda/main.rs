//! The CUDA backend on the driver double, not on a GPU.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod address_ranges;
mod channel;
mod conformance;
mod dlpack;
mod exits;
mod faults;
mod grid;
mod held;
mod interop;
mod launches;
mod memory;
mod missing_functions;
mod peers;
mod pools;
mod preallocation;
mod resident;
mod rig;
#[path = "../suite/rights.rs"]
mod rights;
mod staged;
mod streams;
mod under_a_kernel;
mod unresponsive;
mod unspecified;

use rig::clean as in_a_process;
