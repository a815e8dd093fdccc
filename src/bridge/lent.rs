//! [`Lent`]: whether anybody may sleep at the bells of a ring, for a bridge that publishes there all the time.
//!
//! Only who has asked for the bells can count itself at one. Until somebody has, a publication is a store and a load of two words, without a barrier
//! between them, which would wait until all that was copied is stored; who asks first pays for both.

use ringmem_layouts::Word;

use crate::barrier::Barrier;

/// What is known of the bells: nobody has asked for them, somebody is about to have them, somebody has them.
pub(super) struct Lent<W>(W);

const NEVER: u64 = 0;
const ASKED_FOR: u64 = 1;
const LENT: u64 = 2;

impl<W: Word> Lent<W> {
    pub fn new() -> Self {
        Self(W::new(NEVER))
    }

    /// Before the bells are given to anybody.
    #[inline]
    pub fn lend<B: Barrier>(&self) {
        // SYNC POINT: bells lent, by another thread. Pairs with lend_first.
        if self.0.load_acquire() != LENT {
            self.lend_first::<B>();
        }
    }

    #[cold]
    fn lend_first<B: Barrier>(&self) {
        // SYNC POINT: bells asked for. Pairs with may_be_heard: the barriers put one side's store before the other's load.
        self.0.store(ASKED_FOR);
        // Where that is refused the next call asks again, and what was published meanwhile may be seen late, not never.
        if B::seldom() {
            // SYNC POINT: bells lent. Pairs with lend.
            self.0.store_release(LENT);
        }
    }

    /// After something was published: whether anybody may sleep who has not seen it.
    #[inline]
    pub fn may_be_heard<B: Barrier>(&self) -> bool {
        B::often();
        // SYNC POINT: bells asked for. Pairs with lend_first.
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

    /// One publishes, two may go to sleep, one of whom may have the bells from the other: whoever has not seen it is seen.
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
    fn whoever_has_not_seen_what_was_published_is_rung_for() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "asleep for ever")]
    fn without_the_publisher_s_barrier_somebody_is_not() {
        scene::<Weakened>();
    }
}
