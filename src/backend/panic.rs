//! Panics of closures and values that are the user's, where they end nobody else's work.

use core::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `run` returns; `None` if it panics. The panic hook has shown why.
pub(crate) fn caught<R>(run: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => Some(outcome),
        Err(payload) => {
            // What was thrown may throw when it is dropped, and what that throws is not tried again.
            catch_unwind(AssertUnwindSafe(|| drop(payload))).unwrap_or_else(mem::forget);
            None
        }
    }
}
