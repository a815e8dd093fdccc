//! [`Ranges`] with a cache of live ranges per thread.

use super::recent::{self, Stamp};
use crate::Result;
use crate::backend::ranges::{self, Found, Listed, Range};
use crate::backend::{Block, Place, Taints};

pub(super) struct Ranges<O> {
    ranges: ranges::Ranges<O>,
    stamp: Stamp,
}

impl<O> Default for Ranges<O> {
    fn default() -> Self {
        Self { ranges: ranges::Ranges::default(), stamp: Stamp::default() }
    }
}

impl<O> Ranges<O> {
    pub fn insert(&self, address: u64, range: Range<O>) {
        self.ranges.insert(address, range);
    }

    pub fn kill(&self, block: &Block) -> Result<()> {
        self.ranges.kill(block)?;
        self.stamp.renew();
        Ok(())
    }

    pub fn remove(&self, block: &Block) -> Option<Range<O>> {
        self.ranges.remove(block)
    }

    pub fn taints(&self) -> &Taints {
        self.ranges.taints()
    }

    pub fn read(&self) -> Listed<'_, O> {
        self.ranges.read()
    }

    /// Host addresses outside are pageable memory.
    // Inlined to stay in registers.
    #[inline(always)]
    pub fn end(&self, place: Place, bytes: u64, call: &'static str) -> Result<Found> {
        let address = place.address();
        match recent::span(self.stamp.now(), address) {
            Some(span) => span.found(address, bytes),
            None => self.look(place, address, bytes, call),
        }
    }

    #[inline(never)]
    fn look(&self, place: Place, address: u64, bytes: u64, call: &'static str) -> Result<Found> {
        let stamp = self.stamp.now();
        let ranges = self.read();
        if let Some((range, offset)) = ranges.at(address).filter(|(range, _)| !range.is_dead) {
            recent::remember(stamp, range.span(address - offset));
        }
        ranges.end(place, bytes, None, call)
    }
}

impl<O> Listed<'_, O> {
    pub(super) fn owner(&self, block: &Block) -> Option<&O> {
        self.0.get(&block.address()).filter(|range| range.layout == block.layout).map(|range| &range.owner)
    }

    pub(super) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let before = self.0.range(..address.saturating_add(bytes)).next_back();
        before.is_some_and(|(&start, range)| start.saturating_add(range.bytes()) > address)
    }
}

#[cfg(test)]
mod tests {
    use core::alloc::Layout;
    use core::ptr::NonNull;

    use super::*;
    use crate::Error;
    use crate::backend::{DeviceAddress, MemoryLocation, Options};

    const START: u64 = 0x1000;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 1).expect("a layout")
    }

    fn range(bytes: usize) -> Range<()> {
        let (options, place) = (Options::empty(), NonNull::without_provenance(core::num::NonZero::new(START as usize).expect("not 0")));
        Range { layout: layout(bytes), location: MemoryLocation::Device, options, device: 0, place, shift: 0, owner: (), is_dead: false }
    }

    fn block(bytes: usize) -> Block {
        Block {
            device_address: Some(DeviceAddress::new(START)),
            host: None,
            layout: layout(bytes),
            location: MemoryLocation::Device,
            device: 0,
            is_pinned: false,
            ready: None,
            tag: 0,
        }
    }

    fn found(ranges: &Ranges<()>, offset: u64, bytes: u64) -> Result<u64> {
        ranges.end(Place::Device(DeviceAddress::new(START + offset)), bytes, "copy").map(|found| found.offset)
    }

    #[test]
    fn a_freed_range_is_not_found_by_a_thread_that_cached_it() {
        let ranges = Ranges::default();
        ranges.insert(START, range(100));
        for _ in 0..3 {
            assert!(matches!(found(&ranges, 60, 40), Ok(60)));
            assert!(matches!(found(&ranges, 60, 41), Err(Error::Range { offset: 60, len: 41, size: 100, .. })));
            assert!(matches!(found(&ranges, 100, 1), Err(Error::Foreign { .. })));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| ranges.kill(&block(100)).expect("it is there"));
        });
        assert!(matches!(found(&ranges, 60, 40), Err(Error::Foreign { call: "copy", .. })), "dead");
        ranges.remove(&block(100)).expect("it was killed");
        ranges.insert(START, range(50));
        assert!(matches!(found(&ranges, 60, 40), Err(Error::Foreign { .. })), "another, shorter one is there now");
        assert!(matches!(found(&ranges, 10, 40), Ok(10)));
        ranges.kill(&block(50)).expect("it is there");
        assert!(matches!(found(&ranges, 10, 40), Err(Error::Foreign { .. })), "dead");
    }

    #[test]
    fn cached_ranges_of_one_backend_are_not_used_for_another() {
        let (ranges, others) = (Ranges::default(), Ranges::default());
        ranges.insert(START, range(100));
        assert!(matches!((found(&ranges, 0, 1), found(&others, 0, 1)), (Ok(0), Err(Error::Foreign { .. }))));
        drop(ranges);
        let later = Ranges::default();
        assert!(found(&later, 0, 1).is_err());
    }
}
