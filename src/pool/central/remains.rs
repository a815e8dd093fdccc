//! [`Remains`]: the slabs of a pool that has gone, until the last uses of its blocks are over. No stream is made to wait for another's.

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use crate::backend::panic::each;
use crate::backend::{Block, Ticket, Uses};
use crate::fork::Process;
use crate::memory::Memory;

pub(super) struct Remains<M: Memory> {
    pub memory: M,
    /// Of this memory, and of no table any more.
    pub slabs: Vec<Block>,
    /// Last uses that may be open; nobody else uses any part.
    pub open: Vec<Ticket>,
}

impl<M: Memory> Remains<M> {
    /// Frees the slabs after the uses. Where those are of more streams than can be listed, some are waited for first, by nobody.
    pub fn go(mut self) {
        let backend = Arc::clone(self.memory.backend());
        let mut uses = Uses::NONE;
        self.open.retain(|&ticket| !backend.reached(ticket) && uses.add(ticket).is_err());
        if !self.open.is_empty() {
            backend.keep(Box::new(Kept(Some(self), Process::this())), &uses, None);
            return;
        }
        each(self.slabs, |slab| {
            // SAFETY: of this memory, given back here only, and in use by `uses` at most: those that are not listed are over.
            if let Err(error) = unsafe { self.memory.free(slab, &uses) } {
                backend.unreported(error);
            }
        });
    }
}

/// What goes on when this is dropped; but in a fork, whose parent does it.
struct Kept<M: Memory>(Option<Remains<M>>, Process);

impl<M: Memory> Drop for Kept<M> {
    fn drop(&mut self) {
        if let Some(remains) = self.0.take().filter(|_| self.1.is_this()) {
            remains.go();
        }
    }
}
