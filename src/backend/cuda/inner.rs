//! [`Inner`]: the state of a backend, which the backend shares with its watch thread.
//!
//! # Fields
//!
//! | field | contents | written by |
//! |---|---|---|
//! | `devices`, `opening` | a device from its first use until the end of the backend; `opening` serialises that first use | `inner.rs` |
//! | `streams`, `closing`, `ended` | see below | `inner.rs` |
//! | `ranges`, `budget` | live memory, and the pinned bytes of it | `memory.rs`, `interop.rs` |
//! | `deferred`, `watch` | freed blocks in use and kept values; the thread that polls for them | `deferred.rs` |
//! | `modules`, `launching` | images loaded per device; which launches must take a lock | `launch.rs` |
//! | `timing_events` | timed events by ticket | `timing.rs` |
//! | `cudarc` | one stream of each context that cudarc has | `interop.rs` |
//! | `is_closed` | see `address_range.rs` | `inner.rs` |
//! | `counts` | counters, without a relation to each other | every file |
//!
//! # Streams
//!
//! | state | `streams` | `closing` | `ended` |
//! |---|---|---|---|
//! | open | listed | - | - |
//! | closed, with incomplete work | listed, so that tickets can be waited for | counted | - |
//! | closed, complete | - | - | listed while failures are unreported, at most 64 streams |
//!
//! A stream is counted in `closing` after its queue is closed; if it is removed before, `closing` wraps below 0 for a moment.
//! [`tidy`](Inner::tidy) moves complete streams on, if `closing` is not 0. It adds a stream to `ended` while the lock of `streams` is held: a waiter finds it
//! in one of the two. A ticket of a stream in neither is complete.
//!
//! # Order of locks
//!
//! A thread takes them from left to right, and may omit any:
//!
//! `Device::occupancy`, an image's `loading` → `launching` → `Device::mapping` → `Device::peers` → `timing_events`, `deferred`, `cudarc` → `streams` →
//! `ended` → a queue's state → `ranges`, and the lists of a device.
//!
//! The occupied places of an address range are taken last.
//!
//! `opening` and the list in `modules` are taken with none of these held. `opening` is held while a device is opened, the list while nothing else is taken. The
//! thread in `watch` is started and joined under its own lock; it takes the others itself, so a caller may hold none that it needs.
//!
//! No lock is held while a value of the caller is dropped: its drop may call this backend.
//!
//! # Closing
//!
//! [`close`](Inner::close) waits for the kernels of one stream after another, for [`CLOSE_TIMEOUT`] each, and then for other work; on a stream that others use
//! too, again for so long at most. If that succeeds, modules, timed events and then devices are released. Else they are leaked, because releasing them would
//! wait for the kernel, and with them all that queued work may still use: pending frees, kept values, owners of adopted memory.

use core::mem::{self, ManuallyDrop};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::vec::Vec;

use cudarc::driver::CudaStream;

use super::Settings;
use super::deferred::{Deferred, Watch};
use super::device::Device;
use super::driver::{self, Calls, Driver};
use super::launch::{Launching, Modules};
use super::lookup::{CachedTable, Ranges};
use super::memory::Owner;
use super::process;
use super::queue::Queue;
use super::timing::TimingEvents;
use crate::backend::counters::Counts;
use crate::backend::failures::Ended;
use crate::backend::host::pinned::Budget;
use crate::backend::{StreamId, Ticket, Uses};
use crate::sys::panic::caught;
use crate::{Error, Result};

/// A kernel that runs longer than this when the backend is closed is left running.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Inner {
    pub id: u64,
    pub driver: Driver,
    settings: Settings,
    devices: Vec<OnceLock<Arc<Device>>>,
    opening: Mutex<()>,
    pub ranges: Ranges<Owner>,
    pub budget: Budget,
    streams: CachedTable<StreamId, Queue>,
    closing: AtomicUsize,
    ended: Ended<Queue>,
    pub modules: Modules,
    pub launching: Launching,
    pub timing_events: TimingEvents,
    pub deferred: Deferred,
    pub watch: Watch,
    /// True once the backend has closed without a running kernel.
    pub is_closed: Arc<AtomicBool>,
    pub counts: Arc<Counts>,
    /// By device. Dropped by `close`, but not while a kernel runs: the drop would wait for it.
    pub cudarc: Mutex<BTreeMap<u32, ManuallyDrop<Arc<CudaStream>>>>,
}

impl Inner {
    pub fn new(driver: Driver, settings: Settings, devices: u32) -> Self {
        Self {
            id: crate::backend::next_id(),
            driver,
            settings,
            devices: (0..devices).map(|_| OnceLock::new()).collect(),
            opening: Mutex::default(),
            ranges: Ranges::default(),
            budget: Budget::new(settings.pinned_budget),
            streams: CachedTable::default(),
            closing: AtomicUsize::new(0),
            ended: Ended::default(),
            modules: Modules::default(),
            launching: Launching::default(),
            timing_events: TimingEvents::default(),
            deferred: Deferred::default(),
            watch: Watch::default(),
            is_closed: Arc::default(),
            counts: Arc::default(),
            cudarc: Mutex::default(),
        }
    }

    pub fn calls(&self) -> &'static Calls {
        self.driver.calls()
    }

    pub fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Opens the device at its first use. A failure leaves it unopened, for the next use.
    pub fn device(&self, ordinal: u32) -> Result<&Arc<Device>> {
        let none = || Error::NoDevice { asked: ordinal, devices: self.devices() };
        let slot = self.devices.get(ordinal as usize).ok_or_else(none)?;
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.get().is_none() {
            let _ = slot.set(Device::open(&self.driver, ordinal, &self.settings)?);
        }
        slot.get().ok_or_else(none)
    }

    pub fn opened(&self) -> impl Iterator<Item = &Arc<Device>> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    pub fn is_open(&self, ordinal: u32) -> bool {
        self.devices.get(ordinal as usize).is_some_and(|slot| slot.get().is_some())
    }

    /// Adds a stream to the table.
    pub fn list(&self, queue: Queue) -> StreamId {
        let id = StreamId::next();
        self.streams.insert(id, Arc::new(queue));
        self.counts.streams.fetch_add(1, Relaxed);
        id
    }

    /// Returns a stream that is open, or closed with incomplete work.
    pub fn listed(&self, id: StreamId) -> Option<Arc<Queue>> {
        if process::is_forked() {
            return None;
        }
        self.streams.get(id)
    }

    /// Like [`listed`](Self::listed), and also a complete stream with unreported failures.
    pub fn listed_or_ended(&self, id: StreamId) -> Option<Arc<Queue>> {
        self.listed(id).or_else(|| (!process::is_forked()).then(|| self.ended.get(id)).flatten())
    }

    /// Like [`listed`](Self::listed), for a new operation.
    pub fn stream(&self, id: StreamId) -> Result<Arc<Queue>> {
        driver::check_callable("cuCtxGetCurrent")?;
        self.streams.get(id).ok_or_else(|| Error::Closed { what: "stream" })
    }

    pub fn queues(&self) -> Vec<Arc<Queue>> {
        self.streams.all()
    }

    pub fn close_queue(&self, queue: &Queue) {
        if queue.close() {
            self.closing.fetch_add(1, Relaxed);
        }
    }

    /// An unlisted stream has executed everything. In a forked child every ticket is complete.
    pub fn is_complete(&self, ticket: Ticket) -> bool {
        self.listed(ticket.stream).is_none_or(|queue| queue.is_complete(ticket.number))
    }

    pub fn are_complete(&self, uses: &Uses) -> bool {
        uses.iter().all(|ticket| self.is_complete(ticket))
    }

    pub fn has_kernels(&self) -> bool {
        self.queues().iter().any(|queue| queue.has_kernels())
    }

    /// Returns the failures of complete streams that no waiter has got.
    pub fn unreported_of_ended(&self) -> u64 {
        self.ended.unreported()
    }

    /// Removes complete streams, then drains pending frees.
    pub fn tidy(&self) {
        if process::is_forked() {
            return;
        }
        if self.closing.load(Relaxed) > 0 {
            let mut kept = Vec::new();
            self.streams.take(Queue::is_ended, |id, queue| {
                self.closing.fetch_sub(1, Relaxed);
                kept.extend(queue.finish());
                self.counts.unreported.fetch_add(self.ended.keep(id, queue), Relaxed);
            });
            // Without the locks: the drop of a caller's value may call this backend. A panic of it has no caller, and is counted.
            let panics = kept.into_iter().map(|value| caught(|| drop(value))).filter(Option::is_none).count();
            self.counts.unreported.fetch_add(panics as u64, Relaxed);
        }
        self.deferred.drain(self);
    }

    /// Ends the backend, once, in a process that may call the driver. Returns false if work may still run: then nothing of it may be dropped.
    #[must_use]
    pub fn close(&self) -> bool {
        self.watch.end();
        self.queues().iter().for_each(|queue| self.close_queue(queue));
        // Those that were complete when they were closed may be removed by now.
        let queues = self.queues();
        let kernels_ended = queues.iter().all(|queue| queue.kernels_end_within(CLOSE_TIMEOUT));
        let is_complete = kernels_ended && queues.iter().all(|queue| queue.wait_for_all(CLOSE_TIMEOUT));
        self.tidy();
        if is_complete {
            let opened = mem::take(&mut *self.cudarc.lock().unwrap_or_else(PoisonError::into_inner));
            opened.into_values().map(ManuallyDrop::into_inner).for_each(drop);
            self.release_all_parts();
            self.deferred.give_back_addresses(self);
            self.is_closed.store(true, Release);
        }
        for device in self.opened() {
            if is_complete {
                let _bound = device.bind();
                self.unload_all(device);
                self.timing_events.destroy(device);
            } else {
                device.leak();
            }
        }
        is_complete
    }
}
