//! [`Entry`]: a buffer in the table, and the bytes of the budget that it has.

use std::boxed::Box;
use std::sync::Arc;

use super::metadata::Metadata;
use crate::Result;
use crate::backend::{Backend, Block, Uses};
use crate::memory::{Buffer, Memory, Reservation};

/// Memory, and the bytes of the budget that count until it is really free.
pub(super) struct Held<M: Memory> {
    pub buffer: Buffer<u8, M>,
    // After the buffer, so that it goes after it.
    room: Room,
}

/// Bytes of the budget that go when uses are over and the block has gone.
struct Room {
    // INVARIANT: `Some` until this is dropped or goes back.
    reservation: Option<Reservation>,
    backend: Arc<dyn Backend>,
    block: Block,
    uses: Uses,
}

impl<M: Memory> Held<M> {
    /// Memory, and as many bytes of the budget.
    pub fn new(buffer: Buffer<u8, M>, reservation: Reservation) -> Self {
        let backend = Arc::clone(buffer.memory().backend());
        let block = Block { ready: None, ..*buffer.block() };
        Self { buffer, room: Room { reservation: Some(reservation), backend, block, uses: Uses::NONE } }
    }

    /// Frees it after its uses, and says what the driver said.
    pub fn close(mut self) -> Result<()> {
        self.buffer.give_back()
    }

    /// Frees what nothing was queued on; its bytes are `to`'s again.
    pub fn go_back(mut self, to: &mut Reservation) {
        let reservation = self.room.reservation.take();
        drop(self);
        if let Some(reservation) = reservation {
            to.join(reservation);
        }
    }

    /// Replaces the buffer's block, and returns the old one.
    ///
    /// # Safety
    ///
    /// As [`Buffer::put_in`].
    pub unsafe fn put_in(&mut self, block: Block) -> Block {
        self.room.block = Block { ready: None, ..block };
        // SAFETY: the caller's promise.
        unsafe { self.buffer.put_in(block) }
    }

    /// Whether something queued may still use it.
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
pub(super) struct Entry<M: Memory> {
    pub metadata: Arc<Metadata>,
    // INVARIANT: as long as the metadata's capacity in elements, and aligned for them.
    pub held: Held<M>,
}
