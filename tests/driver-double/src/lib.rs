//! A test double of the CUDA driver: the exports of `libcuda.so`, over host memory and threads. **It is not a GPU**, and no figure from it is a
//! GPU's.
//!
//! 1. Device addresses cannot be dereferenced and are never reused, except by mappings of their reservation. Memory holds [`POISON`] until written.
//! 2. A call's address range must be within one live allocation, or within adjacent mappings.
//! 3. Streams are threads. A copy from pinned memory reads its source when it executes.
//! 4. `cuLaunchKernel` runs the host build of the PTX's entry, with a thread per block; or the PTX itself, in a machine that checks it.
//! 5. A call that may wait forever on a real driver waits here too, then aborts with the reason.
//! 6. Destroyed handles, threads without a context, forked children and calls after exit get the driver's errors. Pinned and managed memory is not mapped in
//!    forked children (Linux).
//! 7. [`ringmem_double_violations`] counts wrong orders of calls that a driver does not report. Uses of stream-ordered memory are ordered
//!    by an event, the legacy rule, or an observation of the host, never by chance.
//! 8. An allocation for which its pool has no memory waits for a queued free of the pool, unless attribute 3 of the pool
//!    (`REUSE_ALLOW_INTERNAL_DEPENDENCIES`) is 0.
//! 9. Devices access each other's memory only as the matrix allows and the caller has enabled, per direction.
//! 10. Virtual memory, on Linux: an address is valid while physical memory is mapped there, for the devices to which `cuMemSetAccess` gave access.
//!     Physical memory counts as used until its handle is released and its mapping is unmapped. It keeps its bytes when it is mapped elsewhere.
//!     No call of virtual memory waits for work. Unmapping is a violation while queued work uses the memory; a kernel uses the mappings into which its
//!     arguments point, and those that it has accessed, until it ends.
//!
//! Not modelled: speed, pools' addresses, advice on managed memory. In a kernel's host build, only
//! [`translate`](ringmem_layouts::image::KernelHost::translate) checks accesses.
//!
//! Not modelled of virtual memory: a second mapping of a handle (`NOT_SUPPORTED`, and a violation); handles for other processes, compression and
//! RDMA (`NOT_SUPPORTED`); physical memory of the host; the hint for a reservation's address, which is ignored; a kernel's write to memory that its
//! device may only read, which is not detected.
//!
//! | variable | effect |
//! |---|---|
//! | `RINGMEM_DOUBLE_LOG=FILE` | appends a line per call |
//! | `RINGMEM_DOUBLE_FAIL=SYMBOL:N:CODE,...` | the symbol's N-th call does nothing and returns the code |
//! | `RINGMEM_DOUBLE_LEAKS=1` | reports leaks on stderr at exit |
//! | `RINGMEM_DOUBLE_DEADLINE_MS=MS` | of guarantee 5; default 10 s |
//! | `RINGMEM_DOUBLE_DELAY_US=US` | delays every stream operation |
//! | `RINGMEM_DOUBLE_VERSION=N` | the driver's version; default 12080 |
//! | `RINGMEM_DOUBLE_DEVICES=N` | 0 to 64; default 1 |
//! | `RINGMEM_DOUBLE_MEMORY=BYTES` | of each device; default 2 GiB |
//! | `RINGMEM_DOUBLE_TABLES=BYTES` | used by page tables while any memory is allocated |
//! | `RINGMEM_DOUBLE_KERNELS=ptx` | executes PTX; default: the host builds |
//! | `RINGMEM_DOUBLE_LOCAL=KERNEL=BYTES,...` | additional local memory per thread |
//! | `RINGMEM_DOUBLE_THREADS=KERNEL=COUNT,...` | the most threads of a block, in place of 1024 of a kernel over buffers and 512 of another |
//! | `RINGMEM_DOUBLE_SEED=N` | decides the PTX lanes' order |
//! | `RINGMEM_DOUBLE_WAITS=SYMBOL,...` | functions that wait for all kernels of the device; `SYMBOL:1`: only the first call |
//! | `RINGMEM_DOUBLE_QUEUES=N` | hardware queues of a device, shared by more streams; default one each |
//! | `RINGMEM_DOUBLE_PEERS=0>1,1>2` | possible peer access; `all` (default) or `none` |
//! | `RINGMEM_DOUBLE_ATTRIBUTES=NUMBER=VALUE,...` | by number of `CUdevice_attribute`; `NUMBER=-`: unknown |
//!
//! The driver's own `CUDA_MODULE_LOADING=EAGER` and `CUDA_LAUNCH_BLOCKING=1` (a launch returns when its kernel has ended) have their effect.
//!
//! With attribute 88 `PAGEABLE_MEMORY_ACCESS`, a copy reads pageable memory when it executes, too. The calls of the attributes 83, 89, 95, 98, 99,
//! 102, 115 and 122 fail if it is 0.
//!
//! # Loading
//!
//! `libcuda.so.1` may be a real driver: begin `LD_LIBRARY_PATH` with the folder of [`libraries`]. The Rust library has a separate state; use one of
//! them per process.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, non_snake_case)]

#[macro_use]
mod entry;
mod attributes;
#[cfg(target_os = "linux")]
mod backing;
#[cfg(not(target_os = "linux"))]
#[path = "no_backing.rs"]
mod backing;
mod block;
mod calls;
mod code;
mod context;
mod device;
mod driver;
mod engine;
mod event;
mod faults;
mod handle_table;
mod held_steps;
mod host_function;
mod jit;
mod kernel;
mod leaks;
mod log;
mod managed;
mod module;
mod operation;
mod ordered;
mod peers;
mod pool;
mod settings;
mod space;
mod stream;
mod symbol;
mod violations;
mod virtual_memory;
mod wait_value;

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use block::POISON;
pub use calls::context::*;
pub use calls::copy::*;
pub use calls::device::*;
pub use calls::event::*;
pub use calls::managed::*;
pub use calls::memory::*;
pub use calls::module::*;
pub use calls::peer::*;
pub use calls::pointer::*;
pub use calls::pool::*;
pub use calls::stream::*;
pub use calls::symbols;
pub use calls::virtual_memory::*;
pub use entry::Name;
pub use faults::{ringmem_double_calls, ringmem_double_fail, ringmem_double_reset};
pub use held_steps::{ringmem_double_executed, ringmem_double_hold};
pub use leaks::{ringmem_double_live, ringmem_double_live_bytes};
pub use violations::ringmem_double_violations;

/// The functions that allocate: a real driver may block in them during a kernel.
pub const ALLOCATORS: [&str; 11] = [
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemPoolCreate",
    "cuMemCreate",
    "cuMemMap",
    "cuStreamCreate",
    "cuEventCreate",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
];

/// The name that the double reports.
pub const NAME: &str = "ringmem driver double, not a GPU";

/// Links the shared library from this package's archive; returns its path.
///
/// # Errors
///
/// The error of the linker or the file system.
pub fn library() -> Result<&'static Path, &'static io::Error> {
    static LIBRARY: std::sync::OnceLock<io::Result<PathBuf>> = std::sync::OnceLock::new();
    let exports = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/exports.map"));
    LIBRARY.get_or_init(|| link("ringmem_driver_double", "libcuda.so", exports)).as_deref()
}

/// Links a double's shared library from its archive, next to this program; returns its path. Fails as [`library`].
pub fn link(package: &str, name: &str, exports: &Path) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.parent().unwrap_or(Path::new("."));
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let newest = fs::read_dir(built)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "a"))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("lib{package}-"))))
        .max_by_key(|path| changed(path));
    let archive =
        newest.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no archive of {package} in {}", built.display())))?;
    let folder = built.with_file_name("driver-double");
    fs::create_dir_all(&folder)?;
    // A program that opens the library twice gets two copies if another test replaces it between.
    let lock = fs::File::create(folder.join(format!("{package}.lock")))?;
    lock.lock()?;
    let library = folder.join(format!("lib{package}.so"));
    if changed(&library) > changed(&archive) {
        return Ok(library);
    }
    let own = folder.join(format!("{package}.new"));
    let script = format!("-Wl,--version-script={}", exports.display());
    let soname = format!("-Wl,-soname,{name}");
    let mut linker = Command::new("cc");
    linker.args(["-shared", &soname, "-Wl,--gc-sections", &script, "-Wl,--whole-archive"]).arg(archive);
    let output = linker.args(["-Wl,--no-whole-archive", "-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&own).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    fs::rename(own, &library)?;
    Ok(library)
}

/// Returns a folder for `LD_LIBRARY_PATH`, with links from a driver's names to the [library]. `RINGMEM_DOUBLE_LIBRARIES` sets another folder, for programs
/// under a sanitizer, whose own build of the library cannot be loaded. Fails as [`library`].
#[cfg(unix)]
pub fn libraries() -> io::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("RINGMEM_DOUBLE_LIBRARIES") {
        return Ok(folder.into());
    }
    let double = library().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
    let folder = double.with_file_name("named");
    fs::create_dir_all(&folder)?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        match std::os::unix::fs::symlink(double, folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked?,
        }
    }
    Ok(folder)
}

/// Fills `folder`, for `LD_LIBRARY_PATH`, with a copy of the library that renames these symbols.
///
/// # Errors
///
/// The error of cargo or the file system; `NotFound` for an unknown symbol.
pub fn without(symbols: &[&str], folder: &Path) -> io::Result<()> {
    let double = library().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
    let mut bytes = fs::read(double)?;
    for symbol in symbols {
        let places = names(&bytes).filter(|(_, name)| *name == symbol.as_bytes()).map(|(offset, _)| offset).collect::<Vec<_>>();
        if places.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, *symbol));
        }
        places.into_iter().for_each(|offset| bytes[offset] = b'_');
    }
    for name in ["libcuda.so.1", "libcuda.so"] {
        let _ = fs::remove_file(folder.join(name));
    }
    fs::write(folder.join("libcuda.so.1"), bytes)?;
    // The loader compares files: a hard link makes both names one object.
    fs::hard_link(folder.join("libcuda.so.1"), folder.join("libcuda.so"))
}

/// The texts that end with a zero byte, with their offsets.
fn names(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let name = CStr::from_bytes_until_nul(&bytes[begin..]).ok()?.to_bytes();
        let offset = begin;
        begin += name.len() + 1;
        Some((offset, name))
    })
}
