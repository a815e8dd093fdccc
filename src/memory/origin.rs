//! [`Origin`]: which buffer of a user's a library type allocates for, and the user's line that made it.
//!
//! A manager, a mirror and frames allocate long after they were made, from lines of their own. They keep their origin, and allocate within its scope;
//! [`Tracked`](super::Tracked) reads the scope. It is the thread's, and not a parameter, so that it passes every adaptor between the two.

use core::cell::RefCell;
use core::panic::Location;
use std::sync::Arc;

/// A name, if there is one, and a line.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub name: Option<Arc<str>>,
    pub caller: &'static Location<'static>,
}

thread_local! {
    /// That of the allocation in progress; `None` outside every scope.
    static CURRENT: RefCell<Option<Origin>> = const { RefCell::new(None) };
}

impl Origin {
    /// The line that called the `#[track_caller]` function that calls this.
    #[track_caller]
    pub fn here() -> Self {
        Self { name: None, caller: Location::caller() }
    }

    /// Runs `allocate` in the scope of this origin.
    pub fn around<R>(&self, allocate: impl FnOnce() -> R) -> R {
        let _scope = Scope::begin(Some(self.clone()));
        allocate()
    }

    /// Runs `allocate` in no scope: it allocates for more than one buffer.
    pub fn of_nobody<R>(allocate: impl FnOnce() -> R) -> R {
        let _scope = Scope::begin(None);
        allocate()
    }

    /// That of the innermost scope of this thread.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}

/// Restores the scope around it when it is dropped.
struct Scope(Option<Origin>);

impl Scope {
    fn begin(origin: Option<Origin>) -> Self {
        // A thread that is ending has no scope any more.
        Self(CURRENT.try_with(|current| current.replace(origin)).ok().flatten())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let around = self.0.take();
        let _ = CURRENT.try_with(|current| current.replace(around));
    }
}
