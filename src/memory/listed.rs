//! [`Listed`].

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::Result;
use crate::backend::{Backend, Uses};

/// Uses that a wait marks as complete through a shared reference, so that later waits return at once.
pub(crate) struct Listed {
    uses: Uses,
    // INVARIANT: set only when `uses` are complete and their errors reported.
    are_over: AtomicBool,
}

impl Listed {
    pub const fn new(uses: Uses) -> Self {
        Self { uses, are_over: AtomicBool::new(false) }
    }

    pub const fn uses(&self) -> &Uses {
        &self.uses
    }

    pub fn uses_mut(&mut self) -> &mut Uses {
        *self.are_over.get_mut() = false;
        &mut self.uses
    }

    pub fn is_settled(&self) -> bool {
        // SYNC POINT: settled. Pairs with settle: a caller that skips the wait sees the operations' results.
        self.uses.is_empty() || self.are_over.load(Acquire)
    }

    /// After an error, the next call waits again.
    pub fn settle(&self, backend: &dyn Backend) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        self.uses.settle(backend)?;
        // SYNC POINT: settled. Pairs with is_settled: the operations' results are visible after it.
        self.are_over.store(true, Release);
        Ok(())
    }
}
