//! Data larger than device memory.
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
