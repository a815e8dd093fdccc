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
//! | `echo_flagged`, `echo_bare` | `echo`'s |
//! | `echo_aggregated` | `echo`'s, then address of the [`Aggregate`] that the groups share |
//! | `histogram` | `echo`'s, then address and length of the data, address of [`histogram::Work`] |
//! | `copy` | addresses of target and source, bytes |
//! | `fill` | address, words, the word |
//! | `vector_add` | addresses of sums and both summands, elements |
//! | `hold`, `increment` | see [`checks`]: address of two words; address and count of bytes |
//! | `transform` | `echo`'s, then address and length of the data |
//! | `reduce` | `echo`'s, then address and length of the data, address of [`reduce::Rows`] |
//! | `ping_pong` | see [`probe`]: address of words, first number, rounds, idle nanoseconds, mode |
//! | `publish`, `order_of_stores` | see [`probe`]: address of words, count, mode |
//! | `order_of_loads` | see [`probe`]: address of words, last number, idle nanoseconds, mode |
//!
//! A launch has one warp a block; block `b` of a persistent kernel serves the `b`-th control block of a row. Each kernel's constant
//! ([`echo::ECHO`] and so on) says the arguments' types, and a typed launch takes no others.
//!
//! # Every wait, and how it ends
//!
//! `cargo xtask ptx-check` counts in the compiled kernels the loops that look at shared words: those that also read the clock are waits, the
//! others are scans with an end of their own, and a new one of either fails the check until its table lists it.
//!
//! | where | waits for | ends otherwise |
//! |---|---|---|
//! | the round of a persistent kernel | messages, room for answers, commands | an ending command, another epoch, `idle_ns` without any of these |
//! | `echo_aggregated`, before it publishes a batch | earlier reservations' publication | `idle_ns` |
//! | `hold` | the word that lets it go | 90 seconds |
//! | `ping_pong`, each round | the host's number | `idle_ns` |
//! | `order_of_loads` | the host's last number | `idle_ns` |
//!
//! | scan | ends |
//! |---|---|
//! | flags of a flagged ring, on attaching and for a batch | after as many slots as the ring has |
//! | a reservation in `echo_aggregated` | each failure is another group's success |
#![no_std]
#![cfg_attr(
    all(target_os = "cuda", not(feature = "rust-cuda")),
    feature(abi_unadjusted, asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx),
    // Warp intrinsics have no other name: inline assembly is not marked convergent.
    allow(internal_features)
)]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

// `kernels!` and `SharedLayout` name this crate by its name.
extern crate self as ringmem_kernels;

pub mod checks;
#[cfg(any(target_os = "cuda", feature = "rust-cuda"))]
pub mod device;
pub mod echo;
pub mod grid;
pub mod histogram;
#[cfg(not(target_os = "cuda"))]
mod host;
// A crate with kernels of its own leaves these out of its device image.
#[cfg(any(not(target_os = "cuda"), all(feature = "entries", not(feature = "rust-cuda"))))]
mod image;
mod lanes;
mod persistent;
pub mod probe;
pub mod reduce;
pub mod transform;

#[cfg(not(target_os = "cuda"))]
pub use host::{Simulated, Single};
#[cfg(not(target_os = "cuda"))]
pub use image::*;
pub use lanes::{LONGEST_NAP_NS, Lanes, back_off_ns};
pub use persistent::{Batch, Each, Handler, Launch, Split, Typed, persistent, persistent_aggregated, persistent_flagged, refuse};

pub use ringmem_derive::{SharedLayoutOfKernels as SharedLayout, kernels};
#[doc(hidden)]
pub use ringmem_layouts as __layouts;
use ringmem_layouts::ring::aggregate::Aggregate;
use ringmem_layouts::{Abi, LAYOUTS, layout_set};

/// What both sides are compiled with: the layouts of `ringmem-layouts` and the messages of these kernels.
pub const ABI: Abi = Abi::of(layout_set!(
    LAYOUTS;
    Aggregate<u64>, echo::Echo, histogram::Chunk, histogram::Counted, histogram::Work, reduce::Reduce, reduce::Reduced, reduce::Row, reduce::Rows,
    transform::Applied, transform::Apply,
));
