//! [`Entry`]: a buffer in the table, with its bytes of the budget.
//!
//! # Bytes of the budget
//!
//! A [`Counted`] buffer's bytes are in the budget from before its allocation, or its registration, until its memory is really freed. So the sum of all
//! blocks never exceeds the limit. A free has three steps, and each can be the last one that happens:
//!
//! 1. The bytes leave the [`Counted`] and enter a [`Freed`], which the stack owns.
//! 2. The memory frees the block: at once, after the block's queued uses, or after a running kernel. It may fail, and it may panic.
//! 3. The drop of [`Freed`] releases the bytes: at once if the block is freed, else with the backend's deferred work for this block.
//!
//! With step 3 before step 2, another thread could allocate the bytes while the block still exists, and exceed the limit. If step 2 panics, step 3 runs
//! in the unwinding; with the bytes still in the [`Counted`], its drop would free the block a second time.
//!
//! A mirror's bytes, in `mirrors`, take the same steps.

use core::mem::ManuallyDrop;
use core::ptr;
use std::boxed::Box;
use std::sync::Arc;

use super::Store;
use super::element::Element;
use super::names::Named;
use crate::backend::{Backend, Block, Uses};
use crate::memory::{Budget, Buffer, Memory, Reservation};
use crate::{Error, Result};

/// A buffer whose bytes are in a budget.
pub(super) struct Counted<M: Memory> {
    pub buffer: Buffer<u8, M>,
    // INVARIANT: while this is `Some`, this value owns as many bytes of the budget as the buffer has, and the block is not freed.
    budget: Option<Budget>,
}

/// A block that is being freed, as the module explains.
pub(super) struct Freed {
    pub reservation: Option<Reservation>,
    pub backend: Arc<dyn Backend>,
    pub block: Block,
    pub uses: Uses,
}

impl<M: Memory> Counted<M> {
    /// Takes the buffer's bytes out of a reservation.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for fewer bytes. The buffer is freed.
    pub fn new(buffer: Buffer<u8, M>, from: &mut Reservation) -> Result<Self> {
        let reservation = from.split(buffer.size_bytes() as u64)?;
        Ok(Self::with(buffer, reservation))
    }

    /// `reservation` has as many bytes as the buffer.
    pub fn with(buffer: Buffer<u8, M>, reservation: Reservation) -> Self {
        Self { buffer, budget: Some(reservation.into_budget()) }
    }

    fn reservation(&mut self) -> Option<Reservation> {
        let bytes = self.buffer.size_bytes() as u64;
        self.budget.take().map(|budget| budget.into_reservation(bytes))
    }

    pub fn close(mut self) -> Result<()> {
        self.free()
    }

    /// Frees memory without queued uses, and puts its bytes back into a reservation.
    pub fn cancel(mut self, to: &mut Reservation) {
        let reservation = self.reservation();
        // Not counted any more, so that this drops the buffer alone.
        drop(self);
        if let Some(reservation) = reservation {
            to.join(reservation);
        }
    }

    /// Returns the buffer, and its bytes to the budget.
    pub fn into_buffer(mut self) -> Buffer<u8, M> {
        drop(self.reservation());
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again; its other field is `None`.
        unsafe { ptr::read(&raw const this.buffer) }
    }

    /// Returns whether queued work may still use the memory.
    pub fn is_in_use(&self) -> bool {
        let backend = self.buffer.memory().backend();
        self.buffer.uses().iter().any(|ticket| !backend.is_complete(ticket))
    }

    fn free(&mut self) -> Result<()> {
        let _freed = Freed {
            reservation: self.reservation(),
            backend: Arc::clone(self.buffer.memory().backend()),
            block: self.buffer.block(),
            uses: *self.buffer.uses(),
        };
        self.buffer.give_back()
    }
}

impl<M: Memory> Drop for Counted<M> {
    fn drop(&mut self) {
        if self.budget.is_some()
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
pub(super) struct Entry<M: Memory> {
    // INVARIANT: whole elements, aligned for them. For a named buffer, as many as its `capacity`, of which `len` are live.
    pub counted: Counted<M>,
    pub kind: Kind,
}

/// A registered buffer has an element type alone: all its elements are live, and it does not grow. A created one has a name and a configuration.
pub(super) enum Kind {
    Registered(Element),
    Created(Arc<Named>),
}

impl<M: Memory> Entry<M> {
    #[inline]
    pub fn buffer(&self) -> &Buffer<u8, M> {
        &self.counted.buffer
    }

    pub fn buffer_mut(&mut self) -> &mut Buffer<u8, M> {
        &mut self.counted.buffer
    }

    pub fn named(&self) -> Option<&Arc<Named>> {
        match &self.kind {
            Kind::Registered(_) => None,
            Kind::Created(named) => Some(named),
        }
    }

    pub fn element(&self) -> Element {
        match &self.kind {
            Kind::Registered(element) => *element,
            Kind::Created(named) => named.element,
        }
    }

    /// Returns the number of live elements, which are of type `T`.
    #[inline]
    pub fn len<T>(&self) -> usize {
        match &self.kind {
            Kind::Registered(_) => self.counted.buffer.len() / size_of::<T>(),
            Kind::Created(named) => named.len(),
        }
    }

    /// Returns the name and configuration that a change of the length needs.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for a registered buffer.
    pub fn growing(&self) -> Result<&Arc<Named>> {
        self.named()
            .ok_or(Error::Unsupported { what: "a new length or capacity for a registered buffer, which has no growth configuration" })
    }

    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for a created buffer whose configuration does not permit queued transfers.
    pub fn may_queue(&self) -> Result<()> {
        match self.named() {
            Some(named) if !named.is_async => {
                Err(Error::Unsupported { what: "a queued transfer of a buffer without `is_async` in its configuration" })
            }
            _ => Ok(()),
        }
    }

    /// Counts a queued transfer of a created buffer.
    pub fn has_queued(&self, store: &Store<M>) {
        if self.named().is_some() {
            store.counts.queued();
        }
    }
}
