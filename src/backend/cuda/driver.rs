//! The NVIDIA driver: its library, its functions, its error codes, and when it may be called.
//!
//! 1. Nothing here panics without a driver. cudarc's first call would, so the library is opened here: [`Driver::load`] names the missing library or the
//!    missing required function. A missing optional function is an error ([`Error::Unsupported`]) of the operation that needs it.
//! 2. A result code is a number, never a Rust enum: an unknown code would be undefined behaviour.
//! 3. CUDA never changes the signature of an exported symbol (a changed function has a new name, such as `_v2`). So no version is checked.
//! 4. No call reaches the driver in a forked child, or while the process ends.
//!
//! # A call
//!
//! Each method of [`Calls`] first checks the process (see `process.rs`), then calls the function, then converts the result code.
//!
//! # What a failure leaves
//!
//! The library is never closed, because cudarc opens the same one. If a function was missing, the next load looks it up again. A failed call leaves
//! nothing here; [`is_final`] tells whether queued operations can still complete after its error.

use core::error::Error as _;
use core::fmt;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ushort, c_void};
use std::string::String;
use std::sync::OnceLock;
use std::vec::Vec;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmemoryPool, CUmodule, CUresult, CUstream};
use libloading::Library;

use super::process;
use crate::{Error, Result};

#[cfg(windows)]
const NAMES: &[&str; 1] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str; 2] = &["libcuda.so.1", "libcuda.so"];

/// Numbers of device attributes. Names of cudarc change their meaning between releases.
pub(super) mod attribute {
    use std::ffi::c_int;

    pub const PROCESSORS: c_int = 16;
    pub const KERNEL_TIMEOUT: c_int = 17;
    pub const INTEGRATED: c_int = 18;
    pub const CAN_MAP_HOST_MEMORY: c_int = 19;
    pub const UNIFIED_ADDRESSING: c_int = 41;
    pub const CAPABILITY_MAJOR: c_int = 75;
    pub const CAPABILITY_MINOR: c_int = 76;
    pub const MANAGED_MEMORY: c_int = 83;
    pub const HOST_NATIVE_ATOMICS: c_int = 86;
    pub const CONCURRENT_MANAGED_ACCESS: c_int = 89;
    pub const COOPERATIVE_LAUNCH: c_int = 95;
    pub const VIRTUAL_MEMORY_MANAGEMENT: c_int = 102;
    pub const MEMORY_POOLS: c_int = 115;
    /// 93 is for `cuStreamWriteValue64_v2`'s predecessor.
    pub const WRITES_WORDS: c_int = 122;
}

/// A loaded and initialised driver.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::cuda::Driver;
///
/// match Driver::load() {
///     Ok(driver) => println!("CUDA {}.{}", driver.version() / 1000, driver.version() % 1000 / 10),
///     Err(Error::NoDriver { tried, .. }) => println!("none of {tried:?} is installed"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Driver {
    version: u32,
    calls: &'static Calls,
}

/// One GPU.
///
/// ```
/// use ringmem::backend::cuda::{Driver, Gpu};
///
/// /// The GPU with the most memory.
/// fn largest(gpus: &[Gpu]) -> Option<&Gpu> {
///     gpus.iter().max_by_key(|gpu| gpu.memory)
/// }
///
/// let gpus = Driver::load().and_then(|driver| driver.gpus()).unwrap_or_default();
/// assert_eq!(largest(&gpus).is_some(), !gpus.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Ordinal, from 0.
    pub ordinal: u32,
    /// Driver's name for it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Total bytes.
    pub memory: u64,
    /// As [`host_native_atomics`](crate::backend::Capabilities::host_native_atomics).
    pub native_host_atomics: bool,
    /// As [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access).
    pub concurrent_managed_access: bool,
    /// A watchdog ends long kernels, because the GPU also drives a display.
    pub kernel_timeout: bool,
}

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] if there is none, or a required function is missing; [`Error::Driver`].
    pub fn load() -> Result<Self> {
        let calls = calls()?;
        let mut version = 0;
        // SAFETY: the call takes no pointer.
        unsafe { calls.cuInit(0) }?;
        process::register();
        // SAFETY: the call writes one integer, to a local variable.
        unsafe { calls.cuDriverGetVersion(&raw mut version) }?;
        Ok(Self { version: version.try_into().unwrap_or(0), calls })
    }

    /// Returns the newest supported CUDA version, as 1000 x major + 10 x minor.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Returns every GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn gpus(&self) -> Result<Vec<Gpu>> {
        (0..self.count()?).map(|ordinal| self.gpu(ordinal)).collect()
    }

    pub(super) const fn calls(&self) -> &'static Calls {
        self.calls
    }

    pub(super) fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the driver is initialised. The call writes one integer, to a local variable.
        unsafe { self.calls.cuDeviceGetCount(&raw mut count) }?;
        Ok(count.try_into().unwrap_or(0))
    }

    pub(super) fn device(&self, ordinal: u32) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: the call writes one handle, to a local variable.
        unsafe { self.calls.cuDeviceGet(&raw mut device, ordinal.cast_signed()) }?;
        Ok(device)
    }

    pub(super) fn attribute(&self, device: CUdevice, which: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the call writes one integer, to a local variable.
        unsafe { self.calls.cuDeviceGetAttribute(&raw mut value, which, device) }?;
        Ok(value.try_into().unwrap_or(0))
    }

    fn gpu(&self, ordinal: u32) -> Result<Gpu> {
        let device = self.device(ordinal)?;
        let (mut name, mut memory) = ([0_u8; 256], 0);
        // SAFETY: the driver writes at most the given length, which is that of the buffer.
        unsafe { self.calls.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device) }?;
        // SAFETY: the call writes one integer, to a local variable.
        unsafe { self.calls.cuDeviceTotalMem_v2(&raw mut memory, device) }?;
        let ask = |which| self.attribute(device, which);
        Ok(Gpu {
            ordinal,
            name: CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy).unwrap_or_default().into_owned(),
            capability: (ask(attribute::CAPABILITY_MAJOR)?, ask(attribute::CAPABILITY_MINOR)?),
            memory: memory as u64,
            native_host_atomics: ask(attribute::HOST_NATIVE_ATOMICS)? != 0,
            concurrent_managed_access: ask(attribute::CONCURRENT_MANAGED_ACCESS)? != 0,
            kernel_timeout: ask(attribute::KERNEL_TIMEOUT)? != 0,
        })
    }
}

fn calls() -> Result<&'static Calls> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static CALLS: OnceLock<Calls> = OnceLock::new();
    if let Some(calls) = CALLS.get() {
        return Ok(calls);
    }
    let missing = |error| Error::NoDriver { tried: NAMES, source: text(&error).into() };
    let library = match LIBRARY.get() {
        Some(library) => library,
        // Never closed: cudarc opens the same library.
        None => {
            let [first, others @ ..] = NAMES;
            let found = open(first, others).map_err(missing)?;
            LIBRARY.get_or_init(|| found)
        }
    };
    let found = Calls::of(library).map_err(missing)?;
    Ok(CALLS.get_or_init(|| found))
}

/// Returns the error with the loader's text, which is the source of its source.
fn text(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn open(first: &str, others: &[&str]) -> core::result::Result<Library, libloading::Error> {
    // SAFETY: the initialisers of a CUDA driver have no preconditions.
    let load = |name: &str| unsafe { Library::new(name) };
    others.iter().fold(load(first), |found, name| found.or_else(|_| load(name)))
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

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
                    // SAFETY: the type is the documented signature of this name, which CUDA never changes. The library is never closed.
                    $($must: *unsafe { library.get(concat!(stringify!($must), "\0").as_bytes()) }?,)+
                    // SAFETY: the type is the documented signature of this name, which CUDA never changes. The library is never closed.
                    $($may: unsafe { library.get(concat!(stringify!($may), "\0").as_bytes()) }.ok().map(|function| *function),)*
                })
            }

            $(
                /// # Safety
                ///
                /// The preconditions of the function's documentation: handles are live, and memory is valid until the call, or the operation that it
                /// queues, is complete.
                pub unsafe fn $must(&self, $($must_argument: $must_type),*) -> Result<()> {
                    check_callable(stringify!($must))?;
                    // SAFETY: the caller keeps the function's documented preconditions. The pointer was looked up under this name, with this signature.
                    checked(stringify!($must), unsafe { (self.$must)($($must_argument),*) })
                }
            )+
            $(
                /// # Safety
                ///
                /// The preconditions of the function's documentation: handles are live, and memory is valid until the call, or the operation that it
                /// queues, is complete.
                pub unsafe fn $may(&self, $($may_argument: $may_type),*) -> Result<()> {
                    check_callable(stringify!($may))?;
                    let Some(function) = self.$may else {
                        return Err(Error::Unsupported { what: concat!(stringify!($may), " in this driver") });
                    };
                    // SAFETY: the caller keeps the function's documented preconditions. The pointer was looked up under this name, with this signature.
                    checked(stringify!($may), unsafe { function($($may_argument),*) })
                }
            )*
        }
    };
}

/// `CUmemPoolProps`. New releases of CUDA give names to reserved bytes, and keep the size.
#[repr(C)]
pub(super) struct Properties {
    pub allocation: c_int,
    pub handles: c_int,
    pub location: c_int,
    pub device: c_int,
    pub security: *mut c_void,
    pub max_bytes: usize,
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

/// `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct MemoryProperties {
    pub allocation: c_int,
    pub handles: c_int,
    pub location: c_int,
    pub device: c_int,
    pub security: *mut c_void,
    pub flags: [c_uchar; 8],
}

const _: () = assert!(size_of::<Properties>() == 88 && size_of::<Access>() == 12 && size_of::<MemoryProperties>() == 32);

type HostFunction = unsafe extern "C" fn(*mut c_void);

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
        fn cuOccupancyMaxPotentialBlockSize(
            blocks: *mut c_int,
            threads: *mut c_int,
            function: CUfunction,
            shared_of: *const c_void,
            shared: usize,
            most: c_int,
        );
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
        fn cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const MemoryProperties, which: c_uint);
        fn cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, align: usize, wish: CUdeviceptr, flags: u64);
        fn cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const MemoryProperties, flags: u64);
        fn cuMemRelease(handle: u64);
        fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64);
        fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
        fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const Access, count: usize);
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

// SAFETY: the pointer alone is sent. Each use has its own argument.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a shared reference gives the pointer alone. Each use has its own argument.
unsafe impl<T> Sync for Handle<T> {}

pub(super) mod code {
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const NOT_INITIALIZED: u32 = 3;
    pub const DEINITIALIZED: u32 = 4;
    pub const NOT_READY: u32 = 600;
    pub const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    pub const PEER_ACCESS_NOT_ENABLED: u32 = 705;
}

/// True if no queued operation executes any more: the context or the driver is unusable.
pub(super) const fn is_final(error: &Error) -> bool {
    const GONE: [u32; 2] = [code::NOT_INITIALIZED, code::DEINITIALIZED];
    matches!(error, Error::Driver { code, .. }
        if *code == GONE[0] || *code == GONE[1] || matches!(*code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 911))
}

/// True for an answer about a stream that the driver does not know: another library has destroyed or reset the context, which ended the stream's operations.
pub(super) const fn is_of_no_stream(error: &Error) -> bool {
    matches!(error, Error::Driver { code: 46 | 201 | 400, .. })
}

pub(super) const fn checked(call: &'static str, code: u32) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Driver { call, code, name: name(code), log: None }),
    }
}

const fn name(code: u32) -> &'static str {
    match code {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        4 => "CUDA_ERROR_DEINITIALIZED",
        5 => "CUDA_ERROR_PROFILER_DISABLED",
        6 => "CUDA_ERROR_PROFILER_NOT_INITIALIZED",
        7 => "CUDA_ERROR_PROFILER_ALREADY_STARTED",
        8 => "CUDA_ERROR_PROFILER_ALREADY_STOPPED",
        34 => "CUDA_ERROR_STUB_LIBRARY",
        36 => "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
        47 => "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        102 => "CUDA_ERROR_DEVICE_NOT_LICENSED",
        200 => "CUDA_ERROR_INVALID_IMAGE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        202 => "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
        205 => "CUDA_ERROR_MAP_FAILED",
        206 => "CUDA_ERROR_UNMAP_FAILED",
        207 => "CUDA_ERROR_ARRAY_IS_MAPPED",
        208 => "CUDA_ERROR_ALREADY_MAPPED",
        209 => "CUDA_ERROR_NO_BINARY_FOR_GPU",
        210 => "CUDA_ERROR_ALREADY_ACQUIRED",
        211 => "CUDA_ERROR_NOT_MAPPED",
        212 => "CUDA_ERROR_NOT_MAPPED_AS_ARRAY",
        213 => "CUDA_ERROR_NOT_MAPPED_AS_POINTER",
        214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
        215 => "CUDA_ERROR_UNSUPPORTED_LIMIT",
        216 => "CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        217 => "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        218 => "CUDA_ERROR_INVALID_PTX",
        219 => "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        220 => "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        221 => "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        222 => "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        223 => "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        224 => "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        225 => "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        226 => "CUDA_ERROR_CONTAINED",
        227 => "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
        300 => "CUDA_ERROR_INVALID_SOURCE",
        301 => "CUDA_ERROR_FILE_NOT_FOUND",
        302 => "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        303 => "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        304 => "CUDA_ERROR_OPERATING_SYSTEM",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        401 => "CUDA_ERROR_ILLEGAL_STATE",
        402 => "CUDA_ERROR_LOSSY_QUERY",
        500 => "CUDA_ERROR_NOT_FOUND",
        600 => "CUDA_ERROR_NOT_READY",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        701 => "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
        703 => "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        704 => "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        705 => "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        708 => "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        710 => "CUDA_ERROR_ASSERT",
        711 => "CUDA_ERROR_TOO_MANY_PEERS",
        712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        713 => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        714 => "CUDA_ERROR_HARDWARE_STACK_ERROR",
        715 => "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        716 => "CUDA_ERROR_MISALIGNED_ADDRESS",
        717 => "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        718 => "CUDA_ERROR_INVALID_PC",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        720 => "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        721 => "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        804 => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        805 => "CUDA_ERROR_MPS_CONNECTION_FAILED",
        806 => "CUDA_ERROR_MPS_RPC_FAILURE",
        807 => "CUDA_ERROR_MPS_SERVER_NOT_READY",
        808 => "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        809 => "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        810 => "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        811 => "CUDA_ERROR_CDP_NOT_SUPPORTED",
        812 => "CUDA_ERROR_CDP_VERSION_MISMATCH",
        900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        902 => "CUDA_ERROR_STREAM_CAPTURE_MERGE",
        903 => "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        904 => "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        905 => "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        906 => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        907 => "CUDA_ERROR_CAPTURED_EVENT",
        908 => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        909 => "CUDA_ERROR_TIMEOUT",
        910 => "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        911 => "CUDA_ERROR_EXTERNAL_DEVICE",
        912 => "CUDA_ERROR_INVALID_CLUSTER_SIZE",
        913 => "CUDA_ERROR_FUNCTION_NOT_LOADED",
        914 => "CUDA_ERROR_INVALID_RESOURCE_TYPE",
        915 => "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        916 => "CUDA_ERROR_KEY_ROTATION",
        917 => "CUDA_ERROR_STREAM_DETACHED",
        918 => "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE",
        919 => "CUDA_ERROR_FABRIC_NOT_READY",
        999 => "CUDA_ERROR_UNKNOWN",
        _ => "unknown CUDA error",
    }
}

/// Fails, with the driver's usual error, in a [process](super::process) that must not call the driver.
pub(super) fn check_callable(call: &'static str) -> Result<()> {
    if process::is_ending() {
        return checked(call, code::DEINITIALIZED);
    }
    check_not_forked(call)
}

/// Like [`check_callable`], for an operation that takes a lock before its first call.
pub(super) fn check_not_forked(call: &'static str) -> Result<()> {
    if process::is_forked() { checked(call, code::NOT_INITIALIZED) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn loading_a_driver_never_panics() {
        match Driver::load() {
            Ok(driver) => assert!(driver.version() >= 1000),
            Err(Error::NoDriver { tried, .. }) => assert_eq!(tried, NAMES),
            Err(error) => assert!(matches!(error, Error::Driver { .. }), "{error}"),
        }
    }

    #[test]
    fn a_driver_error_has_its_call_and_number() {
        let error = check("cuMemAlloc_v2", CUresult::CUDA_ERROR_OUT_OF_MEMORY).unwrap_err();
        assert_eq!(std::format!("{error}"), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)");
        assert!(check("cuInit", CUresult::CUDA_SUCCESS).is_ok());
        let error = checked("cuInit", 123_456).unwrap_err();
        assert_eq!(std::format!("{error}"), "cuInit: unknown CUDA error (123456)");
    }

    #[test]
    fn each_name_belongs_to_one_code() {
        let unnamed = name(u32::MAX);
        let names: Vec<&str> = (1..1000).map(name).filter(|&name| name != unnamed).collect();
        assert!(names.iter().all(|name| name.starts_with("CUDA_ERROR_")), "{names:?}");
        assert_eq!(names.len(), BTreeSet::from_iter(&names).len());
        assert_eq!((name(code::NOT_READY), name(700)), ("CUDA_ERROR_NOT_READY", "CUDA_ERROR_ILLEGAL_ADDRESS"));
    }
}
