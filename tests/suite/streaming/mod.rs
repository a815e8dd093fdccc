mod causes;
use crate::clean;
use crate::clocks;
mod faults;
#[cfg(target_os = "linux")]
mod files;
use crate::held;
mod model;
mod overlap;
mod persistent;
mod rig;
mod shapes;
mod sinks;
mod sources;
