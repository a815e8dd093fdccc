//! Bytes and protocols that a CPU and a GPU share while a kernel keeps running.
//!
//! One definition, compiled for the host and by rustc for the device. No `std`, no allocator.
//!
//! # The laws of a layout
//!
//! 1. `#[repr(C, align(..))]`, written out plainly. No macro makes the struct, so grep, go-to-definition and rustdoc see it.
//! 2. Memory that another agent may write holds *words* only: every field of a shared header, constants and reserve
//!    included, is a [`Word`] of 64 bits. A plain read of bytes that somebody else may be writing is undefined behaviour,
//!    whatever the value; so there is no `bool`, `usize`, enum, pointer or plain integer.
//! 3. All-zero bytes are a valid, empty value, and any bytes are a valid value. What they mean is checked at attach.
//! 4. One writer per cache line, named in the field's documentation. Padding is a named field.
//! 5. Layouts are 0.x until a run on a GPU has been seen. From 1.0 on they are append-only: the reserve shrinks, offsets stay.
//! 6. Under each struct stands its table ([`layout_table!`]), checked by the compiler on every build and target: size, alignment,
//!    each field's offset and exact type, no padding without a name, no field left out.
//! 7. Each layout has a [`LayoutDescriptor`] and an ABI hash, both `const`. The hash folds the *types* of the fields. A device image
//!    carries the hash of all that it was compiled with, and a host refuses an image that carries another. [`layout_set!`] puts a crate's
//!    own layouts beside these.
//!
//! A struct is generic over its word `W`: with [`HostWord`] it is the shared form, with `u64` it is a snapshot, a plain value that can be
//! copied, printed and sent.
//!
//! # What this crate does not do
//!
//! It allocates nothing, waits for nothing and talks to no driver. `ringmem` does.
#![no_std]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(test)]
extern crate std;

// A word has to stand where a `u64` does, or a snapshot is laid out otherwise than what it is taken of.
const _: () = assert!(align_of::<u64>() == 8, "targets that align a u64 to less than 8 bytes, as 32-bit x86 does, are not supported");

pub mod align;
pub mod attach;
mod cache_line;
mod check;
pub mod clock;
pub mod control;
mod descriptor;
mod device_bytes;
pub mod dump;
mod format;
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
pub use clock::HybridClock;
pub use control::ControlBlock;
pub use descriptor::{AbiHash, Field, Layout, LayoutDescriptor, Shape, set_hash};
pub use device_bytes::DeviceBytes;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use host::{Host, HostWord};
pub use image::{Abi, Image};
pub use machine::{Counter, Machine, RmwWord, SliceCell, SlotCell, Word};
pub use message::{BufferReference, MessageHeader, RingMessage};
pub use read_only::ReadOnly;
pub use region::RegionHeader;
pub use ring::{RingHeader, RingLayout};
pub use ringmem_derive::SharedLayout;
pub use telemetry::TelemetryBuffer;

/// Every layout of this crate, in order of name: what `ringmem layout` prints and what an image's ABI hash covers.
pub const LAYOUTS: &[LayoutDescriptor] = &[
    <BufferReference as Layout>::DESCRIPTOR,
    <ControlBlock<u64> as Layout>::DESCRIPTOR,
    <HybridClock<u64> as Layout>::DESCRIPTOR,
    <MessageHeader as Layout>::DESCRIPTOR,
    <region::RegionEntry<u64> as Layout>::DESCRIPTOR,
    <RegionHeader<u64> as Layout>::DESCRIPTOR,
    <RingHeader<u64> as Layout>::DESCRIPTOR,
    <ring::ConstantLine<u64> as Layout>::DESCRIPTOR,
    <ring::ConsumerLine<u64> as Layout>::DESCRIPTOR,
    <ring::ProducerLine<u64> as Layout>::DESCRIPTOR,
    <TelemetryBuffer<u64> as Layout>::DESCRIPTOR,
];

// What the macros name by path.
#[doc(hidden)]
pub mod __private {
    pub use core;

    pub use crate::check::{no_padding, offset, size_and_align};
    pub use crate::kernel::{is_argument, is_message};
    pub use crate::set::{join, members};
}
