//! Pools for callers that order memory by streams: on simulated devices, and on the driver double, which reports each use of memory that is not ordered.
#![cfg(target_os = "linux")]

mod arguments;
mod dlpack;
mod frameworks;
mod ordering;
mod processes;
mod programs;
#[allow(dead_code, unused_imports, unused_macros, reason = "shared with the tests of the backend")]
#[path = "../../../tests/cuda/rig.rs"]
mod rig;
mod script;

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use ringmem_capi::devices::*;
use ringmem_capi::pool::*;
use ringmem_capi::status::{Status, ringmem_last_error};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

type Address = *mut c_void;

/// The text of this thread's last failure.
fn text() -> String {
    // SAFETY: a text that is valid until this thread's next failure.
    unsafe { CStr::from_ptr(ringmem_last_error()) }.to_str().expect("UTF-8").to_owned()
}

#[track_caller]
fn succeeds(status: Status) {
    assert_eq!(status, Status::Ok, "{}", text());
}

/// Open devices.
struct Opened(*mut Devices);

impl Opened {
    /// The driver double's.
    fn cuda() -> Self {
        let mut devices = null_mut();
        // SAFETY: a place for the result.
        succeeds(unsafe { ringmem_cuda_open(&raw mut devices) });
        Self(devices)
    }

    fn simulated(bytes: usize) -> Self {
        let mut devices = null_mut();
        // SAFETY: a place for the result.
        succeeds(unsafe { ringmem_simulated_open(1, bytes as u64, &raw mut devices) });
        Self(devices)
    }

    fn stream(&self) -> Address {
        let mut stream = null_mut();
        // SAFETY: open devices, and a place for the result.
        succeeds(unsafe { ringmem_stream_create(self.0, 0, &raw mut stream) });
        stream
    }

    fn pool(&self, memory: Memory, limit: usize) -> Opening {
        let options = PoolOptions { size: size_of::<PoolOptions>(), device: 0, memory: memory as i32, limit: limit as u64, slab: 0 };
        let mut pool = null_mut();
        // SAFETY: open devices, options of that size, and a place for the result.
        succeeds(unsafe { ringmem_pool_create(self.0, &raw const options, &raw mut pool) });
        Opening(pool)
    }

    /// Queues a fill.
    fn fill(&self, address: Address, value: u8, bytes: usize, stream: Address) {
        // SAFETY: open devices; the tests use memory that is live, or whose owner orders the streams.
        succeeds(unsafe { ringmem_fill(self.0, 0, address, value, bytes as u64, stream) });
    }

    /// Queues a copy within the device.
    fn copy(&self, to: Address, from: Address, bytes: usize, stream: Address) {
        // SAFETY: open devices; the tests use memory that is live, or whose owner orders the streams.
        succeeds(unsafe { ringmem_copy(self.0, 0, to, from, bytes as u64, Direction::OnDevice as i32, stream) });
    }

    fn synchronize(&self, stream: Address) {
        // SAFETY: open devices and one of their streams.
        succeeds(unsafe { ringmem_stream_synchronize(self.0, 0, stream) });
    }

    fn read(&self, address: Address, bytes: usize, stream: Address) -> Vec<u8> {
        let mut host = vec![0; bytes];
        // SAFETY: open devices, live memory, and a vector that outlives the copy.
        succeeds(unsafe { ringmem_copy(self.0, 0, host.as_mut_ptr().cast(), address, bytes as u64, Direction::ToHost as i32, stream) });
        self.synchronize(stream);
        host
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: open, and used by no later call.
        unsafe { ringmem_devices_close(self.0) };
    }
}

/// An open pool, closed when dropped.
struct Opening(*mut PoolHandle);

impl Opening {
    fn try_allocate(&self, bytes: usize, stream: Address) -> Result<Address, Status> {
        let mut address = null_mut();
        // SAFETY: an open pool, and a place for the result.
        match unsafe { ringmem_pool_allocate(self.0, bytes, stream, &raw mut address) } {
            Status::Ok => Ok(address),
            status => Err(status),
        }
    }

    #[track_caller]
    fn allocate(&self, bytes: usize, stream: Address) -> Address {
        self.try_allocate(bytes, stream).unwrap_or_else(|status| panic!("{status:?}: {}", text()))
    }

    #[track_caller]
    fn free(&self, address: Address, stream: Address) {
        // SAFETY: an open pool; each test frees its own blocks, on the stream of the last use.
        succeeds(unsafe { ringmem_pool_free(self.0, address, stream) });
    }

    fn record(&self, address: Address, stream: Address) {
        // SAFETY: an open pool and a live stream.
        succeeds(unsafe { ringmem_pool_record_stream(self.0, address, stream) });
    }

    fn trim(&self, keep: usize) -> u64 {
        let mut freed = 0;
        // SAFETY: an open pool, and a place for the result.
        succeeds(unsafe { ringmem_pool_trim(self.0, keep as u64, &raw mut freed) });
        freed
    }

    fn statistics(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics { size: size_of::<PoolStatistics>(), ..PoolStatistics::default() };
        // SAFETY: an open pool, and a structure of that size.
        succeeds(unsafe { ringmem_pool_read_statistics(self.0, &raw mut statistics) });
        statistics
    }

    fn close(self) {
        let pool = self.0;
        std::mem::forget(self);
        // SAFETY: open, and used by no later call.
        succeeds(unsafe { ringmem_pool_close(pool) });
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: open, and used by no later call.
            succeeds(unsafe { ringmem_pool_close(self.0) });
        }
    }
}

// SAFETY: each function may be called from any thread.
unsafe impl Sync for Opening {}
// SAFETY: each function may be called from any thread.
unsafe impl Send for Opening {}
// SAFETY: each function may be called from any thread.
unsafe impl Sync for Opened {}

/// Runs a test in a process of its own, on the driver double. What the library keeps until the process ends is not a leak.
fn in_a_process(alone: &rig::Alone, body: impl FnOnce()) {
    if alone.is_here() {
        return body();
    }
    let said = alone.run();
    assert!(!said.contains("violation"), "{said}");
}
use rig::alone;

/// Forks, and asserts that the child ends with true.
fn holds_in_a_forked_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child calls functions of the library, which are to work in it, and ends without handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!check())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

const NULL: Address = null_mut();
const NO_POOL: *const PoolHandle = null();
