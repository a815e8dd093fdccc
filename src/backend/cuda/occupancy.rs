//! [`Occupancy`]: a device's persistent kernels, and the capacity that they leave.
//!
//! All groups of a kernel must be resident at once: they may wait for each other. Each takes a share of a multiprocessor, by the driver's
//! occupancy: as devices do, the model picks the least loaded one. Of a stream only the largest kernel counts.

use core::cmp::Reverse;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Inner;
use crate::backend::{StreamId, Ticket};
use crate::{Error, Result};

#[derive(Default)]
pub(super) struct Occupancy(Mutex<Vec<Resident>>);

#[derive(Clone, Copy)]
pub(super) struct Resident {
    ticket: Ticket,
    groups: u32,
    /// In units of 1 / [`WHOLE`] multiprocessor.
    share: u64,
}

/// A multiple of 1 to 32, the groups per multiprocessor so far.
const WHOLE: u64 = 144_403_552_893_600;

#[derive(Clone, Copy)]
pub(super) struct Fit {
    /// Groups per multiprocessor.
    pub each: u32,
    pub processors: u32,
}

impl Fit {
    /// On an idle device.
    pub const fn most(self) -> u32 {
        self.each.saturating_mul(self.processors)
    }

    pub fn holds(self, groups: u32) -> Result<()> {
        if groups == 0 || groups > self.most() {
            return Err(Error::Size { what: "number of groups", asked: groups.into(), least: 1, most: self.most().into() });
        }
        Ok(())
    }

    fn share(self) -> u64 {
        WHOLE.div_ceil(self.each.max(1).into())
    }

    fn beside(self, others: &[Resident]) -> u32 {
        let mut loads = std::vec![(0, self.processors)];
        others.iter().for_each(|other| other.load(&mut loads, self.processors.max(1)));
        let left = |load| (u128::from(WHOLE.saturating_sub(load)) * u128::from(self.each) / u128::from(WHOLE)) as u32;
        loads.into_iter().fold(0, |groups, (load, count)| groups.saturating_add(left(load).saturating_mul(count)))
    }
}

impl Occupancy {
    /// Only the holder queues a persistent kernel, or one beside them.
    pub fn lock(&self) -> MutexGuard<'_, Vec<Resident>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Kernels of a stream run in sequence.
    pub(super) fn fits(&self, occupancy: &mut Vec<Resident>, fit: Fit, groups: u32, on: StreamId) -> Result<()> {
        let before = occupancy.len();
        occupancy.retain(|resident| !self.is_complete(resident.ticket));
        self.launching.have_left(before - occupancy.len());
        if occupancy.is_empty() {
            return Ok(());
        }
        let mut others: Vec<_> = occupancy.iter().filter(|resident| resident.ticket.stream != on).copied().collect();
        others.sort_unstable_by_key(|other| (other.ticket.stream, Reverse(other.share.saturating_mul(other.groups.into()))));
        others.dedup_by_key(|other| other.ticket.stream);
        let free = fit.beside(&others);
        if groups > free {
            let resident = others.iter().map(|other| u64::from(other.groups)).sum();
            return Err(Error::Residency { asked: groups.into(), free: free.into(), most: fit.most().into(), resident });
        }
        Ok(())
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
        let (small, large) = (Fit { each: 16, processors: 4 }, Fit { each: 3, processors: 4 });
        let beside = |groups: u32| small.beside(&[resident(small, groups)]);
        assert_eq!((small.most(), small.beside(&[]), [1, 4, 5, 64, 65].map(beside)), (64, 64, [63, 60, 59, 0, 0]));
        assert_eq!(large.beside(&[resident(small, 1)]), 3 + 3 + 3 + 2, "one of four has room for two and a bit");
        assert_eq!(large.share() * 3, WHOLE, "thirds make a whole");
        assert_eq!(small.beside(&[resident(large, 4)]), 40, "ten and a bit of sixteen");
        let [two, one] = [resident(large, 2), resident(small, 1)];
        assert_eq!((large.beside(&[two]), large.beside(&[two, two]), large.beside(&[two, one, one])), (10, 8, 8));
        assert_eq!(large.beside(&[one; 12]), 8, "three small ones on each, where a third of one is five");
        let odd = Fit { each: u32::MAX, processors: u32::MAX };
        assert_eq!((odd.most(), odd.beside(&[resident(odd, u32::MAX)])), (u32::MAX, u32::MAX));
        let none = Fit { each: 0, processors: 0 };
        assert_eq!(none.beside(&[resident(none, 1)]), 0);
    }
}
