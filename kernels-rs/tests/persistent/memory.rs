//! A test's memory, and a device that maps it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use ringmem_layouts::image::KernelHost;

use crate::patience::{Steps, until};

pub struct Bytes {
    base: NonNull<u8>,
    /// INVARIANT: the layout of `base`'s allocation; not empty.
    layout: Layout,
}

// SAFETY: an address; each access has its own proof.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 4096).expect("a size that fits");
        // SAFETY: not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        Self { base, layout }
    }

    pub fn of(bytes: &[u8]) -> Self {
        let this = Self::zeroed(bytes.len());
        // SAFETY: as long as `bytes`, and unshared.
        unsafe { this.base.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        this
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub fn place<T>(&self, offset: u64) -> NonNull<T> {
        let offset = usize::try_from(offset).expect("an offset within");
        assert!(offset + size_of::<T>() <= self.layout.size() && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: checked above.
        unsafe { self.base.add(offset) }.cast()
    }

    pub fn range(&self) -> (u64, u64) {
        (self.address(), self.layout.size() as u64)
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: by the invariant `base` was allocated with this layout; running kernels borrow these bytes.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

pub struct Device {
    ranges: Vec<(u64, u64)>,
    clock: Clock,
    steps: Arc<Steps>,
    pub pauses: AtomicU64,
    /// See [`stops_at`](Self::stops_at); 0 for never.
    stops_at: u64,
    is_stopped: AtomicBool,
}

pub enum Clock {
    Wall(Instant),
    Manual(AtomicU64),
}

impl Device {
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self {
            ranges: ranges.into_iter().collect(),
            clock: Clock::Wall(Instant::now()),
            steps: Steps::watched(),
            pauses: AtomicU64::new(0),
            stops_at: 0,
            is_stopped: AtomicBool::new(false),
        }
    }

    pub fn with_manual_clock(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self { clock: Clock::Manual(AtomicU64::new(1_000)), ..Self::new(ranges) }
    }

    pub fn until_it_pauses(&self) {
        let before = self.pauses.load(Relaxed);
        until("the kernel waits", || self.pauses.load(Relaxed) > before);
    }

    /// Lets the kernel stand still at the end of a dry round, counted from the launch, while the host works.
    #[allow(dead_code, reason = "not by the PTX suite")]
    pub fn stops_at(self, round: u64) -> Self {
        Self { stops_at: round, ..self }
    }

    #[allow(dead_code, reason = "not by the PTX suite")]
    pub fn while_stopped<R>(&self, work: impl FnOnce() -> R) -> R {
        until("the kernel stops", || self.is_stopped.load(Acquire));
        let result = work();
        self.is_stopped.store(false, Release);
        result
    }

    pub fn advance(&self, ns: u64) {
        match &self.clock {
            Clock::Manual(now) => now.fetch_add(ns, Relaxed),
            Clock::Wall(_) => panic!("nobody moves the wall clock"),
        };
    }
}

impl KernelHost for Device {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.steps.step();
        let within = |&(start, len): &(u64, u64)| address.checked_sub(start).is_some_and(|offset| offset <= len && bytes <= len - offset);
        self.ranges.iter().any(within).then(|| NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize)))?
    }

    fn now_ns(&self) -> u64 {
        self.steps.step();
        match &self.clock {
            Clock::Wall(born) => born.elapsed().as_nanos() as u64,
            Clock::Manual(now) => now.load(Relaxed),
        }
    }

    fn pause(&self, _: u32) {
        self.steps.step();
        if self.pauses.fetch_add(1, Relaxed) + 1 == self.stops_at {
            self.is_stopped.store(true, Release);
            until("the host has worked", || !self.is_stopped.load(Acquire));
        }
        std::thread::yield_now();
    }
}
