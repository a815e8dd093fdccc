//! The pools that a configuration makes, on the host backend: every field of it is seen there, and pinned memory is not wasted.
use crate::clean;
mod fields;
mod pinned;
mod slices;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
