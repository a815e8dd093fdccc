//! A test double of NCCL: the exports of `libnccl.so` that ringmem calls, between ranks of one process, over the driver double. **No figure from it
//! is a GPU's.**
//!
//! 1. An operation is copies to pinned memory, a host function that meets the other ranks, and copies back, all on the caller's stream.
//!    So the driver double checks its order and memory.
//! 2. A group's operations on one stream meet the other ranks together. Nothing is queued before the group ends.
//! 3. Making a communicator waits for all ranks, as does the call of its first operation of all ranks. Destroying one waits for its
//!    operations.
//! 4. Two ranks' mismatched operations, and waits of more than [`DEADLINE`], abort the process with the reason.
//! 5. After an asynchronous error, operations wait until their communicator is aborted, which fills their memory with [`POISON`]. The
//!    communicator's other ranks get `ncclRemoteError`.
//!
//! Not modelled: algorithms, time, several processes.
#![allow(clippy::missing_safety_doc, non_snake_case)]

mod calls;
mod driver;
mod faults;
mod meeting;
mod reduce;

use std::time::Duration;

pub use calls::*;
pub use faults::{ringmem_nccl_calls, ringmem_nccl_fail, ringmem_nccl_lose, ringmem_nccl_reset};
pub use meeting::ringmem_nccl_live;

/// The longest wait for another rank.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The byte that an aborted operation writes.
pub const POISON: u8 = 0xDB;

type Answer<T = ()> = Result<T, u32>;

const UNHANDLED_CUDA_ERROR: u32 = 1;
const INVALID_ARGUMENT: u32 = 4;
const INVALID_USAGE: u32 = 5;
const REMOTE_ERROR: u32 = 6;

fn give_up(reason: &str) -> ! {
    eprintln!("ringmem NCCL double: {reason}");
    std::process::abort()
}
