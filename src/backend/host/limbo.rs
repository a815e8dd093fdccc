//! What must wait for its uses to be over before it goes.

use core::mem;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicUsize, fence};
use std::boxed::Box;
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

use super::shared::Shared;
use crate::backend::{Block, Uses};

/// Streams look here after each operation; so what waits goes right after its last use.
#[derive(Default)]
pub(super) struct Limbo {
    waiting: Mutex<Vec<(Uses, Held)>>,
    /// How many wait; 0 spares streams the lock.
    count: AtomicUsize,
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
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push((*uses, held));
            self.count.store(waiting.len(), Relaxed);
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
        let over: Vec<_>;
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            (over, *waiting) = mem::take(&mut *waiting).into_iter().partition(|(uses, _)| shared.are_over(uses));
            self.count.store(waiting.len(), Relaxed);
        }
        // Outside the lock: what goes may free more.
        for (_, held) in over {
            held.let_go(shared);
        }
    }
}

impl Held {
    fn let_go(self, shared: &Shared) {
        match self {
            Self::Block(block) => shared.release(&block),
            Self::Value(value) => drop(value),
        }
    }
}
