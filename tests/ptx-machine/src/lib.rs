//! Executes PTX on the host and checks it against the PTX memory model, to find mistakes without a GPU.
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
//! 1. A seed decides which lane executes next.
//! 2. Memory is the host's.
//! 3. A data race, between lanes or with the host, is a [`Fault`] that names both lines. A release with too small a scope counts as
//!    missing.
//! 4. Faults: accesses out of bounds, misaligned or of unwritten registers and shared memory; divergent barriers.
//!
//! The host's accesses are not observed, so two mistakes stay invisible: a lane's store that the host reads or overwrites too early for its own
//! order (a lane of [`Device::peer`] in the host's place reveals it), and a host's change between two accesses of the machine, or far from all.
//! Also invisible: a missing fence between strong accesses of lanes, wrong state spaces and barrier ids, `ld.nc` of written data. False alarms:
//! copies of padding; weak stores of words that a block accessed at system scope. Not implemented: rounding other than to nearest (except `cvt` to
//! integers), approximations, saturation, `f16`, textures, clusters, asynchronous copies, matrix instructions, grids of several dimensions, dynamic
//! shared memory, parameters beyond 8 bytes.

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

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringmem_layouts::image::KernelHost;

pub use fault::{Fault, Kind};
pub use image::Image;

/// The memory model's state, shared by all blocks.
pub struct Device {
    memory: Arc<Mutex<memory::Memory>>,
    seed: u64,
    is_peer: bool,
}

/// The threads of a block, in two dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    x: u32,
    y: u32,
}

impl From<u32> for Threads {
    fn from(x: u32) -> Self {
        Self { x, y: 1 }
    }
}

impl From<[u32; 2]> for Threads {
    fn from([x, y]: [u32; 2]) -> Self {
        Self { x, y }
    }
}

impl Device {
    /// Creates a device with a lane order from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { memory: Arc::new(Mutex::new(memory::Memory::new(seed))), seed, is_peer: false }
    }

    /// Makes loads of memory that holds this byte, unwritten by lanes, a [`Kind::Unwritten`] fault.
    #[must_use]
    pub fn with_poison(self, byte: u8) -> Self {
        self.lock().poison = Some(byte);
        self
    }

    /// Returns another device with the same memory: device scope does not reach from one to the other. Its grids have other numbers.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), seed: self.seed, is_peer: !self.is_peer }
    }

    /// Records what lanes store to the word at a host address, until [`recorded`](Self::recorded). A store of a part of the word counts as that part,
    /// with zeros around it.
    pub fn record(&self, word: u64) {
        self.lock().recorded.insert(word, Vec::new());
    }

    /// Ends the record of a word, and returns the values in the order of the stores.
    #[must_use]
    pub fn recorded(&self, word: u64) -> Vec<u64> {
        self.lock().recorded.remove(&word).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, memory::Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs block [`KernelHost::group`] of [`KernelHost::groups`] to its end. `threads` is their number, or that in each of two dimensions; `grid` numbers the
    /// launch.
    /// Each parameter takes the next `arguments` that its bytes need. Accessed memory lives until the call returns.
    ///
    /// # Errors
    ///
    /// Any lane's first [`Fault`], which ends all blocks of the grid.
    pub fn run(
        &self,
        image: &Image,
        entry: &str,
        arguments: &[u64],
        host: &dyn KernelHost,
        threads: impl Into<Threads>,
        grid: u64,
    ) -> Result<(), Fault> {
        let threads = threads.into();
        let entry = image.entry(entry, arguments.len(), (host.groups(), threads))?;
        let block = block::Block::new(image, entry, arguments, host, &self.memory, (threads, grid, self.is_peer), self.seed);
        block.run().map_err(|fault| image.explain(fault))
    }
}
