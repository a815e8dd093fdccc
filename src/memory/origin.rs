//! [`Origin`]: the name and the source line of the user's buffer for which a library type allocates.
//!
//! A manager, a mirror and frames allocate long after their creation, from lines of their own. They keep their origin and allocate within its
//! scope; [`Tracked`](super::Tracked) reads the scope. The scope is a thread-local, not a parameter, so it passes through every adaptor.

use core::cell::RefCell;
use core::panic::Location;
use std::sync::Arc;

/// A buffer's name, if it has one, and the line that created it.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub name: Option<Arc<str>>,
    pub caller: &'static Location<'static>,
}

thread_local! {
    /// The origin of the allocation in progress; `None` outside every scope.
    static CURRENT: RefCell<Option<Origin>> = const { RefCell::new(None) };
}

impl Origin {
    /// Returns the caller of the `#[track_caller]` function that calls this.
    #[track_caller]
    pub fn here() -> Self {
        Self { name: None, caller: Location::caller() }
    }

    /// Runs `allocate` in the scope of this origin.
    pub fn around<R>(&self, allocate: impl FnOnce() -> R) -> R {
        let _scope = Scope::begin(Some(self.clone()));
        allocate()
    }

    /// Runs `allocate` in the current scope, or in that of `caller` if there is none.
    pub fn current_or<R>(caller: &'static Location<'static>, allocate: impl FnOnce() -> R) -> R {
        if CURRENT.try_with(|current| current.borrow().is_some()).unwrap_or(true) {
            return allocate();
        }
        Self { name: None, caller }.around(allocate)
    }

    /// Runs `allocate` in the current scope without its name: the block is for more than one buffer.
    pub fn unnamed<R>(allocate: impl FnOnce() -> R) -> R {
        match Self::current() {
            Some(origin) => Self { name: None, ..origin }.around(allocate),
            None => allocate(),
        }
    }

    /// Returns the origin of the innermost scope of this thread.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}

/// A guard that restores the enclosing scope when it is dropped.
struct Scope(Option<Origin>);

impl Scope {
    fn begin(origin: Option<Origin>) -> Self {
        // A thread whose thread-locals are destroyed has no scope.
        Self(CURRENT.try_with(|current| current.replace(origin)).ok().flatten())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let around = self.0.take();
        let _ = CURRENT.try_with(|current| current.replace(around));
    }
}
