//! Data larger than device memory: every byte once and in order, and the continuation of interrupted runs.
//!
//! Waits are limited by the streams' own limits, and no test asserts wall-clock times.
mod causes;
use crate::clean;
use crate::clocks;
mod faults;
use crate::held;
mod model;
mod overlap;
mod persistent;
mod rig;
mod shapes;
mod sinks;
mod sources;
