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

/// Allocates uninitialised pinned memory that every device accesses. A context must be bound.
pub(super) fn locked(calls: &'static Calls, bytes: usize, flags: u32) -> Result<NonNull<u8>> {
    let mut pointer = ptr::null_mut::<c_void>();
    // SAFETY: writes one pointer.
    unsafe { calls.cuMemHostAlloc(&raw mut pointer, bytes, EVERYWHERE | flags) }?;
    NonNull::new(pointer.cast()).ok_or(Error::Unsupported { what: "memory at address 0" })
}

/// Returns the number to add to a host address for the device address, wrapping. It is 0 but for write-combined memory, and for registered
/// memory on devices that do not use host pointers. A context must be bound.
///
/// # Safety
///
/// `place` is live memory that is pinned and mapped.
pub(super) unsafe fn shift(calls: &'static Calls, place: NonNull<u8>) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the caller's promise; writes one address.
    unsafe { calls.cuMemHostGetDevicePointer_v2(&raw mut address, place.as_ptr().cast(), 0) }?;
    Ok(address.wrapping_sub(place.as_ptr().addr() as u64))
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
