//! [`AtExit`]: a report at the end of a program.

use core::fmt;
use std::boxed::Box;

use super::{Report, Tracked};
use crate::backend::panic::at_most_one;
use crate::memory::Memory;

/// Reports live blocks, if any, when it is dropped. Created by [`Tracked::report_at_exit`] and [`Tracked::at_exit`].
///
/// Declare it in `main` before anything that allocates: the first value declared is dropped last, also if `main` panics. It does not use `atexit`,
/// whose functions run concurrently with threads that still allocate, after thread-locals are destroyed. So `std::process::exit` and an abort
/// report nothing. A panic of the tracker's clock or of the callback propagates, unless the thread is already panicking.
#[must_use = "dropped at once, it reports at once"]
pub struct AtExit {
    report: Option<Box<dyn FnOnce() + Send>>,
}

impl AtExit {
    pub(super) fn new<M: Memory>(memory: Tracked<M>, say: impl FnOnce(&Report) + Send + 'static) -> Self {
        let report = move || {
            let report = memory.report();
            if !report.is_empty() {
                say(&report);
            }
        };
        Self { report: Some(Box::new(report)) }
    }
}

impl Drop for AtExit {
    fn drop(&mut self) {
        let Some(report) = self.report.take() else { return };
        // A second panic would abort the process and skip the remaining drops.
        at_most_one(report);
    }
}

impl fmt::Debug for AtExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtExit").finish_non_exhaustive()
    }
}
