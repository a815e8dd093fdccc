use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use ringmem_layouts::image::{Entry, KernelHost};

use super::arena::{Arena, MOST};
use super::deferred::Deferred;
use super::faults::{Faults, Plan, Verb};
use super::link::Model;
use super::log::{Call, Facts, Log, Phase};
use super::pager::Pager;
use super::peers::Peers;
use super::pinned::Budget;
use super::queue::Queue;
use crate::backend::counters::Counts;
use crate::backend::failures::Ended;
use crate::backend::ranges::{Range, Ranges};
use crate::sys::panic::both;

use super::allocation::Owner;
use super::{Builder, Clock};
use crate::backend::{Capabilities, MemoryLocation, ModuleId, StreamId, Ticket, Uses};
use crate::sys::fork::Process;
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
        let page = if builder.capabilities.shared_memory { 0 } else { builder.page };
        let plan = Plan::default();
        builder.faults.iter().for_each(|faults| plan.set(faults));
        Ok(Self {
            arenas: builder.memories.iter().map(|&bytes| Arena::new(bytes, page)).collect::<Result<_>>()?,
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
            resident_groups: builder.resident_groups,
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

pub(super) struct Group<'a> {
    pub inner: &'a Inner,
    pub device: u32,
    pub number: u64,
    pub groups: u64,
    pub facts: &'a Facts,
}

impl KernelHost for Group<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        // Also freed blocks: those that the launch uses stay allocated until it is complete.
        let found = self.inner.ranges.read().find(address, bytes, true, Verb::Launch.name()).ok()?;
        let is_seen = match found.location {
            MemoryLocation::Host => false,
            MemoryLocation::Device => self.inner.peers.reaches(self.device, found.device),
            MemoryLocation::Pinned | MemoryLocation::Unified => true,
        };
        if found.location == MemoryLocation::Unified {
            self.inner.touch(&found, bytes, Some(self.device), self.facts);
        }
        is_seen.then_some(found.place)
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }

    fn group(&self) -> u64 {
        self.number
    }

    fn groups(&self) -> u64 {
        self.groups
    }

    fn pause(&self, times: u32) {
        match times {
            0..100 => core::hint::spin_loop(),
            100..4000 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
}
