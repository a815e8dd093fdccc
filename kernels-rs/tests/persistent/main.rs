//! The persistent kernels as host functions, in memory that each test lays out manually, without a backend.
//!
//! No wait exceeds [`rig::LIMIT`], and no test asserts a duration.

mod aggregated;
mod echo;
mod faults;
mod flagged;
mod grid;
mod histogram;
mod image;
mod lifecycle;
mod machine;
mod memory;
mod reduce;
mod rig;
mod split;
mod telemetry;
mod traced;
mod transform;
mod warp;
