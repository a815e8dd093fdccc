//! [`PinnedChunks`]: a pool of internal pinned memory, in chunks of one size. Allocating may wait for a running kernel: it happens when a device
//! is opened, and later for more chunks in flight than before. A context must be bound.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::call::Calls;
use super::process;
use crate::{Error, Result};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const EVERYWHERE: u32 = 3;

/// Uninitialised; accessible to every device.
pub(super) fn locked(calls: &'static Calls, bytes: usize, flags: u32) -> Result<NonNull<u8>> {
    let mut pointer = ptr::null_mut::<c_void>();
    // SAFETY: writes one pointer.
    unsafe { calls.cuMemHostAlloc(&raw mut pointer, bytes, EVERYWHERE | flags) }?;
    NonNull::new(pointer.cast()).ok_or(Error::Unsupported { what: "memory at address 0" })
}

/// Device minus host address: not 0 for write-combined memory, and for registered memory on devices without host pointers.
///
/// # Safety
///
/// `place` is live, pinned and mapped.
pub(super) unsafe fn shift(calls: &'static Calls, place: NonNull<u8>) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the caller's promise; writes one address.
    unsafe { calls.cuMemHostGetDevicePointer_v2(&raw mut address, place.as_ptr().cast(), 0) }?;
    Ok(address.wrapping_sub(place.as_ptr().addr() as u64))
}

pub(super) struct PinnedChunks {
    calls: &'static Calls,
    bytes: usize,
    together: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    blocks: Vec<Place>,
    idle: Vec<Place>,
}

/// INVARIANT: pinned bytes to which the holder has exclusive access.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>);

// SAFETY: exclusive to the holder, without thread affinity.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives only the address.
unsafe impl Sync for Place {}

pub(super) struct PinnedChunk {
    place: Place,
    home: Arc<PinnedChunks>,
}

impl PinnedChunks {
    pub fn new(calls: &'static Calls, bytes: usize, together: usize) -> Self {
        Self { calls, bytes, together, held: Mutex::default() }
    }

    pub fn take(self: &Arc<Self>) -> Result<PinnedChunk> {
        let idle = self.held().idle.pop();
        let place = match idle {
            Some(place) => place,
            None => {
                let block = locked(self.calls, self.bytes * self.together, 0)?;
                let mut held = self.held();
                held.blocks.push(Place(block));
                // SAFETY: within the block.
                held.idle.extend((1..self.together).map(|index| Place(unsafe { block.add(index * self.bytes) })));
                Place(block)
            }
        };
        Ok(PinnedChunk { place, home: Arc::clone(self) })
    }

    /// No chunk may be in use.
    pub fn give_back(&self) {
        for block in std::mem::take(&mut *self.held()).blocks {
            // SAFETY: allocated once, unused; else the context's end frees it.
            let _ = unsafe { self.calls.cuMemFreeHost(block.0.as_ptr().cast()) };
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinnedChunk {
    pub const fn place(&self) -> NonNull<u8> {
        self.place.0
    }
}

impl Drop for PinnedChunk {
    fn drop(&mut self) {
        if process::is_home() {
            self.home.held().idle.push(self.place);
        }
    }
}
