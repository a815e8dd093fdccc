mod causes;
mod faults;
#[cfg(target_os = "linux")]
mod files;
mod model;
mod overlap;
mod persistent;
mod rig;
mod shapes;
mod sinks;
mod sources;
