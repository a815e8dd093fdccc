//! Data larger than device memory: every byte once and in order, and where an interrupted stream goes on.
//!
//! Nothing waits longer than the streams' own limits, and no test asserts how long something took by the wall clock.
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
