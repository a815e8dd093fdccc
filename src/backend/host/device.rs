//! What blocks, streams and modules hold on to: the simulated device itself.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use ringmem_layouts::image::KernelHost;

use super::arena::Arena;
use super::counters::Counts;
use super::ranges::Ranges;
use crate::{Error, Result};

pub(super) struct Device {
    /// Of this process; never used twice.
    pub id: u64,
    pub arena: Arena,
    /// What [`KernelHost::translate`] accepts: live device blocks, and live pinned memory of this device.
    pub ranges: Ranges,
    pub counts: Counts,
    born: Instant,
}

impl Device {
    pub fn new(memory: u64) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            arena: Arena::new(memory)?,
            id: NEXT.fetch_add(1, Relaxed),
            ranges: Ranges::default(),
            counts: Counts::default(),
            born: Instant::now(),
        })
    }

    /// Refuses what belongs to another device: on real ones its addresses would mean something else.
    pub fn owns(&self, other: &Self) -> Result<()> {
        if self.id == other.id { Ok(()) } else { Err(Error::OtherBackend { expected: self.id, got: other.id }) }
    }
}

impl KernelHost for Device {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.ranges.translate(address, bytes)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
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
