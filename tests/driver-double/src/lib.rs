//! A test double of the CUDA driver: what `libcuda.so` exports, over host memory and host threads. **It is no GPU**, and a figure from it
//! is never a GPU figure.
//!
//! 1. Device memory is apart: its addresses can be dereferenced by nobody and are never handed out twice. It and pinned
//!    memory hold [`POISON`] until written.
//! 2. Every address that a call names is checked: it lies in one live allocation, whole, or the call is refused.
//! 3. Streams are threads. A copy from pinned memory reads its source when it is executed, not when it is called.
//! 4. `cuLaunchKernel` runs the host build of the entry that the PTX names, a thread for each block.
//! 5. What may wait for ever on a real driver while a kernel runs waits here too, then says why and aborts: a hang is never silent.
//! 6. A handle that was destroyed, a thread without a context, a child of `fork` and a call after exit get the error that they would get.
//!
//! It does not check access inside a kernel beyond [`translate`](ringmem_layouts::image::KernelHost::translate), does not model speed, and
//! has one device.
//!
//! | variable | effect |
//! |---|---|
//! | `RINGMEM_DOUBLE_LOG=FILE` | appends one line per call: number, thread, symbol, arguments, result, what it gave |
//! | `RINGMEM_DOUBLE_FAIL=SYMBOL:N:CODE,...` | the N-th call of the symbol, from 1, does nothing and returns the code |
//! | `RINGMEM_DOUBLE_LEAKS=1` | reports on stderr at exit what was not given back; [`ringmem_double_live`] counts it at any time |
//! | `RINGMEM_DOUBLE_DEADLINE_MS=MS` | how long a call of guarantee 5 waits, 10 s unless told |
//!
//! # How it is found
//!
//! [`library`] builds the file that a program opens, from the package `ringmem-driver-double-library`. Its `SONAME` is `libcuda.so`, so after
//! `dlopen` of that path `libcuda.so` is the same object. Where a real driver may be installed this is not enough, since `libcuda.so.1` would be
//! the real one: there let `LD_LIBRARY_PATH` begin with a directory that links both names to the file. The loader compares files, so both
//! names are one object.
//!
//! # As a Rust library
//!
//! The functions are `no_mangle` here too. They shadow nothing: an executable exports no symbols to what it opens with `dlopen`, and a test that
//! names nothing of this crate does not link it. The state of this library and that of the opened one are two; use one of them in a process.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, non_snake_case)]

#[macro_use]
mod call;
mod block;
mod calls;
mod code;
mod context;
mod driver;
mod engine;
mod event;
mod faults;
mod kernel;
mod leaks;
mod module;
mod operation;
mod record;
mod settings;
mod space;
mod stream;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use block::POISON;
pub use call::Name;
pub use calls::context::*;
pub use calls::copy::*;
pub use calls::device::*;
pub use calls::event::*;
pub use calls::memory::*;
pub use calls::module::*;
pub use calls::stream::*;
pub use calls::symbols;
pub use leaks::ringmem_double_live;

/// What it calls itself wherever it speaks.
pub const NAME: &str = "ringmem driver double, not a GPU";

/// Builds the library if need be: its path, for a test of this workspace.
///
/// # Errors
///
/// What cargo said.
pub fn library() -> io::Result<PathBuf> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/library/Cargo.toml");
    // A test lies in `target/debug/deps`. A folder of its own, since other features would build another library.
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).unwrap_or(Path::new("target")).join("driver-double");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(["build", "--offline", "--manifest-path", manifest, "--target-dir"]).arg(&target).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let name = format!("{}ringmem_driver_double_library{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    Ok(target.join("debug").join(name))
}
