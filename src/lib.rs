//! The memory that a CPU and a GPU share while a kernel keeps running.
//!
//! Without features this crate is [`ringmem_layouts`] and nothing else: the bytes and protocols that both sides see, `no_std`, no
//! allocator. The feature `std` adds the host: `backend`, so far with one backend whose device is simulated and whose streams are threads.
//!
//! ```
//! # #[cfg(feature = "std")]
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//!
//! let backend = HostBackend::builder().device_memory(1 << 20).build()?;
//! let stream = backend.stream()?;
//! let device = backend.alloc_device(4096, 128)?;
//!
//! let mut pinned = backend.alloc_pinned(4096)?;
//! pinned.as_mut_slice().fill(7);
//! let pinned = stream.upload(pinned, 4096, &device, 0)?.wait()?; // the stream owns it meanwhile
//! let pinned = stream.download(&device, 0, pinned, 4096)?.wait()?;
//! assert!(pinned.as_slice().iter().all(|&byte| byte == 7));
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
pub mod channel;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "std")]
pub mod describe;
#[cfg(feature = "std")]
pub mod error;
// Where the system has locks that die with their owner, and memory whose size can be sealed.
#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
pub mod shared;
#[cfg(feature = "std")]
pub mod wait;

#[cfg(feature = "std")]
pub use error::{Error, Rejected, Result};
pub use ringmem_layouts as layouts;
pub use ringmem_layouts::*;

/// The README's example compiles.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
