//! The tests of the double.

mod alone;
mod rig;

mod faults;
mod kernel;
mod library;
mod managed;
mod memory;
mod module;
mod order;
mod peers;
mod pool;
mod stream;
#[cfg(target_os = "linux")]
mod virtual_memory;
