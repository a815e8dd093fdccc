//! [`Inner`]: the state of a host backend, which its handle and its streams' threads share: simulated devices, blocks, streams, and what waits for the end of
//! queued work.
//!
//! A block is freed when its last use is complete. If that is so at the free, at once; else it waits in [`Deferred`] with its uses, and the stream that
//! completes the last of them frees it after that operation. Values that an operation uses wait there too. Three rules keep this free of deadlocks:
//!
//! 1. The lock of [`Deferred`] is not held while a block is freed or a value dropped: a drop may free more blocks, which enters again.
//! 2. A thread that waits for others' frees ([`catch_up`](Deferred::catch_up)) waits for blocks only, never for the drop of a user's value, which may
//!    wait for any thread, also for this one. Exception: a value that is bound to a block's range, since a pool of this crate is such a value.
//! 3. Bound values are dropped before others, which may wait for them.
//!
//! No entry is missed: one side adds an entry and then checks its uses, the other completes an operation and then looks for entries, with a full fence
//! between the two steps on both sides.

use core::mem;
use core::ops::Range as Span;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use std::boxed::Box;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use std::vec::Vec;

use ringmem_layouts::image::Entry;

use super::arena::{ALIGN, Arena, MOST};
use super::faults::{Faults, Plan, Verb};
use super::link::Model;
use super::log::{Call, Facts, Log, Phase};
use super::mapping::Mapping;
use super::peers::Peers;
use super::pinned::Budget;
use super::queue::Queue;
use super::reserved::{Reserved, page_size};
use super::{Builder, Clock};
use crate::backend::counters::Counts;
use crate::backend::failures::Ended;
use crate::backend::ranges::{Range, Ranges, strike};
use crate::backend::{Block, Capabilities, MemoryLocation, ModuleId, Place, StreamId, Ticket, Uses};
use crate::sys::fork::Process;
use crate::sys::panic::{both, caught};
use crate::{Error, Result};

pub(super) struct Inner {
    pub id: u64,
    pub process: Process,
    pub arenas: Vec<Arena>,
    pub ranges: Ranges<Owner>,
    pub streams: RwLock<HashMap<StreamId, Arc<Queue>>>,
    pub ended: Ended<Queue>,
    pub modules: RwLock<HashMap<ModuleId, &'static [Entry]>>,
    pub deferred: Deferred,
    pub counts: Counts,
    pub capabilities: Capabilities,
    pub knows_memory: bool,
    pub resident_groups: u32,
    pub thread_per_lane: bool,
    pub peers: Peers,
    pub budget: Budget,
    pub pager: Pager,
    pub plan: Plan,
    pub model: Option<Model>,
    is_watched: AtomicBool,
    log: Log,
    clock: Option<Clock>,
    born: Instant,
}

impl Inner {
    pub fn new(builder: &Builder) -> Result<Self> {
        let Ok(devices @ 1..) = u32::try_from(builder.memories.len()) else {
            return Err(Error::NoDevice { asked: 0, devices: 0 });
        };
        if !(1..=MOST).contains(&builder.page) {
            return Err(Error::Size { what: "page size", asked: builder.page, least: 1, most: MOST });
        }
        if let Some(granularity) = builder.capabilities.mapping_granularity
            && (!granularity.is_power_of_two() || !(page_size().unwrap_or(ALIGN)..=ALIGN).contains(&granularity))
        {
            return Err(Error::Align { asked: granularity, most: ALIGN });
        }
        let page = if builder.capabilities.shared_memory { 0 } else { builder.page };
        let plan = Plan::default();
        builder.faults.iter().for_each(|faults| plan.set(faults));
        Ok(Self {
            arenas: builder.memories.iter().map(|&bytes| Arena::new(bytes, page, builder.poisons)).collect::<Result<_>>()?,
            id: crate::backend::next_id(),
            process: Process::this(),
            ranges: Ranges::late(),
            streams: RwLock::default(),
            ended: Ended::default(),
            modules: RwLock::default(),
            deferred: Deferred::default(),
            counts: Counts::default(),
            capabilities: builder.capabilities.clone(),
            knows_memory: builder.knows_memory,
            resident_groups: builder.most_groups(),
            thread_per_lane: builder.thread_per_lane,
            peers: Peers::new(devices, &builder.peers)?,
            budget: Budget::new(builder.budget()),
            pager: Pager::new(page),
            plan,
            model: builder.link.clone().map(|link| Model::new(link, devices)),
            is_watched: AtomicBool::new(builder.faults.is_some() || builder.log || builder.link.is_some()),
            log: Log::new(builder.log),
            clock: builder.clock.clone(),
            born: Instant::now(),
        })
    }

    pub fn arena(&self, device: u32) -> Result<&Arena> {
        self.arenas.get(device as usize).ok_or_else(|| Error::NoDevice { asked: device, devices: self.arenas.len() as u32 })
    }

    pub fn stream(&self, id: StreamId) -> Option<Arc<Queue>> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner).get(&id).map(Arc::clone)
    }

    /// An unlisted stream has executed everything.
    pub fn is_complete(&self, ticket: Ticket) -> bool {
        self.stream(ticket.stream).is_none_or(|stream| stream.is_complete(ticket.number))
    }

    pub fn are_over(&self, uses: &Uses) -> bool {
        uses.iter().all(|ticket| self.is_complete(ticket))
    }

    pub fn release(&self, address: u64, range: Range<Owner>) {
        let (location, bytes) = (range.location, range.bytes());
        if location == MemoryLocation::Unified {
            self.forget_pages(address, bytes);
        }
        let go = |_| {
            self.counts.of(location).freed(bytes);
            range.give_back(self);
        };
        if !self.is_watched() {
            return go(false);
        }
        let facts = Facts { bytes, from: Some(address), ..Facts::of(Verb::Free, None) };
        both(|| self.log(&facts, Phase::Freed, None, true), go);
    }

    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Relaxed)
    }

    pub fn watched(&self, facts: impl FnOnce() -> Facts) -> Option<Facts> {
        self.is_watched().then(facts)
    }

    pub fn set_faults(&self, faults: &Faults) {
        self.plan.set(faults);
        self.is_watched.store(true, Relaxed);
    }

    pub fn log(&self, facts: &Facts, phase: Phase, ticket: Option<u64>, ok: bool) {
        self.log.record(facts, phase, ticket, ok, || self.now_ns());
    }

    pub fn calls(&self) -> Vec<Call> {
        self.log.read()
    }

    pub fn now_ns(&self) -> u64 {
        if let Some(clock) = &self.clock {
            return clock();
        }
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What keeps a block's bytes.
pub(super) enum Owner {
    Arena(u64),
    Mapping(Mapping),
    /// A part of an address range.
    Part(Place),
}

impl Range<Owner> {
    pub fn give_back(self, inner: &Inner) {
        if self.location == MemoryLocation::Pinned {
            inner.budget.give(self.bytes());
        }
        let Ok(arena) = inner.arena(self.device) else { return };
        let bytes = self.bytes();
        match self.owner {
            // SAFETY: allocated for this range, just removed, unused; a kernel that still used it would break its launch's promise.
            Owner::Arena(offset) => unsafe { arena.give(offset, bytes) },
            Owner::Mapping(mapping) => drop(mapping),
            Owner::Part(place) => give_back_part(inner, arena, place, bytes),
        }
    }
}

#[cold]
fn give_back_part(inner: &Inner, arena: &Arena, place: Place, bytes: u64) {
    let reserved = place.range().held::<Reserved>(inner.id);
    // SAFETY: the place is occupied by its range alone, which was just removed and is unused: see `give_back`.
    let is_vacant = reserved.is_ok_and(|reserved| unsafe { reserved.decommit(place.offset() as usize, bytes as usize) });
    arena.give_mapped(bytes);
    if !is_vacant {
        mem::forget(place);
    }
}

/// Which managed pages are on which device; `pager.rs` moves them.
pub(super) struct Pager {
    /// Bytes of a page; 0 if pages never migrate.
    pub page: u64,
    /// Held during moves, so that no page is on two devices and the log has their order.
    pub moving: Mutex<()>,
    /// Pages on any device.
    pub resident: AtomicU64,
}

impl Pager {
    pub const fn new(page: u64) -> Self {
        Self { page, moving: Mutex::new(()), resident: AtomicU64::new(0) }
    }
}

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
    /// Calls that free blocks now.
    going: usize,
    /// The ranges of bound values that are being dropped now.
    dropping: Vec<Span<u64>>,
}

pub(super) enum Held {
    Block(Block),
    Value(Box<dyn Send>, Option<Span<u64>>),
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

    fn beyond(&self) -> Option<&Span<u64>> {
        match self {
            Self::Value(_, beyond) => beyond.as_ref(),
            Self::Block(_) => None,
        }
    }
}
