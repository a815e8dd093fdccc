//! Tests that build or run other programs.

#[cfg(feature = "std")]
mod c_layouts;
#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
mod cpp_peer;
#[cfg(feature = "std")]
mod example;
#[cfg(feature = "std")]
mod examples;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod gpu_suite;
#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
mod peer_program;
#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
mod process;
#[cfg(all(feature = "cuda", target_os = "linux"))]
#[path = "../suite/rig/rerun_or_skip.rs"]
mod rerun_or_skip;
mod ui;
#[cfg(feature = "std")]
mod user_workspace;
