//! What must wait for its uses to be over before it goes.

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicUsize, fence};
use std::boxed::Box;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::shared::Shared;
use crate::backend::panic::caught;
use crate::backend::ranges::strike;
use crate::backend::{Block, Uses};

/// Streams look here after each operation; so what waits goes right after its last use.
#[derive(Default)]
pub(super) struct Deferred {
    waiting: Mutex<Waiting>,
    /// How many wait or are being dropped; 0 spares streams the lock.
    count: AtomicUsize,
    /// Something that was going has gone.
    gone: Condvar,
}

#[derive(Default)]
struct Waiting {
    held: Vec<(Uses, Held)>,
    /// How many threads have taken blocks out and not yet given them back.
    going: usize,
    /// The blocks beyond which values were kept that are being dropped.
    dropping: Vec<Range<u64>>,
}

pub(super) enum Held {
    Block(Block),
    /// And where the block was beyond which it is kept, if it is.
    Value(Box<dyn Send>, Option<Range<u64>>),
}

impl Deferred {
    /// Lets go of something after its uses.
    pub fn after(&self, shared: &Shared, uses: &Uses, held: Held) {
        if uses.is_empty() || shared.are_over(uses) {
            return held.let_go(shared);
        }
        {
            let mut waiting = self.waiting();
            waiting.held.push((*uses, held));
            self.recount(&waiting);
        }
        // The last use may have ended meanwhile, and its stream have found nothing here.
        self.drain(shared);
    }

    /// Lets go of everything whose uses are over.
    pub fn drain(&self, shared: &Shared) {
        // SYNC POINT: something waits. Pairs with itself: one side has said that it waits and looks whether its uses are over, the other has said that
        // an operation is over and looks whether anything waits. Without a total order both could look too early.
        fence(SeqCst);
        if self.count.load(Relaxed) == 0 {
            return;
        }
        self.let_go_if(shared, |_| true);
    }

    /// Gives back every block whose uses are over, and waits for those that other threads are giving back. Values stay: what the caller holds may be
    /// what a value asks for when it is dropped.
    pub fn catch_up(&self, shared: &Shared) {
        self.give_back(shared, |held| matches!(held, Held::Block(_)), |waiting| waiting.going == 0);
    }

    /// The same, also for values that are kept beyond a block: they wait for nobody.
    pub fn catch_up_beyond(&self, shared: &Shared) {
        let goes = |held: &Held| matches!(held, Held::Block(_)) || held.beyond().is_some();
        self.give_back(shared, goes, |waiting| waiting.going == 0 && waiting.dropping.is_empty());
    }

    fn give_back(&self, shared: &Shared, goes: impl Fn(&Held) -> bool, have_gone: impl Fn(&Waiting) -> bool) {
        // In a fork whoever is giving back is not there.
        if !shared.process.is_this() {
            return;
        }
        self.let_go_if(shared, goes);
        let mut waiting = self.waiting();
        while !have_gone(&waiting) {
            waiting = self.gone.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets go of what is over, if it is to go. A panic on the way is nobody's here: it is counted, and the next goes.
    fn let_go_if(&self, shared: &Shared, goes: impl Fn(&Held) -> bool) {
        let mut waiting = self.waiting();
        let is_over = |(uses, held): &mut (Uses, Held)| goes(held) && shared.are_over(uses);
        let (blocks, mut values): (Vec<_>, Vec<_>) =
            waiting.held.extract_if(.., is_over).partition(|(_, held)| matches!(held, Held::Block(_)));
        // Those that wait for nobody first: the others may wait for them.
        values.sort_by_key(|(_, held)| held.beyond().is_none());
        if blocks.is_empty() && values.is_empty() {
            return;
        }
        waiting.going += 1;
        waiting.dropping.extend(values.iter().filter_map(|(_, held)| held.beyond().cloned()));
        self.recount(&waiting);
        // Outside the lock: what goes may free more.
        drop(waiting);
        let go = |(_, held): (Uses, Held)| {
            if caught(|| held.let_go(shared)).is_none() {
                shared.counts.unreported.fetch_add(1, Relaxed);
            }
        };
        blocks.into_iter().for_each(go);
        self.waiting().going -= 1;
        self.gone.notify_all();
        // Nobody waits for these: they are the user's, and may wait for anybody.
        for value in values {
            let beyond = value.1.beyond().cloned();
            go(value);
            if let Some(beyond) = beyond {
                let mut waiting = self.waiting();
                strike(&mut waiting.dropping, &beyond);
                self.recount(&waiting);
                drop(waiting);
                self.gone.notify_all();
            }
        }
    }

    /// Whether something that is to go is kept beyond a block that was freed, or beyond one that it was a part of. What has uses left may be kept beyond
    /// another block, which is there now.
    pub fn keeps_beyond(&self, shared: &Shared, block: &Block) -> bool {
        // SYNC POINT: a value was dropped. Pairs with recount: whoever finds nothing sees what it did.
        if self.count.load(Acquire) == 0 {
            return false;
        }
        let (waiting, address) = (self.waiting(), block.address());
        let is_kept = |(uses, held): &(Uses, Held)| held.beyond().is_some_and(|beyond| beyond.contains(&address)) && shared.are_over(uses);
        waiting.dropping.iter().any(|beyond| beyond.contains(&address)) || waiting.held.iter().any(is_kept)
    }

    fn recount(&self, waiting: &Waiting) {
        self.count.store(waiting.held.len() + waiting.dropping.len(), Release);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn let_go(self, shared: &Shared) {
        match self {
            Self::Block(block) => {
                if let Some(range) = shared.ranges.remove(&block) {
                    shared.release(block.address(), range);
                }
            }
            Self::Value(value, _) => drop(value),
        }
    }

    fn beyond(&self) -> Option<&Range<u64>> {
        match self {
            Self::Value(_, beyond) => beyond.as_ref(),
            Self::Block(_) => None,
        }
    }
}
