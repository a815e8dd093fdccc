//! How long a fact may wait. A part of the bundle has a limit of time, which one stuck fact must not use up.

use std::sync::OnceLock;
use std::time::Duration;

/// The limit in seconds of the part that `run.sh` runs.
const PART: &str = "RINGMEM_BUNDLE_LIMIT";
/// A part with a limit of this or more has time for [`LONG`].
const SHORT_PART: u64 = 100;

pub struct Limits {
    /// Until another process is ready: its first calls create the device's context, and may compile the kernels.
    pub start: Duration,
    /// Until a running kernel answers, or queued work is complete.
    pub answer: Duration,
    /// A channel's timeout: until its kernel starts, acknowledges a command or ends.
    pub timeout: Duration,
    /// Until a kernel without messages ends. Longer than the others: a fact that fails by them can still ask its kernel.
    pub idle: Duration,
    /// A check of the part `conformance`.
    pub check: Duration,
}

const SHORT: Limits = Limits {
    start: Duration::from_secs(10),
    answer: Duration::from_secs(4),
    timeout: Duration::from_secs(3),
    idle: Duration::from_secs(5),
    check: Duration::from_secs(5),
};

/// For a machine under load, and for kernels that are interpreted. A check has a limit of 60 s of its own, whose message says more.
const LONG: Limits = Limits {
    start: Duration::from_secs(20),
    answer: Duration::from_secs(10),
    timeout: Duration::from_secs(10),
    idle: Duration::from_secs(15),
    check: Duration::from_secs(90),
};

pub fn limits() -> &'static Limits {
    static IS_SHORT: OnceLock<bool> = OnceLock::new();
    let limit = || std::env::var(PART).ok()?.parse::<u64>().ok();
    if *IS_SHORT.get_or_init(|| limit().is_some_and(|seconds| (1..SHORT_PART).contains(&seconds))) { &SHORT } else { &LONG }
}
