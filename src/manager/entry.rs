use std::boxed::Box;
use std::sync::Arc;

use super::Shared;
use super::metadata::Metadata;
use crate::backend::panic::caught;
use crate::backend::{Backend, Block, Uses};
use crate::memory::{Buffer, Memory, Reservation};
use crate::registry::lease::Leased;
use crate::{Error, Result};

/// Memory and its bytes of the budget, used until it is really freed.
pub(super) struct Held<M: Memory> {
    pub buffer: Buffer<u8, M>,
    // Dropped after the buffer.
    room: Room,
}

struct Room {
    // INVARIANT: `Some` until this is dropped or returned.
    reservation: Option<Reservation>,
    backend: Arc<dyn Backend>,
    block: Block,
    uses: Uses,
}

impl<M: Memory> Held<M> {
    pub fn new(buffer: Buffer<u8, M>, reservation: Reservation) -> Self {
        let backend = Arc::clone(buffer.memory().backend());
        let block = buffer.block();
        Self { buffer, room: Room { reservation: Some(reservation), backend, block, uses: Uses::NONE } }
    }

    pub fn close(mut self) -> Result<()> {
        self.buffer.give_back()
    }

    /// For memory without queued uses.
    pub fn go_back(mut self, to: &mut Reservation) {
        let reservation = self.room.reservation.take();
        drop(self);
        if let Some(reservation) = reservation {
            to.join(reservation);
        }
    }

    pub fn is_in_use(&self) -> bool {
        let backend = self.buffer.memory().backend();
        self.buffer.uses().iter().any(|ticket| !backend.reached(ticket))
    }
}

impl<M: Memory> Drop for Held<M> {
    fn drop(&mut self) {
        self.room.uses = *self.buffer.uses();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        if !self.uses.is_empty() || self.backend.extension().is_deferred(&self.block) {
            self.backend.keep(Box::new(reservation), &self.uses, Some(&self.block));
        }
    }
}

/// A buffer in the table.
pub struct Entry<M: Memory> {
    pub(super) metadata: Arc<Metadata>,
    pub(super) shared: Arc<Shared<M>>,
    // INVARIANT: its size is the metadata's capacity in elements, aligned for them.
    pub(super) held: Held<M>,
}

impl<M: Memory> Leased for Entry<M> {
    type Memory = M;

    #[inline]
    fn buffer(&self) -> &Buffer<u8, M> {
        &self.held.buffer
    }
    fn buffer_mut(&mut self) -> &mut Buffer<u8, M> {
        &mut self.held.buffer
    }
    #[inline]
    fn len<T>(&self) -> usize {
        self.metadata.len()
    }
    unsafe fn put_in(&mut self, block: Block) -> Block {
        self.held.room.block = Block { ready: None, ..block };
        // SAFETY: the caller's promise.
        unsafe { self.held.buffer.put_in(block) }
    }
    #[inline]
    fn was_read(&self) {
        self.metadata.touch();
    }
    fn was_written(&self) {
        // A clock's panic during another panic would abort the process.
        match caught(|| self.shared.now()) {
            Some(now) => self.metadata.used_at(now),
            None => self.metadata.touch(),
        }
    }
    fn may_queue(&self) -> Result<()> {
        if self.metadata.config.is_async {
            Ok(())
        } else {
            Err(Error::Unsupported { what: "a queued transfer of a buffer without `is_async` in its configuration" })
        }
    }
    fn has_queued(&self) {
        self.shared.counts.queued();
    }
}
