//! Data larger than device memory: every byte once and in order, and the continuation of interrupted runs.
//!
//! Waits are limited by the streams' own limits, and no test asserts wall-clock times.
#![cfg(feature = "std")]

mod causes;
#[path = "../clean/mod.rs"]
mod clean;
#[path = "../adaptors/clocks.rs"]
mod clocks;
mod faults;
#[path = "../adaptors/held.rs"]
mod held;
mod model;
mod overlap;
mod persistent;
mod rig;
mod shapes;
mod sinks;
mod sources;
