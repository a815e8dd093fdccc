//! Layouts and protocols that a CPU and a GPU share while a kernel runs. The same code compiles for host and device, without `std` and
//! allocator.
//!
//! `ringmem` adds memory, streams and channels on the host, `ringmem-kernels` kernels. To share your own struct, derive [`SharedLayout`]:
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::{Layout, RingMessage, SharedLayout};
//!
//! #[derive(Clone, Copy, SharedLayout)]
//! #[repr(C)]
//! #[layout(message = 7)]
//! struct Tick { price: f64, volume: u64 }
//!
//! assert_eq!((Tick::KIND, Tick::DESCRIPTOR.size, Tick::DESCRIPTOR.fields[1].offset), (7, 16, 8));
//! ```
//!
//! # Rules of a layout
//!
//! 1. A layout is a `#[repr(C)]` struct.
//! 2. Memory that another agent writes contains only 64-bit [`Word`]s: plain reads of it would be undefined behaviour.
//! 3. Any bytes are a valid value, all-zero bytes an empty one. Attaching checks their meaning.
//! 4. Each cache line has one writer, named in the field's documentation. Padding is a named field.
//! 5. Layouts are 0.x until they have run on a GPU, and append-only from 1.0 on.
//! 6. The compiler checks each layout on every target: size, alignment, absence of padding, and offset and type of each field.
//! 7. Each layout has a [`LayoutDescriptor`] with an ABI hash over the *types* of its fields. A host rejects a device image whose combined
//!    hash differs. [`layout_set!`] combines layouts.
//!
//! A struct of words is generic over its word `W`: [`HostWord`] makes the shared form, `u64`, the default, a snapshot.
//!
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

// A word must be laid out as a `u64`, or snapshots differ from their source.
const _: () = assert!(align_of::<u64>() == 8, "targets that align a u64 to less than 8 bytes, as 32-bit x86 does, are not supported");

pub mod align;
pub mod attach;
mod cache_line;
mod check;
pub mod control;
#[cfg(feature = "cust")]
mod cust;
mod defmt_derive;
#[cfg(feature = "defmt")]
mod defmt_impls;
mod descriptor;
mod device_bytes;
pub mod dump;
pub mod grid;
mod host;
pub mod image;
pub mod kernel;
mod machine;
pub mod message;
mod read_only;
pub mod region;
pub mod ring;
mod set;
mod table;
pub mod telemetry;
pub mod watchdog;

pub use cache_line::CacheLineAligned;
pub use control::ControlBlock;
pub use descriptor::{AbiHash, Field, Layout, LayoutDescriptor, Shape, set_hash};
pub use device_bytes::DeviceBytes;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use host::{Host, HostWord, Local};
pub use image::{Abi, Image};
pub use machine::{Counter, Machine, RmwWord, SliceCell, SlotCell, Word};
pub use message::{BufferReference, RingMessage};
pub use read_only::ReadOnly;
pub use region::RegionHeader;
pub use ring::{RingHeader, RingLayout};
pub use ringmem_derive::SharedLayout;
pub use telemetry::TelemetryBuffer;

/// All layouts of this crate, by name.
pub const LAYOUTS: &[LayoutDescriptor] = &[
    <BufferReference as Layout>::DESCRIPTOR,
    <ControlBlock<u64> as Layout>::DESCRIPTOR,
    <region::RegionEntry<u64> as Layout>::DESCRIPTOR,
    <RegionHeader<u64> as Layout>::DESCRIPTOR,
    <RingHeader<u64> as Layout>::DESCRIPTOR,
    <ring::ConstantLine<u64> as Layout>::DESCRIPTOR,
    <ring::ConsumerLine<u64> as Layout>::DESCRIPTOR,
    <ring::ProducerLine<u64> as Layout>::DESCRIPTOR,
    <TelemetryBuffer<u64> as Layout>::DESCRIPTOR,
];

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[doc(hidden)]
pub mod __private {
    pub use core;

    pub use crate::check::{another_kind, no_padding, number_of_message, offset, size_and_align};
    pub use crate::descriptor::field;
    pub use crate::grid::{Signature, element, with_kernels, words_of};
    pub use crate::kernel::{is_argument, message};
    pub use crate::set::{join, members};
}
