use core::cell::{Cell, UnsafeCell};
use core::ptr;
use std::sync::{Arc, Once, Weak};
use std::vec::Vec;

use super::cache::Cache;
use crate::backend::panic::caught;
use crate::fork;

pub(super) trait Home: Send + Sync {
    fn admit(&self) -> Arc<Cache>;
    /// Shares a cache's entries when its thread ends.
    ///
    /// # Safety
    ///
    /// The calling thread owns the cache and does not use it again.
    unsafe fn retire(&self, cache: &Arc<Cache>);
}

pub(super) const FIRST: u64 = 1;

const RECENT: usize = 8;

struct Local {
    /// By their pools' numbers, ascending.
    caches: Vec<(u64, Arc<Cache>, Weak<dyn Home>)>,
}

impl Drop for Local {
    fn drop(&mut self) {
        forget();
        for (_, cache, home) in self.caches.drain(..) {
            if let Some(home) = home.upgrade() {
                // A panic in a thread-local destructor would abort. `move`: if the last handle was dropped meanwhile, the pool is dropped here.
                // SAFETY: the calling thread's cache, dropped here.
                caught(move || unsafe { home.retire(&cache) });
            }
        }
    }
}

thread_local! {
    static LOCAL: UnsafeCell<Local> = const { UnsafeCell::new(Local { caches: Vec::new() }) };
    /// By pool number modulo the size. Without a destructor, so an access needs no registration check.
    // INVARIANT: the cache of a live pool is in `LOCAL`, and the pool belongs to this process.
    static LATELY: [Cell<(u64, *const Cache)>; RECENT] = const { [const { Cell::new((0, ptr::null())) }; RECENT] };
}

/// Runs `f` with this thread's cache, from the recent table or from `find`. `f` must not reenter this module.
#[inline(always)]
pub(super) fn with<R>(pool: u64, find: impl FnOnce() -> Option<*const Cache>, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    let (number, mut cache) = LATELY.with(|lately| lately[pool as usize % RECENT].get());
    if number != pool {
        cache = find()?;
    }
    // SAFETY: the caller holds the pool, so the cache is in `LOCAL` while the thread runs. An ending thread first clears the recent table.
    Some(f(unsafe { &*cache }))
}

#[inline(always)]
pub(super) fn lately<R>(pool: u64, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    with(pool, || None, f)
}

/// Returns this thread's cache, and enters it in the recent table. `None` if the thread is ending.
pub(super) fn find(pool: u64, home: Weak<dyn Home>) -> Option<*const Cache> {
    let look = |local: &UnsafeCell<Local>| {
        // SAFETY: thread-local, without another reference: no call in here reenters.
        let caches = unsafe { &mut (*local.get()).caches };
        match caches.binary_search_by_key(&pool, |&(id, ..)| id) {
            Ok(at) => Some(Arc::as_ptr(&caches[at].1)),
            Err(_) => {
                let cache = home.upgrade()?.admit();
                let place = Arc::as_ptr(&cache);
                caches.retain(|(_, _, home)| home.strong_count() > 0);
                let at = caches.partition_point(|&(id, ..)| id < pool);
                caches.insert(at, (pool, cache, home));
                Some(place)
            }
        }
    };
    let cache = LOCAL.try_with(look).ok().flatten()?;
    static WATCHED: Once = Once::new();
    // Fast paths do not check for a fork.
    // SAFETY: `forget_in_child` only stores to words of the thread.
    WATCHED.call_once(|| unsafe { fork::in_child(forget_in_child) });
    LATELY.with(|lately| lately[pool as usize % RECENT].set((pool, cache)));
    Some(cache)
}

extern "C" fn forget_in_child() {
    forget();
}

fn forget() {
    LATELY.with(|lately| lately.iter().for_each(|place| place.set((0, ptr::null()))));
}
