//! [`DriverPool`]: a memory pool of the driver: stream-ordered device memory, kept when freed. A context must be bound.
//!
//! Not the default pool, whose shared threshold is 0: it releases free memory at each synchronisation.

use core::ptr;
use std::ffi::c_int;

use cudarc::driver::sys::{CUdeviceptr, CUmemPoolHandle_st, CUstream};

use super::call::{Access, Calls, Handle, Properties};
use crate::{Error, Result};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_A_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
const NO_ACCESS: c_int = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;
/// `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`.
const WAITS_FOR_FREES: c_int = 3;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: c_int = 7;

pub(super) struct DriverPool {
    calls: &'static Calls,
    handle: Handle<CUmemPoolHandle_st>,
}

impl Calls {
    /// Some alone could allocate but not free.
    pub fn has_pools(&self) -> bool {
        let Self { cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolCreate, cuMemPoolDestroy, .. } = self;
        let Self { cuMemPoolSetAttribute, cuMemPoolGetAttribute, cuMemPoolSetAccess, cuMemPoolTrimTo, .. } = self;
        cuMemAllocFromPoolAsync.is_some()
            && cuMemFreeAsync.is_some()
            && cuMemPoolCreate.is_some()
            && cuMemPoolDestroy.is_some()
            && cuMemPoolSetAttribute.is_some()
            && cuMemPoolGetAttribute.is_some()
            && cuMemPoolSetAccess.is_some()
            && cuMemPoolTrimTo.is_some()
    }
}

impl DriverPool {
    pub fn new(calls: &'static Calls, device: u32, threshold: u64) -> Result<Self> {
        let properties = Properties {
            allocation: PINNED,
            handles: 0,
            location: ON_A_DEVICE,
            device: device.cast_signed(),
            security: ptr::null_mut(),
            most: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut handle = ptr::null_mut();
        // SAFETY: reads one structure, writes one handle.
        unsafe { calls.cuMemPoolCreate(&raw mut handle, &raw const properties) }?;
        let pool = Self { calls, handle: Handle(handle) };
        // By default, an allocation for which the pool has no memory makes its stream wait for another stream's queued free. That free may be behind a
        // persistent kernel: the caller would wait for the kernel's end instead of getting `OutOfMemory`.
        let mut never: c_int = 0;
        // SAFETY: a live pool; reads 32 bits.
        unsafe { calls.cuMemPoolSetAttribute(handle, WAITS_FOR_FREES, (&raw mut never).cast()) }?;
        let mut value = threshold;
        // SAFETY: a live pool; reads 64 bits.
        unsafe { calls.cuMemPoolSetAttribute(handle, THRESHOLD, (&raw mut value).cast()) }?;
        Ok(pool)
    }

    pub fn take(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: a live pool and stream; writes one address.
        unsafe { self.calls.cuMemAllocFromPoolAsync(&raw mut address, bytes, self.handle.0, stream) }?;
        Ok(address)
    }

    pub fn idle(&self) -> Result<u64> {
        let ask = |which| {
            let mut value = 0_u64;
            // SAFETY: a live pool; writes 64 bits.
            unsafe { self.calls.cuMemPoolGetAttribute(self.handle.0, which, (&raw mut value).cast()) }?;
            Ok::<u64, Error>(value)
        };
        Ok(ask(RESERVED)?.saturating_sub(ask(USED)?))
    }

    pub fn trim(&self) -> Result<()> {
        // SAFETY: a live pool.
        unsafe { self.calls.cuMemPoolTrimTo(self.handle.0, 0) }
    }

    pub fn share(&self, device: u32, is_shared: bool) -> Result<()> {
        let flags = if is_shared { READ_WRITE } else { NO_ACCESS };
        let access = Access { location: ON_A_DEVICE, device: device.cast_signed(), flags };
        // SAFETY: a live pool; reads one structure.
        unsafe { self.calls.cuMemPoolSetAccess(self.handle.0, &raw const access, 1) }
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        // SAFETY: created once, unused; else the process's end frees it.
        let _ = unsafe { self.calls.cuMemPoolDestroy(self.handle.0) };
    }
}
