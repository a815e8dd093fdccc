//! Collective operations between GPUs through NCCL, whose library is opened at run time.
//!
//! **It has not run on a GPU**: tests use doubles of NCCL and the driver (`tests/nccl-double`), and nothing is measured.
//!
//! 1. Without the library, the constructors return [`NoNccl`](crate::Error::NoNccl).
//! 2. Operations take their buffers by value and are ordered with the other work of their stream. A dropped buffer is freed after them.
//! 3. Wrong ranges, ranks, devices and backends are errors before any call of NCCL. In a [`group`], so are operations of two ranks that do
//!    not match. NCCL detects no mismatch with a rank elsewhere: such operations may never end.
//! 4. After an error of NCCL or the driver, the communicator refuses operations, and incomplete ones fail. [`Communicator::wait`] and
//!    [`Communicator::check`] report asynchronous errors.
//!
//! NCCL's kernels wait for the other ranks, and its calls may too:
//!
//! - A thread with several ranks queues their operations in one [`group`]. All ranks queue them in the same order.
//! - Making a communicator, its first operations and its end allocate and free memory, which may wait for every kernel of the process.
//! - Whether NCCL's kernels fit next to a persistent kernel is unknown.
//!
//! ```no_run
//! use ringmem::backend::cuda::CudaBackend;
//! use ringmem::backend::cuda::nccl::{Communicator, Reduce, group};
//! use ringmem::memory::{Device, GpuBuffer};
//! use ringmem::stream::Stream;
//!
//! # fn main() -> ringmem::Result<()> {
//! let backend = CudaBackend::open()?;
//! let ranks = Communicator::all(&backend, &[0, 1])?; // two GPUs, one thread
//! let streams = [Stream::new(&backend, 0)?, Stream::new(&backend, 1)?];
//! let mut sums = Vec::new();
//! for (rank, stream) in ranks.iter().zip(&streams) {
//!     let buffer = GpuBuffer::<f32>::from_slice(Device::new(&backend, stream.device()), &[1.0; 1000])?;
//!     sums.push(rank.on(stream, buffer).all_reduce(Reduce::Sum, ..));
//! }
//! for (rank, sum) in ranks.iter().zip(group(sums)?) {
//!     assert_eq!(rank.wait(sum)?.to_vec()?, [2.0; 1000]);
//! }
//! # Ok(()) }
//! ```
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

mod collective;
mod communicator;
mod element;
mod foreign;
mod group;
mod library;

pub use collective::Collective;
pub use communicator::Communicator;
pub use element::{Bf16, Element, F16, Reduce};
pub use group::group;
pub use library::UniqueId;
