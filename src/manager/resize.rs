//! Other blocks for buffers, several at once: all of them or none.
//!
//! 1. What can be refused is refused first: sizes, then the budget for all of them, then memory, then copies. Only when every copy has been
//!    executed and has succeeded is anything replaced, and nothing of that can fail. What may panic, to free the old blocks, comes last.
//! 2. Old and new count at the same time, since they are there at the same time.
//! 3. What is copied is what is live, on the device, after whatever is queued on either block; on a stream, in its order.

use core::mem;
use std::vec::Vec;

use super::Shared;
use super::entry::{Entry, Held};
use crate::Result;
use crate::backend::Ticket;
use crate::backend::panic::each;
use crate::memory::Memory;
use crate::stream::Stream;

/// A buffer that somebody has alone, and what it is to become.
pub(super) struct Step<'a, M: Memory> {
    entry: &'a mut Entry<M>,
    /// Elements from the first on that are copied.
    kept: usize,
    /// Elements that there will be room for: another number than now, or nothing is replaced.
    capacity: usize,
    /// Elements that will be live.
    len: usize,
}

impl<'a, M: Memory> Step<'a, M> {
    /// Room for `capacity` elements of which `len` will be live.
    pub fn to(entry: &'a mut Entry<M>, capacity: usize, len: usize) -> Self {
        let kept = entry.metadata.len().min(len);
        Self { entry, kept, capacity, len }
    }

    /// Room for at least `needed` elements by the buffer's growth, of which `len` will be live.
    pub fn grow(entry: &'a mut Entry<M>, needed: usize, len: usize) -> Result<Self> {
        let (held, size) = (entry.metadata.capacity() as u64, entry.metadata.element.size as u64);
        let capacity = entry.metadata.config.capacity(held, needed as u64, size)?;
        Ok(Self::to(entry, capacity as usize, len))
    }

    /// The same where so many elements are written, whatever is live.
    pub fn keeping(mut self, elements: usize) -> Self {
        self.kept = elements;
        self
    }

    /// Its buffer is being used.
    pub fn touch(&self) {
        self.entry.metadata.touch();
    }

    fn is_new(&self) -> bool {
        self.capacity != self.entry.metadata.capacity()
    }

    /// Bytes of so many elements, no more than there is room for: so the product cannot overflow.
    fn bytes(&self, elements: usize) -> usize {
        elements * self.entry.metadata.element.size
    }
}

/// Gives each buffer the room that it is to have.
///
/// # Errors
///
/// [`Limit`](crate::Error::Limit), what the memory refuses, what a use of a buffer or the copy failed with: every buffer is as it was.
pub(super) fn resize<M: Memory + Clone>(shared: &Shared<M>, steps: &mut [Step<'_, M>], on: Option<&Stream>) -> Result<()> {
    let mut total = 0_u64;
    for step in steps.iter().filter(|step| step.is_new()) {
        // Each was checked; a sum beyond 64 bits is beyond any limit.
        total = total.saturating_add(step.entry.metadata.element.layout(step.capacity)?.size() as u64);
    }
    let mut room = shared.reserve(total)?;
    let mut fresh = Vec::with_capacity(steps.len());
    for step in steps.iter() {
        fresh.push(match step.is_new() {
            true => {
                let reservation = room.split(step.bytes(step.capacity) as u64)?;
                Some(Held::new(shared.block(&step.entry.metadata.element, step.capacity, on, &step.entry.metadata.origin())?, reservation))
            }
            false => None,
        });
    }
    match on {
        None => copy_now(steps, &mut fresh)?,
        Some(stream) => copy_on(steps, &mut fresh, stream)?,
    }
    let mut old = Vec::with_capacity(steps.len());
    for (step, fresh) in steps.iter_mut().zip(fresh) {
        let Some(fresh) = fresh else {
            step.entry.metadata.set_len(step.len);
            continue;
        };
        shared.counts.resized(step.bytes(step.kept) as u64);
        step.entry.metadata.resized(step.len, step.capacity);
        old.push(mem::replace(&mut step.entry.held, fresh));
    }
    each(old, drop);
    Ok(())
}

fn copy_now<M: Memory>(steps: &[Step<'_, M>], fresh: &mut [Option<Held<M>>]) -> Result<()> {
    for (step, fresh) in steps.iter().zip(fresh) {
        let Some(fresh) = fresh else { continue };
        let bytes = step.bytes(step.kept);
        let old = step.entry.held.buffer.slice(..bytes)?;
        fresh.buffer.slice_mut(..bytes)?.copy_from_view(old)?;
    }
    Ok(())
}

/// Queues all copies and waits for each: until it has succeeded, the old block is all that there is.
fn copy_on<M: Memory>(steps: &mut [Step<'_, M>], fresh: &mut [Option<Held<M>>], stream: &Stream) -> Result<()> {
    let mut outcome = Ok(());
    let mut tickets = Vec::with_capacity(steps.len());
    for (step, fresh) in steps.iter_mut().zip(&mut *fresh) {
        let queued = match fresh {
            Some(fresh) if outcome.is_ok() => copy_one(step, fresh, stream),
            _ => Ok(None),
        };
        tickets.push(queued.unwrap_or_else(|error| {
            outcome = Err(error);
            None
        }));
    }
    // All of them, also after one has failed: they read what is still the buffers'.
    for ((step, fresh), ticket) in steps.iter_mut().zip(fresh).zip(tickets) {
        let (Some(fresh), Some(ticket)) = (fresh, ticket) else { continue };
        let waited = stream.backend().outcome(ticket, None).map(drop);
        // Where the wait itself has failed it may not be over, and stays listed.
        if waited.is_ok() || stream.backend().reached(ticket) {
            step.entry.held.buffer.settled(ticket);
            fresh.buffer.settled(ticket);
        }
        outcome = outcome.and(waited);
    }
    outcome
}

fn copy_one<M: Memory>(step: &mut Step<'_, M>, fresh: &mut Held<M>, stream: &Stream) -> Result<Option<Ticket>> {
    let bytes = step.bytes(step.kept);
    let old = &mut step.entry.held.buffer;
    let (from, to) = (old.slice(..bytes)?, fresh.buffer.slice(..bytes)?);
    // SAFETY: two blocks that nobody else has, and both list it at once.
    let ticket = unsafe { stream.queue_copy(from, to, [None; 2]) }?;
    if let Some(ticket) = ticket {
        old.used(ticket);
        fresh.buffer.used(ticket);
    }
    Ok(ticket)
}
