//! The crate's tests in one program, linked once.

mod count;
mod force_push;
mod loom_machine;
mod models;
mod patience;
mod ring_memory;

mod abi;
mod attach;
mod drain;
mod errors;
mod filled;
mod framed_attach;
mod framed_model;
mod kernels;
mod len_and_peek;
#[cfg(feature = "alloc")]
mod local;
mod loom_groups;
mod loom_lossy;
mod loom_mpsc_mpmc;
mod loom_spsc_flagged_framed;
mod loom_telemetry;
mod lossy_model;
#[cfg(feature = "alloc")]
mod owned;
mod paired;
#[cfg(feature = "bytemuck")]
mod pods;
mod rings_model;
#[cfg(feature = "alloc")]
mod run_time_capacity;
mod shuttle_rings;
#[cfg(all(feature = "alloc", any(feature = "std", feature = "embedded-io")))]
mod streams;
mod untrusted_model;
#[cfg(feature = "alloc")]
mod values;
#[cfg(feature = "alloc")]
mod views;

const DEPTH: u64 = if cfg!(debug_assertions) { 1 } else { 8 };
