//! Replaces the blocks of several buffers: all or none.
//!
//! Sizes, budget, memory and copies come first. Replacing blocks cannot fail. Frees of old blocks, which may panic, come last.

use core::mem;
use std::vec::Vec;

use super::Shared;
use super::entry::{Entry, Held};
use super::guard::Guard;
use crate::Result;
use crate::backend::Ticket;
use crate::backend::panic::each;
use crate::memory::Memory;
use crate::stream::Stream;

pub(super) struct Step<'a, M: Memory> {
    entry: &'a mut Entry<M>,
    kept: usize,
    /// In elements; the present one: nothing is replaced.
    capacity: usize,
    len: usize,
}

impl<'a, M: Memory> Step<'a, M> {
    pub fn to(entry: &'a mut Entry<M>, capacity: usize, len: usize) -> Self {
        let kept = entry.metadata.len().min(len);
        Self { entry, kept, capacity, len }
    }

    /// By the buffer's growth.
    pub fn grow(entry: &'a mut Entry<M>, needed: usize, len: usize) -> Result<Self> {
        let (held, size) = (entry.metadata.capacity() as u64, entry.metadata.element.size() as u64);
        let capacity = entry.metadata.config.capacity(held, needed as u64, size)?;
        Ok(Self::to(entry, capacity as usize, len))
    }

    pub fn keeping(mut self, elements: usize) -> Self {
        self.kept = elements;
        self
    }

    pub fn touch(&self) {
        self.entry.metadata.touch();
    }

    fn is_new(&self) -> bool {
        self.capacity != self.entry.metadata.capacity()
    }

    /// `elements` is at most the capacity: no overflow.
    fn bytes(&self, elements: usize) -> usize {
        elements * self.entry.metadata.element.size()
    }
}

pub(super) fn resize<M: Memory + Clone>(shared: &Shared<M>, steps: &mut [Step<'_, M>], on: Option<&Stream>) -> Result<()> {
    let mut total = 0_u64;
    for step in steps.iter().filter(|step| step.is_new()) {
        total = total.saturating_add(step.entry.metadata.element.layout(step.capacity)?.size() as u64);
    }
    let mut room = shared.reserve(total)?;
    let mut fresh = Vec::with_capacity(steps.len());
    for step in steps.iter() {
        fresh.push(match step.is_new() {
            true => {
                let reservation = room.split(step.bytes(step.capacity) as u64)?;
                let metadata = &step.entry.metadata;
                let (block, is_fallback) = shared.block(&metadata.element, step.capacity, on, &metadata.origin())?;
                Some((Held::new(block, reservation), is_fallback))
            }
            false => None,
        });
    }
    match on {
        None => copy_now(&shared.guard, steps, &mut fresh)?,
        Some(stream) => copy_on(&shared.guard, steps, &mut fresh, stream)?,
    }
    let mut old = Vec::with_capacity(steps.len());
    for (step, fresh) in steps.iter_mut().zip(fresh) {
        let Some((fresh, is_fallback)) = fresh else {
            step.entry.metadata.set_len(step.len);
            continue;
        };
        shared.counts.resized(step.bytes(step.kept) as u64);
        step.entry.metadata.resized(step.len, step.capacity);
        step.entry.metadata.set_fallback(is_fallback);
        old.push(mem::replace(&mut step.entry.held, fresh));
    }
    each(old, drop);
    Ok(())
}

/// A new block, and whether it is of the fallback memory; `None` for a buffer that keeps its block.
type Fresh<M> = Option<(Held<M>, bool)>;

fn copy_now<M: Memory>(guard: &Guard, steps: &[Step<'_, M>], fresh: &mut [Fresh<M>]) -> Result<()> {
    for (step, fresh) in steps.iter().zip(fresh) {
        let Some((fresh, _)) = fresh else { continue };
        let bytes = step.bytes(step.kept);
        let old = step.entry.held.buffer.slice(..bytes)?;
        guard.retry(|| fresh.buffer.slice_mut(..bytes)?.copy_from_view(old))?;
    }
    Ok(())
}

/// Waits for all copies: until then, only the old block is complete.
fn copy_on<M: Memory>(guard: &Guard, steps: &mut [Step<'_, M>], fresh: &mut [Fresh<M>], stream: &Stream) -> Result<()> {
    let mut outcome = Ok(());
    let mut tickets = Vec::with_capacity(steps.len());
    for (step, fresh) in steps.iter_mut().zip(&mut *fresh) {
        let queued = match fresh {
            Some((fresh, _)) if outcome.is_ok() => guard.retry(|| copy_one(step, fresh, stream)),
            _ => Ok(None),
        };
        tickets.push(queued.unwrap_or_else(|error| {
            outcome = Err(error);
            None
        }));
    }
    for ((step, fresh), ticket) in steps.iter_mut().zip(fresh).zip(tickets) {
        let (Some((fresh, _)), Some(ticket)) = (fresh, ticket) else { continue };
        let waited = stream.backend().outcome(ticket, None).map(drop);
        // If the wait failed, a copy in flight stays listed.
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
    // SAFETY: both blocks are exclusive and list the copy at once.
    let ticket = unsafe { stream.queue_copy(from, to, [None; 2]) }?;
    if let Some(ticket) = ticket {
        old.used(ticket);
        fresh.buffer.used(ticket);
    }
    Ok(ticket)
}
