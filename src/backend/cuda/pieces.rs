//! [`Pieces`]: a pool of internal pinned memory, in reusable pieces of one size.
//!
//! Allocating pinned memory may wait for a running kernel. So pieces are allocated when a device or a stream is opened; later only if more
//! pieces are in flight than ever before.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::call::Calls;
use super::process;
use crate::{Error, Result};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const EVERYWHERE: u32 = 3;

/// Allocates uninitialised pinned memory that every device accesses at the host's address. A context must be bound.
pub(super) fn locked(calls: &'static Calls, bytes: usize, flags: u32) -> Result<NonNull<u8>> {
    let (mut pointer, mut address) = (ptr::null_mut::<c_void>(), 0);
    // SAFETY: writes one pointer.
    unsafe { calls.cuMemHostAlloc(&raw mut pointer, bytes, EVERYWHERE | flags) }?;
    // SAFETY: just allocated, and mapped; writes one address.
    let mapped = unsafe { calls.cuMemHostGetDevicePointer_v2(&raw mut address, pointer, 0) };
    match NonNull::new(pointer.cast::<u8>()) {
        Some(place) if mapped.is_ok() && address == place.as_ptr().addr() as u64 => Ok(place),
        place => {
            if let Some(place) = place {
                // SAFETY: just allocated, and unused.
                unsafe { calls.cuMemFreeHost(place.as_ptr().cast()) }?;
            }
            mapped?;
            // Happens only without unified addressing, which every 64-bit system has.
            Err(Error::Unsupported { what: "pinned memory whose device address differs from its host address" })
        }
    }
}

/// A pool of pieces of `bytes` bytes each.
pub(super) struct Pieces {
    calls: &'static Calls,
    bytes: usize,
    /// The number of pieces allocated together.
    together: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The allocations of the driver.
    blocks: Vec<Place>,
    idle: Vec<Place>,
}

/// INVARIANT: pinned bytes to which the holder has exclusive access.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>);

// SAFETY: memory without thread affinity, to which the holder has exclusive access.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives only the address.
unsafe impl Sync for Place {}

/// A piece that returns to its pool when dropped.
pub(super) struct Piece {
    place: Place,
    home: Arc<Pieces>,
}

impl Pieces {
    pub fn new(calls: &'static Calls, bytes: usize, together: usize) -> Self {
        Self { calls, bytes, together, held: Mutex::default() }
    }

    /// Returns a piece for the caller's exclusive use. A context must be bound.
    pub fn take(self: &Arc<Self>) -> Result<Piece> {
        let idle = self.held().idle.pop();
        let place = match idle {
            Some(place) => place,
            None => {
                // Outside the lock: the driver call may be slow.
                let block = locked(self.calls, self.bytes * self.together, 0)?;
                let mut held = self.held();
                held.blocks.push(Place(block));
                // SAFETY: within the block.
                held.idle.extend((1..self.together).map(|index| Place(unsafe { block.add(index * self.bytes) })));
                Place(block)
            }
        };
        Ok(Piece { place, home: Arc::clone(self) })
    }

    /// Frees all allocations. No piece may be in use.
    pub fn give_back(&self) {
        for block in std::mem::take(&mut *self.held()).blocks {
            // SAFETY: allocated once, and unused. If freeing fails, the context's end frees it.
            let _ = unsafe { self.calls.cuMemFreeHost(block.0.as_ptr().cast()) };
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Piece {
    /// Returns the address, to which the holder has exclusive access.
    pub const fn place(&self) -> NonNull<u8> {
        self.place.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // In a fork, the lock may be held by a thread that does not exist there.
        if process::is_home() {
            self.home.held().idle.push(self.place);
        }
    }
}
