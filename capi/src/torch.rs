//! Entry points for PyTorch and CuPy: one pool of device memory per device of the process, created at its first allocation.
//!
//! PyTorch loads the library as a `CUDAPluggableAllocator`, which keeps size, device and stream of each block and passes them to the free. The other functions
//! here are its hooks, whose types PyTorch's header `torch/csrc/cuda/CUDAPluggableAllocator.h` gives; the page "PyTorch and CuPy" of the guide sets them.
//!
//! # Failures
//!
//! PyTorch does not test the result of an allocation: a null pointer becomes a tensor, and then a kernel's invalid access. So a failed allocation throws a C++
//! `std::runtime_error`, which Python sees as a `RuntimeError` with the text. The function that throws is that of the C++ library which the process has
//! loaded; without one, the result is null. CuPy and frees get a line on the standard error.
//!
//! # Environment
//!
//! `RINGMEM_TORCH` is read once: `limit=40GiB,snapshot=FILE,oom-snapshot=FILE,slab=32MiB,simulated=8GiB`, each of them optional.

use core::ffi::{CStr, c_char, c_double, c_int, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ringmem::__process::Process;
use ringmem::__size::{parse, show};
use ringmem::backend::host::HostBackend;

use crate::arguments::{path, write};
use crate::devices;
use crate::pool::{self, Pool, PoolOptions, PoolStatistics};
use crate::status::{Failure, Status, call, ringmem_last_error};
use crate::streams::{AnyBackend, Streams};

const VARIABLE: &str = "RINGMEM_TORCH";

/// The devices and their pools.
struct Pools {
    process: Process,
    settings: Settings,
    streams: Arc<Streams>,
    /// By device.
    pools: Box<[OnceLock<Arc<Pool>>]>,
    /// Of the device's memory, by device: set before the pool is created.
    fractions: Mutex<Vec<f64>>,
    has_written: AtomicBool,
}

#[derive(Debug, Default, PartialEq)]
struct Settings {
    limit: Option<u64>,
    slab: Option<u64>,
    /// Bytes of a simulated device, instead of CUDA's.
    simulated: Option<u64>,
    /// Written when the process exits.
    snapshot: Option<PathBuf>,
    /// Written at the first failed allocation.
    oom_snapshot: Option<PathBuf>,
}

impl Settings {
    fn parse(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=VALUE"))?;
            let (name, value) = (name.trim(), value.trim());
            let size = || parse(value).map(Some).map_err(|error| format!("{name}: {error}"));
            let file = || if value.is_empty() { Err(format!("{name}: no file")) } else { Ok(Some(PathBuf::from(value))) };
            match name {
                "limit" => settings.limit = size()?,
                "slab" => settings.slab = size()?,
                "simulated" => settings.simulated = size()?,
                "snapshot" => settings.snapshot = file()?,
                "oom-snapshot" => settings.oom_snapshot = file()?,
                _ => return Err(format!("unknown name `{name}`: use limit, slab, snapshot, oom-snapshot or simulated")),
            }
        }
        Ok(settings)
    }
}

static POOLS: OnceLock<Pools> = OnceLock::new();
/// The process runs its exit handlers.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Held while the pools are created: the driver is opened once.
static CREATING: Mutex<()> = Mutex::new(());

unsafe extern "C" {
    safe fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Returns the pools, created at the first call that succeeds.
fn pools() -> Result<&'static Pools, Failure> {
    if let Some(pools) = POOLS.get() {
        return Ok(pools);
    }
    let _creating = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pools) = POOLS.get() {
        return Ok(pools);
    }
    let text = match env::var(VARIABLE) {
        Ok(text) => text,
        Err(env::VarError::NotPresent) => String::new(),
        Err(error) => return Err(Failure::new(Status::Invalid, format!("{VARIABLE}: {error}"))),
    };
    let settings = Settings::parse(&text).map_err(|error| Failure::new(Status::Invalid, format!("{VARIABLE}: {error}")))?;
    let streams = match settings.simulated {
        None => devices::cuda()?,
        Some(bytes) => {
            // Memory that nothing touches takes none of this machine.
            let backend = HostBackend::builder().device_memory(bytes).poison(false).build()?;
            Arc::new(Streams::new(AnyBackend::Simulated(backend)).with_any_handle())
        }
    };
    let count = streams.backend().devices() as usize;
    let (pools, fractions) = ((0..count).map(|_| OnceLock::new()).collect(), Mutex::new(vec![1.0; count]));
    // After the backend's own handler was registered, so this one runs before it. If it cannot be registered, there is no snapshot.
    atexit(at_exit);
    let new = Pools { process: Process::this(), settings, streams, pools, fractions, has_written: AtomicBool::new(false) };
    Ok(POOLS.get_or_init(|| new))
}

impl Pools {
    fn of(&self, device: c_int) -> Result<&Arc<Pool>, Failure> {
        self.check_process()?;
        let count = self.pools.len();
        let slot = usize::try_from(device).ok().and_then(|device| self.pools.get(device));
        let slot = slot.ok_or_else(|| Failure::new(Status::NoDevice, format!("no device {device}: there are {count}")))?;
        if let Some(pool) = slot.get() {
            return Ok(pool);
        }
        let fractions = self.fractions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = slot.get() {
            return Ok(pool);
        }
        let device = device.cast_unsigned();
        let total = self.streams.backend().memory_info(device)?.map(|info| info.total);
        let fraction = fractions.get(device as usize).copied().unwrap_or(1.0);
        let part = total.filter(|_| fraction < 1.0).map(|total| (total as f64 * fraction) as u64);
        let limit = [self.settings.limit, part].into_iter().flatten().min().map_or(0, |limit| limit.max(1));
        let options = PoolOptions { size: size_of::<PoolOptions>(), device, memory: 0, limit, slab: self.settings.slab.unwrap_or(0) };
        let pool = Pool::new(&self.streams, &options)?;
        Ok(slot.get_or_init(|| pool))
    }

    fn check_process(&self) -> Result<(), Failure> {
        if self.process.is_this() { Ok(()) } else { Err(devices::forked()) }
    }

    fn created(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools.iter().filter_map(OnceLock::get)
    }

    fn write_snapshot(&self, file: &Path) -> Result<(), Failure> {
        pool::write_snapshot(self.created(), file)
    }
}

extern "C" fn at_exit() {
    IS_ENDING.store(true, Relaxed);
    let Some(pools) = POOLS.get().filter(|pools| pools.process.is_this()) else { return };
    if let Some(file) = &pools.settings.snapshot {
        say(call(|| pools.write_snapshot(file)));
    }
}

/// Prints the text of a failure.
fn say(status: Status) {
    if status != Status::Ok {
        // SAFETY: the text of this thread, which fails in no other call meanwhile.
        let text = unsafe { CStr::from_ptr(ringmem_last_error()) };
        print_line(&text.to_string_lossy());
    }
}

/// A standard error that is closed or full gets nothing; `eprintln` would panic.
fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "ringmem: {text}");
}

fn allocate(bytes: usize, device: c_int, stream: *mut c_void) -> Result<u64, Failure> {
    let pools = pools()?;
    // SAFETY: PyTorch and CuPy pass streams of the device's primary context, which live as long as the process, or are forgotten before.
    let allocated = unsafe { pools.of(device)?.allocate(bytes, stream.addr()) };
    if let (Err(failure), Some(file)) = (&allocated, &pools.settings.oom_snapshot)
        && failure.status() == Status::OutOfMemory
        && !pools.has_written.swap(true, Relaxed)
    {
        // The failure of the allocation is more important than that of its snapshot.
        if let Err(failure) = pools.write_snapshot(file) {
            print_line(failure.text());
        }
    }
    allocated
}

/// Allocates `bytes` bytes; null for 0 bytes and after a failure.
fn try_malloc(bytes: isize, device: c_int, stream: *mut c_void) -> (Status, *mut c_void) {
    let mut address = 0;
    let status = call(|| {
        if bytes != 0 {
            let bytes = usize::try_from(bytes).map_err(|_| Failure::new(Status::Invalid, format!("invalid size: {bytes} bytes")))?;
            address = allocate(bytes, device, stream)?;
        }
        Ok(())
    });
    (status, core::ptr::with_exposed_provenance_mut(address as usize))
}

/// Throws the text of this thread's last failure as a `std::runtime_error`, if the process has a C++ library.
#[cfg(unix)]
fn throw() {
    // `std::__throw_runtime_error(char const*)`.
    const THROWING: &CStr = c"_ZSt21__throw_runtime_errorPKc";
    // SAFETY: both are texts that end with a zero byte. The library is not loaded by this, only found.
    let thrower = unsafe {
        let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { core::ptr::null_mut() } else { libc::dlsym(library, THROWING.as_ptr()) }
    };
    if !thrower.is_null() {
        // SAFETY: the function of that name takes a text, which it copies, and throws. No frame between here and the exported function, which may unwind,
        // has a value to drop.
        let thrower: unsafe extern "C-unwind" fn(*const c_char) = unsafe { core::mem::transmute(thrower) };
        // SAFETY: `thrower` copies the text, which is this thread's and ends with a zero byte, and throws. No frame up to the exported function, which may
        // unwind, has a value to drop.
        unsafe { thrower(ringmem_last_error()) };
    }
}

#[cfg(not(unix))]
fn throw() {}

/// Prints the text of the failure, and throws it.
fn fail(status: Status) {
    if status != Status::Ok {
        throw();
        say(status);
    }
}

/// Allocates device memory for PyTorch; null for 0 bytes. A failure throws a C++ exception, `std::runtime_error`: call this from C++ code that catches it. In a
/// process without libstdc++, prints the reason and returns null.
///
/// # Safety
///
/// `stream` is null or a stream of the device's primary context, which lives until `ringmem_stream_forget` or the end of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ringmem_torch_malloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let (status, address) = try_malloc(size, device, stream);
    fail(status);
    address
}

/// Frees device memory of `ringmem_torch_malloc`, after the work of its stream and of recorded streams. A failure is printed.
///
/// # Safety
///
/// As `ringmem_torch_malloc` for the stream. All work that uses the block was queued on its streams, or is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_torch_free(address: *mut c_void, _size: isize, device: c_int, _stream: *mut c_void) {
    // At the end the driver ends with the process.
    if address.is_null() || IS_ENDING.load(Relaxed) {
        return;
    }
    say(call(|| {
        let Some(pools) = POOLS.get() else { return Err(Failure::new(Status::Invalid, format!("no live block at {address:p}"))) };
        if !pools.process.is_this() {
            return Ok(());
        }
        // PyTorch names the stream of the allocation, which may be destroyed by now.
        // SAFETY: all work that uses the block was queued on its streams or is complete, as the caller promises.
        unsafe { pools.of(device)?.free(address.addr() as u64, None) }
    }));
}

/// PyTorch's `record_stream`: a further stream uses a block. The device is not named, so the block is looked for in each pool. Only for PyTorch: throws as
/// `ringmem_torch_malloc`.
///
/// # Safety
///
/// As `ringmem_torch_malloc` for the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ringmem_torch_record_stream(address: *mut c_void, stream: *mut c_void) {
    fail(call(|| {
        let Some(pools) = POOLS.get().filter(|pools| pools.process.is_this()) else { return Ok(()) };
        let place = address.addr() as u64;
        // Else it is an empty tensor, or memory of another library.
        let Some(pool) = pools.created().find(|pool| pool.has(place)) else { return Ok(()) };
        // SAFETY: the stream lives until it is forgotten, as the caller promises.
        unsafe { pool.record(place, stream.addr()) }
    }));
}

/// PyTorch's initialisation: checks `RINGMEM_TORCH` and opens the driver, before the first allocation. Only for PyTorch: throws as `ringmem_torch_malloc`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ringmem_torch_init(_device_count: c_int) {
    fail(call(|| pools().map(drop)));
}

/// PyTorch's `empty_cache`: frees idle memory of all devices.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_torch_empty_cache() {
    say(call(|| {
        if let Some(pools) = POOLS.get() {
            for pool in pools.created() {
                pool.trim(0);
            }
        }
        Ok(())
    }));
}

/// PyTorch's `set_per_process_memory_fraction`, before the first allocation on the device. The smaller of fraction and limit holds. Only for PyTorch: throws as
/// `ringmem_torch_malloc`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ringmem_torch_set_memory_fraction(fraction: c_double, device: c_int) {
    fail(call(|| {
        let pools = pools()?;
        pools.check_process()?;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Failure::new(Status::Invalid, format!("the fraction {fraction} is not within 0 and 1")));
        }
        let mut fractions = pools.fractions.lock().unwrap_or_else(PoisonError::into_inner);
        let count = fractions.len();
        let place = usize::try_from(device).ok();
        let present = place.and_then(|place| fractions.get_mut(place));
        let present = present.ok_or_else(|| Failure::new(Status::NoDevice, format!("no device {device}: there are {count}")))?;
        if let Some(pool) = place.and_then(|place| pools.pools.get(place)?.get()).filter(|_| *present != fraction) {
            let limit = show(pool.statistics().limit);
            let text = format!(
                "device {device} has a limit of {limit} since its first allocation: set the fraction before, or {VARIABLE}=limit=SIZE"
            );
            return Err(Failure::new(Status::Unsupported, text));
        }
        *present = fraction;
        Ok(())
    }));
}

/// Lets a device access the memory of another's pool, which copies between GPUs of one process need. PyTorch enables this for its own allocator only. Once for
/// each direction.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_torch_enable_peer(device: c_int, peer: c_int) -> Status {
    call(|| {
        let number = |device: c_int| u32::try_from(device).map_err(|_| Failure::new(Status::NoDevice, format!("no device {device}")));
        pools()?.streams.enable_peer(number(device)?, number(peer)?)
    })
}

/// A pool of PyTorch's: two numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TorchPoolId {
    /// First number.
    pub first: u64,
    /// Second number.
    pub second: u64,
}

/// PyTorch's begin of a CUDA graph's capture, which is refused: memory that a captured graph uses must not be reused until the graph is destroyed, and this
/// allocator does not keep it so long. Without the hook, a replay would overwrite other tensors. Only for PyTorch: throws as `ringmem_torch_malloc`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ringmem_torch_begin_allocate_to_pool(_device: c_int, _pool: TorchPoolId, _filter: *const c_void) {
    let refused = "CUDA graphs and memory pools of PyTorch are not supported by ringmem's allocator";
    fail(call(|| Err(Failure::new(Status::Unsupported, refused))));
}

/// Reads the figures of a device's pool, all 0 before its first allocation.
///
/// Errors: INVALID for null and another `size`; NO_DEVICE for a device that does not exist, once one is in use.
///
/// # Safety
///
/// `statistics` is null, or to as many writable bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_torch_read_statistics(device: c_int, statistics: *mut PoolStatistics) -> Status {
    call(|| {
        let slots = POOLS.get().map_or(&[][..], |pools| &pools.pools);
        let slot = usize::try_from(device).ok().and_then(|device| slots.get(device));
        if device < 0 || (slot.is_none() && !slots.is_empty()) {
            return Err(Failure::new(Status::NoDevice, format!("no device {device}: there are {}", slots.len())));
        }
        let pool = slot.and_then(OnceLock::get);
        let figures = pool.map_or_else(PoolStatistics::default, |pool| pool.statistics());
        // SAFETY: `statistics` is null, or has as many writable bytes as its `size` says, as the caller promises.
        unsafe { write(statistics, &figures) }
    })
}

/// Writes the state of all devices' pools to a file, which `ringmem view` shows.
///
/// # Safety
///
/// `file` is null, or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_torch_write_snapshot(file: *const c_char) -> Status {
    call(|| {
        // SAFETY: `file` is null or a text that ends with a zero byte, as the caller promises.
        let file = unsafe { path(file, "file") }?;
        let pools = pools()?;
        pools.check_process()?;
        pools.write_snapshot(file)
    })
}

/// Allocates device memory for CuPy, as the `malloc_func` of a `cupy.cuda.CFunctionAllocator`. Its `param` is the stream that uses the memory, null for the
/// default stream. Prints the reason of a failure and returns null.
///
/// # Safety
///
/// As `ringmem_torch_malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_cupy_malloc(stream: *mut c_void, size: usize, device: c_int) -> *mut c_void {
    let (status, address) = match isize::try_from(size) {
        Ok(size) => try_malloc(size, device, stream),
        Err(_) => (call(|| Err(Failure::new(Status::Invalid, format!("invalid size: {size} bytes")))), core::ptr::null_mut()),
    };
    say(status);
    address
}

/// Frees device memory of `ringmem_cupy_malloc`, as the `free_func` of a `cupy.cuda.CFunctionAllocator`. A failure is printed.
///
/// # Safety
///
/// As `ringmem_torch_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_cupy_free(stream: *mut c_void, address: *mut c_void, device: c_int) {
    // SAFETY: the stream lives, and all work that uses the block was queued on its streams or is complete, as the caller promises.
    unsafe { ringmem_torch_free(address, 0, device, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_parse_and_name_the_mistake() {
        let parsed = Settings::parse(" limit=40GiB , snapshot=a=b,,oom-snapshot=c, slab=32MiB,simulated=1G").expect("settings");
        let (limit, slab, simulated) = (Some(40 << 30), Some(32 << 20), Some(1 << 30));
        let (snapshot, oom_snapshot) = (Some("a=b".into()), Some("c".into()));
        assert_eq!(parsed, Settings { limit, slab, simulated, snapshot, oom_snapshot });
        assert_eq!(Settings::parse(""), Ok(Settings::default()));
        for (text, fact) in [
            ("limit", "`limit` is not NAME=VALUE"),
            ("limit=much", "limit: a size is a number"),
            ("limits=1G", "unknown name `limits`"),
            ("snapshot=", "snapshot: no file"),
        ] {
            let error = Settings::parse(text).expect_err(text);
            assert!(error.starts_with(fact), "{error}");
        }
    }
}
