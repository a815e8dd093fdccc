//! [`Listed`]: the uses of a buffer, with a flag that they are complete.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::Result;
use crate::backend::{Backend, Uses};

/// Uses that a wait can mark as complete through a shared reference: later waits return at once.
pub(crate) struct Listed {
    uses: Uses,
    // INVARIANT: set only when all of `uses` are complete and their errors were reported.
    are_over: AtomicBool,
}

impl Listed {
    pub const fn new(uses: Uses) -> Self {
        Self { uses, are_over: AtomicBool::new(false) }
    }

    /// Returns the listed uses; some may be complete.
    pub const fn uses(&self) -> &Uses {
        &self.uses
    }

    pub fn uses_mut(&mut self) -> &mut Uses {
        *self.are_over.get_mut() = false;
        &mut self.uses
    }

    /// Returns whether all uses were waited for.
    pub fn is_settled(&self) -> bool {
        // SYNC POINT: settled. Pairs with settle: a caller that skips the wait sees the results of the operations.
        self.uses.is_empty() || self.are_over.load(Acquire)
    }

    /// Waits for all uses.
    ///
    /// # Errors
    ///
    /// As [`Uses::settle`]; the next call waits again.
    pub fn settle(&self, backend: &dyn Backend) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        self.uses.settle(backend)?;
        // SYNC POINT: settled. Pairs with is_settled: the results of the operations are visible after it.
        self.are_over.store(true, Release);
        Ok(())
    }
}
