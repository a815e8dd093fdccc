//! What a backend, its streams and its memory hold on to.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use ringmem_layouts::image::{Entry, KernelHost};

use super::Builder;
use super::arena::Arena;
use super::counters::Counts;
use super::limbo::Limbo;
use super::queue::Queue;
use super::ranges::Ranges;
use crate::backend::{Block, ModuleId, StreamId, Ticket, Uses};
use crate::{Error, Result};

pub(super) struct Shared {
    /// Of this process; never used twice.
    pub id: u64,
    /// Each device's memory.
    pub arenas: Vec<Arena>,
    /// All live memory.
    pub ranges: Ranges,
    pub streams: RwLock<HashMap<StreamId, Arc<Queue>>>,
    pub modules: RwLock<HashMap<ModuleId, &'static [Entry]>>,
    pub limbo: Limbo,
    pub counts: Counts,
    born: Instant,
}

impl Shared {
    pub fn new(builder: &Builder) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if builder.devices == 0 {
            return Err(Error::NoDevice { asked: 0, devices: 0 });
        }
        Ok(Self {
            arenas: (0..builder.devices).map(|_| Arena::new(builder.device_memory)).collect::<Result<_>>()?,
            id: NEXT.fetch_add(1, Relaxed),
            ranges: Ranges::default(),
            streams: RwLock::default(),
            modules: RwLock::default(),
            limbo: Limbo::default(),
            counts: Counts::default(),
            born: Instant::now(),
        })
    }

    pub fn arena(&self, device: u32) -> Result<&Arena> {
        self.arenas.get(device as usize).ok_or(Error::NoDevice { asked: device, devices: self.arenas.len() as u32 })
    }

    pub fn stream(&self, id: StreamId) -> Option<Arc<Queue>> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner).get(&id).map(Arc::clone)
    }

    /// A stream that is not there has executed all that it had.
    pub fn reached(&self, ticket: Ticket) -> bool {
        self.stream(ticket.stream).is_none_or(|stream| stream.reached(ticket.number))
    }

    pub fn are_over(&self, uses: &Uses) -> bool {
        uses.iter().all(|ticket| self.reached(ticket))
    }

    /// Gives a block's memory back now.
    pub fn release(&self, block: &Block) {
        if let Some(range) = self.ranges.remove(block) {
            self.counts.of(range.location).freed(range.bytes);
            range.give_back(self);
        }
    }

    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// One group of a launch.
pub(super) struct Group<'a> {
    pub shared: &'a Shared,
    pub number: u64,
}

impl KernelHost for Group<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.shared.ranges.translate(address, bytes)
    }

    fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    fn group(&self) -> u64 {
        self.number
    }

    /// Spins, then yields, then sleeps: with more polling threads than cores, the one that is waited for must get to run.
    fn pause(&self, times: u32) {
        match times {
            0..100 => core::hint::spin_loop(),
            100..4000 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
}
