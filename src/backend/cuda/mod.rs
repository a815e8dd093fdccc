//! CUDA: a backend over NVIDIA's driver.
//!
//! **It has not run on a GPU yet**: tests use a double of the driver (`tests/driver-double`), and nothing is measured.
//!
//! 1. No call panics without a driver: [`Driver::load`] reports what is missing.
//! 2. No free, load or copy synchronises with a running kernel; such a free is deferred. Pinned and managed memory, streams beyond 26 per
//!    device, and device memory without a pool are allocated on demand, which may block under a kernel, as may page-locking.
//!    Kernels of other processes, libraries and backends are unknown here: a program has one `CudaBackend`.
//! 3. No call reaches the driver in a fork or in a process that is ending.
//!
//! Streams share a device's hardware queues, 8 by default: an operation behind a kernel can block another stream. With a persistent kernel
//! and more streams, set `CUDA_DEVICE_MAX_CONNECTIONS=32` first.
//!
//! [`cudarc`] is re-exported; its contexts, streams and memory can be [adopted](CudaBackend::adopt_stream).
//!
//! ```no_run
//! use ringmem::backend::cuda::CudaBackend;
//! use ringmem::memory::{Device, GpuBuffer};
//!
//! # fn main() -> ringmem::Result<()> {
//! let backend = CudaBackend::open()?;
//! let buffer = GpuBuffer::<f32>::new(Device::new(&backend, 0), 1 << 20)?;
//! # drop(buffer);
//! # Ok(()) }
//! ```

mod address_range;
mod backend;
mod copy;
mod deferred;
mod device;
mod driver;
mod inner;
mod interop;
mod launch;
mod lookup;
mod memory;
mod memset;
mod occupancy;
mod process;
mod queue;
mod resources;
mod timing;

pub use cudarc;

use self::inner::Inner;

pub use self::backend::{CudaBackend, Settings};
pub use self::driver::{Driver, Gpu, check};
pub use self::interop::Registered;
pub use self::memory::Advice;
pub use crate::backend::counters::{Counters, Live, Tally};
