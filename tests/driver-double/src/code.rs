use std::ffi::CStr;
use std::fmt;

/// Always a known one: others are undefined behaviour for callers with an `enum`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(u32);

pub type Answer<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident $number:literal $c_name:literal $text:literal;)+) => {
        #[allow(dead_code)]
        impl Code {
            $(pub const $name: Self = Self($number);)+
        }
        const TABLE: &[(u32, &CStr, &CStr)] = &[$(($number, $c_name, $text)),+];
    };
}

codes! {
    SUCCESS 0 c"CUDA_SUCCESS" c"no error";
    INVALID_VALUE 1 c"CUDA_ERROR_INVALID_VALUE" c"invalid argument";
    OUT_OF_MEMORY 2 c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory";
    NOT_INITIALIZED 3 c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error";
    DEINITIALIZED 4 c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down";
    STUB_LIBRARY 34 c"CUDA_ERROR_STUB_LIBRARY" c"CUDA driver is a stub library";
    NO_DEVICE 100 c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected";
    INVALID_DEVICE 101 c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal";
    INVALID_IMAGE 200 c"CUDA_ERROR_INVALID_IMAGE" c"device kernel image is invalid";
    INVALID_CONTEXT 201 c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context";
    NO_BINARY_FOR_GPU 209 c"CUDA_ERROR_NO_BINARY_FOR_GPU" c"no kernel image is available for execution on the device";
    PEER_ACCESS_UNSUPPORTED 217 c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" c"peer access is not supported between these two devices";
    INVALID_PTX 218 c"CUDA_ERROR_INVALID_PTX" c"a PTX JIT compilation failed";
    UNSUPPORTED_PTX_VERSION 222 c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION" c"the provided PTX was compiled with an unsupported toolchain.";
    OPERATING_SYSTEM 304 c"CUDA_ERROR_OPERATING_SYSTEM" c"OS call failed or operation not supported on this OS";
    INVALID_HANDLE 400 c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle";
    NOT_FOUND 500 c"CUDA_ERROR_NOT_FOUND" c"named symbol not found";
    NOT_READY 600 c"CUDA_ERROR_NOT_READY" c"device not ready";
    ILLEGAL_ADDRESS 700 c"CUDA_ERROR_ILLEGAL_ADDRESS" c"an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES 701 c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" c"too many resources requested for launch";
    LAUNCH_TIMEOUT 702 c"CUDA_ERROR_LAUNCH_TIMEOUT" c"the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED 704 c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" c"peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED 705 c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" c"peer access has not been enabled";
    CONTEXT_IS_DESTROYED 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" c"pointer does not correspond to a registered memory region";
    MISALIGNED_ADDRESS 716 c"CUDA_ERROR_MISALIGNED_ADDRESS" c"misaligned address";
    LAUNCH_FAILED 719 c"CUDA_ERROR_LAUNCH_FAILED" c"unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE 720 c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" c"too many blocks in cooperative launch";
    NOT_PERMITTED 800 c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted";
    NOT_SUPPORTED 801 c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported";
    SYSTEM_NOT_READY 802 c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not yet initialized";
    SYSTEM_DRIVER_MISMATCH 803 c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" c"system has unsupported display driver / cuda driver combination";
    EXTERNAL_DEVICE 911 c"CUDA_ERROR_EXTERNAL_DEVICE" c"an async error has occured in external entity outside of CUDA";
    UNKNOWN 999 c"CUDA_ERROR_UNKNOWN" c"unknown error";
}

impl Code {
    pub fn known(number: u32) -> Option<Self> {
        TABLE.iter().any(|row| row.0 == number).then_some(Self(number))
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    pub fn name(self) -> &'static CStr {
        self.row().1
    }

    pub fn text(self) -> &'static CStr {
        self.row().2
    }

    fn row(self) -> &'static (u32, &'static CStr, &'static CStr) {
        TABLE.iter().find(|row| row.0 == self.0).expect("every code is made from the table")
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().to_string_lossy(), self.0)
    }
}
