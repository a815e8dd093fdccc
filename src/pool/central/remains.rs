//! [`Remains`]: a dropped pool's slabs, until its blocks' last uses complete.

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use crate::backend::panic::each;
use crate::backend::{Block, Ticket, Uses};
use crate::fork::Process;
use crate::memory::Memory;

pub(super) struct Remains<M: Memory> {
    pub memory: M,
    pub slabs: Vec<Block>,
    pub open: Vec<Ticket>,
}

impl<M: Memory> Remains<M> {
    /// Frees the slabs after the uses. If [`Uses`] cannot list all streams, first waits for the listed uses, repeatedly. Blocks no thread.
    pub fn go(mut self) {
        let backend = Arc::clone(self.memory.backend());
        let mut uses = Uses::NONE;
        self.open.retain(|&ticket| !backend.is_complete(ticket) && uses.add(ticket).is_err());
        if !self.open.is_empty() {
            backend.keep(Box::new(Kept(Some(self), Process::this())), &uses, None);
            return;
        }
        each(self.slabs, |slab| {
            // SAFETY: a slab of this memory, freed only here, and in use by `uses` at most: other uses are complete.
            if let Err(error) = unsafe { self.memory.free(&slab, &uses) } {
                backend.unreported(error);
            }
        });
    }
}

/// Continues on drop, except in a fork.
struct Kept<M: Memory>(Option<Remains<M>>, Process);

impl<M: Memory> Drop for Kept<M> {
    fn drop(&mut self) {
        if let Some(remains) = self.0.take().filter(|_| self.1.is_this()) {
            remains.go();
        }
    }
}
