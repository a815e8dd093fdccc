//! `burst`: messages that a kernel sends of its own, as fast as the host takes them.

use ringmem_layouts::SharedLayout;

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::BURST;

/// Asks for messages. Has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C)]
#[layout(size = 8, message = 8, writer = "host")]
pub struct Burst {
    /// How many, in addition to those still to be sent.
    pub count: u64,
}

/// A message that nobody asked for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C)]
#[layout(size = 8, message = 9, writer = "device")]
pub struct Report {
    /// Its number since the launch, from 0.
    pub number: u64,
}

/// What a launch of `burst` has to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of the next report.
    pub next: u64,
    /// The number after the last one.
    pub end: u64,
}
