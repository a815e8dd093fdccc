//! The word `owner` of either end.

use crate::{RmwWord, Word};

#[cfg(test)]
const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;
const STATE: u64 = 3;
const ONE: u64 = 4;

/// Opens the single owner's next generation. Other words order published data.
pub(super) fn open<W: Word>(owner: &W) {
    let generation = owner.load() & !STATE;
    owner.store(generation.wrapping_add(ONE) | OPEN);
}

pub(super) fn close<W: Word>(owner: &W) {
    let generation = owner.load() & !STATE;
    // SYNC POINT: end closed. Pairs with is_closed.
    owner.store_release(generation | CLOSED);
}

/// If closed, the end's published messages are visible.
pub(super) fn is_closed<W: Word>(owner: &W) -> bool {
    // SYNC POINT: end closed. Pairs with close and leave.
    owner.load_acquire() & STATE == CLOSED
}

pub(super) fn enter<W: RmwWord>(owner: &W) {
    let mut seen = owner.load();
    loop {
        match owner.compare_exchange(seen, (seen & !STATE).wrapping_add(ONE) | OPEN) {
            Ok(_) => return,
            Err(found) => seen = found,
        }
    }
}

pub(super) fn leave<W: RmwWord>(owner: &W) {
    let mut seen = owner.load();
    loop {
        let others = (seen & !STATE).saturating_sub(ONE);
        let state = if others == 0 { CLOSED } else { OPEN };
        // SYNC POINT: end closed. Pairs with is_closed.
        match owner.compare_exchange(seen, others | state) {
            Ok(_) => return,
            Err(found) => seen = found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostWord;

    #[test]
    fn an_end_closes_with_its_last_handle() {
        let owner = HostWord::new(FREE);
        assert!(!is_closed(&owner));
        enter(&owner);
        enter(&owner);
        leave(&owner);
        assert!(!is_closed(&owner));
        leave(&owner);
        assert!(is_closed(&owner));
        enter(&owner);
        assert_eq!(Word::load(&owner), ONE | OPEN);
    }

    #[test]
    fn each_owner_increments_the_generation() {
        let owner = HostWord::new(FREE);
        open(&owner);
        assert_eq!(Word::load(&owner), ONE | OPEN);
        close(&owner);
        assert_eq!(Word::load(&owner), ONE | CLOSED);
        open(&owner);
        assert_eq!(Word::load(&owner), (2 * ONE) | OPEN);
    }
}
