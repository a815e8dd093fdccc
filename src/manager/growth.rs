//! Growth of created buffers: one buffer or a group gets new blocks, all or none.
//!
//! # Order of steps
//!
//! 1. Compute all sizes and reserve the sum of the new blocks' bytes, while the old ones still count: so the limit holds at every moment.
//! 2. Allocate the new blocks.
//! 3. Copy the live elements on the device, from old to new blocks, and wait for the copies.
//! 4. Replace the blocks, lengths and capacities. This cannot fail.
//! 5. Free the old blocks, which may panic.
//!
//! A failure in steps 1 to 3 drops the new blocks and leaves each buffer as it was, with its elements. With step 4 before the last copy of step 3, a later
//! failure would have to undo replacements. With step 5 before step 4 of another buffer, a panicking free would leave a part of the group resized.
//!
//! Copies on a stream are listed in both blocks at once. After a failed wait, a copy that may be in flight stays listed, and the free of the new block waits
//! for it.

use core::fmt;
use core::mem;
use std::sync::Arc;
use std::vec::Vec;

use super::entry::{Counted, Entry};
use super::guard::Guard;
use super::names::Named;
use super::numbers::Exclusive;
use super::{AnyBufferId, LeaseMut, MemoryManager, Store};
use crate::backend::Ticket;
use crate::memory::{Memory, SliceMut};
use crate::stream::Stream;
use crate::sys::panic::each;
use crate::{DeviceBytes, Error, Result};

/// The change of one buffer.
struct Step<'a, M: Memory> {
    named: Arc<Named>,
    counted: &'a mut Counted<M>,
    /// Elements to copy.
    kept: usize,
    /// In elements; the present one: nothing is replaced.
    capacity: usize,
    len: usize,
}

impl<'a, M: Memory> Step<'a, M> {
    fn to(entry: &'a mut Entry<M>, capacity: usize, len: usize) -> Result<Self> {
        let named = Arc::clone(entry.growing()?);
        let kept = named.len().min(len);
        Ok(Self { named, counted: &mut entry.counted, kept, capacity, len })
    }

    /// A step to a capacity of at least `needed` elements, by the buffer's growth.
    fn grow(entry: &'a mut Entry<M>, needed: usize, len: usize) -> Result<Self> {
        let named = entry.growing()?;
        let (held, size) = (named.capacity() as u64, named.element.size() as u64);
        let capacity = named.config().capacity(held, needed as u64, size)?;
        Self::to(entry, capacity as usize, len)
    }

    fn is_new(&self) -> bool {
        self.capacity != self.named.capacity()
    }

    /// `elements` is at most the capacity: no overflow.
    fn bytes(&self, elements: usize) -> usize {
        elements * self.named.element.size()
    }
}

/// A new block, and whether it is of the fallback memory; `None` for a buffer that keeps its block.
type Fresh<M> = Option<(Counted<M>, bool)>;

fn resize<M: Memory + Clone>(store: &Store<M>, steps: &mut [Step<'_, M>], on: Option<&Stream>) -> Result<()> {
    let mut total = 0_u64;
    for step in steps.iter().filter(|step| step.is_new()) {
        total = total.saturating_add(step.named.element.layout(step.capacity)?.size() as u64);
    }
    let mut reservation = store.reserve(total)?;
    let mut fresh = Vec::with_capacity(steps.len());
    for step in steps.iter() {
        fresh.push(match step.is_new() {
            true => {
                let (block, is_fallback) = store.block(&step.named.element, step.capacity, on, &step.named.origin())?;
                Some((Counted::new(block, &mut reservation)?, is_fallback))
            }
            false => None,
        });
    }
    match on {
        None => copy_now(&store.guard, steps, &mut fresh)?,
        Some(stream) => copy_on(&store.guard, steps, &mut fresh, stream)?,
    }
    let mut old = Vec::with_capacity(steps.len());
    for (step, fresh) in steps.iter_mut().zip(fresh) {
        let Some((fresh, is_fallback)) = fresh else {
            step.named.set_len(step.len);
            continue;
        };
        store.counts.resized(step.bytes(step.kept) as u64);
        step.named.set_new_block(step.len, step.capacity, is_fallback);
        old.push(mem::replace(step.counted, fresh));
    }
    each(old, drop);
    Ok(())
}

fn copy_now<M: Memory>(guard: &Guard, steps: &[Step<'_, M>], fresh: &mut [Fresh<M>]) -> Result<()> {
    for (step, fresh) in steps.iter().zip(fresh) {
        let Some((fresh, _)) = fresh else { continue };
        let bytes = step.bytes(step.kept);
        let old = step.counted.buffer.slice(..bytes)?;
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
        if waited.is_ok() || stream.backend().is_complete(ticket) {
            step.counted.buffer.settled(ticket);
            fresh.buffer.settled(ticket);
        }
        outcome = outcome.and(waited);
    }
    outcome
}

fn copy_one<M: Memory>(step: &mut Step<'_, M>, fresh: &mut Counted<M>, stream: &Stream) -> Result<Option<Ticket>> {
    let bytes = step.bytes(step.kept);
    let old = &mut step.counted.buffer;
    let (from, to) = (old.slice(..bytes)?, fresh.buffer.slice(..bytes)?);
    // SAFETY: both blocks are exclusive and list the copy at once.
    let ticket = unsafe { stream.queue_copy(from, to, [None; 2]) }?;
    if let Some(ticket) = ticket {
        old.used(ticket);
        fresh.buffer.used(ticket);
    }
    Ok(ticket)
}

impl<M: Memory + Clone> MemoryManager<M> {
    /// Resizes all buffers or none; those that grow, by their own growth.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut) and [`LeaseMut::resize`]; [`Busy`](Error::Busy) also for a repeated buffer. Nothing is changed.
    pub fn resize_group(&self, group: impl IntoIterator<Item = (AnyBufferId, usize)>) -> Result<()> {
        self.resize_all(group, None)
    }

    /// As [`resize_group`](Self::resize_group): queues all copies on a stream and waits for them.
    pub fn resize_group_on(&self, group: impl IntoIterator<Item = (AnyBufferId, usize)>, stream: &Stream) -> Result<()> {
        self.resize_all(group, Some(stream))
    }

    fn resize_all(&self, group: impl IntoIterator<Item = (AnyBufferId, usize)>, on: Option<&Stream>) -> Result<()> {
        type Leased<'a, M> = Exclusive<'a, Entry<M>, Store<M>>;
        let lease = |id: AnyBufferId| self.table.exclusive(self.table.own(id.table, id.index)?);
        let leased = group.into_iter().map(|(id, len)| Ok((lease(id)?, len)));
        let mut leased: Vec<(Leased<'_, M>, usize)> = leased.collect::<Result<_>>()?;
        let steps = leased.iter_mut().map(|(entry, len)| Step::grow(entry, *len, *len));
        let mut steps: Vec<Step<'_, M>> = steps.collect::<Result<_>>()?;
        // Undated: after a panic, the next poll dates them.
        steps.iter().for_each(|step| step.named.touch());
        let store = self.store();
        let outcome = resize(store, &mut steps, on);
        let now = store.now();
        steps.iter().for_each(|step| step.named.used_at(now));
        outcome
    }
}

impl<T: DeviceBytes, M: Memory + Clone> LeaseMut<'_, T, M> {
    /// Ensures a capacity of at least `elements`, by the buffer's [growth](super::Growth). The device copies the live elements after all queued work.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) above `max_bytes`, [`Limit`](Error::Limit) if old and new block exceed the limit, [`Unsupported`](Error::Unsupported) for a
    /// registered buffer, the memory's error, a use's or the copy's error. The buffer is unchanged.
    pub fn ensure_capacity(&mut self, elements: usize) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, None)
    }

    /// As [`ensure_capacity`](Self::ensure_capacity), in stream order. Waits for the copy.
    pub fn ensure_capacity_on(&mut self, elements: usize, stream: &Stream) -> Result<()> {
        let len = self.len();
        self.grow(elements, len, Some(stream))
    }

    /// Sets the length; grows as by [`ensure_capacity`](Self::ensure_capacity), never shrinks. New elements are unspecified.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn resize(&mut self, len: usize) -> Result<()> {
        self.grow(len, len, None)
    }

    /// As [`resize`](Self::resize), in stream order.
    pub fn resize_on(&mut self, len: usize, stream: &Stream) -> Result<()> {
        self.grow(len, len, Some(stream))
    }

    /// Frees capacity beyond the live elements and `min_bytes`; returns its bytes.
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity).
    pub fn shrink_to_fit(&mut self) -> Result<u64> {
        self.entry.table().here()?;
        let (len, size) = (self.len(), size_of::<T>() as u64);
        let capacity = self.entry.growing()?.config().capacity_exact(len as u64, size)?;
        let freed = (self.capacity() as u64).saturating_sub(capacity) * size;
        if freed > 0 {
            let table = self.entry.handle();
            resize(&table.shared, &mut [Step::to(&mut self.entry, capacity as usize, len)?], None)?;
        }
        Ok(freed)
    }

    fn grow(&mut self, needed: usize, len: usize, on: Option<&Stream>) -> Result<()> {
        self.entry.table().here()?;
        let table = self.entry.handle();
        resize(&table.shared, &mut [Step::grow(&mut self.entry, needed, len)?], on)
    }

    /// Returns the first `len` elements of the block, of which the last ones may not be live yet.
    fn first(&mut self, len: usize) -> SliceMut<'_, T, M> {
        let len = len.min(self.capacity());
        // SAFETY: by the invariants of lease and entry the block has `capacity` elements of `T`, aligned for it; the exclusive lease is
        // borrowed mutably.
        unsafe { SliceMut::new(self.entry.buffer().view(), len) }
    }
}

/// Starting a copy takes as long as copying thousands of bytes.
const STAGE: usize = 64 << 10;

/// The end of a buffer, for [`LeaseMut::append`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let id = manager.create::<u32>("counts", 0, BufferConfig::new())?;
/// manager.lease_mut(id)?.append(|end| (0..10_000).try_for_each(|number| end.push(number)))?;
/// assert_eq!((manager.lease(id)?.len(), backend.counters().uploads.count), (10_000, 1)); // one copy
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Append<'l, 'a, T: DeviceBytes, M: Memory> {
    lease: &'l mut LeaseMut<'a, T, M>,
    staged: Vec<T>,
    len: usize,
}

impl<T: DeviceBytes, M: Memory> fmt::Debug for Append<'_, '_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Append").field("len", &self.len).field("staged", &self.staged.len()).finish_non_exhaustive()
    }
}

impl<T: DeviceBytes, M: Memory + Clone> Append<'_, '_, T, M> {
    /// Appends an element.
    ///
    /// # Errors
    ///
    /// As [`LeaseMut::ensure_capacity`], or the copy's error. Return it from the closure.
    pub fn push(&mut self, element: T) -> Result<()> {
        if self.staged.len() == self.staged.capacity() {
            self.flush()?;
            let stage = (STAGE / size_of::<T>()).max(1);
            self.staged.try_reserve_exact(stage).map_err(|_| short::<T>(stage))?;
        }
        self.staged.push(element);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.lease.write_at(self.len, &self.staged)?;
        self.len += self.staged.len();
        self.staged.clear();
        Ok(())
    }
}

impl<'a, T: DeviceBytes, M: Memory + Clone> LeaseMut<'a, T, M> {
    /// Appends an element with its own copy. For many elements, use [`append`](Self::append).
    ///
    /// # Errors
    ///
    /// As [`extend_from_slice`](Self::extend_from_slice).
    pub fn push(&mut self, element: T) -> Result<()> {
        self.extend_from_slice(&[element])
    }

    /// Appends elements with one copy, and grows by the buffer's [growth](super::Growth).
    ///
    /// # Errors
    ///
    /// As [`ensure_capacity`](Self::ensure_capacity), or the copy's error. The length is unchanged.
    pub fn extend_from_slice(&mut self, elements: &[T]) -> Result<()> {
        let len = self.len();
        self.write_at(len, elements)?;
        self.entry.growing()?.set_len(len + elements.len());
        Ok(())
    }

    /// [`append`](Self::append)s all elements of an iterator.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn extend(&mut self, elements: impl IntoIterator<Item = T>) -> Result<()> {
        self.append(|end| elements.into_iter().try_for_each(|element| end.push(element)))
    }

    /// Lets `write` push elements, copied in batches of 64 KiB. They become live when `write` returns; after a failure or panic, none does.
    ///
    /// # Errors
    ///
    /// The error of `write`, or as [`extend_from_slice`](Self::extend_from_slice). The length is unchanged; the capacity may have grown.
    pub fn append<R>(&mut self, write: impl FnOnce(&mut Append<'_, 'a, T, M>) -> Result<R>) -> Result<R> {
        let len = self.len();
        let mut end = Append { lease: &mut *self, staged: Vec::new(), len };
        let written = write(&mut end)?;
        end.flush()?;
        let len = end.len;
        self.entry.growing()?.set_len(len);
        Ok(written)
    }

    fn write_at(&mut self, at: usize, elements: &[T]) -> Result<()> {
        self.entry.table().here()?;
        let config = self.entry.growing()?.config();
        let Some(end) = at.checked_add(elements.len()) else {
            return Err(Error::Size { what: "size in bytes", asked: u64::MAX, least: config.min_bytes, most: config.most() });
        };
        let len = self.len();
        let table = self.entry.handle();
        if end > self.capacity() {
            let mut step = Step::grow(&mut self.entry, end, len)?;
            step.kept = at;
            resize(&table.shared, &mut [step], None)?;
        }
        table.shared.guard.retry(|| self.first(end).slice(at..)?.copy_from(elements))
    }
}

fn short<T>(elements: usize) -> Error {
    Error::Map { bytes: (elements as u64).saturating_mul(size_of::<T>() as u64), source: std::io::ErrorKind::OutOfMemory.into() }
}
