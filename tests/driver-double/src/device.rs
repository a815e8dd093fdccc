use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::code::{Answer, Code};
use crate::context::Context;

pub struct Device {
    pub ordinal: u32,
    pub context: Context,
    pub pool: usize,
    pub total: u64,
    used: AtomicU64,
    local: AtomicU64,
    reaches: AtomicU64,
}

impl Device {
    pub const fn new(ordinal: u32, total: u64, pool: usize) -> Self {
        Self {
            ordinal,
            context: Context::new(),
            pool,
            total,
            used: AtomicU64::new(0),
            local: AtomicU64::new(0),
            reaches: AtomicU64::new(0),
        }
    }

    pub fn take(&self, bytes: u64) -> Answer {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.total);
        self.used.fetch_update(AcqRel, Acquire, more).map(drop).map_err(|_| Code::OUT_OF_MEMORY)
    }

    pub fn grows_local(&self, bytes: u64) -> bool {
        self.local.fetch_max(bytes, AcqRel) < bytes
    }

    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, AcqRel);
    }

    pub fn used(&self) -> u64 {
        self.used.load(Acquire)
    }

    pub fn reaches(&self, peer: u32) -> bool {
        peer == self.ordinal || self.reaches.load(Relaxed) >> peer & 1 == 1
    }

    pub fn reach(&self, peer: u32, may: bool) -> bool {
        let before = if may { self.reaches.fetch_or(1 << peer, Relaxed) } else { self.reaches.fetch_and(!(1 << peer), Relaxed) };
        before >> peer & 1 == 1
    }

    pub fn forget(&self) {
        self.reaches.store(0, Relaxed);
    }
}
