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
    // INVARIANT: `Some` until the memory is freed or the bytes are returned.
    reservation: Option<Reservation>,
}

/// A block that is being freed. At its drop, even by a panic of the free, the bytes are released: at once, or with a deferred free.
struct Freed {
    reservation: Option<Reservation>,
    backend: Arc<dyn Backend>,
    block: Block,
    uses: Uses,
}

impl<M: Memory> Held<M> {
    pub fn new(buffer: Buffer<u8, M>, reservation: Reservation) -> Self {
        Self { buffer, reservation: Some(reservation) }
    }

    pub fn close(mut self) -> Result<()> {
        self.free()
    }

    /// For memory without queued uses.
    pub fn go_back(mut self, to: &mut Reservation) {
        let reservation = self.reservation.take();
        drop(self);
        if let Some(reservation) = reservation {
            to.join(reservation);
        }
    }

    pub fn is_in_use(&self) -> bool {
        let backend = self.buffer.memory().backend();
        self.buffer.uses().iter().any(|ticket| !backend.reached(ticket))
    }

    fn free(&mut self) -> Result<()> {
        let _freed = Freed {
            reservation: self.reservation.take(),
            backend: Arc::clone(self.buffer.memory().backend()),
            block: self.buffer.block(),
            uses: *self.buffer.uses(),
        };
        self.buffer.give_back()
    }
}

impl<M: Memory> Drop for Held<M> {
    fn drop(&mut self) {
        if self.reservation.is_some()
            && let Err(error) = self.free()
        {
            self.buffer.memory().backend().unreported(error);
        }
    }
}

impl Drop for Freed {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        if !self.uses.is_empty() || self.backend.is_deferred(&self.block) {
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
