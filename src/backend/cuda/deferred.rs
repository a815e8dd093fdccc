//! [`Deferred`]: freed blocks that are still in use, and values kept until their uses are complete. [`Watch`]: the thread that drops such values in time.
//!
//! A block is freed after its uses, and if the driver's free synchronises with kernels, after every kernel. Memory of the driver's pool that one stream used
//! last is freed on that stream at once, unless a kernel or a wait for another stream was queued there since, the stream is gone or another device's, or the
//! driver refuses.
//!
//! CUDA's host callbacks must not call the driver. So pending frees are drained by the next wait, allocation, free, close or counter read, and while values are
//! kept, by the watch thread: a drop wakes a task at most 1 ms late, without calls of the backend. If the system has no thread for it, only by those calls.
//!
//! # States
//!
//! | entry | list in [`Pending`] | leaves the list when |
//! |---|---|---|
//! | freed block | `blocks` | its uses are complete, and its free would not wait for a kernel |
//! | block that a thread is freeing | `freeing` | the driver's free has returned |
//! | kept value | `values` | its uses are complete, and no block in `blocks` or `freeing` contains the start of its block (`bound_to`) |
//! | value that a thread is dropping | `dropping`, if bound to a block | the drop has returned or panicked |
//! | addresses of a dropped range | `addresses` | no kernel is queued or running |
//!
//! `count` is the length of all lists, or more during a `drain`; `Deferred::values` is that of `values`. Both are written under the lock and read without it.
//! `count` is written after frees and drops of bound values: a reader of 0 sees their effects. Other values and addresses are no longer counted when their drop
//! begins. While it is 0, `drain` takes no lock.
//!
//! # Order in `drain`
//!
//! 1. Under the lock, blocks that are due move to `freeing`. Two threads thus never free one block. Numbers of a stream complete in order, so [`Queries`] asks
//!    the driver once per incomplete stream, not once per block.
//! 2. Without the lock, each is freed: the drop of an adopted owner may free further blocks. If a kernel was launched meanwhile, the block returns to `blocks`.
//! 3. Values are chosen after the blocks, since they may be bound to a block that was just freed. Then addresses are given back, which waits for launches on
//!    their way. Then the values are dropped, those bound to a block first: the drop of another value may wait for them.
//!
//! Errors and panics in `drain` have no caller: they are counted as unreported, and the entry is removed.

use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::vec::Vec;

use super::Inner;
use super::address_range::Reserved;
use super::memory::Owner;
use crate::Result;
use crate::backend::ranges::strike;
use crate::backend::{Block, Ticket, Uses};
use crate::sys::panic::caught;

#[derive(Default)]
pub(super) struct Deferred {
    pending: Mutex<Pending>,
    count: AtomicUsize,
    values: AtomicUsize,
}

#[derive(Default)]
struct Pending {
    blocks: Vec<(Uses, Block)>,
    freeing: Vec<Going>,
    values: Vec<Value>,
    dropping: Vec<Going>,
    addresses: Vec<Reserved>,
}

/// A block that a thread is freeing, or that of a value that it is dropping.
#[derive(PartialEq)]
struct Going {
    place: Range<u64>,
    by: ThreadId,
}

impl Going {
    fn here(place: Range<u64>) -> Self {
        Self { place, by: thread::current().id() }
    }
}

struct Value {
    uses: Uses,
    bound_to: Option<Range<u64>>,
    value: Box<dyn Send>,
}

impl Deferred {
    /// Frees a block whose range is dead, now or after its uses.
    pub fn free(&self, backend: &Inner, uses: &Uses, block: Block) -> Result<()> {
        let freed = if is_due(&block, backend, uses) {
            free_unless_kernel(&block, backend)
        } else {
            uses.only().filter(|last| backend.free_after(*last, &block)).map(|_| Ok(()))
        };
        freed.unwrap_or_else(|| {
            let mut pending = self.pending();
            pending.blocks.push((*uses, block));
            self.recount(&pending);
            Ok(())
        })
    }

    pub fn keep(&self, backend: &Inner, uses: &Uses, bound_to: Option<&Block>, value: Box<dyn Send>) {
        let bound_to = bound_to.map(Block::addresses);
        if backend.are_complete(uses) && bound_to.as_ref().is_none_or(|bound_to| !self.pending().has(bound_to.start)) {
            return drop(value);
        }
        let mut pending = self.pending();
        pending.values.push(Value { uses: *uses, bound_to, value });
        self.recount(&pending);
    }

    /// Gives addresses back at a later call, when no kernel runs.
    pub fn unreserve(&self, reserved: Reserved) {
        let mut pending = self.pending();
        pending.addresses.push(reserved);
        self.recount(&pending);
    }

    /// Errors and panics are counted: they have no caller.
    pub fn drain(&self, backend: &Inner) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut queries = Queries { backend, incomplete: [None; 4] };
        let freeing: Vec<Block> = {
            let mut pending = self.pending();
            let Pending { blocks, freeing, .. } = &mut *pending;
            let mut is_due = |uses: &Uses, block: &Block| queries.are_complete(uses) && !backend.defers_free(block);
            let due: Vec<Block> = blocks.extract_if(.., |(uses, block)| is_due(uses, block)).map(|(_, block)| block).collect();
            freeing.extend(due.iter().map(|block| Going::here(block.addresses())));
            due
        };
        // Outside the lock: a drop may free more blocks.
        for block in freeing {
            let freed = caught(|| free_unless_kernel(&block, backend));
            let mut pending = self.pending();
            strike(&mut pending.freeing, &Going::here(block.addresses()));
            match freed {
                Some(Some(Ok(()))) => {}
                Some(None) => pending.blocks.push((Uses::NONE, block)),
                None | Some(Some(Err(_))) => drop(backend.counts.unreported.fetch_add(1, Relaxed)),
            }
        }
        let values: Vec<Value> = {
            let mut pending = self.pending();
            let mut values = mem::take(&mut pending.values);
            let is_gone = |bound_to: &Range<u64>| !pending.has(bound_to.start);
            let is_due = |value: &mut Value| queries.are_complete(&value.uses) && value.bound_to.as_ref().is_none_or(is_gone);
            let mut due: Vec<Value> = values.extract_if(.., is_due).collect();
            // The drop of a value that is bound to no block may wait for those that are.
            due.sort_by_key(|value| value.bound_to.is_none());
            pending.values = values;
            pending.dropping.extend(due.iter().filter_map(|value| value.bound_to.clone()).map(Going::here));
            self.recount(&pending);
            due
        };
        self.give_back_addresses(backend);
        for Value { value, bound_to, .. } in values {
            if caught(|| drop(value)).is_none() {
                backend.counts.unreported.fetch_add(1, Relaxed);
            }
            if let Some(bound_to) = bound_to {
                let mut pending = self.pending();
                strike(&mut pending.dropping, &Going::here(bound_to));
                self.recount(&pending);
            }
        }
    }

    pub fn give_back_addresses(&self, backend: &Inner) {
        // Before launches are blocked, which waits for those on their way.
        if self.pending().addresses.is_empty() || backend.has_kernels() {
            return;
        }
        let _no_launches = backend.block_launches();
        if backend.has_kernels() {
            return;
        }
        let addresses = {
            let mut pending = self.pending();
            let addresses = mem::take(&mut pending.addresses);
            self.recount(&pending);
            addresses
        };
        for reserved in addresses {
            if reserved.give_back(backend.calls()).is_err() {
                backend.counts.unreported.fetch_add(1, Relaxed);
            }
        }
    }

    /// A freed block around `part`, or a value bound to it, is pending. A value with incomplete uses is ignored: it may be bound to a later
    /// block.
    pub fn has(&self, backend: &Inner, part: &Block) -> bool {
        let (pending, address) = (self.pending(), part.address());
        let is_within = |bound_to: &Range<u64>| bound_to.contains(&address);
        let is_kept = |value: &Value| value.bound_to.as_ref().is_some_and(is_within) && backend.are_complete(&value.uses);
        pending.has(address) || pending.dropping.iter().any(|going| is_within(&going.place)) || pending.values.iter().any(is_kept)
    }

    /// Another thread is freeing a block or dropping a value, and this one is not: from a drop, it would wait for itself, or for a thread whose drop waits for it.
    pub fn is_freeing(&self) -> bool {
        let (pending, this) = (self.pending(), thread::current().id());
        let mut going = pending.freeing.iter().chain(&pending.dropping);
        going.clone().all(|going| going.by != this) && going.next().is_some()
    }

    pub fn len(&self) -> usize {
        // SYNC POINT: a bound value was dropped. Pairs with recount: 0 shows the effects of the drop.
        self.count.load(Acquire)
    }

    pub fn values(&self) -> usize {
        self.values.load(SeqCst)
    }

    fn recount(&self, pending: &Pending) {
        let Pending { blocks, freeing, values, dropping, addresses } = pending;
        self.count.store(blocks.len() + freeing.len() + values.len() + dropping.len() + addresses.len(), Release);
        self.values.store(values.len(), SeqCst);
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn has(&self, address: u64) -> bool {
        self.blocks
            .iter()
            .map(|(_, block)| block.addresses())
            .chain(self.freeing.iter().map(|going| going.place.clone()))
            .any(|place| place.contains(&address))
    }
}

/// Queries of one `drain`, which has one answer of the driver per stream and not per block: a number after an incomplete one is incomplete.
struct Queries<'a> {
    backend: &'a Inner,
    /// The lowest of a stream that is known to be incomplete. Of further streams, each number is queried.
    incomplete: [Option<Ticket>; 4],
}

impl Queries<'_> {
    fn are_complete(&mut self, uses: &Uses) -> bool {
        uses.iter().all(|ticket| {
            let is_of = |known: &Option<Ticket>| known.is_none_or(|known| known.stream == ticket.stream);
            let known = self.incomplete.iter_mut().find(|known| is_of(known));
            if let Some(Some(lowest)) = &known
                && lowest.number <= ticket.number
            {
                return false;
            }
            let is_complete = self.backend.is_complete(ticket);
            if let (false, Some(known)) = (is_complete, known) {
                *known = Some(ticket);
            }
            is_complete
        })
    }
}

impl Inner {
    pub(super) fn defers_free(&self, block: &Block) -> bool {
        free_waits(block, self) && self.has_kernels()
    }
}

fn is_due(block: &Block, backend: &Inner, uses: &Uses) -> bool {
    backend.are_complete(uses) && !backend.defers_free(block)
}

/// Returns `None`, and frees nothing, if a kernel was launched since the block became due.
fn free_unless_kernel(block: &Block, backend: &Inner) -> Option<Result<()>> {
    let no_launches = free_waits(block, backend).then(|| backend.block_launches());
    if no_launches.is_some() && backend.has_kernels() {
        return None;
    }
    Some(backend.ranges.remove(block).map_or(Ok(()), |range| backend.release(range)))
}

fn free_waits(block: &Block, backend: &Inner) -> bool {
    backend.ranges.read().owner(block).is_some_and(Owner::free_waits)
}

/// The first and the longest pause between two polls.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

#[derive(Default)]
pub(super) struct Watch {
    is_on: AtomicBool,
    is_ending: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Joins the thread, unless this is the thread: a value that it drops may hold the backend's last reference.
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
    pub(super) fn start_watch(self: &Arc<Self>) {
        let watch = &self.watch;
        if self.deferred.values() == 0 || watch.is_on.swap(true, SeqCst) {
            return;
        }
        let inner = Arc::clone(self);
        let mut thread = watch.thread();
        match thread::Builder::new().name("ringmem-cuda".into()).spawn(move || inner.poll()) {
            Ok(spawned) => {
                if let Some(before) = thread.replace(spawned) {
                    // The earlier thread is about to release the shared state. The backend must hold the last reference.
                    let _ = before.join();
                }
            }
            Err(_) => watch.is_on.store(false, SeqCst),
        }
    }

    fn poll(&self) {
        let (mut pause, mut before) = (PAUSES[0], self.deferred.values());
        while !self.watch.is_ending.load(SeqCst) {
            self.tidy();
            let left = self.deferred.values();
            if left == 0 {
                self.watch.is_on.store(false, SeqCst);
                // If a value was added before this store, its caller has found `is_on` set and started no thread.
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
