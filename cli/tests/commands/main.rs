//! The program as a function and as a process. No wait exceeds [`program::LIMIT`].

mod bytes;
mod counts;
mod demo;
mod doctor;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod driver;
#[cfg(all(feature = "cuda", target_os = "linux"))]
#[path = "../../../tests/programs/example.rs"]
mod example;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod gpu_bundle;
mod help;
mod invalid_input;
mod kernels;
mod layout;
mod new;
mod out;
#[cfg(target_os = "linux")]
mod outputs;
mod planted;
mod program;
#[cfg(target_os = "linux")]
mod pty;
mod replay;
#[cfg(unix)]
#[path = "../../../tests/suite/rights.rs"]
mod rights;
mod stdin;
#[cfg(target_os = "linux")]
mod top;
#[cfg(unix)]
mod untracked;
mod view;
