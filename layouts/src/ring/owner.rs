//! The word `owner` of either end: a generation, which each owner counts up, above the state in the low two bits. For several handles it counts them
//! instead.

use crate::{RmwWord, Word};

/// No owner so far.
pub const FREE: u64 = 0;
pub const OPEN: u64 = 1;
/// The last owner has left.
pub const CLOSED: u64 = 2;
/// The bits of the state.
pub const STATE: u64 = 3;
const ONE: u64 = STATE + 1;

/// Returns the number of owners so far.
pub const fn generation(owner: u64) -> u64 {
    owner / ONE
}

/// Opens the single owner's next generation. Other words order published data.
pub fn open<W: Word>(owner: &W) {
    let generation = owner.load() & !STATE;
    owner.store(generation.wrapping_add(ONE) | OPEN);
}

/// Stores that the single owner has left.
pub fn close<W: Word>(owner: &W) {
    let generation = owner.load() & !STATE;
    // SYNC POINT: end closed. Pairs with is_closed, and in another process with `src/shared/liveness.rs`.
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
