use std::ffi::CStr;

use libloading::Library;
use ringmem_driver_double::{cuInit, library, symbols};

fn open(path: impl libloading::AsFilename) -> Result<Library, libloading::Error> {
    // SAFETY: its initialisers do nothing.
    unsafe { Library::new(path) }
}

fn address(library: &Library, symbol: &str) -> Option<usize> {
    // SAFETY: only its address is used.
    unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.ok().map(|function| *function as usize)
}

const OWN: [&str; 7] = [
    "ringmem_double_calls",
    "ringmem_double_fail",
    "ringmem_double_live",
    "ringmem_double_live_bytes",
    "ringmem_double_pool_moves",
    "ringmem_double_reset",
    "ringmem_double_violations",
];

const NEEDED: &str = "cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetAttribute cuDeviceTotalMem cuDeviceGetUuid \
     cuDeviceGetPCIBusId cuGetErrorName cuGetErrorString cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuCtxGetCurrent cuCtxSetCurrent \
     cuCtxGetStreamPriorityRange cuCtxSynchronize cuMemAlloc cuMemFree cuMemAllocAsync cuMemFreeAsync cuMemAllocFromPoolAsync cuMemGetInfo cuMemGetAddressRange \
     cuDeviceGetDefaultMemPool cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolSetAccess \
     cuMemHostAlloc cuMemFreeHost cuMemHostRegister cuMemHostUnregister cuMemHostGetDevicePointer cuMemHostGetFlags cuMemAllocManaged \
     cuMemPrefetchAsync cuMemAdvise cuStreamAttachMemAsync cuMemRangeGetAttribute cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyDtoH \
     cuMemcpyDtoHAsync cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD8 cuMemsetD8Async cuMemsetD32Async \
     cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy cuStreamSynchronize cuStreamQuery cuStreamWaitEvent cuStreamGetId cuStreamGetCtx \
     cuStreamWriteValue64 cuStreamWaitValue64 cuLaunchHostFunc cuFuncLoad cuFuncGetAttribute cuOccupancyMaxActiveBlocksPerMultiprocessor \
     cuOccupancyMaxPotentialBlockSize cuEventCreate \
     cuEventRecord cuEventQuery cuEventSynchronize cuEventElapsedTime cuEventDestroy cuModuleLoadData cuModuleLoadDataEx cuModuleUnload \
     cuModuleGetFunction cuModuleGetGlobal cuLaunchKernel cuLaunchCooperativeKernel cuDeviceCanAccessPeer cuCtxEnablePeerAccess \
     cuCtxDisablePeerAccess cuDeviceGetP2PAttribute cuPointerGetAttribute cuPointerGetAttributes cuMemAddressReserve cuMemAddressFree \
     cuMemGetAllocationGranularity cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAccess";

#[test]
fn the_symbols_are_exactly_those_a_backend_needs() {
    let mut all: Vec<&str> = symbols().map(|symbol| symbol.strip_suffix("_v2").unwrap_or(symbol)).collect();
    all.sort_unstable();
    all.dedup();
    let mut needed: Vec<&str> = NEEDED.split_whitespace().collect();
    needed.sort_unstable();
    assert_eq!(all, needed);
}

#[test]
fn the_library_exports_every_symbol_and_names_itself() {
    let opened = open(library().expect("it builds")).expect("the double");
    for symbol in symbols().chain(OWN) {
        assert!(address(&opened, symbol).is_some(), "{symbol}");
    }
    let mut name = [0_u8; 64];
    // SAFETY: these are the functions' signatures; the buffer is of the stated length.
    unsafe {
        let init = opened.get::<unsafe extern "C" fn(u32) -> u32>(b"cuInit\0").expect("a symbol");
        let device_name = opened.get::<unsafe extern "C" fn(*mut u8, i32, i32) -> u32>(b"cuDeviceGetName\0").expect("a symbol");
        assert_eq!(init(0), 0);
        assert_eq!(device_name(name.as_mut_ptr(), 8, 0), 1);
        assert_eq!(device_name(name.as_mut_ptr(), 64, 0), 0);
    }
    assert_eq!(CStr::from_bytes_until_nul(&name), Ok(c"ringmem driver double, not a GPU"));
}

#[cfg(target_os = "linux")]
#[test]
fn an_open_double_is_found_by_the_driver_name() {
    let by_path = open(library().expect("it builds")).expect("the double");
    let by_name = open("libcuda.so").expect("the double by its own name");
    assert_eq!(address(&by_path, "cuInit"), address(&by_name, "cuInit"));
}

#[cfg(unix)]
#[test]
fn a_program_with_the_rlib_exports_none_of_its_symbols() {
    let linked: unsafe extern "C" fn(u32) -> u32 = cuInit;
    std::hint::black_box(linked);
    let this: Library = libloading::os::unix::Library::this().into();
    for symbol in symbols() {
        assert_eq!(address(&this, symbol), None, "{symbol}");
    }
}
