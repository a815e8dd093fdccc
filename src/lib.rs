//! The memory that a CPU and a GPU share while a kernel keeps running.
//!
//! Without features this crate is [`ringmem_layouts`] and nothing else: the bytes and protocols that both sides see, `no_std`, no
//! allocator. The feature `std` adds the host: `backend`, who gives memory and runs kernels, one whose devices are simulated and, with the
//! feature `cuda`, one over a driver; `memory`, one buffer type over any memory; `pool`, memory handed out over and over; `manager`, named
//! buffers that grow; `registry`, buffers by number, in messages too; `mirror`, a host copy and a device copy kept in step; `stream`, queues of
//! copies and kernels, waited for by threads and tasks; `double_buffer`, buffers in turn between a device and the host; `copy`, merged and chunked copies;
//! `streaming`, data larger than device memory; `peer`, copies between devices; `bridge`, messages between a host's rings and a
//! kernel's; `channel`, a persistent kernel and its rings; `wait`, ends of rings that sleep; `shared`, rings between processes; `cache`, what was
//! used last; `config`, all settings in one value; `visibility`, what host and device see of each other; `describe`, layouts for people and for
//! other compilers.
//! The feature `testing` adds `conformance`, the suite that every backend passes.
//!
//! ```
//! # #[cfg(feature = "std")]
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
//! use ringmem::stream::Stream;
//!
//! let backend = HostBackend::builder().device_memory(1 << 20).build()?;
//! let stream = Stream::new(&backend, 0)?;
//! let device = GpuBuffer::<u8>::new(Device::new(&backend, 0), 4096)?;
//! let mut pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 4096)?;
//! pinned.as_mut_slice()?.fill(7);
//!
//! let (pinned, device) = stream.copy(pinned, device)?.wait()?; // the stream owns both meanwhile
//! assert!(device.to_vec()?.iter().all(|&byte| byte == 7));
//! # drop(pinned);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "std"))]
//! # fn main() {}
//! ```
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "std")]
pub mod backend;
#[cfg(feature = "std")]
mod barrier;
#[cfg(feature = "std")]
pub mod bridge;
#[cfg(feature = "std")]
pub mod cache;
#[cfg(feature = "std")]
pub mod channel;
#[cfg(feature = "std")]
pub mod config;
#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "std")]
pub mod copy;
#[cfg(feature = "std")]
pub mod describe;
#[cfg(feature = "std")]
pub mod double_buffer;
#[cfg(feature = "std")]
pub mod error;
#[cfg(feature = "std")]
mod fork;
#[cfg(feature = "std")]
mod free_list;
// What the models in unit tests run on.
#[cfg(all(test, feature = "std"))]
#[path = "../layouts/tests/loom_machine/mod.rs"]
#[allow(dead_code, reason = "made for the rings' own models")]
mod loom_machine;
#[cfg(feature = "std")]
pub mod manager;
#[cfg(feature = "std")]
pub mod memory;
#[cfg(feature = "std")]
pub mod mirror;
#[cfg(feature = "std")]
mod path;
#[cfg(feature = "std")]
pub mod peer;
#[cfg(feature = "std")]
pub mod pool;
#[cfg(feature = "std")]
pub mod registry;
// Where the system has locks that die with their owner, and memory whose size can be sealed.
#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
pub mod shared;
#[cfg(feature = "std")]
pub mod stream;
#[cfg(feature = "std")]
pub mod streaming;
#[cfg(feature = "std")]
pub mod visibility;
#[cfg(feature = "std")]
pub mod wait;

#[cfg(feature = "std")]
pub use error::{Error, Rejected, Result};
#[doc(inline)]
pub use ringmem_derive::SharedLayoutOfRingmem as SharedLayout;
#[doc(hidden)]
pub use ringmem_layouts as __layouts;
pub use ringmem_layouts::*;
#[cfg(feature = "std")]
pub use visibility::MemoryVisibility;

/// The README and the pages of `docs` that show code: all of it runs.
#[cfg(all(doctest, feature = "std"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/migration.md")]
    struct Migration;
    #[doc = include_str!("../docs/practices.md")]
    struct Practices;
    #[doc = include_str!("../docs/rings.md")]
    struct Rings;
}
