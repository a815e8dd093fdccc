//! The program as a function and as a process. No wait exceeds [`program::LIMIT`].

mod bytes;
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
#[cfg(target_os = "linux")]
mod output_files;
mod program;
#[cfg(target_os = "linux")]
mod pty;
mod replay;
#[cfg(unix)]
#[path = "../../../tests/suite/rig/rerun_or_skip.rs"]
mod rerun_or_skip;
mod stream_counts;
mod stream_out;
mod stream_planted_faults;
mod stream_stdin;
#[cfg(target_os = "linux")]
mod top;
#[cfg(unix)]
mod untracked;
mod view;
