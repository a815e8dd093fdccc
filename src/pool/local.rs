//! Which cache is this thread's, for each pool that it has used.

use core::cell::UnsafeCell;
use std::sync::{Arc, Weak};
use std::vec::Vec;

use super::cache::Cache;

/// A pool, as threads remember it.
pub(super) trait Home: Send + Sync {
    /// A cache for the calling thread.
    fn admit(&self) -> Arc<Cache>;
    /// The thread of a cache is ending: what is in it is for all.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's, and does not use it again.
    unsafe fn retire(&self, cache: &Arc<Cache>);
}

struct Local {
    /// By the pool's number; the one used last is the first.
    caches: Vec<(u64, Arc<Cache>, Weak<dyn Home>)>,
}

impl Drop for Local {
    fn drop(&mut self) {
        for (_, cache, home) in self.caches.drain(..) {
            if let Some(home) = home.upgrade() {
                // SAFETY: this thread's, which forgets it here.
                unsafe { home.retire(&cache) };
            }
        }
    }
}

thread_local! {
    static LOCAL: UnsafeCell<Local> = const { UnsafeCell::new(Local { caches: Vec::new() }) };
}

/// Runs `f` with this thread's cache of a pool; `None` when the thread is ending. `f` does not come back here.
#[inline(always)]
pub(super) fn with<R>(pool: u64, home: impl FnOnce() -> Weak<dyn Home>, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    let run = |local: &UnsafeCell<Local>| {
        // SAFETY: this thread's, and there is no other reference: neither `f` nor `bring` comes back here.
        let caches = unsafe { &mut (*local.get()).caches };
        if caches.first().is_none_or(|&(id, ..)| id != pool) {
            bring(caches, pool, home());
        }
        caches.first().map(|(_, cache, _)| f(cache))
    };
    LOCAL.try_with(run).ok().flatten()
}

/// Makes a pool's cache the first.
#[cold]
fn bring(caches: &mut Vec<(u64, Arc<Cache>, Weak<dyn Home>)>, pool: u64, home: Weak<dyn Home>) {
    // Those of pools that are gone.
    caches.retain(|(_, _, home)| home.strong_count() > 0);
    match caches.iter().position(|&(id, ..)| id == pool) {
        Some(index) => caches.swap(0, index),
        None => {
            let Some(admitted) = home.upgrade().map(|home| home.admit()) else { return };
            caches.insert(0, (pool, admitted, home));
        }
    }
}
