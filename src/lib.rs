//! Shared structs, lock-free rings and buffers between Rust and a running GPU kernel.
//!
//! Without features, this is [`ringmem_layouts`]: layouts, rings and protocols, `no_std`, without an allocator. `std` adds:
//!
//! | module | contents |
//! |---|---|
//! | `backend` | simulated devices and, with the feature `cuda`, those of a driver |
//! | `memory`, `pool` | one buffer type over any memory; adaptors; a caching allocator |
//! | `stream` | queues of copies and kernels, with waiting from threads and tasks |
//! | `channel`, `bridge` | a persistent kernel with its rings; rings to kernels that you launch yourself |
//! | `copy`, `mirror`, `double_buffer`, `streaming`, `peer` | merged and chunked copies; a copy on each side; frames; data larger than device memory; between devices |
//! | `manager` | buffers by number, for messages, and by name, which grow |
//! | `dlpack` | buffers as tensors of NumPy, PyTorch and others, and tensors of these |
//! | `wait`, `shared` | waiting at rings; rings between processes |
//! | `monitor` | figures of running channels for other processes |
//! | `config`, `visibility`, `describe`, `snapshot`, `cache` | settings in one value; memory visibility of host and device; printed layouts; the state of memory as a file; an LRU cache |
//!
//! The feature `prometheus` adds a module of that name, which exports figures of the above to Prometheus. The guide is in `docs/guide`.
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
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

// rustfmt formats the files of modules in a macro of this name.
macro_rules! cfg_if {
    (if #[cfg($condition:meta)] { $($item:item)+ }) => {
        $(#[cfg($condition)] $item)+
    };
}

cfg_if! {
    if #[cfg(feature = "std")] {
        pub mod backend;
        pub mod bridge;
        pub mod cache;
        pub mod channel;
        mod growing_table;
        pub mod config;
        #[cfg(test)]
        mod eventually;
        pub mod copy;
        pub mod describe;
        pub mod dlpack;
        /// Tensors with another owner than a buffer, for the packages of this project.
        #[doc(hidden)]
        pub mod __dlpack {
            pub use crate::dlpack::managed::{Extents, device_of, managed};
        }
        pub mod double_buffer;
        pub mod error;
        #[doc(hidden)]
        pub mod escape;
        /// State files, for the packages of this project.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        #[doc(hidden)]
        pub mod __file {
            pub use crate::sys::file::{read_own, replace_own};
        }
        /// Sizes with units, for the packages of this project.
        #[doc(hidden)]
        pub mod __size {
            pub use crate::size::{parse, show};
        }
        /// Fork detection, for the packages of this project.
        #[doc(hidden)]
        pub mod __process {
            pub use crate::sys::fork::Process;
        }
        mod first_fit;
        #[cfg(test)]
        #[path = "../layouts/tests/suite/loom_machine.rs"]
        #[allow(dead_code, reason = "shared with the models of the rings")]
        mod loom_machine;
        mod location;
        pub mod manager;
        pub mod memory;
        pub mod mirror;
        // Needs locks that die with their owner.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        pub mod monitor;
        pub mod peer;
        pub mod pool;
        #[cfg(feature = "prometheus")]
        pub mod prometheus;
        // Needs robust locks and sealed memory.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        pub mod shared;
        mod size;
        pub mod snapshot;
        pub mod stream;
        pub mod streaming;
        mod sys;
        mod trace;
        pub mod visibility;
        pub mod wait;

        pub use error::{Error, Rejected, Result};
        pub use visibility::MemoryVisibility;
    }
}

#[doc(inline)]
pub use ringmem_derive::SharedLayoutOfRingmem as SharedLayout;
#[doc(hidden)]
pub use ringmem_layouts as __layouts;
pub use ringmem_layouts::*;

#[cfg(all(doctest, feature = "std"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide/async.md")]
    struct Async;
    #[doc = include_str!("../docs/guide/cuda.md")]
    struct Cuda;
    #[doc = include_str!("../docs/guide/debugging.md")]
    struct Debugging;
    #[doc = include_str!("../docs/guide/kernel.md")]
    struct Kernel;
    #[doc = include_str!("../docs/guide/memory.md")]
    struct Memory;
    #[doc = include_str!("../docs/guide/migration.md")]
    struct Migration;
    #[doc = include_str!("../docs/guide/moving.md")]
    struct Moving;
    #[doc = include_str!("../docs/guide/no_std.md")]
    struct NoStd;
    #[doc = include_str!("../docs/guide/out-of-memory.md")]
    struct OutOfMemory;
    #[doc = include_str!("../docs/guide/pools.md")]
    struct Pools;
    #[doc = include_str!("../docs/guide/practices.md")]
    struct Practices;
    #[doc = include_str!("../docs/guide/rings.md")]
    struct Rings;
    #[doc = include_str!("../docs/guide/struct.md")]
    struct Struct;
    #[cfg(target_os = "linux")]
    #[doc = include_str!("../docs/guide/processes.md")]
    struct Processes;
}
