//! A backend whose memory a test must free.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use ringmem::backend::host::{Builder, Counters, HostBackend};

/// Checks when dropped, unless panicking. Declared first in a test, so dropped last.
pub struct Clean {
    backend: Arc<HostBackend>,
    patience: Duration,
    forgotten: AtomicU64,
}

impl Clean {
    #[must_use]
    pub fn build(builder: Builder) -> Self {
        let backend = builder.build().expect("a backend");
        Self { backend, patience: Duration::from_secs(30), forgotten: AtomicU64::new(0) }
    }

    #[allow(dead_code, reason = "for a test of this")]
    pub fn at_once(mut self) -> Self {
        self.patience = Duration::ZERO;
        self
    }

    #[allow(dead_code, reason = "not by every test")]
    pub fn forgets(&self) {
        self.forgotten.fetch_add(1, Relaxed);
    }
}

impl Deref for Clean {
    type Target = Arc<HostBackend>;

    fn deref(&self) -> &Arc<HostBackend> {
        &self.backend
    }
}

fn live(counters: &Counters) -> (u64, u64) {
    let Counters { device_allocations, pinned_allocations, unified_allocations, host_allocations, .. } = counters;
    let Counters { device_frees, pinned_frees, unified_frees, host_frees, .. } = counters;
    let given = [device_allocations, pinned_allocations, unified_allocations, host_allocations];
    let back = [device_frees, pinned_frees, unified_frees, host_frees];
    let sum = |of: [&ringmem::backend::host::Tally; 4]| {
        of.iter().fold((0, 0), |(count, bytes), tally| (count + tally.count, bytes + tally.bytes))
    };
    let ((given, given_bytes), (back, back_bytes)) = (sum(given), sum(back));
    (given - back, given_bytes - back_bytes)
}

impl Drop for Clean {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let (forgotten, begun) = (self.forgotten.load(Relaxed), Instant::now());
        loop {
            let (blocks, bytes) = live(&self.backend.counters());
            if blocks == forgotten && (bytes == 0) == (blocks == 0) {
                return;
            }
            assert!(begun.elapsed() < self.patience, "{bytes} bytes in {blocks} blocks are live at the end of a test");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
