//! [`Staging`]: pinned memory between pageable memory and a device, used again and again.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::call::Calls;
use crate::{Error, Result};

/// Bytes of one: large enough that the calls for it are not what takes time.
pub(super) const BYTES: usize = 1 << 20;

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

/// Stagings that nobody uses.
pub(super) struct Stagings {
    calls: &'static Calls,
    idle: Mutex<Vec<Place>>,
}

/// INVARIANT: [`BYTES`] pinned bytes that whoever has this has alone.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>);

// SAFETY: memory, and whoever has it has it alone.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives the number alone.
unsafe impl Sync for Place {}

/// Goes back to the idle ones.
pub(super) struct Staging {
    place: Place,
    home: Arc<Stagings>,
}

impl Stagings {
    pub const fn new(calls: &'static Calls) -> Self {
        Self { calls, idle: Mutex::new(Vec::new()) }
    }

    /// One for the caller alone. A context is bound.
    pub fn take(self: &Arc<Self>) -> Result<Staging> {
        let idle = self.idle().pop();
        let place = match idle {
            Some(place) => place,
            None => Place(locked(self.calls, BYTES, 0)?),
        };
        Ok(Staging { place, home: Arc::clone(self) })
    }

    /// Frees the idle ones.
    pub fn give_back(&self) {
        let idle = std::mem::take(&mut *self.idle());
        for place in idle {
            // SAFETY: nobody uses it. What is not freed goes with the context.
            let _ = unsafe { self.calls.cuMemFreeHost(place.0.as_ptr().cast()) };
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Place>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Staging {
    /// [`BYTES`] bytes, the holder's alone.
    pub const fn place(&self) -> NonNull<u8> {
        self.place.0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.home.idle().push(self.place);
    }
}
