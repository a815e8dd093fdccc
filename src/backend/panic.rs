//! Panics of closures and values that are the user's, where they end nobody else's work.

use core::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

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

/// What `run` returns. Where the thread unwinds already, `None` if it panics: a second panic that left a destructor would end the process.
pub(crate) fn at_most_one<R>(run: impl FnOnce() -> R) -> Option<R> {
    if thread::panicking() { caught(run) } else { Some(run()) }
}

/// Runs both, the second also where the first panics, which it is told; then the panic goes on.
pub(crate) fn both<R>(first: impl FnOnce(), second: impl FnOnce(bool) -> R) -> R {
    let outcome = catch_unwind(AssertUnwindSafe(first));
    let result = second(outcome.is_err());
    if let Err(payload) = outcome {
        resume_unwind(payload);
    }
    result
}

/// Runs for each, also after it has panicked for one; then the last panic goes on.
pub(crate) fn each<T>(items: impl IntoIterator<Item = T>, mut run: impl FnMut(T)) {
    let mut last = None;
    for item in items {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(item))) {
            // What was thrown may throw when it is dropped.
            mem::forget(last.replace(payload));
        }
    }
    if let Some(payload) = last {
        resume_unwind(payload);
    }
}
