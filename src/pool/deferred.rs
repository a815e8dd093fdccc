//! [`Deferred`]: parts wait in a short queue before they coalesce, while their records are prefetched.
//!
//! A part's record is prefetched on entry, its neighbours' halfway.

use super::heap::PartId;

/// Later frees before a part coalesces.
const OTHERS: usize = 8;

#[derive(Default)]
pub(super) struct Deferred {
    /// With the times of their last uses.
    parts: [Option<(PartId, u64)>; OTHERS],
    next: usize,
}

pub(super) struct Due {
    /// Its neighbours are prefetched.
    pub half_way: Option<PartId>,
    /// It coalesces.
    pub over: Option<(PartId, u64)>,
}

impl Deferred {
    pub fn pass(&mut self, part: PartId, since: u64) -> Due {
        let over = self.parts[self.next % OTHERS].replace((part, since));
        let half_way = self.parts[(self.next + OTHERS / 2) % OTHERS].map(|(part, _)| part);
        self.next = (self.next + 1) % OTHERS;
        Due { half_way, over }
    }

    pub fn take(&mut self) -> Option<(PartId, u64)> {
        self.parts.iter_mut().find_map(Option::take)
    }

    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_half_way_and_due_exactly_once() {
        let part = |index| PartId::from_index(index).expect("not 0");
        let mut deferred = Deferred::default();
        assert!(deferred.is_empty());
        for number in 1..100 {
            let due = deferred.pass(part(number), u64::from(number));
            let before = |others: usize| number.checked_sub(others as u32).and_then(PartId::from_index);
            assert_eq!((due.half_way, due.over.map(|(part, _)| part)), (before(OTHERS / 2), before(OTHERS)));
            assert!(due.over.is_none_or(|(part, since)| part.index() as u64 == since), "with the time of its last use");
        }
        let mut left: std::vec::Vec<_> = core::iter::from_fn(|| deferred.take()).map(|(part, _)| part.index()).collect();
        left.sort_unstable();
        assert_eq!(left, (100 - OTHERS..100).collect::<std::vec::Vec<_>>());
        assert!(deferred.is_empty());
    }
}
