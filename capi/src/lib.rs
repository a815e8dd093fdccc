//! The C interface of [ringmem](https://docs.rs/ringmem): `ringmem.h`, and `ringmem.hpp` for C++.
//!
//! 1. Objects are opaque. The function that closes one takes its pointer once; no other call may use it then, or run meanwhile.
//! 2. Functions may be called from any thread, at the same time, unless their documentation names the one thread that may.
//! 3. A function that can fail returns a [`Status`](status::Status); see [`status`].
//! 4. A structure of options begins with its `size`, so that a program runs with a later library: fields that it does not know are 0.
//!    `ringmem_message` is none: its fields never change.
//! 5. The library is not unloaded by `dlclose`.
//!
//! Rust programs use the crate `ringmem` instead.

use core::ffi::c_char;

mod arguments;
pub mod devices;
pub mod dlpack;
mod home_memory;
pub mod pool;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod rings;
pub mod status;
mod streams;
pub mod torch;

/// Returns the library's version, such as `0.1.0`. Libraries with the same first two numbers are compatible; with a first number above 0, those with the same
/// first.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
