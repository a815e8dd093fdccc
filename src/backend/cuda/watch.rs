//! [`Watch`]: a thread that polls for completed uses while values are kept. So a drop wakes a task at most 1 ms late, without calls of the
//! backend.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::Inner;

/// First and longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

#[derive(Default)]
pub(super) struct Watch {
    is_on: AtomicBool,
    is_ending: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Joins the thread, unless in it: a value dropped there may hold the backend's last reference.
    pub fn end(&self) {
        self.is_ending.store(true, SeqCst);
        let thread = self.thread().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub(super) fn watch(self: &Arc<Self>) {
        let watch = &self.watch;
        if self.deferred.values() == 0 || watch.is_on.swap(true, SeqCst) {
            return;
        }
        let inner = Arc::clone(self);
        let mut thread = watch.thread();
        match thread::Builder::new().name("ringmem-cuda".into()).spawn(move || inner.look_on()) {
            Ok(spawned) => {
                if let Some(before) = thread.replace(spawned) {
                    // It is about to release the shared state, which the backend must hold last.
                    let _ = before.join();
                }
            }
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
                // A value added meanwhile may have found it set.
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
