//! [`Lent`]: whether a thread may sleep at a ring's wait word.
//!
//! Only a borrower of the wait words sleeps. Until the first borrow, a publication needs no barrier, which would wait for all copies.

use ringmem_layouts::Word;

use crate::barrier::Barrier;

pub(super) struct Lent<W>(W);

const NEVER: u64 = 0;
const ASKED_FOR: u64 = 1;
const LENT: u64 = 2;

impl<W: Word> Lent<W> {
    pub fn new() -> Self {
        Self(W::new(NEVER))
    }

    #[inline]
    pub fn lend<B: Barrier>(&self) {
        // SYNC POINT: wait words lent, by another thread. Pairs with lend_first.
        if self.0.load_acquire() != LENT {
            self.lend_first::<B>();
        }
    }

    #[cold]
    fn lend_first<B: Barrier>(&self) {
        // SYNC POINT: wait words requested. Pairs with may_be_heard: the barriers put one side's store before the other's load.
        self.0.store(ASKED_FOR);
        // If refused, the next call tries again; until then, a publication is seen late.
        if B::seldom() {
            // SYNC POINT: wait words lent. Pairs with lend.
            self.0.store_release(LENT);
        }
    }

    /// Returns whether a thread that has not seen the publication may be asleep.
    #[inline]
    pub fn may_be_heard<B: Barrier>(&self) -> bool {
        B::often();
        // SYNC POINT: wait words requested. Pairs with lend_first.
        self.0.load() != NEVER
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::barrier::tests::{Both, Weakened};
    use crate::loom_machine::{LoomWord, STRONG};

    fn scene<B: Barrier>() {
        loom::model(|| {
            let shared = Arc::new((Lent::<LoomWord<STRONG>>::new(), LoomWord::<STRONG>::new(0)));
            let sleeper = |shared: Arc<(Lent<LoomWord<STRONG>>, LoomWord<STRONG>)>| {
                move || {
                    shared.0.lend::<B>();
                    shared.1.load() == 1
                }
            };
            let sleepers = [thread::spawn(sleeper(Arc::clone(&shared))), thread::spawn(sleeper(Arc::clone(&shared)))];
            shared.1.store_release(1);
            let is_rung = shared.0.may_be_heard::<B>();
            for sleeper in sleepers {
                assert!(sleeper.join().unwrap() | is_rung, "asleep for ever");
            }
        });
    }

    #[test]
    fn a_sleeper_that_missed_a_publication_is_woken() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "asleep for ever")]
    fn without_the_publisher_barrier_a_wake_up_is_lost() {
        scene::<Weakened>();
    }
}
