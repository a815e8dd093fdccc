//! [`Residents`]: kernels that stay until they are told to leave, and what they leave of a device to others.
//!
//! A kernel's groups may wait for each other, so they must all be there at once. A multiprocessor holds so many groups of a kernel, by the driver's
//! occupancy; each takes that share of it. Groups are spread evenly, so what others may have is what the fullest multiprocessor has left.

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
    /// Of a multiprocessor, in parts of [`WHOLE`].
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

    /// What so many groups take of a multiprocessor.
    fn share(self, groups: u32) -> u64 {
        let of_one = u64::from(groups.div_ceil(self.processors.max(1)));
        of_one.saturating_mul(WHOLE.div_ceil(u64::from(self.each.max(1))))
    }

    /// Groups that fit where so much of each multiprocessor is taken.
    fn beside(self, taken: u64) -> u32 {
        let each = u128::from(WHOLE.saturating_sub(taken)) * u128::from(self.each) / u128::from(WHOLE);
        // No more than `each`, which is 32 bits long.
        (each as u32).saturating_mul(self.processors)
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
        if groups == 0 || groups > fit.most() {
            return Err(Error::Size { asked: groups.into(), least: 1, most: fit.most().into() });
        }
        residents.retain(|resident| !self.is_reached(resident.ticket));
        let others = residents.iter().filter(|resident| resident.ticket.stream != on);
        let taken = others.clone().fold(0_u64, |sum, resident| sum.saturating_add(resident.share));
        let free = fit.beside(taken);
        if groups > free {
            let resident = others.map(|resident| u64::from(resident.groups)).sum();
            return Err(Error::Residency { asked: groups.into(), free: free.into(), most: fit.most().into(), resident });
        }
        Ok(())
    }
}

impl Resident {
    pub fn new(ticket: Ticket, fit: Fit, groups: u32) -> Self {
        Self { ticket, groups, share: fit.share(groups) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_beside_others_is_counted_by_the_fullest_multiprocessor() {
        let (small, large) = (Fit { each: 16, processors: 4 }, Fit { each: 3, processors: 4 });
        assert_eq!((small.most(), small.beside(0), small.beside(WHOLE), small.beside(u64::MAX)), (64, 64, 0, 0));
        // One group or four: a sixteenth of each at most. Five: two sixteenths.
        assert_eq!([1, 4, 5, 64].map(|groups| small.beside(small.share(groups))), [60, 60, 56, 0]);
        assert_eq!(large.beside(small.share(1)), 8, "two and a bit of three");
        assert_eq!(large.share(4) * 3, WHOLE, "thirds make a whole");
        assert_eq!(small.beside(large.share(4)), 40, "ten and a bit of sixteen");
        // What no device has said so far.
        let odd = Fit { each: u32::MAX, processors: u32::MAX };
        assert_eq!((odd.most(), odd.beside(odd.share(u32::MAX))), (u32::MAX, u32::MAX));
        assert_eq!(Fit { each: 0, processors: 0 }.beside(Fit { each: 0, processors: 0 }.share(1)), 0);
    }
}
