use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicUsize, fence};
use std::boxed::Box;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::inner::Inner;
use crate::backend::ranges::strike;
use crate::backend::{Block, Uses};
use crate::sys::panic::caught;

/// Drained by streams after each operation: a block is freed right after its last use.
#[derive(Default)]
pub(super) struct Deferred {
    waiting: Mutex<Waiting>,
    count: AtomicUsize,
    gone: Condvar,
}

#[derive(Default)]
struct Waiting {
    held: Vec<(Uses, Held)>,
    going: usize,
    dropping: Vec<Range<u64>>,
}

pub(super) enum Held {
    Block(Block),
    Value(Box<dyn Send>, Option<Range<u64>>),
}

impl Deferred {
    pub fn after(&self, inner: &Inner, uses: &Uses, held: Held) {
        if uses.is_empty() || inner.are_over(uses) {
            return held.let_go(inner);
        }
        {
            let mut waiting = self.waiting();
            waiting.held.push((*uses, held));
            self.recount(&waiting);
        }
        // The last use may have completed meanwhile.
        self.drain(inner);
    }

    pub fn drain(&self, inner: &Inner) {
        // SYNC POINT: something waits. Pairs with itself: one side adds an entry, then checks its uses; the other completes an operation,
        // then checks for entries. The total order prevents that both miss the other's write.
        fence(SeqCst);
        if self.count.load(Relaxed) == 0 {
            return;
        }
        self.let_go_if(inner, |_| true);
    }

    /// Frees every due block, and waits for other threads' frees; drops no values: they may need the caller's locks.
    pub fn catch_up(&self, inner: &Inner) {
        self.give_back(inner, |held| matches!(held, Held::Block(_)), |waiting| waiting.going == 0);
    }

    /// Also drops block-bound values, which wait for no other thread.
    pub fn catch_up_beyond(&self, inner: &Inner) {
        let goes = |held: &Held| matches!(held, Held::Block(_)) || held.beyond().is_some();
        self.give_back(inner, goes, |waiting| waiting.going == 0 && waiting.dropping.is_empty());
    }

    fn give_back(&self, inner: &Inner, goes: impl Fn(&Held) -> bool, have_gone: impl Fn(&Waiting) -> bool) {
        if !inner.process.is_this() {
            return;
        }
        self.let_go_if(inner, goes);
        let mut waiting = self.waiting();
        while !have_gone(&waiting) {
            waiting = self.gone.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A panic is counted: it has no caller.
    fn let_go_if(&self, inner: &Inner, goes: impl Fn(&Held) -> bool) {
        let mut waiting = self.waiting();
        let is_over = |(uses, held): &mut (Uses, Held)| goes(held) && inner.are_over(uses);
        let (blocks, mut values): (Vec<_>, Vec<_>) =
            waiting.held.extract_if(.., is_over).partition(|(_, held)| matches!(held, Held::Block(_)));
        // Block-bound values first: the others may wait for them.
        values.sort_by_key(|(_, held)| held.beyond().is_none());
        if blocks.is_empty() && values.is_empty() {
            return;
        }
        waiting.going += 1;
        waiting.dropping.extend(values.iter().filter_map(|(_, held)| held.beyond().cloned()));
        self.recount(&waiting);
        // Outside the lock: a drop may free more blocks.
        drop(waiting);
        let go = |(_, held): (Uses, Held)| {
            if caught(|| held.let_go(inner)).is_none() {
                inner.counts.unreported.fetch_add(1, Relaxed);
            }
        };
        blocks.into_iter().for_each(go);
        self.waiting().going -= 1;
        self.gone.notify_all();
        // A user's value may wait for any thread, so none waits for its drop.
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

    /// A pending value is bound to a freed block around this one. A value with incomplete uses is ignored: it may be bound to a later
    /// block.
    pub fn keeps_beyond(&self, inner: &Inner, block: &Block) -> bool {
        // SYNC POINT: a value was dropped. Pairs with recount: 0 shows the effects of the drop.
        if self.count.load(Acquire) == 0 {
            return false;
        }
        let (waiting, address) = (self.waiting(), block.address());
        let is_kept = |(uses, held): &(Uses, Held)| held.beyond().is_some_and(|beyond| beyond.contains(&address)) && inner.are_over(uses);
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
    fn let_go(self, inner: &Inner) {
        match self {
            Self::Block(block) => {
                if let Some(range) = inner.ranges.remove(&block) {
                    inner.release(block.address(), range);
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
