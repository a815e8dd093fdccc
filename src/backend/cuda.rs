//! CUDA: so far the question whether there is a driver, and what it drives.
//!
//! 1. Asking never panics. cudarc's first call does where no driver is installed, so [`Driver::load`] opens the library itself, and keeps it.
//! 2. Every answer of the driver becomes an [`Error`] at once, with call, number and name: even printing cudarc's own error asks the driver.
//!
//! The backend itself does not exist yet; [`cudarc`] is here so that a program calls the same driver.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::vec::Vec;

pub use cudarc;
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use libloading::Library;

use crate::{Error, Result};

/// Where a driver's library may lie, in the order that is tried.
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
/// Where a driver's library may lie, in the order that is tried.
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// A driver that is loaded and initialised.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: u32,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Ordinal, from 0.
    pub ordinal: u32,
    /// As the driver names it.
    pub name: std::string::String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes in all.
    pub memory: u64,
    /// Read-modify-write operations of CPU and GPU on one word of host memory are atomic.
    pub native_host_atomics: bool,
    /// Managed memory may be touched by the host while a kernel runs.
    pub concurrent_managed_access: bool,
}

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] if there is none, [`Error::Driver`] with what it said.
    pub fn load() -> Result<Self> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        if LIBRARY.get().is_none() {
            let mut absent = None;
            for name in NAMES {
                // SAFETY: a CUDA driver's initialisers ask nothing of their caller.
                match unsafe { Library::new(name) } {
                    Ok(library) => {
                        // Kept for ever, so that cudarc's later look finds the same one. Another thread's is as good.
                        let _ = LIBRARY.set(library);
                        break;
                    }
                    Err(error) => absent = Some(error),
                }
            }
            if let (None, Some(error)) = (LIBRARY.get(), absent) {
                return Err(Error::NoDriver { tried: NAMES, source: error.into() });
            }
        }
        let mut version = 0;
        // SAFETY: the library is loaded; the call takes no pointer.
        check("cuInit", unsafe { sys::cuInit(0) })?;
        // SAFETY: writes one integer.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
        Ok(Self { version: version.try_into().unwrap_or(0) })
    }

    /// 1000 x major + 10 x minor of the newest CUDA that it runs.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Every GPU that it drives.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] with what it said.
    pub fn gpus(&self) -> Result<Vec<Gpu>> {
        let mut count = 0;
        // SAFETY: initialised; writes one integer.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
        (0..count).map(gpu).collect()
    }
}

fn gpu(ordinal: i32) -> Result<Gpu> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as MANAGED, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED as ATOMICS,
    };
    let mut device = 0;
    // SAFETY: writes one handle.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is as long as it is said to be.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device) })?;
    let mut memory = 0;
    // SAFETY: writes one integer.
    check("cuDeviceTotalMem_v2", unsafe { sys::cuDeviceTotalMem_v2(&raw mut memory, device) })?;
    let attribute = |which: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: writes one integer.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) })?;
        Ok::<u32, Error>(value.try_into().unwrap_or(0))
    };
    let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy).unwrap_or_default().into_owned();
    Ok(Gpu {
        ordinal: ordinal.unsigned_abs(),
        name,
        capability: (attribute(MAJOR)?, attribute(MINOR)?),
        memory: memory as u64,
        native_host_atomics: attribute(ATOMICS)? != 0,
        concurrent_managed_access: attribute(MANAGED)? != 0,
    })
}

/// What the driver said, as a result.
///
/// # Errors
///
/// [`Error::Driver`] with the call, the number and its name.
pub fn check(call: &'static str, said: CUresult) -> Result<()> {
    match said as u32 {
        0 => Ok(()),
        code => Err(Error::Driver { call, code, name: name(code) }),
    }
}

/// The name of a driver's answer, without asking the driver.
const fn name(code: u32) -> &'static str {
    match code {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        4 => "CUDA_ERROR_DEINITIALIZED",
        34 => "CUDA_ERROR_STUB_LIBRARY",
        46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        200 => "CUDA_ERROR_INVALID_IMAGE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        218 => "CUDA_ERROR_INVALID_PTX",
        222 => "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        500 => "CUDA_ERROR_NOT_FOUND",
        600 => "CUDA_ERROR_NOT_READY",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        701 => "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => "CUDA_ERROR of a number without a name here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_for_a_driver_answers_and_never_panics() {
        match Driver::load() {
            Ok(driver) => assert!(driver.version() >= 1000),
            Err(Error::NoDriver { tried, .. }) => assert_eq!(tried, NAMES),
            Err(error) => assert!(matches!(error, Error::Driver { .. }), "{error}"),
        }
    }

    #[test]
    fn an_answer_of_the_driver_names_its_call_and_number() {
        let error = check("cuMemAlloc_v2", CUresult::CUDA_ERROR_OUT_OF_MEMORY).unwrap_err();
        assert_eq!(std::format!("{error}"), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)");
        assert!(check("cuInit", CUresult::CUDA_SUCCESS).is_ok());
    }
}
