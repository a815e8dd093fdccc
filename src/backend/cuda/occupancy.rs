//! [`Occupancy`]: the persistent kernels of a device, and whether another fits beside them. `launch.rs` chooses the shape of a launch by it.
//!
//! All blocks of a persistent kernel must be resident at once, because they may wait for each other. `Occupancy` has a device's persistent kernels. Each block
//! takes a share of a multiprocessor, by the driver's occupancy, and the model puts it on the least loaded one, as devices do. Of a stream only the largest
//! kernel counts: its kernels run in sequence.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::backend::Ticket;
use crate::{Error, Result};

#[derive(Default)]
pub(super) struct Occupancy(Mutex<Vec<Resident>>);

#[derive(Clone, Copy)]
pub(super) struct Resident {
    pub ticket: Ticket,
    pub groups: u32,
    /// The part of a multiprocessor that a block takes, in units of 1 / [`WHOLE`].
    pub share: u64,
}

/// The capacity of a multiprocessor: a multiple of each number from 1 to 32, the blocks per multiprocessor of today's devices.
const WHOLE: u64 = 144_403_552_893_600;

#[derive(Clone, Copy)]
pub(super) struct Fit {
    /// Blocks that fit on one multiprocessor.
    pub per_processor: u32,
    pub processors: u32,
}

impl Fit {
    /// Returns the number of blocks that fit on an idle device.
    pub const fn max_groups(self) -> u32 {
        self.per_processor.saturating_mul(self.processors)
    }

    pub fn check(self, groups: u32) -> Result<()> {
        if groups == 0 || groups > self.max_groups() {
            return Err(Error::Size { what: "number of groups", asked: groups.into(), least: 1, most: self.max_groups().into() });
        }
        Ok(())
    }

    fn share(self) -> u64 {
        WHOLE.div_ceil(self.per_processor.max(1).into())
    }

    pub fn free_groups(self, others: &[Resident]) -> u32 {
        let mut loads = std::vec![(0, self.processors)];
        others.iter().for_each(|other| other.load(&mut loads, self.processors.max(1)));
        let left = |load| (u128::from(WHOLE.saturating_sub(load)) * u128::from(self.per_processor) / u128::from(WHOLE)) as u32;
        loads.into_iter().fold(0, |groups, (load, count)| groups.saturating_add(left(load).saturating_mul(count)))
    }
}

impl Occupancy {
    /// Held by a slow launch during its check, and by the launch of a persistent kernel until the kernel is listed.
    pub fn lock(&self) -> MutexGuard<'_, Vec<Resident>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resident {
    pub fn new(ticket: Ticket, fit: Fit, groups: u32) -> Self {
        Self { ticket, groups, share: fit.share() }
    }

    /// `loads` are pairs of a load and the number of multiprocessors with it.
    fn load(&self, loads: &mut Vec<(u64, u32)>, processors: u32) {
        let (rows, mut rest) = (u64::from(self.groups / processors), self.groups % processors);
        let more = |load: u64, groups| load.saturating_add(self.share.saturating_mul(groups));
        loads.sort_unstable();
        let mut split = None;
        for (load, count) in &mut *loads {
            if rest == 0 {
                *load = more(*load, rows);
                continue;
            }
            if rest < *count {
                split = Some((more(*load, rows), *count - rest));
                *count = rest;
            }
            *load = more(*load, rows + 1);
            rest -= *count;
        }
        loads.extend(split);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::StreamId;

    fn resident(fit: Fit, groups: u32) -> Resident {
        Resident::new(Ticket { stream: StreamId::next(), number: 1 }, fit, groups)
    }

    #[test]
    fn free_residency_is_counted_per_multiprocessor() {
        let (small, large) = (Fit { per_processor: 16, processors: 4 }, Fit { per_processor: 3, processors: 4 });
        let beside = |groups: u32| small.free_groups(&[resident(small, groups)]);
        assert_eq!((small.max_groups(), small.free_groups(&[]), [1, 4, 5, 64, 65].map(beside)), (64, 64, [63, 60, 59, 0, 0]));
        assert_eq!(large.free_groups(&[resident(small, 1)]), 3 + 3 + 3 + 2, "one of four has room for two and a bit");
        assert_eq!(large.share() * 3, WHOLE, "thirds make a whole");
        assert_eq!(small.free_groups(&[resident(large, 4)]), 40, "ten and a bit of sixteen");
        let [two, one] = [resident(large, 2), resident(small, 1)];
        assert_eq!((large.free_groups(&[two]), large.free_groups(&[two, two]), large.free_groups(&[two, one, one])), (10, 8, 8));
        assert_eq!(large.free_groups(&[one; 12]), 8, "three small ones on each, where a third of one is five");
        let odd = Fit { per_processor: u32::MAX, processors: u32::MAX };
        assert_eq!((odd.max_groups(), odd.free_groups(&[resident(odd, u32::MAX)])), (u32::MAX, u32::MAX));
        let none = Fit { per_processor: 0, processors: 0 };
        assert_eq!(none.free_groups(&[resident(none, 1)]), 0);
    }
}
