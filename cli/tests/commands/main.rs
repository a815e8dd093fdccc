//! The program as a function and as a process. No wait exceeds [`program::LIMIT`].

mod bench;
mod bytes;
mod counts;
mod demo;
mod doctor;
mod help;
mod invalid_input;
mod kernels;
mod layout;
mod new;
mod out;
mod planted;
mod program;
#[cfg(target_os = "linux")]
mod pty;
mod replay;
#[cfg(target_os = "linux")]
#[path = "../../../tests/suite/rights.rs"]
mod rights;
mod stdin;
#[cfg(target_os = "linux")]
mod top;
mod view;
