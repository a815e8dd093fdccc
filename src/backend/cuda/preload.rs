//! Uses each of the driver's lazily loaded kernels and engines once, because loading may wait for every running kernel.

use core::ffi::c_void;
use core::ptr;

use cudarc::driver::sys::CUdeviceptr;

use super::device::{Device, Lane};
use crate::Result;

/// The driver fills or copies less by other means.
const HALF: usize = 256 << 10;

unsafe extern "C" fn nothing(_: *mut c_void) {}

impl Device {
    /// After a failure, the first use reports the error.
    pub fn preload(&self) {
        let mut address = 0;
        let allocated = self.now(|lane| match &self.pool {
            Some(pool) => pool.take(2 * HALF, lane.stream()).map(|memory| address = memory),
            // SAFETY: writes one address.
            None => unsafe { self.calls.cuMemAlloc_v2(&raw mut address, 2 * HALF) },
        });
        if address == 0 {
            return;
        }
        let _ = allocated.and_then(|()| self.now(|lane| self.use_all(lane, address)));
        let free = || {
            let mut is_freed = false;
            let _ = self.now(|lane| {
                let freed = match self.pool {
                    // SAFETY: allocated above, unused, not freed yet.
                    Some(_) => unsafe { self.calls.cuMemFreeAsync(address, lane.stream()) },
                    // SAFETY: as above.
                    None => unsafe { self.calls.cuMemFree_v2(address) },
                };
                is_freed = freed.is_ok();
                freed
            });
            is_freed
        };
        // After two failures the context is lost.
        if !free() {
            free();
        }
    }

    fn use_all(&self, lane: &Lane, address: CUdeviceptr) -> Result<()> {
        let (calls, stream, word) = (self.calls, lane.stream(), lane.word().as_ptr());
        let half = address + HALF as u64;
        // SAFETY: the lane's own word; nothing is queued.
        unsafe { word.write(0) };
        // SAFETY: within the memory, which is freed later; the lane's word until it is synchronised.
        let outcomes = unsafe {
            [
                calls.cuMemsetD8Async(address, 0, 2 * HALF, stream),
                calls.cuMemsetD32Async.map_or(Ok(()), |_| calls.cuMemsetD32Async(address, 0, HALF / 4, stream)),
                calls.cuMemcpyDtoDAsync_v2(half, address, HALF, stream),
                calls.cuMemcpyHtoDAsync_v2(address, word.cast(), size_of::<u64>(), stream),
                calls.cuMemcpyDtoHAsync_v2(word.cast(), address, size_of::<u64>(), stream),
                if self.facts.writes_words { calls.cuStreamWriteValue64_v2(stream, address, 0, 0) } else { Ok(()) },
                calls.cuLaunchHostFunc.map_or(Ok(()), |_| calls.cuLaunchHostFunc(stream, nothing, ptr::null_mut())),
            ]
        };
        outcomes.into_iter().collect()
    }
}
