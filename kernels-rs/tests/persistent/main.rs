//! The persistent kernels as host functions, in memory that each test lays out by hand. There is no backend here.
//!
//! Nothing waits longer than [`rig::LIMIT`], and no test asserts how long something took.

mod aggregated;
mod echo;
mod faults;
mod flagged;
mod grid;
mod histogram;
mod image;
mod lifecycle;
mod memory;
mod reduce;
mod rig;
mod split;
mod telemetry;
mod traced;
mod transform;
mod warp;
