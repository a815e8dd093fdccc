//! [`Driver`]: the driver's library, opened here because cudarc's first call panics without a driver.

use core::error::Error as _;
use core::fmt;
use std::ffi::{CStr, c_int};
use std::string::String;
use std::sync::OnceLock;
use std::vec::Vec;

use cudarc::driver::sys::CUdevice;
use libloading::Library;

use super::call::Calls;
use super::process;
use crate::{Error, Result};

#[cfg(windows)]
const NAMES: &[&str; 1] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str; 2] = &["libcuda.so.1", "libcuda.so"];

/// cudarc's names differ in meaning between releases.
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
        // SAFETY: takes no pointer.
        unsafe { calls.cuInit(0) }?;
        process::settle();
        // SAFETY: writes one integer.
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
        // SAFETY: initialised; writes one integer.
        unsafe { self.calls.cuDeviceGetCount(&raw mut count) }?;
        Ok(count.try_into().unwrap_or(0))
    }

    pub(super) fn device(&self, ordinal: u32) -> Result<CUdevice> {
        let mut device = 0;
        // SAFETY: writes one handle.
        unsafe { self.calls.cuDeviceGet(&raw mut device, ordinal.cast_signed()) }?;
        Ok(device)
    }

    pub(super) fn attribute(&self, device: CUdevice, which: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one integer.
        unsafe { self.calls.cuDeviceGetAttribute(&raw mut value, which, device) }?;
        Ok(value.try_into().unwrap_or(0))
    }

    fn gpu(&self, ordinal: u32) -> Result<Gpu> {
        let device = self.device(ordinal)?;
        let (mut name, mut memory) = ([0_u8; 256], 0);
        // SAFETY: the buffer has the given length.
        unsafe { self.calls.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device) }?;
        // SAFETY: writes one integer.
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

/// The loader's text is the source's source.
pub(super) fn text(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

pub(super) fn open(first: &str, others: &[&str]) -> core::result::Result<Library, libloading::Error> {
    // SAFETY: the initialisers of a CUDA driver have no preconditions.
    let load = |name: &str| unsafe { Library::new(name) };
    others.iter().fold(load(first), |found, name| found.or_else(|_| load(name)))
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_a_driver_never_panics() {
        match Driver::load() {
            Ok(driver) => assert!(driver.version() >= 1000),
            Err(Error::NoDriver { tried, .. }) => assert_eq!(tried, NAMES),
            Err(error) => assert!(matches!(error, Error::Driver { .. }), "{error}"),
        }
    }
}
