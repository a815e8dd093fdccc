//! Kernels that another library queues.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::backend::cuda::launching::Launching;
use crate::backend::cuda::queue::Queue;
use crate::{Error, Result};

/// Holds no lock: the call may wait for another thread of this process.
pub struct Foreign<'a>(&'a Launching);

impl Launching {
    pub fn foreign(&self) -> Foreign<'_> {
        let _care = self.with_care();
        self.foreign.fetch_add(1, Relaxed);
        Foreign(self)
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        // SYNC POINT: launch by another library. Pairs with has_foreign.
        self.0.foreign.fetch_sub(1, Release);
    }
}

impl Queue {
    /// Numbers a kernel that another library has queued.
    pub fn follow(&self) -> Result<u64> {
        let _bound = self.device.bind();
        let mut state = self.state();
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        state.last += 1;
        self.launch.store(state.last, Release);
        self.lasting.store(state.last, Release);
        // After a failure, the first wait records.
        let _ = self.record(&mut state);
        Ok(state.last)
    }

    pub fn fail(&self, number: u64, error: Error) {
        let mut state = self.state();
        state.failures.add(number, error);
        state.failed = state.failed.max(number);
    }
}
