//! Kernels in Rust, for GPUs and for host threads: over buffers, or persistent, between rings.
//!
//! [`kernels!`] declares kernels: a function of elements of buffers; a function of a message and an answer, or a [`Handler`] of whole batches; or a function
//! with arguments. Each is compiled for the host and, by `ringmem-ptx-builder`, to PTX. `ringmem::stream` launches the first, `ringmem::channel` the others.
//!
//! ```
//! use ringmem_kernels::{SharedLayout, kernels};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
//! #[repr(C)]
//! #[layout(message = 1)]
//! pub struct Sample { pub value: f64 }
//!
//! kernels! {
//!     /// Squares a value.
//!     pub persistent fn square(sample: &Sample, squared: &mut Sample) {
//!         squared.value = sample.value * sample.value;
//!     }
//! }
//!
//! # fn main() {
//! // A channel opens the constant `SQUARE`. A test calls the function.
//! let mut answer = Sample { value: 0.0 };
//! square(&Sample { value: 3.0 }, &mut answer);
//! assert_eq!((answer.value, SQUARE.name()), (9.0, "square"));
//! # }
//! ```
//!
//! 1. The same function runs as a warp, or a block of several, on a GPU, and as one thread or one for each lane on the host, by a [`Machine`] and its
//!    [`Lanes`].
//! 2. [`persistent`] polls, pops a batch, lets a [`Handler`] answer it on all lanes, and publishes once per batch.
//! 3. Every wait ends: by a message, a command, a new epoch or a deadline.
//! 4. Kernels write slots in place: a message by value would go through local memory.
//!
//! # The kernels of this crate
//!
//! [`IMAGE`] has them as PTX (of `cargo xtask ptx`, checked in) and as host functions. A persistent kernel takes
//! the first control block, the epoch, idle nanoseconds and most messages per batch, then the arguments of its function in this crate;
//! lengths are bytes. The others take those of their functions in [`grid`], [`conformance`] and [`probe`]. Each argument has 64 bits. [`SAXPY`] and
//! [`SMOOTH`] are kernels over buffers, which `Stream::run` launches.
//!
//! Block `b` of a persistent kernel, one warp, serves control block `b` of an array. The groups of a `grouped fn` serve the first one together. The block of a
//! `block fn` is 32 threads by any number of warps.
//!
//! # Every wait, and how it ends
//!
//! `cargo xtask ptx-check` fails for a loop that polls shared words unless its table has it.
//!
//! | where | waits for | ends otherwise |
//! |---|---|---|
//! | the round of a persistent kernel | messages, free slots, commands | an ending command, another epoch, `idle_ns` without any of these |
//! | a `grouped fn`, before it publishes a batch | earlier reservations' publication | `idle_ns`, or another group's fault |
//! | its group 0, before it obeys a pause or an end | the batches of the other groups | `idle_ns`, or another group's fault |
//! | its other groups, at the start | group 0, which runs at the same time | |
//! | `hold` | its second word | 90 seconds |
//! | `ping_pong`, each round | the host's number | `idle_ns` |
//! | `order_of_loads` | the host's last number | `idle_ns` |
//!
//! | scan | ends |
//! |---|---|
//! | flags of a flagged ring, on attaching and for a batch; of a paired ring, on attaching | after all slots of the ring |
//! | a reservation in a `grouped fn`, a change of its flags | each failure is another group's success |
#![no_std]
#![cfg_attr(
    all(target_os = "cuda", not(feature = "rust-cuda")),
    feature(asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx),
    // Warp intrinsics: inline assembly is not marked convergent.
    allow(internal_features)
)]
#![cfg_attr(all(target_os = "cuda", feature = "rust-cuda"), feature(asm_experimental_arch, link_llvm_intrinsics), allow(internal_features))]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

extern crate self as ringmem_kernels;

pub mod burst;
pub mod conformance;
#[cfg(target_os = "cuda")]
pub mod device;
pub mod echo;
#[doc(hidden)]
pub mod elements;
pub mod grid;
pub mod histogram;
#[cfg(not(target_os = "cuda"))]
mod host;
#[cfg(any(not(target_os = "cuda"), all(feature = "entries", not(feature = "rust-cuda"))))]
mod kernel_list;
mod lanes;
pub mod math;
mod pairs;
#[cfg(any(test, all(target_os = "cuda", not(feature = "rust-cuda"))))]
mod panic_row;
mod persistent;
pub mod probe;
pub mod reduce;
pub mod transform;

#[cfg(not(target_os = "cuda"))]
pub use host::{Simulated, Single, Threads};
#[cfg(not(target_os = "cuda"))]
pub use kernel_list::*;
pub use lanes::{LONGEST_NAP_NS, Lanes, WarpLanes, back_off_ns};
pub use pairs::Pairs;
pub use persistent::{
    Actor, Batch, Each, Fold, Handler, Launch, Typed, persistent, persistent_flagged, persistent_grouped, persistent_paired, refuse,
};

#[doc(hidden)]
pub mod __private {
    pub use crate::elements;
    pub use crate::persistent::expansion::{FlaggedRings, GroupedRings, IndexedRings, actor, each, fold, typed};
    pub use ringmem_derive::kernels;
}

#[doc = include_str!("kernels.md")]
#[macro_export]
macro_rules! kernels {
    ($($kernels:tt)*) => {
        // The expansion is `unsafe`, and `$crate` names this crate whatever a user's paths name.
        $crate::__private::kernels! { $crate; $($kernels)* }
    };
}

pub use ringmem_derive::SharedLayoutOfKernels as SharedLayout;
#[doc(hidden)]
pub use ringmem_layouts as __layouts;
/// For `#[layout(crate = ..)]`, where this crate has another name or is exported by another.
pub use ringmem_layouts as layouts;
#[doc(no_inline)]
pub use ringmem_layouts::Machine;
#[doc(no_inline)]
pub use ringmem_layouts::grid::Index;
#[doc(no_inline)]
pub use ringmem_layouts::kernel::{DevicePointer, Epoch};
use ringmem_layouts::ring::groups::Groups;
use ringmem_layouts::{Abi, LAYOUTS, layout_set};

/// The layouts of both sides.
pub const ABI: Abi = Abi::of(layout_set!(
    LAYOUTS;
    Groups<u64>, burst::Burst, burst::Report, echo::Echo, histogram::Chunk, histogram::Counted, histogram::Work, reduce::Reduce, reduce::Reduced, reduce::Row, reduce::Rows,
    transform::Applied, transform::Apply,
));

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
