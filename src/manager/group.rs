//! Buffers that are resized together.

use std::vec::Vec;

use super::entry::Entry;
use super::resize::{Step, resize};
use super::{AnyBuffer, MemoryManager};
use crate::Result;
use crate::memory::Memory;
use crate::registry::slots::Exclusive;
use crate::stream::Stream;

impl<M: Memory + Clone> MemoryManager<M> {
    /// Gives buffers other lengths: all of them, or none. Those that must grow do so by their own growth; old and new blocks of the whole group
    /// are there together for a moment, and count so.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut) and [`LeaseMut::resize`](super::LeaseMut::resize), the first that there is; [`Busy`](crate::Error::Busy) also for a buffer that is in the group
    /// twice. Every buffer has its length, its block and its contents, and the budget is as it was.
    pub fn resize_group(&self, group: impl IntoIterator<Item = (AnyBuffer, usize)>) -> Result<()> {
        self.resize_all(group, None)
    }

    /// The same in the order of a stream: all copies are queued there, and waited for.
    ///
    /// # Errors
    ///
    /// As [`resize_group`](Self::resize_group).
    pub fn resize_group_on(&self, group: impl IntoIterator<Item = (AnyBuffer, usize)>, stream: &Stream) -> Result<()> {
        self.resize_all(group, Some(stream))
    }

    fn resize_all(&self, group: impl IntoIterator<Item = (AnyBuffer, usize)>, on: Option<&Stream>) -> Result<()> {
        let taken = group.into_iter().map(|(buffer, len)| Ok((self.alone(buffer)?, len)));
        let mut taken: Vec<(Exclusive<'_, Entry<M>>, usize)> = taken.collect::<Result<_>>()?;
        let steps = taken.iter_mut().map(|(entry, len)| Step::grow(entry, *len, *len));
        let mut steps: Vec<Step<'_, M>> = steps.collect::<Result<_>>()?;
        // Undated until they have their date: what panics before that leaves it to the next look.
        steps.iter().for_each(Step::touch);
        let outcome = resize(&self.shared, &mut steps, on);
        let now = self.shared.now();
        taken.iter().for_each(|(entry, _)| entry.metadata.used_at(now));
        outcome
    }
}
