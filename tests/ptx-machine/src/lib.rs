//! Executes PTX on the host and checks it against the PTX memory model: kernels run, and their mistakes are found, without a GPU.
//!
//! ```
//! use ringmem_ptx_machine::{Device, Image, Kind};
//! # use ringmem_layouts::image::KernelHost;
//! # use std::ptr::NonNull;
//! # struct Nowhere;
//! # impl KernelHost for Nowhere {
//! #     fn translate(&self, _: u64, _: u64) -> Option<NonNull<u8>> { None }
//! #     fn now_ns(&self) -> u64 { 0 }
//! #     fn pause(&self, _: u32) {}
//! # }
//!
//! let image = Image::parse(".version 6.3 .target sm_70 .address_size 64\n.visible .entry f() {\n st.b32 [16], 1;\n ret; }")?;
//! let fault = Device::new(1).run(&image, "f", &[], &Nowhere, 32, 1).unwrap_err();
//! assert_eq!((fault.kind, fault.line), (Kind::OutOfBounds, 3));
//! # Ok::<(), ringmem_ptx_machine::Fault>(())
//! ```
//!
//! 1. Each lane has a program counter. A seed decides which lane executes next, so every order that independent thread scheduling allows may occur.
//! 2. Memory is the host's: strong accesses of system scope are atomic operations on it, so a kernel exchanges messages with threads of the host.
//! 3. A data race, between lanes or with the host, is a [`Fault`] that names both lines of the text. A release whose scope is too small is as if it were
//!    missing.
//! 4. Accesses out of bounds, misaligned ones, registers and shared memory that were never written, and divergent barriers are faults.
//! 5. An opcode that the machine does not implement is an error of [`Image::parse`], with the line.
//!
//! # Limits
//!
//! The host's accesses are not seen, so two mistakes stay invisible: a store of a lane that the host reads or overwrites too early for its own order, and a
//! change of the host between two of the machine's looks. Rounding modes other than to nearest (outside of `cvt` to integers), approximations, `f16`,
//! textures, clusters, asynchronous copies and matrix instructions are not implemented. A grid has one dimension.

mod alu;
mod block;
mod clock;
mod code;
mod decode;
mod fault;
mod image;
mod lane;
mod memory;
mod syntax;
mod token;

use std::sync::Mutex;

use ringmem_layouts::image::KernelHost;

pub use fault::{Fault, Kind};
pub use image::Image;

/// What all blocks share: the state of the memory model.
pub struct Device {
    memory: Mutex<memory::Memory>,
    seed: u64,
}

impl Device {
    /// Returns a device whose lanes execute in an order that the seed decides.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { memory: Mutex::new(memory::Memory::new(seed)), seed }
    }

    /// Makes loads of memory that is filled with this byte, and that no lane has written, a [`Kind::Unwritten`] fault.
    #[must_use]
    pub fn with_poison(self, byte: u8) -> Self {
        self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner).poison = Some(byte);
        self
    }

    /// Runs one block of a grid to its end: the block [`KernelHost::group`] of [`KernelHost::groups`], with so many threads. `grid` is the number of the
    /// launch, which all its blocks have in common.
    ///
    /// The blocks of a grid run on threads of the caller's.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] of any lane. The block ends with it.
    ///
    /// # Memory
    ///
    /// What the kernel accesses lives until the call returns, as [`KernelHost::translate`] promises.
    pub fn run(&self, image: &Image, entry: &str, arguments: &[u64], host: &dyn KernelHost, threads: u32, grid: u64) -> Result<(), Fault> {
        let entry = image.entry(entry, arguments.len())?;
        let block = block::Block::new(image, entry, arguments, host, &self.memory, (threads, grid), self.seed);
        block.run().map_err(|fault| image.explain(fault))
    }
}
