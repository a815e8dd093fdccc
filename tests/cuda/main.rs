//! The CUDA backend on the driver double, not on a GPU.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod address_ranges;
mod busy_stream;
mod channel;
mod conformance;
mod dlpack;
mod exits;
mod faults;
mod grid;
mod interop;
mod launches;
mod memory;
mod missing_functions;
mod peers;
mod pools;
mod preallocation;
#[path = "../suite/rig/rerun_or_skip.rs"]
mod rerun_or_skip;
mod resident;
mod rig;
mod staged;
mod streams;
mod under_a_kernel;
mod unresponsive;
mod unspecified;

use rig::clean as in_a_process;
