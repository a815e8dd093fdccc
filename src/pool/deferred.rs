//! [`Deferred`]: parts on their way back to the heap, whose records are fetched meanwhile.
//!
//! Of a hundred thousand parts a record is a line from far away, and joining reads a part's and then its neighbours': a processor that waits
//! for one after the other does little else. So a part is joined some others later. Its record is asked for when it comes, and its neighbours'
//! when it is half way.

use super::heap::PartId;

/// How many others come before a part is joined.
const OTHERS: usize = 8;

/// In the order in which they came.
#[derive(Default)]
pub(super) struct Deferred {
    parts: [Option<PartId>; OTHERS],
    /// The place of the oldest, which the next takes.
    next: usize,
}

/// Whose turn it is when one comes.
pub(super) struct Due {
    /// To have its neighbours asked for.
    pub half_way: Option<PartId>,
    /// To be joined.
    pub over: Option<PartId>,
}

impl Deferred {
    /// Adds one.
    pub fn pass(&mut self, part: PartId) -> Due {
        let over = self.parts[self.next % OTHERS].replace(part);
        let half_way = self.parts[(self.next + OTHERS / 2) % OTHERS];
        self.next = (self.next + 1) % OTHERS;
        Due { half_way, over }
    }

    /// Takes one out; `None` when there is none.
    pub fn take(&mut self) -> Option<PartId> {
        self.parts.iter_mut().find_map(Option::take)
    }

    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }
}

/// Asks for the line where something begins, and does not wait for it.
#[inline(always)]
pub(super) fn fetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every such processor has the instruction, which changes nothing that a program sees.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(place).cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) core::ptr::from_ref(place), options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_half_way_once_and_over_once_and_none_is_lost() {
        let part = |index| PartId::from_index(index).expect("not 0");
        let mut deferred = Deferred::default();
        assert!(deferred.is_empty());
        for number in 1..100 {
            let due = deferred.pass(part(number));
            let before = |others: usize| number.checked_sub(others as u32).and_then(PartId::from_index);
            assert_eq!((due.half_way, due.over), (before(OTHERS / 2), before(OTHERS)));
        }
        let mut left: std::vec::Vec<_> = core::iter::from_fn(|| deferred.take()).map(PartId::index).collect();
        left.sort_unstable();
        assert_eq!(left, (100 - OTHERS..100).collect::<std::vec::Vec<_>>());
        assert!(deferred.is_empty());
    }
}
