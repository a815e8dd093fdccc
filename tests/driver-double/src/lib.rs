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
//! [`library`] is the built file. Its `SONAME` is `libcuda.so`, so after `dlopen` of that path `libcuda.so` is the same object. Where a real
//! driver may be installed this is not enough, since `libcuda.so.1` would be the real one: there let `LD_LIBRARY_PATH` begin with a directory
//! that links both names to the file. The loader compares files, so both names are one object.
//!
//! # As a Rust library
//!
//! Both crate types are one compilation, so the functions are `no_mangle` in the `rlib` too. They shadow nothing: an executable exports no
//! symbols to what it opens with `dlopen`, and a test that names nothing of this crate does not link it. The state of the `rlib` and
//! that of the opened library are two; use one of them in a process.
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

use std::path::PathBuf;

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

/// The built library, for a test or example of this workspace; `None` where it was not built.
#[must_use]
pub fn library() -> Option<PathBuf> {
    let name = format!("{}ringmem_driver_double{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    // A test lies in `deps` itself, an example and a program beside or above it.
    let program = std::env::current_exe().ok()?;
    program.ancestors().skip(1).take(3).flat_map(|above| [above.join(&name), above.join("deps").join(&name)]).find(|file| file.exists())
}
