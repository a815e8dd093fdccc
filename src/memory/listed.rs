//! [`Listed`]: the uses of a buffer, and whether anybody need still ask about them.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::Result;
use crate::backend::{Backend, Uses};

/// Uses that whoever has waited for them forgets, also by reference: the next who waits asks nobody.
pub(crate) struct Listed {
    uses: Uses,
    // INVARIANT: only where all of `uses` are over, and what they failed with was told.
    are_over: AtomicBool,
}

impl Listed {
    pub const fn new(uses: Uses) -> Self {
        Self { uses, are_over: AtomicBool::new(false) }
    }

    /// More may be listed than is so.
    pub const fn uses(&self) -> &Uses {
        &self.uses
    }

    pub fn uses_mut(&mut self) -> &mut Uses {
        *self.are_over.get_mut() = false;
        &mut self.uses
    }

    /// Whether there is none that somebody has not waited for.
    pub fn is_settled(&self) -> bool {
        // SYNC POINT: settled. Pairs with settle: who waits no more sees what was waited for.
        self.uses.is_empty() || self.are_over.load(Acquire)
    }

    /// Waits until none is left.
    ///
    /// # Errors
    ///
    /// As [`Uses::settle`]; the next who waits asks again.
    pub fn settle(&self, backend: &dyn Backend) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        self.uses.settle(backend)?;
        // SYNC POINT: settled. Pairs with is_settled: what was executed is visible to whoever sees this.
        self.are_over.store(true, Release);
        Ok(())
    }
}
