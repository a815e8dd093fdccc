//! The program as a function and as a process. No wait exceeds [`program::LIMIT`].

mod answers;
mod bench;
mod bytes;
mod demo;
mod doctor;
mod kernels;
mod layout;
mod manners;
mod new;
mod out;
mod planted;
mod program;
#[cfg(target_os = "linux")]
mod pty;
mod refusals;
mod replay;
#[cfg(target_os = "linux")]
#[path = "../../../tests/suite/rights.rs"]
mod rights;
mod stdin;
#[cfg(target_os = "linux")]
mod top;
mod view;
