//! Running foreign code that may panic: the upstream memory, a clock, a callback, a value's drop.
//!
//! A panic must not skip what follows it, for example the accounts of a block that was freed; and a second panic during unwinding would abort the process.

use core::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Returns `None` after a panic, whose payload is dropped; a payload whose drop panics is leaked.
pub(crate) fn caught<R>(run: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => Some(outcome),
        Err(payload) => {
            catch_unwind(AssertUnwindSafe(|| drop(payload))).unwrap_or_else(mem::forget);
            None
        }
    }
}

/// During unwinding, `None` after a panic: a second would abort.
pub(crate) fn at_most_one<R>(run: impl FnOnce() -> R) -> Option<R> {
    if thread::panicking() { caught(run) } else { Some(run()) }
}

/// The second also runs after a panic of the first, which then resumes.
pub(crate) fn both<R>(first: impl FnOnce(), second: impl FnOnce(bool) -> R) -> R {
    let outcome = catch_unwind(AssertUnwindSafe(first));
    let result = second(outcome.is_err());
    if let Err(payload) = outcome {
        resume_unwind(payload);
    }
    result
}

/// Continues after a panic; resumes the last one.
pub(crate) fn each<T>(items: impl IntoIterator<Item = T>, mut run: impl FnMut(T)) {
    let mut last = None;
    for item in items {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(item))) {
            mem::forget(last.replace(payload));
        }
    }
    if let Some(payload) = last {
        resume_unwind(payload);
    }
}
