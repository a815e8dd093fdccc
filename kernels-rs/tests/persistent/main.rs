//! The persistent kernels as host functions. Waits end by [`patience`].

mod burst;
mod echo;
mod faults;
mod flag_suite;
mod flagged;
mod grid;
mod grouped;
mod handlers;
mod histogram;
mod image;
mod lanes;
mod lifecycle;
mod machine;
mod memory;
mod paired;
mod patience;
mod reduce;
mod rig;
mod second_headers;
mod simulated_warp;
mod telemetry;
mod traced;
mod transform;
