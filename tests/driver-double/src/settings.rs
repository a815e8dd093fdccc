//! [`Settings`]: the environment, read once.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use crate::{NAME, record};

/// What was asked for. A variable that cannot be understood ends the process: a test that asked for nothing would pass.
pub struct Settings {
    pub log: Option<OsString>,
    pub fail: String,
    pub leaks: bool,
    /// How long a call that a running kernel holds up is waited for.
    pub deadline: Duration,
    /// Whether a module's functions are loaded with it; else each at its first use.
    pub eager: bool,
}

impl Settings {
    pub fn read() -> Self {
        let text = |name: &str| env::var(name).unwrap_or_default();
        let deadline = match text("RINGMEM_DOUBLE_DEADLINE_MS").as_str() {
            "" => 10_000,
            number => number.parse().unwrap_or_else(|_| record::give_up(&format!("RINGMEM_DOUBLE_DEADLINE_MS={number} is no number"))),
        };
        Self {
            log: env::var_os("RINGMEM_DOUBLE_LOG").filter(|file| !file.is_empty()),
            fail: text("RINGMEM_DOUBLE_FAIL"),
            leaks: text("RINGMEM_DOUBLE_LEAKS") == "1",
            deadline: Duration::from_millis(deadline),
            eager: text("CUDA_MODULE_LOADING") == "EAGER",
        }
    }

    /// How long is waited for work that a caller asked to wait for: a kernel may have reason to take longer than any other call.
    pub fn patience(&self) -> Duration {
        self.deadline * 12
    }
}

/// One line that nobody takes for a GPU's.
pub fn announce() {
    eprintln!("{NAME}: a test double answers for the CUDA driver; no figure from here is a GPU's");
}
