//! The persistent kernels as host functions, in memory that each test lays out by hand. There is no backend here.
//!
//! Nothing waits longer than [`rig::LIMIT`], and no test asserts how long something took.

mod echo;
mod faults;
mod histogram;
mod image;
mod lifecycle;
mod memory;
mod rig;
mod split;
mod telemetry;
mod traced;
mod warp;
