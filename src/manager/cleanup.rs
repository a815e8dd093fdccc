//! What nobody has used for long.

use core::time::Duration;
use std::boxed::Box;
use std::vec::Vec;

use super::names::Named;
use super::{BufferStatistics, MemoryManager};
use crate::memory::Memory;

/// A buffer that was freed because nobody used it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freed {
    /// Its name.
    pub name: Box<str>,
    /// The bytes that it held.
    pub bytes: u64,
}

impl<M: Memory> MemoryManager<M> {
    /// Frees every buffer that has been idle for so long and of which `goes` says yes, and that nobody has a lease of and nothing queued uses: what it
    /// freed, in order of name.
    ///
    /// `goes` decides by a buffer's figures, such as its [utilisation](BufferStatistics::utilisation): `|_| true` for whatever is idle. A buffer that
    /// was only read since the last look was in use [until now](Self::tick). An error of a free is counted by the backend, as one of a dropped buffer.
    /// Who asks for a buffer meanwhile is not refused it, but waits for a look. In a fork it does nothing.
    pub fn cleanup(&self, idle: Duration, mut goes: impl FnMut(&BufferStatistics) -> bool) -> Vec<Freed> {
        if self.here().is_err() {
            return Vec::new();
        }
        self.shared.names.all().into_iter().filter_map(|named| self.clean(&named, idle, &mut goes)).collect()
    }

    fn clean(&self, named: &Named, idle: Duration, goes: &mut impl FnMut(&BufferStatistics) -> bool) -> Option<Freed> {
        let shared = &*self.shared;
        let look = shared.look();
        named.metadata.look(look);
        let now = shared.now();
        let figures = named.metadata.read(look, now);
        if figures.idle < idle || !goes(&figures) {
            return None;
        }
        // Alone, for as long as a look takes: whoever asks meanwhile waits. Nothing of the caller's is called.
        let entry = shared.slots.briefly(named.index).ok()?;
        // Once more: whoever had it before may have used it after the look.
        let figures = named.metadata.read(look, now);
        if figures.idle < idle || entry.held.is_in_use() {
            return None;
        }
        // Nobody else removes what somebody is at so briefly.
        let (entry, _) = entry.remove()?;
        shared.names.free(&named.metadata.name, named.index);
        shared.counts.freed();
        drop(entry);
        Some(Freed { name: figures.name.clone(), bytes: figures.capacity_bytes() })
    }
}
