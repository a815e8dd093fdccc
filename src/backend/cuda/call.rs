//! The driver's functions by name: the required ones at load, so no call panics.
//!
//! 1. A result code never becomes a Rust enum: unknown codes would be undefined behaviour.
//! 2. CUDA never changes an exported symbol's signature, so no version is checked.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmemoryPool, CUmodule, CUresult, CUstream};
use libloading::Library;

use super::code::checked;
use super::process;
use crate::{Error, Result};

/// Converts a result code of the driver.
///
/// # Errors
///
/// [`Error::Driver`] with the call, the code and its name.
pub fn check(call: &'static str, said: CUresult) -> Result<()> {
    checked(call, said as u32)
}

macro_rules! functions {
    (
        must have { $(fn $must:ident($($must_argument:ident: $must_type:ty),* $(,)?);)+ }
        may lack { $(fn $may:ident($($may_argument:ident: $may_type:ty),* $(,)?);)* }
    ) => {
        #[allow(non_snake_case)]
        pub(super) struct Calls {
            $($must: unsafe extern "C" fn($($must_type),*) -> u32,)+
            $(pub $may: Option<unsafe extern "C" fn($($may_type),*) -> u32>,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Calls {
            pub fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the documented signature; the library is never unloaded.
                    $($must: *unsafe { library.get(concat!(stringify!($must), "\0").as_bytes()) }?,)+
                    // SAFETY: as above.
                    $($may: unsafe { library.get(concat!(stringify!($may), "\0").as_bytes()) }.ok().map(|function| *function),)*
                })
            }

            $(
                /// # Safety
                ///
                /// See the function's documentation.
                pub unsafe fn $must(&self, $($must_argument: $must_type),*) -> Result<()> {
                    process::admits(stringify!($must))?;
                    // SAFETY: the caller's promise.
                    checked(stringify!($must), unsafe { (self.$must)($($must_argument),*) })
                }
            )+
            $(
                /// # Safety
                ///
                /// See the function's documentation.
                pub unsafe fn $may(&self, $($may_argument: $may_type),*) -> Result<()> {
                    process::admits(stringify!($may))?;
                    let Some(function) = self.$may else {
                        return Err(Error::Unsupported { what: concat!(stringify!($may), " in this driver") });
                    };
                    // SAFETY: the caller's promise.
                    checked(stringify!($may), unsafe { function($($may_argument),*) })
                }
            )*
        }
    };
}

/// `CUmemPoolProps`: releases name reserved bytes; the size stays.
#[repr(C)]
pub(super) struct Properties {
    pub allocation: c_int,
    pub handles: c_int,
    pub location: c_int,
    pub device: c_int,
    pub security: *mut c_void,
    pub most: usize,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 54],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct Access {
    pub location: c_int,
    pub device: c_int,
    pub flags: c_int,
}

const _: () = assert!(size_of::<Properties>() == 88 && size_of::<Access>() == 12);

pub(super) type HostFunction = unsafe extern "C" fn(*mut c_void);

functions! {
    must have {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
        fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        fn cuCtxGetCurrent(context: *mut CUcontext);
        fn cuCtxSetCurrent(context: CUcontext);
        fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
        fn cuMemFree_v2(address: CUdeviceptr);
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemFreeHost(pointer: *mut c_void);
        fn cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
        fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemHostUnregister(pointer: *mut c_void);
        fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        fn cuMemsetD8Async(to: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);
        fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        fn cuStreamDestroy_v2(stream: CUstream);
        fn cuStreamSynchronize(stream: CUstream);
        fn cuStreamQuery(stream: CUstream);
        fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        fn cuEventCreate(event: *mut CUevent, flags: c_uint);
        fn cuEventRecord(event: CUevent, stream: CUstream);
        fn cuEventQuery(event: CUevent);
        fn cuEventSynchronize(event: CUevent);
        fn cuEventDestroy_v2(event: CUevent);
        fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);
        fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        fn cuModuleUnload(module: CUmodule);
        fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction);
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize);
        fn cuLaunchKernel(
            function: CUfunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared: c_uint,
            stream: CUstream,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        );
    }
    may lack {
        fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
        fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const Properties);
        fn cuMemPoolDestroy(pool: CUmemoryPool);
        fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void);
        fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void);
        fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const Access, count: usize);
        fn cuMemPoolTrimTo(pool: CUmemoryPool, bytes: usize);
        fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        fn cuMemPrefetchAsync(address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
        fn cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: c_int, device: CUdevice);
        fn cuMemcpyPeerAsync(
            to: CUdeviceptr,
            to_context: CUcontext,
            from: CUdeviceptr,
            from_context: CUcontext,
            bytes: usize,
            stream: CUstream,
        );
        fn cuMemsetD32Async(to: CUdeviceptr, word: c_uint, count: usize, stream: CUstream);
        fn cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
        fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        fn cuLaunchHostFunc(stream: CUstream, function: HostFunction, data: *mut c_void);
        fn cuLaunchCooperativeKernel(
            function: CUfunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared: c_uint,
            stream: CUstream,
            parameters: *mut *mut c_void,
        );
        fn cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
        fn cuFuncLoad(function: CUfunction);
        fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
        fn cuCtxDisablePeerAccess(peer: CUcontext);
    }
}

pub(super) struct Handle<T>(pub *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: an opaque number, not dereferenced here.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_error_has_its_call_and_number() {
        let error = check("cuMemAlloc_v2", CUresult::CUDA_ERROR_OUT_OF_MEMORY).unwrap_err();
        assert_eq!(std::format!("{error}"), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)");
        assert!(check("cuInit", CUresult::CUDA_SUCCESS).is_ok());
        let error = checked("cuInit", 123_456).unwrap_err();
        assert_eq!(std::format!("{error}"), "cuInit: unknown CUDA error (123456)");
    }
}
