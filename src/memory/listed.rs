use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::boxed::Box;

use crate::Result;
use crate::backend::{Backend, Ticket, Uses};

/// Uses that a wait marks as complete through a shared reference: later waits return at once.
///
/// On the heap from the first use on: most buffers have none, and each move of a buffer would copy them.
pub(crate) struct Listed(Option<Box<List>>);

struct List {
    uses: Uses,
    // INVARIANT: set only when `uses` are complete and their errors reported.
    are_over: AtomicBool,
}

impl Listed {
    pub const NONE: Self = Self(None);

    pub fn new(uses: Uses) -> Self {
        if uses.is_empty() { Self::NONE } else { Self(Some(List::boxed(uses))) }
    }

    #[inline(always)]
    pub fn any(&self) -> Option<&Uses> {
        self.0.as_ref().map(|list| &list.uses)
    }

    #[inline]
    pub fn uses(&self) -> &Uses {
        self.any().unwrap_or(const { &Uses::NONE })
    }

    pub fn uses_mut(&mut self) -> &mut Uses {
        let list = self.0.get_or_insert_with(|| List::boxed(Uses::NONE));
        *list.are_over.get_mut() = false;
        &mut list.uses
    }

    pub fn retain(&mut self, keep: impl FnMut(Ticket) -> bool) {
        if self.0.is_some() {
            self.uses_mut().retain(keep);
        }
    }

    #[inline(always)]
    pub fn is_settled(&self) -> bool {
        self.0.as_ref().is_none_or(|list| list.is_settled())
    }

    /// After an error, the next call waits again.
    #[inline]
    pub fn settle(&self, backend: &dyn Backend) -> Result<()> {
        match &self.0 {
            Some(list) => list.settle(backend),
            None => Ok(()),
        }
    }
}

impl List {
    #[cold]
    fn boxed(uses: Uses) -> Box<Self> {
        Box::new(Self { uses, are_over: AtomicBool::new(false) })
    }

    fn is_settled(&self) -> bool {
        // SYNC POINT: settled. Pairs with settle: a caller that skips the wait sees the operations' results.
        self.uses.is_empty() || self.are_over.load(Acquire)
    }

    fn settle(&self, backend: &dyn Backend) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        self.uses.settle(backend)?;
        // SYNC POINT: settled. Pairs with is_settled: the operations' results are visible after it.
        self.are_over.store(true, Release);
        Ok(())
    }
}
