//! [`Engine`]: the streams together, and what waits for what.
//!
//! 1. Work of the legacy stream begins after all earlier work of blocking streams, and later work of those after it.
//! 2. A wait that a kernel may hold up for ever has a deadline, and then the process ends with a reason.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::block::{Kind, Span};
use crate::call;
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::operation::Operation;
use crate::record::give_up;
use crate::stream::{Stream, Ticket};
use crate::table::Table;

/// `CU_STREAM_LEGACY`.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

pub struct Engine {
    pub streams: Table<Stream>,
    /// Held while something is queued.
    order: Mutex<Vec<Arc<Stream>>>,
    legacy: OnceLock<Arc<Stream>>,
    running: Mutex<Vec<(&'static str, Instant)>>,
}

impl Engine {
    pub const fn new() -> Self {
        Self { streams: Table::new(0x57), order: Mutex::new(Vec::new()), legacy: OnceLock::new(), running: Mutex::new(Vec::new()) }
    }

    pub fn create(&self, blocking: bool) -> Answer<usize> {
        let stream = Arc::new(Stream::new(blocking)?);
        self.order.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&stream));
        Ok(self.streams.insert_arc(stream))
    }

    /// What is queued is still executed.
    pub fn destroy(&self, handle: usize) -> Answer {
        self.streams.remove(handle)?.close();
        Ok(())
    }

    /// Destroys all but the legacy stream.
    pub fn destroy_all(&self) {
        for (handle, _) in self.streams.list() {
            // Another thread may have destroyed it meanwhile.
            let _ = self.destroy(handle);
        }
    }

    pub fn stream(&self, handle: usize) -> Answer<Arc<Stream>> {
        match handle {
            0 | LEGACY => self.legacy(),
            PER_THREAD => Err(Code::NOT_SUPPORTED),
            _ => self.streams.find(handle),
        }
    }

    fn legacy(&self) -> Answer<Arc<Stream>> {
        if self.legacy.get().is_none() {
            // A second one that another thread made meanwhile is never used.
            let _ = self.legacy.set(Arc::new(Stream::new(true)?));
        }
        self.legacy.get().cloned().ok_or(Code::UNKNOWN)
    }

    /// Queues an operation behind its stream, behind what the legacy rule says, and behind `event`.
    pub fn queue(&self, handle: usize, operation: Operation, event: Option<Ticket>) -> Answer<Ticket> {
        let stream = self.stream(handle)?;
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        order.retain(|stream| !stream.is_over());
        let mut after: Vec<Ticket> = event.into_iter().collect();
        match self.legacy.get() {
            Some(legacy) if Arc::ptr_eq(legacy, &stream) => {
                after.extend(order.iter().filter(|stream| stream.blocking).map(|stream| stream.last()));
            }
            Some(legacy) if stream.blocking => after.push(legacy.last()),
            _ => {}
        }
        after.retain(|ticket| !ticket.is_done());
        stream.queue(operation, after)
    }

    /// Queues a copy. One from pageable memory has read its source when this returns, and one to it has written.
    pub fn copy(&self, handle: usize, to: Span, from: Span, patience: Duration) -> Answer<Ticket> {
        if to.overlaps(&from) && to.len > 0 {
            return Err(Code::INVALID_VALUE);
        }
        let from = if from.block.kind == Kind::Pageable { from.staged()? } else { from };
        let finish = to.block.kind == Kind::Pageable;
        let ticket = self.queue(handle, Operation::Copy { to, from }, None)?;
        if finish {
            self.wait(&ticket, patience);
        }
        Ok(ticket)
    }

    /// Whether all work of a stream is done; for the legacy stream, that of the blocking ones too.
    pub fn query(&self, handle: usize) -> Answer<bool> {
        let stream = self.stream(handle)?;
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let is_legacy = self.legacy.get().is_some_and(|legacy| Arc::ptr_eq(legacy, &stream));
        Ok(stream.last().is_done() && !(is_legacy && order.iter().any(|other| other.blocking && !other.last().is_done())))
    }

    /// Waits for one operation.
    pub fn wait(&self, ticket: &Ticket, patience: Duration) {
        if !ticket.wait_until(Instant::now() + patience) {
            self.hang(patience);
        }
    }

    /// Waits until nothing that is queued anywhere is left.
    pub fn idle(&self, deadline: Duration) {
        let then = Instant::now() + deadline;
        let last = |stream: &Arc<Stream>| stream.last();
        let mut tickets: Vec<Ticket> = self.order.lock().unwrap_or_else(PoisonError::into_inner).iter().map(last).collect();
        tickets.extend(self.legacy.get().map(last));
        if !tickets.iter().all(|ticket| ticket.wait_until(then)) {
            self.hang(deadline);
        }
    }

    fn hang(&self, waited: Duration) -> ! {
        let (number, symbol) = call::current();
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let kernels: Vec<String> = running.iter().map(|(name, since)| format!("`{name}` for {:?}", since.elapsed())).collect();
        let kernels = if kernels.is_empty() { "no kernel".to_owned() } else { kernels.join(", ") };
        Driver::the().record.never_returned(number, symbol);
        give_up(&format!(
            "call {number}, {symbol}, has waited {waited:?} for the device, which runs {kernels}; a real driver may wait for ever"
        ))
    }

    /// Says that a kernel runs, until [`left`](Self::left).
    pub fn runs(&self, kernel: &'static str) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push((kernel, Instant::now()));
    }

    pub fn left(&self, kernel: &'static str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = running.iter().position(|(name, _)| *name == kernel) {
            running.remove(index);
        }
    }

    /// Names of the kernels that run.
    pub fn running(&self) -> Vec<&'static str> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(name, _)| *name).collect()
    }
}
