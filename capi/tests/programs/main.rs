//! Programs in C, C++ and Python that use the library.
#![cfg(any(target_os = "linux", target_os = "android"))]

mod compiler;
#[path = "../../../tests/programs/cpp_peer.rs"]
mod cpp_peer;
#[path = "../../../tests/programs/example.rs"]
mod example;
mod guide;
mod peer_program;
#[path = "../../../tests/programs/process.rs"]
mod process;
mod rings;
