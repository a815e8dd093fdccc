//! The CUDA backend on the driver double, not on a GPU.
#![cfg(all(feature = "cuda", feature = "testing", target_os = "linux"))]

mod ahead;
mod channel;
mod conformance;
mod ends;
mod faults;
mod held;
mod interop;
mod lacking;
mod launches;
mod memory;
mod peers;
mod promises;
mod resident;
mod rig;
#[path = "../suite/rights.rs"]
mod rights;
mod silence;
mod staged;
mod streams;
