//! The tests of the double in one program; each starts itself again in a process of its own.

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
