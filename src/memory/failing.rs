use core::alloc::Layout;
use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::Memory;
use crate::backend::{Block, Uses};
use crate::stream::Stream;
use crate::{Error, Result};

/// The calls that fail, numbered from 1 over all clones.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Failing, When};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Failing::new(Device::new(&backend, 0)).allocs(When::Above(1000));
/// assert!(Buffer::<u8, _>::new(memory.clone(), 1000).is_ok());
/// assert!(Buffer::<u8, _>::new(memory, 1001).is_err());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// No call.
    Never,
    /// The call with this number.
    Call(u64),
    /// Calls for more bytes than this.
    Above(usize),
    /// Each call with this probability, determined by the seed and the call's number.
    Chance {
        /// Any number.
        seed: u64,
        /// From 0 to 1.
        probability: f64,
    },
}

/// Fails calls with [`Error::Injected`], to test error paths. Clones share the count.
///
/// A failed allocation does not call the upstream memory. A failed free has freed the block.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Failing, Pinned, When};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Failing::new(Pinned::new(&backend, 0)).allocs(When::Call(2));
/// let two = || Ok::<_, ringmem::Error>([Buffer::<u8, _>::new(memory.clone(), 64)?, Buffer::new(memory.clone(), 64)?]);
/// assert!(two().is_err());
/// assert_eq!(backend.counters().pinned_live.bytes, 0); // the first did not stay behind
/// # Ok(())
/// # }
/// ```
pub struct Failing<M> {
    shared: Arc<Shared<M>>,
    allocs: When,
    frees: When,
}

struct Shared<M> {
    memory: M,
    allocs: AtomicU64,
    frees: AtomicU64,
}

impl<M: Memory> Failing<M> {
    /// Wraps a memory, without failures.
    #[must_use]
    pub fn new(memory: M) -> Self {
        let shared = Shared { memory, allocs: AtomicU64::new(0), frees: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), allocs: When::Never, frees: When::Never }
    }

    /// Sets the allocations that fail.
    #[must_use]
    pub fn allocs(mut self, when: When) -> Self {
        self.allocs = when;
        self
    }

    /// Sets the frees that fail.
    #[must_use]
    pub fn frees(mut self, when: When) -> Self {
        self.frees = when;
        self
    }

    /// Counts the allocations, failed ones included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.shared.allocs.load(Relaxed)
    }

    /// Returns the upstream memory.
    #[must_use]
    pub fn inner(&self) -> &M {
        &self.shared.memory
    }
}

impl When {
    fn check(self, calls: &AtomicU64, call: &'static str, bytes: usize) -> Result<()> {
        let number = calls.fetch_add(1, Relaxed) + 1;
        let fails = match self {
            Self::Never => false,
            Self::Call(failing) => failing == number,
            Self::Above(most) => bytes > most,
            // A double in 0..1 has 53 bits.
            Self::Chance { seed, probability } => ((mix(seed ^ mix(number)) >> 11) as f64) < probability * (1_u64 << 53) as f64,
        };
        if fails { Err(Error::Injected { call, number }) } else { Ok(()) }
    }
}

/// SplitMix64's output function (Steele, Lea, Flood 2014).
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

// SAFETY: the upstream memory's blocks, unchanged.
unsafe impl<M: Memory> Memory for Failing<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        self.allocs.check(&self.shared.allocs, "alloc", layout.size())?;
        self.shared.memory.alloc(layout, on)
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        let injected = self.frees.check(&self.shared.frees, "free", block.layout.size());
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the upstream memory's,
        // unchanged.
        unsafe { self.shared.memory.free(block, uses) }.and(injected)
    }

    of_upstream!(shared.memory);
}

impl<M> Clone for Failing<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), ..*self }
    }
}

impl<M: fmt::Debug> fmt::Debug for Failing<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failing").field("allocs", &self.allocs).field("frees", &self.frees).field("memory", &self.shared.memory).finish()
    }
}
