#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::mem::forget;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::direction::Transfer;
use super::metrics::Counts;
use super::{Metrics, RingBufferBridge};
use crate::sys::fork::Process;
use crate::{Error, Rejected, Result, RingMessage};

/// A bridge and its polling thread, until stopped or calls keep failing.
///
/// Then the user's ends are disconnected: [waits](crate::wait::Waiting) get [`Disconnected`](crate::wait::RecvError::Disconnected) after
/// the arrived messages. It does not watch the kernel.
///
/// A drop, or a panic of the thread, drops the bridge with unarrived messages. Forgotten, it polls until the process ends. A forked process does not have the
/// thread: there nothing is moved, and a drop leaves all to the parent.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Async);
/// let Opened { mut sender, bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// let pump = bridge.pump()?; // a thread that flushes both ways
/// sender.push(Echo { words: [7; 8] }).expect("room");
/// let stopped = pump.stop(Duration::from_secs(10))?;
/// # drop(stopped);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Pump<I: RingMessage, O: RingMessage> {
    order: Arc<Order>,
    thread: Option<JoinHandle<Option<Stopped<I, O>>>>,
    counts: [Arc<Counts>; 2],
    process: Process,
}

/// The result of a stopped pump.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, Stopped, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Sync);
/// let Opened { mut sender, bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// let pump = bridge.pump()?;
/// sender.push(Echo { words: [7; 8] }).expect("room");
/// let Stopped { outcome, left, .. } = pump.stop(Duration::from_secs(10))?;
/// assert!(outcome.is_ok() && left == [0, 0]); // all has arrived
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Debug)]
pub struct Stopped<I: RingMessage, O: RingMessage> {
    /// Can be flushed, or pumped again.
    pub bridge: RingBufferBridge<I, O>,
    /// Why it gave up, if it did.
    pub outcome: Result<()>,
    /// As [`pending`](RingBufferBridge::pending).
    pub left: [u64; 2],
}

#[derive(Default)]
struct Order {
    stop: AtomicBool,
    patience: AtomicU64,
    failing: AtomicU32,
}

/// Consecutive failures after which a pump, or a channel's receive or drain, gives up.
pub(crate) const MOST_FAILURES: u32 = 64;
const SPINS: u32 = 100;
const YIELDS: u32 = 1000;
/// Between two polls of an idle pump; after failures, times their number.
pub(crate) const SLEEP: Duration = Duration::from_micros(50);

impl<I: RingMessage, O: RingMessage> RingBufferBridge<I, O> {
    /// Moves the bridge into a polling thread.
    ///
    /// # Errors
    ///
    /// The bridge, with [`System`](Error::System) if the thread cannot be created.
    pub fn pump(self) -> Result<Pump<I, O>, Rejected<Self>> {
        let (order, counts) = (Arc::new(Order::default()), [Arc::clone(&self.to_device.counts), Arc::clone(&self.to_host.counts)]);
        let (hand, taken) = mpsc::channel::<Self>();
        let spawned = thread::Builder::new().name("ringmem-pump".into()).spawn({
            let order = Arc::clone(&order);
            move || taken.recv().ok().map(|bridge| run(bridge, &order))
        });
        let thread = match spawned {
            Ok(thread) => thread,
            Err(source) => {
                return Err(Rejected { error: Error::System { call: "start of a thread", path: None, answer: source }, value: self });
            }
        };
        match hand.send(self) {
            Ok(()) => Ok(Pump { order, thread: Some(thread), counts, process: Process::this() }),
            Err(mpsc::SendError(value)) => Err(Rejected { error: Error::Closed { what: "stream" }, value }),
        }
    }

    pub(crate) fn polls(&self) -> u64 {
        self.to_host.transfer.as_ref().map_or(0, |down| down.rings.transport.begun())
    }

    /// All that the kernel published before the poll after so many has arrived.
    pub(crate) fn has_brought_all(&self, polls: u64) -> bool {
        self.to_host.transfer.as_ref().is_none_or(|down| down.pending() == 0 && down.rings.transport.has_polled_since(polls))
    }

    fn disconnect(&mut self) {
        self.to_device.transfer.iter_mut().for_each(Transfer::disconnect);
        self.to_host.transfer.iter_mut().for_each(Transfer::disconnect);
    }

    fn reconnect(&mut self) -> Result<()> {
        self.to_device.transfer.as_mut().map_or(Ok(()), Transfer::reconnect)?;
        self.to_host.transfer.as_mut().map_or(Ok(()), Transfer::reconnect)
    }

    fn is_settled(&self, polls: u64) -> bool {
        self.pending() == [0; 2] && self.has_brought_all(polls) && self.to_host.transfer.as_ref().is_none_or(Transfer::is_settled)
    }
}

fn run<I: RingMessage, O: RingMessage>(mut bridge: RingBufferBridge<I, O>, order: &Order) -> Stopped<I, O> {
    bridge.try_again();
    let outcome = bridge.reconnect().and_then(|()| poll(&mut bridge, order));
    if outcome.is_err() {
        bridge.disconnect();
    }
    Stopped { left: bridge.pending(), outcome, bridge }
}

fn poll<I: RingMessage, O: RingMessage>(bridge: &mut RingBufferBridge<I, O>, order: &Order) -> Result<()> {
    let mut idle = 0_u32;
    let mut told = None;
    loop {
        let polled = bridge.poll();
        let [up, down] = bridge.failing();
        let failing = up.max(down);
        order.failing.store(failing, Relaxed);
        match polled {
            Ok(moved) => idle = if moved == [0; 2] || !bridge.moves() { idle.saturating_add(1) } else { 0 },
            Err(error) if failing >= MOST_FAILURES => return Err(error),
            Err(_) => {}
        }
        // SYNC POINT: told to stop. Pairs with Pump::tell.
        if order.stop.load(Acquire) {
            let now = Instant::now();
            let patience = || now.checked_add(Duration::from_nanos(order.patience.load(Relaxed)));
            let (until, polls) = *told.get_or_insert_with(|| {
                bridge.hurry();
                (patience(), bridge.polls())
            });
            if until.is_some_and(|until| now >= until) || failing == 0 && bridge.is_settled(polls) {
                return Ok(());
            }
        }
        match idle {
            _ if failing > 0 => thread::park_timeout(SLEEP * failing),
            0..SPINS => core::hint::spin_loop(),
            SPINS..YIELDS => thread::yield_now(),
            _ => thread::park_timeout(SLEEP),
        }
    }
}

impl<I: RingMessage, O: RingMessage> Pump<I, O> {
    /// Returns the counters to the device and to the host.
    #[must_use]
    pub fn metrics(&self) -> [Metrics; 2] {
        [self.counts[0].read(), self.counts[1].read()]
    }

    /// Returns the worse direction's consecutive failed flushes.
    #[must_use]
    pub fn failing(&self) -> u32 {
        self.order.failing.load(Relaxed)
    }

    /// Returns true if the thread gave up or panicked.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Polls until all messages have arrived, for at most `patience`; returns the bridge.
    ///
    /// # Errors
    ///
    /// [`System`](Error::System) if its thread panicked; [`Unsupported`](Error::Unsupported) in a forked process.
    pub fn stop(mut self, patience: Duration) -> Result<Stopped<I, O>> {
        if !self.process.is_this() {
            return Err(Error::Unsupported { what: "a pump of the parent process after fork" });
        }
        self.tell(patience);
        let stopped = self.thread.take().and_then(|thread| thread.join().ok().flatten());
        stopped.ok_or_else(|| Error::System {
            call: "join of the pump's thread",
            path: None,
            answer: std::io::Error::other("the pump's thread has panicked"),
        })
    }

    fn tell(&self, patience: Duration) {
        self.order.patience.store(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        // SYNC POINT: told to stop. Pairs with poll.
        self.order.stop.store(true, Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl<I: RingMessage, O: RingMessage> Drop for Pump<I, O> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // To wait for it, or to detach it, would be of no thread of this process.
            forget(self.thread.take());
            return;
        }
        self.tell(Duration::ZERO);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<I: RingMessage, O: RingMessage> fmt::Debug for Pump<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("metrics", &self.metrics()).field("failing", &self.failing()).finish_non_exhaustive()
    }
}
