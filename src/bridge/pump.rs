//! [`Pump`]: a thread that runs a bridge.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::metrics::Counts;
use super::mover::Mover;
use super::{Metrics, RingBufferBridge};
use crate::{Error, Rejected, Result, RingMessage};

/// A bridge that is polled by a thread of its own, until it is stopped or its calls keep failing.
///
/// Giving up, it says at the rings' other ends that the bridge is gone, until that is pumped again: who [waits](crate::wait::Waiting) there is told
/// [`Disconnected`](crate::wait::RecvError::Disconnected) after what had arrived.
///
/// It knows no kernel: who waits at an end for one that has left waits until the bridge goes.
///
/// Dropping it stops the thread at once and drops the bridge: what has not arrived then is lost with the rings. So it is where the thread panics, by a clock of the
/// user's for one. Forgotten, it goes on for as long as the process.
pub struct Pump<I: RingMessage, O: RingMessage> {
    order: Arc<Order>,
    /// `None` once it was stopped.
    thread: Option<JoinHandle<Option<Stopped<I, O>>>>,
    counts: [Arc<Counts>; 2],
}

/// What a pump leaves.
#[derive(Debug)]
pub struct Stopped<I: RingMessage, O: RingMessage> {
    /// The bridge, which can be flushed, or pumped again.
    pub bridge: RingBufferBridge<I, O>,
    /// Why it gave up, if it did. Nothing is lost by that.
    pub outcome: Result<()>,
    /// Messages that have not arrived at the device, and that were seen there and have not arrived at the host.
    pub left: [u64; 2],
}

/// What the thread is told.
#[derive(Default)]
struct Order {
    stop: AtomicBool,
    /// How long it may go on after that to get everything through, ns.
    patience: AtomicU64,
    /// Failures in a row, in the direction that has the longer.
    failing: AtomicU32,
}

/// Failures in a row after which a pump gives up, and who waits for a kernel that has left: one that goes away by itself has gone by then.
pub(crate) const MOST_FAILURES: u32 = 64;
/// Rounds without a message before the thread yields.
const SPINS: u32 = 100;
/// Rounds without a message before it sleeps.
const YIELDS: u32 = 1000;
/// How long it sleeps: a message that comes meanwhile waits for it.
const SLEEP: Duration = Duration::from_micros(50);

impl<I: RingMessage, O: RingMessage> RingBufferBridge<I, O> {
    /// Polls the bridge on a thread of its own.
    ///
    /// # Errors
    ///
    /// The bridge, with [`Thread`](Error::Thread), if the system gives no thread.
    pub fn pump(self) -> Result<Pump<I, O>, Rejected<Self>> {
        let (order, counts) = (Arc::new(Order::default()), [Arc::clone(&self.up.counts), Arc::clone(&self.down.counts)]);
        // Handed over when the thread is there: so it comes back where there is none.
        let (hand, taken) = mpsc::channel::<Self>();
        let spawned = thread::Builder::new().name("ringmem-pump".into()).spawn({
            let order = Arc::clone(&order);
            move || taken.recv().ok().map(|bridge| run(bridge, &order))
        });
        let thread = match spawned {
            Ok(thread) => thread,
            Err(source) => return Err(Rejected { error: Error::Thread { source }, value: self }),
        };
        match hand.send(self) {
            Ok(()) => Ok(Pump { order, thread: Some(thread), counts }),
            Err(mpsc::SendError(value)) => Err(Rejected { error: Error::StreamClosed, value }),
        }
    }

    /// Polls of the kernel's output ring that were begun.
    pub(crate) fn looks(&self) -> u64 {
        self.down.mover.as_ref().map_or(0, |down| down.pair.carrier.begun())
    }

    /// Whether all has arrived that the kernel published before the poll after so many was begun.
    pub(crate) fn has_brought_all(&self, looks: u64) -> bool {
        self.down.mover.as_ref().is_none_or(|down| down.pending() == 0 && down.pair.carrier.has_looked_since(looks))
    }

    /// Tells the users' ends that messages are no longer moved.
    fn leave(&mut self) {
        self.up.mover.iter_mut().for_each(Mover::leave);
        self.down.mover.iter_mut().for_each(Mover::leave);
    }

    fn come_back(&mut self) -> Result<()> {
        self.up.mover.as_mut().map_or(Ok(()), Mover::come_back)?;
        self.down.mover.as_mut().map_or(Ok(()), Mover::come_back)
    }

    /// Whether all that was sent, or seen by a poll after so many, has arrived, and all slots were released.
    fn is_settled(&self, looks: u64) -> bool {
        self.pending() == [0; 2] && self.has_brought_all(looks) && self.down.mover.as_ref().is_none_or(Mover::is_settled)
    }
}

fn run<I: RingMessage, O: RingMessage>(mut bridge: RingBufferBridge<I, O>, order: &Order) -> Stopped<I, O> {
    // Another try of one that had failed before.
    bridge.try_again();
    let outcome = bridge.come_back().and_then(|()| poll(&mut bridge, order));
    if outcome.is_err() {
        bridge.leave();
    }
    Stopped { left: bridge.pending(), outcome, bridge }
}

/// Polls until it is told to stop, or has failed too often.
fn poll<I: RingMessage, O: RingMessage>(bridge: &mut RingBufferBridge<I, O>, order: &Order) -> Result<()> {
    let mut idle = 0_u32;
    let mut told = None;
    loop {
        let polled = bridge.poll();
        let [up, down] = bridge.failing();
        let failing = up.max(down);
        order.failing.store(failing, Relaxed);
        match polled {
            // What waits in a ring that both sides share is nothing to do.
            Ok(moved) => idle = if moved == [0; 2] || !bridge.moves() { idle.saturating_add(1) } else { 0 },
            Err(error) if failing >= MOST_FAILURES => return Err(error),
            Err(_) => {}
        }
        // SYNC POINT: told to stop. Pairs with Pump::tell.
        if order.stop.load(Acquire) {
            let now = Instant::now();
            let patience = || now.checked_add(Duration::from_nanos(order.patience.load(Relaxed)));
            let (until, looks) = *told.get_or_insert_with(|| (patience(), bridge.looks()));
            if until.is_some_and(|until| now >= until) || failing == 0 && bridge.is_settled(looks) {
                return Ok(());
            }
        }
        match idle {
            // Longer each time: those after a failure are a tenth of a second, all of them.
            _ if failing > 0 => thread::park_timeout(SLEEP * failing),
            0..SPINS => core::hint::spin_loop(),
            SPINS..YIELDS => thread::yield_now(),
            _ => thread::park_timeout(SLEEP),
        }
    }
}

impl<I: RingMessage, O: RingMessage> Pump<I, O> {
    /// What has been done, to the device and to the host.
    #[must_use]
    pub fn metrics(&self) -> [Metrics; 2] {
        [self.counts[0].read(), self.counts[1].read()]
    }

    /// Failures in a row, now, in the direction that has more; how many make it give up is more than any that goes away by itself.
    #[must_use]
    pub fn failing(&self) -> u32 {
        self.order.failing.load(Relaxed)
    }

    /// Whether the thread has ended: because it gave up, or has panicked.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Gets through what is under way, but goes on no longer than `patience`, and gives the bridge back.
    ///
    /// # Errors
    ///
    /// [`Thread`](Error::Thread) if its thread has panicked.
    pub fn stop(mut self, patience: Duration) -> Result<Stopped<I, O>> {
        self.tell(patience);
        let stopped = self.thread.take().and_then(|thread| thread.join().ok().flatten());
        stopped.ok_or_else(|| Error::Thread { source: std::io::Error::other("the pump's thread has panicked") })
    }

    fn tell(&self, patience: Duration) {
        self.order.patience.store(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        // SYNC POINT: told to stop. Pairs with run.
        self.order.stop.store(true, Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl<I: RingMessage, O: RingMessage> Drop for Pump<I, O> {
    fn drop(&mut self) {
        self.tell(Duration::ZERO);
        if let Some(thread) = self.thread.take() {
            // Its panic is its own: there is nobody to tell.
            let _ = thread.join();
        }
    }
}

impl<I: RingMessage, O: RingMessage> fmt::Debug for Pump<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("metrics", &self.metrics()).field("failing", &self.failing()).finish_non_exhaustive()
    }
}
