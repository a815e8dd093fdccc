//! [`Pieces`]: pinned memory of the backend's own, in pieces of one size that are used again and again.
//!
//! Allocating pinned memory may wait for a running kernel. So it is done where a device or a stream is opened; afterwards only where more pieces are
//! under way at once than there were before.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::call::Calls;
use super::process;
use crate::{Error, Result};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const EVERYWHERE: u32 = 3;

/// Pinned memory that every device sees at the host's address, and that nobody has written yet. A context is bound.
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
                // SAFETY: just allocated, and used by nobody.
                unsafe { calls.cuMemFreeHost(place.as_ptr().cast()) }?;
            }
            mapped?;
            // Only without unified addressing, which every 64-bit system has.
            Err(Error::Unsupported { what: "pinned memory at another address of the device's" })
        }
    }
}

/// Pieces of so many bytes.
pub(super) struct Pieces {
    calls: &'static Calls,
    bytes: usize,
    /// How many are allocated together.
    together: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// What the driver gave.
    blocks: Vec<Place>,
    idle: Vec<Place>,
}

/// INVARIANT: pinned bytes that whoever has this has alone.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>);

// SAFETY: memory, and whoever has it has it alone.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives the number alone.
unsafe impl Sync for Place {}

/// Goes back to the idle ones.
pub(super) struct Piece {
    place: Place,
    home: Arc<Pieces>,
}

impl Pieces {
    pub fn new(calls: &'static Calls, bytes: usize, together: usize) -> Self {
        Self { calls, bytes, together, held: Mutex::default() }
    }

    /// One for the caller alone. A context is bound.
    pub fn take(self: &Arc<Self>) -> Result<Piece> {
        let idle = self.held().idle.pop();
        let place = match idle {
            Some(place) => place,
            None => {
                // Outside the lock: the driver may take its time.
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

    /// Frees all of it. Nobody uses any.
    pub fn give_back(&self) {
        for block in std::mem::take(&mut *self.held()).blocks {
            // SAFETY: allocated once, and used by nobody. What is not freed goes with the context.
            let _ = unsafe { self.calls.cuMemFreeHost(block.0.as_ptr().cast()) };
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Piece {
    /// The holder's alone.
    pub const fn place(&self) -> NonNull<u8> {
        self.place.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // In a fork somebody who is not there may hold the lock.
        if process::is_home() {
            self.home.held().idle.push(self.place);
        }
    }
}
