//! [`Residents`]: kernels that stay until they are told to leave, and what they leave of a device to others.
//!
//! A kernel's groups may wait for each other, so they must all be there at once. A multiprocessor holds so many groups of a kernel, by the driver's
//! occupancy; each takes that share of it. A device gives a group to the multiprocessor that is least loaded: so it is counted here. Of the kernels of one
//! stream one runs at a time: the one that takes the most counts.

use core::cmp::Reverse;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Shared;
use crate::backend::{StreamId, Ticket};
use crate::{Error, Result};

/// The kernels of a device that stay, as far as they were not seen to have left.
#[derive(Default)]
pub(super) struct Residents(Mutex<Vec<Resident>>);

#[derive(Clone, Copy)]
pub(super) struct Resident {
    ticket: Ticket,
    groups: u32,
    /// What each group takes of a multiprocessor, in parts of [`WHOLE`].
    share: u64,
}

/// A multiprocessor: a multiple of each number of groups that one has held so far, 1 to 32.
const WHOLE: u64 = 144_403_552_893_600;

/// How a kernel fits on a device.
#[derive(Clone, Copy)]
pub(super) struct Fit {
    /// Groups that a multiprocessor holds.
    pub each: u32,
    pub processors: u32,
}

impl Fit {
    /// Groups that fit where nothing else is.
    pub const fn most(self) -> u32 {
        self.each.saturating_mul(self.processors)
    }

    /// Refuses what fits not even where nothing else is.
    pub fn holds(self, groups: u32) -> Result<()> {
        if groups == 0 || groups > self.most() {
            return Err(Error::Size { what: "number of groups", asked: groups.into(), least: 1, most: self.most().into() });
        }
        Ok(())
    }

    /// What a group takes of a multiprocessor.
    fn share(self) -> u64 {
        WHOLE.div_ceil(self.each.max(1).into())
    }

    /// Groups that fit beside those of others.
    fn beside(self, others: &[Resident]) -> u32 {
        let mut loads = std::vec![(0, self.processors)];
        others.iter().for_each(|other| other.load(&mut loads, self.processors.max(1)));
        let left = |load| (u128::from(WHOLE.saturating_sub(load)) * u128::from(self.each) / u128::from(WHOLE)) as u32;
        loads.into_iter().fold(0, |groups, (load, count)| groups.saturating_add(left(load).saturating_mul(count)))
    }
}

impl Residents {
    /// Whoever holds this queues alone what is to run beside the others.
    pub fn lock(&self) -> MutexGuard<'_, Vec<Resident>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether groups of a kernel fit beside the kernels that stay on other streams; behind one of its own stream it comes when that has left.
    pub(super) fn fits(&self, residents: &mut Vec<Resident>, fit: Fit, groups: u32, on: StreamId) -> Result<()> {
        let before = residents.len();
        residents.retain(|resident| !self.is_reached(resident.ticket));
        self.launching.have_left(before - residents.len());
        if residents.is_empty() {
            return Ok(());
        }
        let mut others: Vec<_> = residents.iter().filter(|resident| resident.ticket.stream != on).copied().collect();
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

    /// Adds its groups to the loads of multiprocessors, each with how many have it.
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
    fn what_is_left_beside_others_is_counted_by_multiprocessors() {
        let (small, large) = (Fit { each: 16, processors: 4 }, Fit { each: 3, processors: 4 });
        let beside = |groups: u32| small.beside(&[resident(small, groups)]);
        assert_eq!((small.most(), small.beside(&[]), [1, 4, 5, 64, 65].map(beside)), (64, 64, [63, 60, 59, 0, 0]));
        assert_eq!(large.beside(&[resident(small, 1)]), 3 + 3 + 3 + 2, "one of four has room for two and a bit");
        assert_eq!(large.share() * 3, WHOLE, "thirds make a whole");
        assert_eq!(small.beside(&[resident(large, 4)]), 40, "ten and a bit of sixteen");
        // Each goes where the least is: a group on each of two, then one on each of the others.
        let [two, one] = [resident(large, 2), resident(small, 1)];
        assert_eq!((large.beside(&[two]), large.beside(&[two, two]), large.beside(&[two, one, one])), (10, 8, 8));
        assert_eq!(large.beside(&[one; 12]), 8, "three small ones on each, where a third of one is five");
        // What no device has said so far.
        let odd = Fit { each: u32::MAX, processors: u32::MAX };
        assert_eq!((odd.most(), odd.beside(&[resident(odd, u32::MAX)])), (u32::MAX, u32::MAX));
        let none = Fit { each: 0, processors: 0 };
        assert_eq!(none.beside(&[resident(none, 1)]), 0);
    }
}
