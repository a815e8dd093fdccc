//! What a pool will be.

use core::mem::ManuallyDrop;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;
use std::time::Instant;

use super::central::Central;
use super::heap::LONGEST;
use super::{Classes, Handle, Pool};
use crate::config::Pooling;
use crate::memory::Memory;
use crate::{Error, Result};

/// What a pool does with a block's bytes before it hands the block out, the first time and every other.
///
/// Unless it is asked for, nothing, in a debug build as in any other: poison costs a fill of each block that is used again, and that a program meets
/// other bytes is no matter of how this crate was built. Tests, and whoever looks for such a fault, ask for [`Poison`](Self::Poison).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hygiene {
    /// Nothing: what the last owner left is there, also where the memory below gives zeroes.
    #[default]
    Leave,
    /// They are 0.
    Zero,
    /// They are this byte, so that whoever reads what he has not written sees it.
    Poison(u8),
}

/// Asked for memory when nothing is left: whether it has freed some, so that another try is worth it.
pub type OutOfMemory = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// A pool to be, with every default.
#[must_use]
pub struct Builder<M: Memory> {
    pub(super) memory: M,
    pub(super) limit: u64,
    pub(super) slab: u64,
    pub(super) classes: Classes,
    pub(super) is_exact: bool,
    pub(super) is_enabled: bool,
    pub(super) hygiene: Hygiene,
    pub(super) patience: Duration,
    pub(super) out_of_memory: Option<OutOfMemory>,
    pub(super) clock: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl<M: Memory> Builder<M> {
    pub(super) fn new(memory: M) -> Self {
        let born = Instant::now();
        Self {
            memory,
            limit: 4 << 30,
            slab: 32 << 20,
            classes: Classes::default(),
            is_exact: false,
            is_enabled: true,
            hygiene: Hygiene::Leave,
            patience: Duration::from_millis(100),
            out_of_memory: None,
            clock: Arc::new(move || u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    /// The most bytes that it holds of its memory; 4 GiB unless set.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Bytes of a slab; 32 MiB unless set, rounded up to 2 MiB, or to 256 bytes if there are fewer. Longer blocks have slabs of their own; where so much is not to be had, a slab is as long as the request.
    pub fn slab(mut self, bytes: u64) -> Self {
        self.slab = bytes;
        self
    }

    /// The size classes.
    pub fn classes(mut self, classes: Classes) -> Self {
        self.classes = classes;
        self
    }

    /// Blocks are as long as what was asked for, to 256 bytes, instead of as long as their class, and none is cached: what is given back
    /// joins with what is free beside it at once. Less waste, for a lock at each call: for pools that are to be nearly full.
    pub fn exact(mut self, is_exact: bool) -> Self {
        self.is_exact = is_exact;
        self
    }

    /// `false`: every request goes to the memory, and nothing is kept.
    pub fn enabled(mut self, is_enabled: bool) -> Self {
        self.is_enabled = is_enabled;
        self
    }

    /// Whether anything is kept, and the most that is held, as a configuration says: no limit where it has pooling off. Its interval is for who
    /// trims: [`Pools`](super::Pools) do.
    pub fn pooling(self, pooling: &Pooling) -> Self {
        self.enabled(pooling.enabled).limit(if pooling.enabled { pooling.max_bytes } else { u64::MAX })
    }

    /// What is done with a block's bytes before it is used again; nothing unless set.
    pub fn hygiene(mut self, hygiene: Hygiene) -> Self {
        self.hygiene = hygiene;
        self
    }

    /// How long a request waits at most for frees whose last use is not over, when nothing else is left; 100 ms unless set.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Asked last, with the bytes that are missing. For a request that is made within, of whatever pool, nobody is asked.
    pub fn on_out_of_memory(mut self, callback: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        self.out_of_memory = Some(Box::new(callback));
        self
    }

    /// Nanoseconds of a clock that never goes back, for the ages of slabs.
    pub fn clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The pool. It asks its memory for nothing yet.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for slabs of less than 64 KiB or more than 1 TiB.
    pub fn build(self) -> Result<Pool<M>> {
        // Rounded up, it is still none that is too long.
        let (least, most) = (64 << 10, LONGEST - (2 << 20));
        if self.slab < least || self.slab > most {
            return Err(Error::Size { what: "slab size", asked: self.slab, least, most });
        }
        Ok(Pool { shared: ManuallyDrop::new(Arc::new(Central::new(self))), handle: Handle::First })
    }
}
