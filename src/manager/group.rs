use std::vec::Vec;

use super::entry::Entry;
use super::resize::{Step, resize};
use super::{AnyBufferId, MemoryManager};
use crate::Result;
use crate::memory::Memory;
use crate::registry::slots::Exclusive;
use crate::stream::Stream;

impl<M: Memory + Clone> MemoryManager<M> {
    /// Resizes all buffers or none; those that grow, by their own growth.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut) and [`LeaseMut::resize`](super::LeaseMut::resize); [`Busy`](crate::Error::Busy) also for a repeated buffer.
    /// Nothing is changed.
    pub fn resize_group(&self, group: impl IntoIterator<Item = (AnyBufferId, usize)>) -> Result<()> {
        self.resize_all(group, None)
    }

    /// As [`resize_group`](Self::resize_group): queues all copies on a stream and waits for them.
    pub fn resize_group_on(&self, group: impl IntoIterator<Item = (AnyBufferId, usize)>, stream: &Stream) -> Result<()> {
        self.resize_all(group, Some(stream))
    }

    fn resize_all(&self, group: impl IntoIterator<Item = (AnyBufferId, usize)>, on: Option<&Stream>) -> Result<()> {
        let taken = group.into_iter().map(|(buffer, len)| Ok((self.alone(buffer)?, len)));
        let mut taken: Vec<(Exclusive<'_, Entry<M>>, usize)> = taken.collect::<Result<_>>()?;
        let steps = taken.iter_mut().map(|(entry, len)| Step::grow(entry, *len, *len));
        let mut steps: Vec<Step<'_, M>> = steps.collect::<Result<_>>()?;
        // Undated: after a panic, the next poll dates them.
        steps.iter().for_each(Step::touch);
        let outcome = resize(&self.shared, &mut steps, on);
        let now = self.shared.now();
        taken.iter().for_each(|(entry, _)| entry.metadata.used_at(now));
        outcome
    }
}
