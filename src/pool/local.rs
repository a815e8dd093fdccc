//! Which cache is this thread's, for each pool that it has used.

use core::cell::{Cell, UnsafeCell};
use core::ptr;
use std::sync::{Arc, Once, Weak};
use std::vec::Vec;

use super::cache::Cache;
use crate::backend::panic::caught;
use crate::fork;

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

/// The first pool's number: no pool has 0.
pub(super) const FIRST: u64 = 1;

/// As many pools as a thread uses in turn without looking for their caches.
const RECENT: usize = 8;

struct Local {
    /// By the pool's number.
    caches: Vec<(u64, Arc<Cache>, Weak<dyn Home>)>,
}

impl Drop for Local {
    fn drop(&mut self) {
        forget();
        for (_, cache, home) in self.caches.drain(..) {
            if let Some(home) = home.upgrade() {
                // A panic of the user's clock that went on would end the process: this runs where the thread has ended.
                // SAFETY: this thread's, which forgets it here.
                caught(|| unsafe { home.retire(&cache) });
            }
        }
    }
}

thread_local! {
    static LOCAL: UnsafeCell<Local> = const { UnsafeCell::new(Local { caches: Vec::new() }) };
    /// A pool's number and its cache, where the number's last bits say. Nothing is dropped with it, so that looking here asks for nothing
    /// else.
    // INVARIANT: a cache whose pool is not gone is in `LOCAL`, and the pool is of this process.
    static LATELY: [Cell<(u64, *const Cache)>; RECENT] = const { [const { Cell::new((0, ptr::null())) }; RECENT] };
}

/// Runs `f` with this thread's cache of a pool, which [`find`] gives where it was not used lately; `None` when the thread is ending. `f`
/// does not come back here.
#[inline(always)]
pub(super) fn with<R>(pool: u64, find: impl FnOnce() -> Option<*const Cache>, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    let (number, mut cache) = LATELY.with(|lately| lately[pool as usize % RECENT].get());
    if number != pool {
        cache = find()?;
    }
    // SAFETY: of a pool that is there, since its caller has it, so in `LOCAL`: until the pool is gone, or the thread, which forgets it
    // before.
    Some(f(unsafe { &*cache }))
}

/// Runs `f` with this thread's cache of a pool, if it was used lately. `f` does not come back here.
#[inline(always)]
pub(super) fn lately<R>(pool: u64, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    with(pool, || None, f)
}

/// A pool's cache, from now on where it is looked for first.
pub(super) fn find(pool: u64, home: Weak<dyn Home>) -> Option<*const Cache> {
    let look = |local: &UnsafeCell<Local>| {
        // SAFETY: this thread's, and there is no other reference: nothing here comes back.
        let caches = unsafe { &mut (*local.get()).caches };
        // Those of pools that are gone.
        caches.retain(|(_, _, home)| home.strong_count() > 0);
        match caches.iter().find(|&&(id, ..)| id == pool) {
            Some((_, cache, _)) => Some(Arc::as_ptr(cache)),
            None => {
                let cache = home.upgrade()?.admit();
                let place = Arc::as_ptr(&cache);
                caches.push((pool, cache, home));
                Some(place)
            }
        }
    };
    let cache = LOCAL.try_with(look).ok().flatten()?;
    static WATCHED: Once = Once::new();
    // In a fork, caches are used without a test of the process.
    // SAFETY: `forget_in_child` stores to words of the thread.
    WATCHED.call_once(|| unsafe { fork::in_child(forget_in_child) });
    LATELY.with(|lately| lately[pool as usize % RECENT].set((pool, cache)));
    Some(cache)
}

extern "C" fn forget_in_child() {
    forget();
}

/// Has every pool looked for again.
fn forget() {
    LATELY.with(|lately| lately.iter().for_each(|place| place.set((0, ptr::null()))));
}
