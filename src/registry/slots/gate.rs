//! [`Gate`]: who may be at a slot's value, in one word.
//!
//! 1. Any number of shared leases, or one exclusive lease, or nobody: taking one is one read-modify-write.
//! 2. A gate that was closed admits nobody. Exactly one caller learns that nobody is left: the one that closed it, or the last that leaves.
//!    The value is that caller's, and so is the next opening.
//! 3. A generation names one filling of the slot. Who asks with another is refused, and nothing changes.
//!
//! High half: the generation. Low half: the leases, and above them what is so besides.

use ringmem_layouts::RmwWord;

/// Nobody's: empty, or on its way in or out.
const VACANT: u64 = 1 << 31;
/// Admits nobody any more.
const CLOSED: u64 = 1 << 30;
/// Somebody is at the value alone ...
const HELD: u64 = 1 << 29;
/// ... for so short a time that others wait for it.
const MOVING: u64 = 1 << 28;
const LEASES: u64 = MOVING - 1;

/// The word of a slot. Written by whoever comes and goes.
pub(super) struct Gate<W>(W);

/// How long somebody wants to be at a value alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// As long as it takes: others are refused meanwhile.
    Lease,
    /// As long as a copy takes: others wait.
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

/// Why a gate does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The slot is at another generation, or empty and will be.
    Stale(u32),
    /// It was closed, with so many leases left; one that is exclusive counts.
    Closed(u32),
    /// So many have shared leases; 0 for one that is alone.
    Taken(u32),
    /// Somebody moves the value: ask again.
    Moving,
}

const fn generation(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn leases(word: u64) -> u32 {
    (word & LEASES) as u32 + (word & HELD != 0) as u32
}

/// Whether a word says that the slot is filled, open and of this generation.
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
    /// The gate of an empty slot whose first filling will be `generation`.
    pub fn vacant(generation: u32) -> Self {
        Self(W::new((generation as u64) << 32 | VACANT))
    }

    /// The generation of what is there, or of what will be.
    pub fn generation(&self) -> u32 {
        generation(self.0.load())
    }

    /// The generation of what is there; `None` where nothing is that could be had.
    pub fn open_generation(&self) -> Option<u32> {
        let word = self.0.load();
        (word & (VACANT | CLOSED) == 0).then_some(generation(word))
    }

    /// How many leases there are, exclusive or not.
    pub fn leases(&self) -> u32 {
        leases(self.0.load())
    }

    /// Opens it for its generation, which the caller says. The caller has filled the slot, which was its own.
    pub fn open(&self, generation: u32) {
        // SYNC POINT: slot filled. Pairs with share and hold.
        self.0.store_release((generation as u64) << 32);
    }

    /// Makes it an empty slot's. The caller has emptied it after being told that it is its own.
    pub fn vacate(&self, next: u32) {
        // The slot passes to who fills it next under the lock of those that are empty.
        self.0.store((next as u64) << 32 | VACANT);
    }

    /// Takes a shared lease.
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

    /// Gives a shared lease back: whether the gate is closed and this was the last, so that the value is the caller's.
    #[inline(always)]
    pub fn leave(&self) -> bool {
        // SYNC POINT: value left. Pairs with hold, close and whoever leaves last.
        let before = self.0.fetch_add(1_u64.wrapping_neg());
        before & (CLOSED | HELD | LEASES) == CLOSED | 1
    }

    /// Takes the exclusive lease.
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

    /// Gives the exclusive lease back: whether the gate was closed meanwhile, so that the value is the caller's.
    pub fn let_go(&self, hold: Hold) -> bool {
        // SYNC POINT: value left. Pairs with share and hold.
        let before = self.0.fetch_add(hold.bits().wrapping_neg());
        before & CLOSED != 0
    }

    /// Admits nobody from now on: how many leases are left. With none the value is the caller's.
    pub fn close(&self, asked: u32) -> Result<u32, Refusal> {
        self.close_unless(MOVING, asked)
    }

    /// The same for who is at the value alone, and so the one that is left.
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
    fn shared_leases_are_counted_and_keep_exclusive_ones_out() {
        let gate = gate();
        assert_eq!((gate.share(7), gate.share(7), gate.leases()), (Ok(()), Ok(()), 2));
        assert_eq!(gate.hold(7, Hold::Lease), Err(Refusal::Taken(2)));
        assert_eq!((gate.leave(), gate.leave(), gate.leases()), (false, false, 0));
        assert_eq!(gate.hold(7, Hold::Lease), Ok(()));
        assert_eq!((gate.share(7), gate.hold(7, Hold::Move)), (Err(Refusal::Taken(0)), Err(Refusal::Taken(0))));
        assert_eq!((gate.let_go(Hold::Lease), gate.share(7)), (false, Ok(())));
    }

    #[test]
    fn who_moves_a_value_is_waited_for() {
        let gate = gate();
        assert_eq!(gate.hold(7, Hold::Move), Ok(()));
        assert_eq!((gate.share(7), gate.hold(7, Hold::Lease)), (Err(Refusal::Moving), Err(Refusal::Moving)));
        assert_eq!((gate.let_go(Hold::Move), gate.share(7)), (false, Ok(())));
    }

    #[test]
    fn a_closed_gate_is_the_last_one_s_that_leaves() {
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
    fn another_generation_is_refused_and_changes_nothing() {
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
