//! Device code in Rust: persistent ring kernels, generic over who runs them.
//!
//! 1. One function is a warp on a GPU, one thread in a test and a thread of the host backend: it sees a
//!    [`Machine`](ringmem_layouts::Machine) and its [`Lanes`], nothing else.
//! 2. [`persistent`] is the skeleton: it polls, takes a batch, lets a [`Handler`] answer it lane by lane, and publishes once per batch.
//! 3. Every wait inside a kernel ends: by a message, a command, a new epoch or its own deadline.
//! 4. Kernels write slots in place; a message passed by value would go through local memory.
//!
//! [`IMAGE`] holds the kernels as PTX (made by `cargo xtask ptx`, checked in) and as host functions. The same arguments go to both:
//!
//! | kernel | arguments, each 64 bits |
//! |---|---|
//! | `echo` | address of the first control block, epoch, idle nanoseconds, most messages a batch |
//! | `echo_split` | the same, then addresses of input peer header, input slots, output peer header, output slots: see [`Split`] |
//! | `histogram` | `echo`'s, then address and length of the data, address of [`histogram::Work`] |
//! | `ping_pong` | see [`probe`]: address of words, first number, rounds, idle nanoseconds, mode |
//! | `publish`, `order_of_stores` | see [`probe`]: address of words, count, mode |
//! | `order_of_loads` | see [`probe`]: address of words, last number, idle nanoseconds, mode |
//!
//! A launch has one warp a block; block `b` of a persistent kernel serves the `b`-th control block of a row.
#![no_std]
#![cfg_attr(
    all(target_os = "cuda", not(feature = "rust-cuda")),
    feature(abi_ptx, abi_unadjusted, asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx),
    // Warp intrinsics have no other name: inline assembly is not marked convergent.
    allow(internal_features)
)]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(all(target_os = "cuda", not(feature = "rust-cuda")))]
mod device;
#[cfg(feature = "rust-cuda")]
pub mod device;
pub mod echo;
pub mod histogram;
#[cfg(not(target_os = "cuda"))]
mod host;
mod lanes;
mod persistent;
pub mod probe;

#[cfg(not(target_os = "cuda"))]
pub use host::{IMAGE, Simulated, Single};
pub use lanes::Lanes;
pub use persistent::{Batch, Handler, Launch, Split, persistent, refuse};

use ringmem_layouts::{Abi, LAYOUTS, layout_set};

/// What both sides are compiled with: the layouts of `ringmem-layouts` and the messages of these kernels.
pub const ABI: Abi = Abi::of(layout_set!(LAYOUTS; echo::Echo, histogram::Chunk, histogram::Counted, histogram::Work));
