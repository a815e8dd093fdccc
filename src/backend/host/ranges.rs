//! Which addresses a kernel may reach: the live ranges of one device, and who keeps each alive.

use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::vec::Vec;

use super::mapping::Place;

/// Keeps a range alive.
pub(super) type Owner = Arc<dyn Send + Sync>;

/// INVARIANT: ranges do not overlap, and each is mapped at its place until it is removed.
#[derive(Default)]
pub(super) struct Ranges {
    by_address: RwLock<BTreeMap<u64, Range>>,
}

struct Range {
    bytes: u64,
    place: Place,
    owner: Weak<dyn Send + Sync>,
}

impl Ranges {
    pub fn insert(&self, address: u64, bytes: u64, place: Place, owner: Weak<dyn Send + Sync>) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).insert(address, Range { bytes, place, owner });
    }

    /// Before the memory itself goes.
    pub fn remove(&self, address: u64) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }

    /// The place of `bytes` bytes within one range.
    pub fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.with(address, |range, offset| {
            let fits = bytes <= range.bytes - offset;
            // SAFETY: `offset` is within the range, which is mapped while it is listed.
            fits.then(|| unsafe { range.place.0.add(offset as usize) })
        })?
    }

    /// The owners of those numbers that are addresses in live ranges.
    pub fn owners(&self, numbers: &[u64]) -> Vec<Owner> {
        numbers.iter().filter_map(|&number| self.with(number, |range, _| range.owner.upgrade())?).collect()
    }

    /// The range that an address is in, and how far in. No owner may be dropped under this lock: the last one removes its range.
    fn with<R>(&self, address: u64, look: impl FnOnce(&Range, u64) -> R) -> Option<R> {
        let ranges = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let (&start, range) = ranges.range(..=address).next_back()?;
        let offset = address - start;
        (offset < range.bytes).then(|| look(range, offset))
    }
}
