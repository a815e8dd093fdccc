//! [`Origin`]: line and name of the user's buffer for which a library type allocates.
//!
//! Managers, mirrors and frames allocate later, in their origin's scope: a thread-local, to pass through every adaptor.

use core::cell::RefCell;
use core::panic::Location;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub name: Option<Arc<str>>,
    pub caller: &'static Location<'static>,
}

thread_local! {
    static CURRENT: RefCell<Option<Origin>> = const { RefCell::new(None) };
}

impl Origin {
    #[track_caller]
    pub fn here() -> Self {
        Self { name: None, caller: Location::caller() }
    }

    pub fn around<R>(&self, allocate: impl FnOnce() -> R) -> R {
        let _scope = Scope::begin(Some(self.clone()));
        allocate()
    }

    /// In the current scope, else in `caller`'s.
    pub fn current_or<R>(caller: &'static Location<'static>, allocate: impl FnOnce() -> R) -> R {
        if CURRENT.try_with(|current| current.borrow().is_some()).unwrap_or(true) {
            return allocate();
        }
        Self { name: None, caller }.around(allocate)
    }

    /// Without a name, for a block of several buffers.
    pub fn unnamed<R>(allocate: impl FnOnce() -> R) -> R {
        match Self::current() {
            Some(origin) => Self { name: None, ..origin }.around(allocate),
            None => allocate(),
        }
    }

    /// For foreign code, whose allocations are its own.
    pub fn none<R>(run: impl FnOnce() -> R) -> R {
        let _scope = Scope::begin(None);
        run()
    }

    pub fn current() -> Option<Self> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}

struct Scope(Option<Origin>);

impl Scope {
    fn begin(origin: Option<Origin>) -> Self {
        // Destroyed thread-locals have no scope.
        Self(CURRENT.try_with(|current| current.replace(origin)).ok().flatten())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let around = self.0.take();
        let _ = CURRENT.try_with(|current| current.replace(around));
    }
}
