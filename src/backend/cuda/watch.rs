//! [`Watch`]: a thread that looks whether kept values may go, while there are any.
//!
//! A task that waits for an operation is woken by the drop of a value that was kept for it, though nobody calls the backend. The driver's own callbacks may not
//! call the driver, so this asks it, ever less often while nothing happens: it comes at most a millisecond late.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::Shared;

/// Between two looks, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

#[derive(Default)]
pub(super) struct Watch {
    /// Somebody looks, and will look again.
    is_on: AtomicBool,
    is_ending: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Looks no more, and waits until it does not; but not in its own thread, where a value may be the last to hold the backend.
    pub fn end(&self) {
        self.is_ending.store(true, SeqCst);
        let thread = self.thread().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            thread.thread().unpark();
            // It has caught what values threw.
            let _ = thread.join();
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Sees to it that somebody looks, if a value waits.
    pub(super) fn watch(self: &Arc<Self>) {
        let watch = &self.watch;
        if self.deferred.values() == 0 || watch.is_on.swap(true, SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        let mut thread = watch.thread();
        match thread::Builder::new().name("ringmem-cuda".into()).spawn(move || shared.look_on()) {
            Ok(spawned) => {
                if let Some(before) = thread.replace(spawned) {
                    // It looks no more, and is about to let go of what it shares: a backend that goes is to be the last that has it.
                    let _ = before.join();
                }
            }
            // Then whoever calls next lets go.
            Err(_) => watch.is_on.store(false, SeqCst),
        }
    }

    fn look_on(&self) {
        let (mut pause, mut before) = (PAUSES[0], self.deferred.values());
        while !self.watch.is_ending.load(SeqCst) {
            self.tidy();
            let left = self.deferred.values();
            if left == 0 {
                self.watch.is_on.store(false, SeqCst);
                // One that came meanwhile has found somebody who looks.
                if self.deferred.values() == 0 || self.watch.is_on.swap(true, SeqCst) {
                    return;
                }
            }
            pause = if left < before { PAUSES[0] } else { (pause * 2).min(PAUSES[1]) };
            before = left;
            thread::park_timeout(pause);
        }
    }
}
