//! [`Deferred`]: freed blocks that are still in use, and values kept until their uses are complete. [`Watch`]: the thread that drops such values in time.
//!
//! A block is freed after its uses, and if the driver's free synchronises with kernels, after every kernel. Pool memory that one stream used last is freed on
//! that stream at once, and is never pending.
//!
//! CUDA's host callbacks must not call the driver. So pending frees are drained by the next wait, allocation, free, close or counter read, and while values are
//! kept, by the watch thread: a drop wakes a task at most 1 ms late, without calls of the backend.
//!
//! # States
//!
//! | entry | list in [`Waiting`] | leaves the list when |
//! |---|---|---|
//! | freed block | `blocks` | its uses are complete, and its free would not wait for a kernel |
//! | block that a thread is freeing | `going` | the driver's free has returned |
//! | kept value | `values` | its uses are complete, and no pending or going block contains the block that it is bound to (`beyond`) |
//! | value that a thread is dropping | `dropping`, if bound to a block | the drop has returned or panicked |
//!
//! `count` is the length of all lists, `Deferred::values` that of `values`. Both are written under the lock and read without it. `count` is written after
//! the drops: a reader of 0 sees their effects. While it is 0, `drain` takes no lock.
//!
//! # Order in `drain`
//!
//! 1. Under the lock, blocks that are due move to `going`. Two threads thus never free one block.
//! 2. Without the lock, each is freed: the drop of an adopted owner may free further blocks. If a kernel was launched meanwhile, the block returns to `blocks`.
//! 3. Values are chosen after the blocks, since they may be bound to a block that was just freed. Those bound to a block are dropped first: the drop of
//!    another value may wait for them.
//!
//! Errors and panics of frees and drops have no caller: they are counted as unreported, and the entry is removed.

use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::vec::Vec;

use super::Inner;
use super::memory::Owner;
use crate::Result;
use crate::backend::panic::caught;
use crate::backend::ranges::strike;
use crate::backend::{Block, Uses};

#[derive(Default)]
pub(super) struct Deferred {
    waiting: Mutex<Waiting>,
    count: AtomicUsize,
    values: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    blocks: Vec<(Uses, Block)>,
    going: Vec<Range<u64>>,
    values: Vec<Value>,
    dropping: Vec<Range<u64>>,
}

struct Value {
    uses: Uses,
    beyond: Option<Range<u64>>,
    value: Box<dyn Send>,
}

impl Deferred {
    /// The block is dead.
    pub fn free(&self, backend: &Inner, uses: &Uses, block: Block) -> Result<()> {
        let given = if may_go(&block, backend, uses) {
            let_go(&block, backend)
        } else {
            uses.only().filter(|last| backend.free_after(*last, &block)).map(|_| Ok(()))
        };
        given.unwrap_or_else(|| {
            let mut waiting = self.waiting();
            waiting.blocks.push((*uses, block));
            self.recount(&waiting);
            Ok(())
        })
    }

    pub fn keep(&self, backend: &Inner, uses: &Uses, beyond: Option<&Block>, value: Box<dyn Send>) {
        let beyond = beyond.map(Block::addresses);
        if backend.are_complete(uses) && beyond.as_ref().is_none_or(|beyond| !self.waiting().has(beyond.start)) {
            return drop(value);
        }
        let mut waiting = self.waiting();
        waiting.values.push(Value { uses: *uses, beyond, value });
        self.recount(&waiting);
    }

    /// Errors and panics are counted: they have no caller.
    pub fn drain(&self, backend: &Inner) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let going: Vec<Block> = {
            let mut waiting = self.waiting();
            let Waiting { blocks, going, .. } = &mut *waiting;
            let over: Vec<Block> = blocks.extract_if(.., |(uses, block)| may_go(block, backend, uses)).map(|(_, block)| block).collect();
            going.extend(over.iter().map(Block::addresses));
            over
        };
        // Outside the lock: a drop may free more blocks.
        for block in going {
            let given = caught(|| let_go(&block, backend));
            let mut waiting = self.waiting();
            strike(&mut waiting.going, &block.addresses());
            match given {
                Some(Some(Ok(()))) => {}
                Some(None) => waiting.blocks.push((Uses::NONE, block)),
                None | Some(Some(Err(_))) => drop(backend.counts.unreported.fetch_add(1, Relaxed)),
            }
        }
        let values: Vec<Value> = {
            let mut waiting = self.waiting();
            let mut values = mem::take(&mut waiting.values);
            let has_gone = |beyond: &Range<u64>| !waiting.has(beyond.start);
            let may_go = |value: &mut Value| backend.are_complete(&value.uses) && value.beyond.as_ref().is_none_or(has_gone);
            let mut over: Vec<Value> = values.extract_if(.., may_go).collect();
            // The others may wait for them.
            over.sort_by_key(|value| value.beyond.is_none());
            waiting.values = values;
            waiting.dropping.extend(over.iter().filter_map(|value| value.beyond.clone()));
            self.recount(&waiting);
            over
        };
        for Value { value, beyond, .. } in values {
            if caught(|| drop(value)).is_none() {
                backend.counts.unreported.fetch_add(1, Relaxed);
            }
            if let Some(beyond) = beyond {
                let mut waiting = self.waiting();
                strike(&mut waiting.dropping, &beyond);
                self.recount(&waiting);
            }
        }
    }

    /// A freed block around `part`, or a value bound to it, is pending. A value with incomplete uses is ignored: it may be bound to a later
    /// block.
    pub fn has(&self, backend: &Inner, part: &Block) -> bool {
        let (waiting, address) = (self.waiting(), part.address());
        let is_beyond = |beyond: &Range<u64>| beyond.contains(&address);
        let is_kept = |value: &Value| value.beyond.as_ref().is_some_and(is_beyond) && backend.are_complete(&value.uses);
        waiting.has(address) || waiting.dropping.iter().any(is_beyond) || waiting.values.iter().any(is_kept)
    }

    pub fn is_giving_back(&self) -> bool {
        let waiting = self.waiting();
        !(waiting.going.is_empty() && waiting.dropping.is_empty())
    }

    pub fn len(&self) -> usize {
        // SYNC POINT: a value was dropped. Pairs with recount: 0 shows the effects of the drop.
        self.count.load(Acquire)
    }

    pub fn values(&self) -> usize {
        self.values.load(SeqCst)
    }

    fn recount(&self, waiting: &Waiting) {
        let Waiting { blocks, going, values, dropping } = waiting;
        self.count.store(blocks.len() + going.len() + values.len() + dropping.len(), Release);
        self.values.store(values.len(), SeqCst);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn has(&self, address: u64) -> bool {
        self.blocks.iter().map(|(_, block)| block.addresses()).chain(self.going.iter().cloned()).any(|place| place.contains(&address))
    }
}

impl Inner {
    pub(super) fn defers_free(&self, block: &Block) -> bool {
        waits(block, self) && self.has_kernels()
    }
}

fn may_go(block: &Block, backend: &Inner, uses: &Uses) -> bool {
    backend.are_complete(uses) && !backend.defers_free(block)
}

/// `None` if a kernel was launched meanwhile.
fn let_go(block: &Block, backend: &Inner) -> Option<Result<()>> {
    let alone = waits(block, backend).then(|| backend.alone());
    if alone.is_some() && backend.has_kernels() {
        return None;
    }
    Some(backend.ranges.remove(block).map_or(Ok(()), |range| backend.release(range)))
}

fn waits(block: &Block, backend: &Inner) -> bool {
    backend.ranges.read().owner(block).is_some_and(Owner::waits)
}

/// First and longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

#[derive(Default)]
pub(super) struct Watch {
    is_on: AtomicBool,
    is_ending: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Joins the thread, unless in it: a value dropped there may hold the backend's last reference.
    pub fn end(&self) {
        self.is_ending.store(true, SeqCst);
        let thread = self.thread().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub(super) fn watch(self: &Arc<Self>) {
        let watch = &self.watch;
        if self.deferred.values() == 0 || watch.is_on.swap(true, SeqCst) {
            return;
        }
        let inner = Arc::clone(self);
        let mut thread = watch.thread();
        match thread::Builder::new().name("ringmem-cuda".into()).spawn(move || inner.look_on()) {
            Ok(spawned) => {
                if let Some(before) = thread.replace(spawned) {
                    // It is about to release the shared state, which the backend must hold last.
                    let _ = before.join();
                }
            }
            Err(_) => watch.is_on.store(false, SeqCst),
        }
    }

    fn look_on(&self) {
        let (mut pause, mut before) = (PAUSES[0], self.deferred.values());
        while !self.watch.is_ending.load(SeqCst) {
            self.tidy();
            let left = self.deferred.values();
            if left == 0 {
                self.watch.is_on.store(false, SeqCst);
                // A value added meanwhile may have found it set.
                if self.deferred.values() == 0 || self.watch.is_on.swap(true, SeqCst) {
                    return;
                }
            }
            pause = if left < before { PAUSES[0] } else { (pause * 2).min(PAUSES[1]) };
            before = left;
            thread::park_timeout(pause);
        }
    }
}
