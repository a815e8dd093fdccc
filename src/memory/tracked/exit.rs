//! [`AtExit`]: a report where a program ends.

use core::fmt;
use std::boxed::Box;

use super::{Report, Tracked};
use crate::backend::panic::at_most_one;
use crate::memory::Memory;

/// Reports what has not come back when it is dropped, if anything has not. It is made by [`Tracked::report_at_exit`] and [`Tracked::at_exit`].
///
/// Keep it in `main`, before whatever allocates: what is declared first is dropped last, also where `main` panics. It is a value and no
/// function of the C library's `atexit`, since those run beside threads that still allocate, when a thread's own variables have gone. The price is
/// that `std::process::exit` and an abort report nothing. A panic of the tracker's clock or of what is reported to goes on, unless there is one already.
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
        // A second panic would end the process at once, and with it what is to be dropped after this.
        at_most_one(report);
    }
}

impl fmt::Debug for AtExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtExit").finish_non_exhaustive()
    }
}
