//! A test double of the CUDA driver: the exports of `libcuda.so`, over host memory and host threads. **It is no GPU**, and a figure from it is
//! never a GPU figure.
//!
//! 1. Device addresses cannot be dereferenced and are never reused. Device, pinned and managed memory hold [`POISON`] until written.
//! 2. Every address range of a call must be within one live allocation, or the call fails.
//! 3. Streams are threads. A copy from pinned memory reads its source when it is executed, not when it is called.
//! 4. `cuLaunchKernel` runs the host build of the entry that the PTX names, with a thread per block; or the PTX itself, in a machine that checks it.
//! 5. A call that may wait forever on a real driver while a kernel runs waits here too, then prints the reason and aborts: a hang is never silent.
//! 6. Destroyed handles, threads without a context, children of `fork` and calls after exit get the driver's errors.
//! 7. A wrong order of calls that a driver does not report is counted by [`ringmem_double_violations`]. Two uses of stream-ordered memory are
//!    ordered by an event, the legacy rule, or an observation of the host (a wait, a query, a word or function of a stream), never by chance. A
//!    stream that has waited for a word may be ordered after anything.
//! 8. Devices access each other's memory only as the matrix allows and the caller has enabled, per direction.
//!
//! It does not check accesses inside a kernel beyond [`translate`](ringmem_layouts::image::KernelHost::translate), and does not model speed. Pools
//! count bytes, not addresses; advice on managed memory is stored without effect.
//!
//! | variable | effect |
//! |---|---|
//! | `RINGMEM_DOUBLE_LOG=FILE` | appends one line per call: number, thread, symbol, arguments, result, outputs |
//! | `RINGMEM_DOUBLE_FAIL=SYMBOL:N:CODE,...` | the N-th call of the symbol, from 1, does nothing and returns the code |
//! | `RINGMEM_DOUBLE_LEAKS=1` | reports objects that were not freed on stderr at exit; [`ringmem_double_live`] counts them at any time |
//! | `RINGMEM_DOUBLE_DEADLINE_MS=MS` | the deadline of guarantee 5; default 10 s |
//! | `RINGMEM_DOUBLE_DELAY_US=US` | delays every operation of a stream; default none |
//! | `RINGMEM_DOUBLE_VERSION=N` | the driver's version; default 12080 |
//! | `RINGMEM_DOUBLE_DEVICES=N` | the number of devices, 0 to 64; default 1 |
//! | `RINGMEM_DOUBLE_MEMORY=BYTES` | the memory of each device; default 2 GiB |
//! | `RINGMEM_DOUBLE_TABLES=BYTES` | memory that page tables take while any memory is allocated; default none |
//! | `RINGMEM_DOUBLE_KERNELS=ptx` | executes the module's PTX in `ringmem-ptx-machine`; default: the host builds of ringmem's kernels |
//! | `RINGMEM_DOUBLE_LOCAL=KERNEL=BYTES,...` | local memory per thread of kernels, in addition to that in the executed PTX |
//! | `RINGMEM_DOUBLE_SEED=N` | decides the order in which the lanes of PTX execute; default 1 |
//! | `RINGMEM_DOUBLE_WAITS=SYMBOL,...` | these functions wait for every kernel of the device, as a real driver's may; `SYMBOL:1`: the first call alone |
//! | `RINGMEM_DOUBLE_QUEUES=N` | the hardware queues of a device: streams beyond them share one, so one waits for the other; default one each |
//! | `RINGMEM_DOUBLE_PEERS=0>1,1>2` | possible peer access; `all` (default) or `none` |
//! | `RINGMEM_DOUBLE_ATTRIBUTES=NUMBER=VALUE,...` | attributes of the devices, by number of `CUdevice_attribute`; `NUMBER=-` for a driver that does not know the number |
//!
//! Effects of attributes: with 88 `PAGEABLE_MEMORY_ACCESS` a copy reads pageable memory when it is executed, too. The calls of 83 `MANAGED_MEMORY`,
//! 89 `CONCURRENT_MANAGED_ACCESS` (prefetches and advice that name a device), 95 `COOPERATIVE_LAUNCH`, 98 `CAN_FLUSH_REMOTE_WRITES`, 99
//! `HOST_REGISTER_SUPPORTED`, 115 `MEMORY_POOLS_SUPPORTED` and 122 `CAN_USE_64_BIT_STREAM_MEM_OPS` fail if the attribute is 0.
//!
//! # Failing every call in turn
//!
//! A test in one process plans failures with [`ringmem_double_fail`], and counts calls with [`ringmem_double_calls`]: call
//! [`ringmem_double_reset`], do the work once, and note the count of each symbol. Then, for each symbol and each of its calls: reset, plan that
//! failure, do the work, and compare [`ringmem_double_live`] with its value before.
//!
//! # How it is found
//!
//! [`library`] links the file that a program opens, from this package's archive. Its `SONAME` is `libcuda.so`, so after
//! `dlopen` of that path `libcuda.so` is the same object. Where a real driver may be installed, `libcuda.so.1` would be the real one: set
//! `LD_LIBRARY_PATH` to begin with a directory that links both names to the file.
//!
//! An older driver, which lacks some functions, is a copy of that file without them: [`without`].
//!
//! # As a Rust library
//!
//! The functions are `no_mangle` here too. They shadow nothing: an executable exports no symbols to libraries that it opens, and a test that does
//! not use this crate does not link it. The state of this library and that of the opened one are separate; use one of them in a process.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, non_snake_case)]

#[macro_use]
mod call;
mod attributes;
mod block;
mod calls;
mod code;
mod context;
mod device;
mod driver;
mod engine;
mod event;
mod faults;
mod host;
mod jit;
mod kernel;
mod leaks;
mod managed;
mod module;
mod operation;
mod ordered;
mod peers;
mod pool;
mod record;
mod settings;
mod space;
mod stream;
mod symbol;
mod table;
mod violations;
mod word;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use block::POISON;
pub use call::Name;
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
pub use faults::{ringmem_double_calls, ringmem_double_fail, ringmem_double_reset};
pub use leaks::{ringmem_double_live, ringmem_double_live_bytes};
pub use violations::ringmem_double_violations;

/// The functions that allocate: a real driver may block in them while a kernel runs.
pub const ALLOCATORS: [&str; 9] = [
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemPoolCreate",
    "cuStreamCreate",
    "cuEventCreate",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
];

/// The name that the double reports.
pub const NAME: &str = "ringmem driver double, not a GPU";

/// Links the library that a program opens from this package's archive, which cargo builds next to the test: returns its path.
///
/// # Errors
///
/// What the linker or the file system said.
pub fn library() -> Result<&'static Path, &'static io::Error> {
    static LIBRARY: std::sync::OnceLock<io::Result<PathBuf>> = std::sync::OnceLock::new();
    LIBRARY.get_or_init(link).as_deref()
}

fn link() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.parent().unwrap_or(Path::new("."));
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let newest = fs::read_dir(built)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "a"))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libringmem_driver_double-")))
        .max_by_key(|path| changed(path));
    let archive =
        newest.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no archive of the double in {}", built.display())))?;
    let folder = built.with_file_name("driver-double");
    fs::create_dir_all(&folder)?;
    let library = folder.join("libringmem_driver_double.so");
    if changed(&library) > changed(&archive) {
        return Ok(library);
    }
    // Other tests link it at the same time.
    let own = folder.join(format!("{}.so", std::process::id()));
    let script = concat!("-Wl,--version-script=", env!("CARGO_MANIFEST_DIR"), "/exports.map");
    let mut linker = Command::new("cc");
    linker.args(["-shared", "-Wl,-soname,libcuda.so", "-Wl,--gc-sections", script, "-Wl,--whole-archive"]).arg(archive);
    let output = linker.args(["-Wl,--no-whole-archive", "-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&own).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    fs::rename(own, &library)?;
    Ok(library)
}

/// Returns a folder for `LD_LIBRARY_PATH` in which both names of a driver are links to the [library], which it builds first.
///
/// # Errors
///
/// As [`library`], or the error of the file system.
#[cfg(unix)]
pub fn libraries() -> io::Result<PathBuf> {
    let double = library().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
    let folder = double.with_file_name("named");
    fs::create_dir_all(&folder)?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        match std::os::unix::fs::symlink(double, folder.join(name)) {
            // Of another test, or an earlier run.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked?,
        }
    }
    Ok(folder)
}

/// Makes `folder` one for `LD_LIBRARY_PATH` in which the driver lacks these symbols: a copy of the library in which they have other names.
///
/// # Errors
///
/// What cargo or the file system said; `NotFound` for a symbol that the library has not.
pub fn without(symbols: &[&str], folder: &Path) -> io::Result<()> {
    let double = library().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
    let mut bytes = fs::read(double)?;
    for symbol in symbols {
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name).map(|(at, _)| at).collect();
        if places.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, *symbol));
        }
        places.into_iter().for_each(|at| bytes[at + 1] = b'_');
    }
    for name in ["libcuda.so.1", "libcuda.so"] {
        let _ = fs::remove_file(folder.join(name));
    }
    fs::write(folder.join("libcuda.so.1"), bytes)?;
    // The loader compares files: both names are one object.
    fs::hard_link(folder.join("libcuda.so.1"), folder.join("libcuda.so"))
}
