//! [`Gate`]: a slot's access word.
//!
//! 1. It counts shared leases, or one exclusive lease. Taking one is one read-modify-write.
//! 2. A closed gate grants no lease. One caller gets the value: the one that closed it without leases, or the last to leave.
//! 3. A request with another generation than the present value's fails and changes nothing.
//!
//! High half: the generation. Low half: flags and the number of leases.

use ringmem_layouts::RmwWord;

/// Vacant: empty, being filled or being emptied.
const VACANT: u64 = 1 << 31;
/// Closed: grants no lease.
const CLOSED: u64 = 1 << 30;
/// An exclusive lease exists ...
const HELD: u64 = 1 << 29;
/// ... so briefly that others wait for it.
const MOVING: u64 = 1 << 28;
const LEASES: u64 = MOVING - 1;

pub(crate) struct Gate<W>(W);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// A lease: concurrent requests fail.
    Lease,
    /// A copy: concurrent requests wait.
    Move,
}

impl Hold {
    const fn bits(self) -> u64 {
        match self {
            Self::Lease => HELD,
            Self::Move => HELD | MOVING,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The present value's generation, or the next one's.
    Stale(u32),
    /// The leases left.
    Closed(u32),
    /// The shared leases; 0 for an exclusive one.
    Taken(u32),
    Moving,
}

const fn generation(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn leases(word: u64) -> u32 {
    (word & LEASES) as u32 + (word & HELD != 0) as u32
}

fn is_open(word: u64, asked: u32) -> Result<(), Refusal> {
    if generation(word) != asked || word & VACANT != 0 {
        return Err(Refusal::Stale(generation(word)));
    }
    if word & CLOSED != 0 {
        return Err(Refusal::Closed(leases(word)));
    }
    Ok(())
}

impl<W: RmwWord> Gate<W> {
    pub fn vacant(generation: u32) -> Self {
        Self(W::new((generation as u64) << 32 | VACANT))
    }

    pub fn generation(&self) -> u32 {
        generation(self.0.load())
    }

    pub fn open_generation(&self) -> Option<u32> {
        let word = self.0.load();
        (word & (VACANT | CLOSED) == 0).then_some(generation(word))
    }

    pub fn leases(&self) -> u32 {
        leases(self.0.load())
    }

    /// The caller has filled the slot.
    pub fn open(&self, generation: u32) {
        // SYNC POINT: slot filled. Pairs with share and hold.
        self.0.store_release((generation as u64) << 32);
    }

    /// The caller has taken the value out.
    pub fn vacate(&self, next: u32) {
        self.0.store((next as u64) << 32 | VACANT);
    }

    #[inline(always)]
    pub fn share(&self, asked: u32) -> Result<(), Refusal> {
        let mut word = self.0.load();
        loop {
            is_open(word, asked)?;
            if word & HELD != 0 {
                return Err(if word & MOVING != 0 { Refusal::Moving } else { Refusal::Taken(0) });
            }
            if word & LEASES == LEASES {
                return Err(Refusal::Taken(leases(word)));
            }
            // SYNC POINT: slot filled. Pairs with open. And value left: pairs with let_go.
            match self.0.compare_exchange(word, word + 1) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Ends a shared lease; returns whether the value is the caller's.
    #[inline(always)]
    pub fn leave(&self) -> bool {
        // SYNC POINT: value left. Pairs with hold, close and the last lease.
        let before = self.0.fetch_add(1_u64.wrapping_neg());
        before & (CLOSED | HELD | LEASES) == CLOSED | 1
    }

    pub fn hold(&self, asked: u32, hold: Hold) -> Result<(), Refusal> {
        let mut word = self.0.load();
        loop {
            is_open(word, asked)?;
            if word & (HELD | LEASES) != 0 {
                return Err(if word & MOVING != 0 { Refusal::Moving } else { Refusal::Taken((word & LEASES) as u32) });
            }
            // SYNC POINT: slot filled. Pairs with open. And value left: pairs with leave and let_go.
            match self.0.compare_exchange(word, word | hold.bits()) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Ends the exclusive lease; returns whether the value is the caller's.
    pub fn let_go(&self, hold: Hold) -> bool {
        // SYNC POINT: value left. Pairs with share and hold.
        let before = self.0.fetch_add(hold.bits().wrapping_neg());
        before & CLOSED != 0
    }

    /// Closes the gate; returns the leases left. Without any, the value is the caller's.
    pub fn close(&self, asked: u32) -> Result<u32, Refusal> {
        self.close_unless(MOVING, asked)
    }

    /// As [`close`](Self::close), by the exclusive lease, which is the one left.
    pub fn close_alone(&self, asked: u32) -> Result<u32, Refusal> {
        self.close_unless(0, asked)
    }

    fn close_unless(&self, moving: u64, asked: u32) -> Result<u32, Refusal> {
        let mut word = self.0.load();
        loop {
            is_open(word, asked)?;
            if word & moving != 0 {
                return Err(Refusal::Moving);
            }
            // SYNC POINT: value left. Pairs with leave and let_go.
            match self.0.compare_exchange(word, word | CLOSED) {
                Ok(_) => return Ok(leases(word)),
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostWord;

    fn gate() -> Gate<HostWord> {
        let gate = Gate::vacant(7);
        gate.open(7);
        gate
    }

    #[test]
    fn shared_leases_are_counted_and_exclude_exclusive_ones() {
        let gate = gate();
        assert_eq!((gate.share(7), gate.share(7), gate.leases()), (Ok(()), Ok(()), 2));
        assert_eq!(gate.hold(7, Hold::Lease), Err(Refusal::Taken(2)));
        assert_eq!((gate.leave(), gate.leave(), gate.leases()), (false, false, 0));
        assert_eq!(gate.hold(7, Hold::Lease), Ok(()));
        assert_eq!((gate.share(7), gate.hold(7, Hold::Move)), (Err(Refusal::Taken(0)), Err(Refusal::Taken(0))));
        assert_eq!((gate.let_go(Hold::Lease), gate.share(7)), (false, Ok(())));
    }

    #[test]
    fn a_move_makes_leases_wait() {
        let gate = gate();
        assert_eq!(gate.hold(7, Hold::Move), Ok(()));
        assert_eq!((gate.share(7), gate.hold(7, Hold::Lease)), (Err(Refusal::Moving), Err(Refusal::Moving)));
        assert_eq!((gate.let_go(Hold::Move), gate.share(7)), (false, Ok(())));
    }

    #[test]
    fn leave_returns_true_for_the_last_lease_after_close() {
        let gate = gate();
        assert_eq!((gate.share(7), gate.share(7), gate.close(7)), (Ok(()), Ok(()), Ok(2)));
        assert_eq!((gate.share(7), gate.close(7)), (Err(Refusal::Closed(2)), Err(Refusal::Closed(2))));
        assert_eq!((gate.leave(), gate.leave()), (false, true));
        let gate = self::gate();
        assert_eq!((gate.hold(7, Hold::Lease), gate.close(7), gate.let_go(Hold::Lease)), (Ok(()), Ok(1), true));
        let gate = self::gate();
        assert_eq!((gate.close(7), gate.leases()), (Ok(0), 0));
    }

    #[test]
    fn another_generation_is_rejected_and_changes_nothing() {
        let gate = gate();
        for stale in [0, 6, 8, u32::MAX] {
            assert_eq!(gate.share(stale), Err(Refusal::Stale(7)));
            assert_eq!(gate.hold(stale, Hold::Lease), Err(Refusal::Stale(7)));
            assert_eq!(gate.close(stale), Err(Refusal::Stale(7)));
        }
        assert_eq!((gate.leases(), gate.close(7)), (0, Ok(0)));
        gate.vacate(8);
        assert_eq!((gate.share(8), gate.open_generation()), (Err(Refusal::Stale(8)), None), "empty");
        gate.open(8);
        assert_eq!((gate.share(7), gate.share(8), gate.open_generation()), (Err(Refusal::Stale(8)), Ok(()), Some(8)));
    }
}
