//! What must wait before it goes: for its uses, and where its end would wait for a kernel, for every kernel of its device.
//!
//! Nobody is woken: a driver's stream calls nobody who may call the driver. So whoever waits for an operation, allocates, frees, closes a stream or
//! asks for the counters lets go of what may go, and while values wait, [`Watch`](super::watch::Watch) does.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Shared;
use super::memory::Owner;
use crate::Result;
use crate::backend::panic::caught;
use crate::backend::{Block, Uses};

#[derive(Default)]
pub(super) struct Limbo {
    waiting: Mutex<Vec<(Uses, Held)>>,
    /// How many wait; 0 spares everybody the lock.
    count: AtomicUsize,
    /// How many of those are values.
    values: AtomicUsize,
}

pub(super) enum Held {
    /// One that was marked as freed.
    Block(Block),
    Value(#[allow(dead_code, reason = "to be dropped")] Box<dyn Send>),
}

impl Limbo {
    /// Lets go of something when it may go: what the driver says of it, if that is now.
    pub fn after(&self, backend: &Shared, uses: &Uses, held: Held) -> Result<()> {
        let kept = if held.may_go(backend, uses) { held.let_go(backend) } else { Err(held) };
        kept.unwrap_or_else(|held| {
            self.wait(*uses, held);
            Ok(())
        })
    }

    /// Lets go of everything that may go. Errors and panics on the way are nobody's here: they are counted.
    pub fn drain(&self, backend: &Shared) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let going: Vec<_> = {
            let mut waiting = self.waiting();
            let going = waiting.extract_if(.., |(uses, held)| held.may_go(backend, uses)).collect();
            self.recount(&waiting);
            going
        };
        // Outside the lock: what goes may free more.
        for (_, held) in going {
            match caught(|| held.let_go(backend)) {
                Some(Ok(Ok(()))) => {}
                Some(Err(held)) => self.wait(Uses::NONE, held),
                None | Some(Ok(Err(_))) => drop(backend.counts.unreported.fetch_add(1, Relaxed)),
            }
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// How many values wait.
    pub fn values(&self) -> usize {
        self.values.load(SeqCst)
    }

    fn wait(&self, uses: Uses, held: Held) {
        let mut waiting = self.waiting();
        waiting.push((uses, held));
        self.recount(&waiting);
    }

    fn recount(&self, waiting: &[(Uses, Held)]) {
        self.count.store(waiting.len(), Relaxed);
        self.values.store(waiting.iter().filter(|(_, held)| matches!(held, Held::Value(_))).count(), SeqCst);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(Uses, Held)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn may_go(&self, backend: &Shared, uses: &Uses) -> bool {
        if !backend.are_over(uses) {
            return false;
        }
        match self {
            // Of any device: pinned memory is everybody's, and the others are as seldom freed under a kernel.
            Self::Block(block) => !waits(block, backend) || !backend.has_kernels(),
            Self::Value(_) => true,
        }
    }

    /// What the driver says; itself, if a kernel was launched since it might go.
    fn let_go(self, backend: &Shared) -> core::result::Result<Result<()>, Self> {
        match self {
            Self::Block(block) => {
                let alone = waits(&block, backend).then(|| backend.alone());
                if alone.is_some() && backend.has_kernels() {
                    return Err(Self::Block(block));
                }
                Ok(backend.ranges.remove(&block).map_or(Ok(()), |range| backend.release(range)))
            }
            Self::Value(value) => {
                drop(value);
                Ok(Ok(()))
            }
        }
    }
}

/// Whether the end of a block waits for every kernel.
fn waits(block: &Block, backend: &Shared) -> bool {
    backend.ranges.read().owner(block).is_some_and(Owner::waits)
}
