//! Residency of managed pages.
//!
//! 1. Pages migrate to a device when a kernel resolves their address, on copies with its memory, and on prefetches; to the host on its
//!    copies and for slices.
//! 2. Allocations and new pages evict the least recently used; if none can be, a page stays on the host.
//! 3. This is accounting: bytes never move.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::PoisonError;
use std::vec::Vec;

use super::faults::Verb;
use super::inner::{Inner, Pager};
use super::log::{Facts, Phase};
use crate::Result;
use crate::backend::Block;
use crate::backend::ranges::Found;
use crate::sys::panic::{both, each};

impl Inner {
    pub fn touch(&self, found: &Found, bytes: u64, by: Option<u32>, facts: &Facts) {
        let Pager { page, moving, resident } = &self.pager;
        if *page == 0 || bytes == 0 || (by.is_none() && resident.load(Relaxed) == 0) {
            return;
        }
        let _moving = moving.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (found.offset / page, (found.offset + bytes - 1) / page);
        let mut evicted = Vec::new();
        for page in (first..=last).map(|number| found.start + number * page) {
            for (device, arena) in (0..).zip(&self.arenas) {
                if by != Some(device) && arena.expel(page) {
                    self.paged(facts, Phase::PagedOut, page);
                }
            }
            let Some(arena) = by.and_then(|device| self.arenas.get(device as usize)) else { continue };
            let came = arena.admit(page, &mut evicted).then_some((Phase::PagedIn, page));
            let moves = evicted.drain(..).map(|page| (Phase::Evicted, page)).chain(came);
            // Each has migrated, even if the user's clock panics.
            each(moves, |(phase, page)| self.paged(facts, phase, page));
        }
    }

    pub fn come_home(&self, block: &Block, facts: &Facts) {
        if self.pager.resident.load(Relaxed) == 0 {
            return;
        }
        let found = self.ranges.read().find(block.address(), facts.bytes, false, Verb::HostAccess.name());
        if let Ok(found) = found {
            self.touch(&found, facts.bytes, None, facts);
        }
    }

    pub fn forget_pages(&self, start: u64, bytes: u64) {
        let Pager { page, moving, resident } = &self.pager;
        if *page == 0 || resident.load(Relaxed) == 0 {
            return;
        }
        let _moving = moving.lock().unwrap_or_else(PoisonError::into_inner);
        for page in (0..bytes.div_ceil(*page)).map(|number| start + number * page) {
            let gone = self.arenas.iter().filter(|arena| arena.expel(page)).count();
            resident.fetch_sub(gone as u64, Relaxed);
        }
    }

    /// Takes memory of a device, and evicts pages for it. If the user's clock panics, `give` gets the memory back.
    #[cold]
    pub fn take_from_pages<T>(&self, facts: &Facts, take: impl FnOnce(&mut Vec<u64>) -> Result<T>, give: impl FnOnce(&T)) -> Result<T> {
        let _moving = self.pager.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut evicted = Vec::new();
        let taken = take(&mut evicted);
        let give = |has_panicked| {
            if let (true, Ok(taken)) = (has_panicked, &taken) {
                give(taken);
            }
        };
        both(|| each(evicted, |page| self.paged(facts, Phase::Evicted, page)), give);
        taken
    }

    fn paged(&self, facts: &Facts, phase: Phase, page: u64) {
        let bytes = self.pager.page;
        let count = match phase {
            Phase::PagedIn => &self.counts.pages_in,
            Phase::Evicted => &self.counts.pages_evicted,
            _ => &self.counts.pages_out,
        };
        count.add(bytes);
        if phase == Phase::PagedIn {
            self.pager.resident.fetch_add(1, Relaxed);
        } else {
            self.pager.resident.fetch_sub(1, Relaxed);
        }
        self.log(&Facts { bytes, from: Some(page), to: None, ..*facts }, phase, None, true);
    }
}
