//! [`AtExit`].

use core::fmt;
use std::boxed::Box;

use super::{Report, Tracked};
use crate::memory::Memory;
use crate::sys::panic::at_most_one;

/// A guard that reports live blocks, if any, on drop, from [`Tracked::report_at_exit`] or [`Tracked::at_exit`].
///
/// Declare it first in `main`: it is then dropped last, even by a panic. `std::process::exit` and an abort report nothing: an `atexit`
/// function would race with threads that still allocate. A panic of the clock or callback propagates, unless the thread already panics.
///
/// ```
/// use std::sync::mpsc;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Tracked};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Tracked::new(Device::new(&backend, 0));
/// let (sender, reported) = mpsc::channel();
/// let at_exit = memory.at_exit(move |report| sender.send(report.bytes).unwrap());
/// std::mem::forget(Buffer::<u8, _>::new(memory, 100)?);
/// drop(at_exit); // as at the end of `main`
/// assert_eq!(reported.recv(), Ok(100));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[must_use = "the guard reports when it is dropped: bind it to a variable"]
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
