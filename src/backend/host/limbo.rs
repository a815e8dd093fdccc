//! What must wait for its uses to be over before it goes.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicUsize, fence};
use std::boxed::Box;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::shared::Shared;
use crate::backend::panic::caught;
use crate::backend::ranges::address;
use crate::backend::{Block, Uses};

/// Streams look here after each operation; so what waits goes right after its last use.
#[derive(Default)]
pub(super) struct Limbo {
    waiting: Mutex<Waiting>,
    /// How many wait; 0 spares streams the lock.
    count: AtomicUsize,
    /// Blocks that were going have gone.
    gone: Condvar,
}

#[derive(Default)]
struct Waiting {
    held: Vec<(Uses, Held)>,
    /// How many threads have taken blocks out and not yet given them back.
    going: usize,
}

pub(super) enum Held {
    Block(Block),
    Value(#[allow(dead_code, reason = "to be dropped")] Box<dyn Send>),
}

impl Limbo {
    /// Lets go of something after its uses.
    pub fn after(&self, shared: &Shared, uses: &Uses, held: Held) {
        if uses.is_empty() || shared.are_over(uses) {
            return held.let_go(shared);
        }
        {
            let mut waiting = self.waiting();
            waiting.held.push((*uses, held));
            self.count.store(waiting.held.len(), Relaxed);
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
        self.let_go_if(shared, |held| matches!(held, Held::Block(_)));
        let mut waiting = self.waiting();
        while waiting.going > 0 {
            waiting = self.gone.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets go of what is over, if it is to go. A panic on the way is nobody's here: it is counted, and the next goes.
    fn let_go_if(&self, shared: &Shared, goes: impl Fn(&Held) -> bool) {
        let mut waiting = self.waiting();
        let is_over = |(uses, held): &mut (Uses, Held)| goes(held) && shared.are_over(uses);
        let (blocks, values): (Vec<_>, Vec<_>) = waiting.held.extract_if(.., is_over).partition(|(_, held)| matches!(held, Held::Block(_)));
        if blocks.is_empty() && values.is_empty() {
            return;
        }
        self.count.store(waiting.held.len(), Relaxed);
        waiting.going += 1;
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
        values.into_iter().for_each(go);
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
                    shared.release(address(&block), range);
                }
            }
            Self::Value(value) => drop(value),
        }
    }
}
