//! [`Engine`]: streams and their order.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::attributes::PAGEABLE_MEMORY_ACCESS;
use crate::block::{Kind, Span};
use crate::code::{Answer, Code};
use crate::context;
use crate::driver::Driver;
use crate::entry;
use crate::handle_table::Table;
use crate::log::give_up;
use crate::operation::Operation;
use crate::stream::{Stream, Ticket};

const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

pub struct Engine {
    pub streams: Table<Stream>,
    order: Mutex<Order>,
    legacy: Vec<OnceLock<Arc<Stream>>>,
    running: Mutex<Vec<(&'static str, Instant)>>,
    delay: Duration,
    ids: AtomicU64,
    queues: u64,
}

#[derive(Default)]
struct Order {
    streams: Vec<Arc<Stream>>,
    closed: usize,
    queues: BTreeMap<(u32, u64), Ticket>,
}

impl Engine {
    pub fn new(devices: usize, delay: Duration, queues: u64) -> Self {
        let legacy = (0..devices).map(|_| OnceLock::new()).collect();
        Self {
            streams: Table::new(0x57, "stream"),
            order: Mutex::default(),
            legacy,
            running: Mutex::default(),
            delay,
            ids: AtomicU64::new(1),
            queues,
        }
    }

    pub fn create(&self, device: u32, blocking: bool) -> Answer<usize> {
        let stream = Arc::new(self.open(device, blocking));
        self.order().streams.push(Arc::clone(&stream));
        Ok(self.streams.insert_arc(stream))
    }

    fn open(&self, device: u32, blocking: bool) -> Stream {
        Stream::new(device, self.ids.fetch_add(1, Relaxed), blocking, self.delay)
    }

    pub fn destroy(&self, handle: usize) -> Answer {
        let mut order = self.order();
        self.streams.remove(handle)?.close();
        order.closed += 1;
        Ok(())
    }

    pub fn destroy_all(&self, device: u32) {
        for (handle, _) in self.streams.list(|stream| stream.device == device) {
            let _ = self.destroy(handle);
        }
    }

    pub fn stream(&self, handle: usize) -> Answer<Arc<Stream>> {
        match handle {
            0 | LEGACY => self.legacy(context::bound().ok_or(Code::INVALID_CONTEXT)?),
            PER_THREAD => Err(Code::NOT_SUPPORTED),
            _ => self.streams.find(handle),
        }
    }

    fn legacy(&self, device: u32) -> Answer<Arc<Stream>> {
        let place = &self.legacy[device as usize];
        if place.get().is_none() {
            let _ = place.set(Arc::new(self.open(device, true)));
        }
        place.get().cloned().ok_or(Code::UNKNOWN)
    }

    fn is_legacy(&self, stream: &Arc<Stream>) -> bool {
        self.legacy[stream.device as usize].get().is_some_and(|legacy| Arc::ptr_eq(legacy, stream))
    }

    pub fn queue(&self, handle: usize, operation: Operation, event: Option<Ticket>) -> Answer<Ticket> {
        let stream = self.stream(handle)?;
        let mut order = self.order();
        if order.closed > 0 {
            let before = order.streams.len();
            order.streams.retain(|stream| !stream.is_over());
            order.closed -= before - order.streams.len();
        }
        let mut after: Vec<Ticket> = event.into_iter().collect();
        if self.is_legacy(&stream) {
            after.extend(order.blocking(stream.device).map(|stream| stream.last()));
        } else if stream.blocking {
            after.extend(self.legacy[stream.device as usize].get().map(|legacy| legacy.last()));
        }
        if let Some(queue) = stream.id.checked_rem(self.queues) {
            after.extend(order.queues.get(&(stream.device, queue)).cloned());
        }
        let ticket = stream.next(&after, matches!(operation, Operation::Wait { .. }))?;
        operation.note(Driver::the(), &ticket);
        after.retain(|ticket| !ticket.at.is_done());
        stream.queue(operation, &ticket, after)?;
        if let Some(queue) = stream.id.checked_rem(self.queues) {
            order.queues.insert((stream.device, queue), ticket.clone());
        }
        Ok(ticket)
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy from pageable memory has read its source on return, unless the device reads such memory; one to it is complete.
    pub fn copy(&self, handle: usize, to: Span, from: Span, patience: Duration) -> Answer<Ticket> {
        if to.overlaps(&from) && to.len > 0 {
            return Err(Code::INVALID_VALUE);
        }
        let is_late = Driver::the().settings.attributes.has(PAGEABLE_MEMORY_ACCESS);
        let finish = to.block.kind == Kind::Pageable || to.block.is_host() && from.block.is_host();
        let from = if from.block.kind == Kind::Pageable && !is_late { from.staged()? } else { from };
        let ticket = self.queue(handle, Operation::Copy { to, from }, None)?;
        if finish {
            self.wait(&ticket, patience);
        }
        Ok(ticket)
    }

    pub fn query(&self, handle: usize) -> Answer<bool> {
        let stream = self.stream(handle)?;
        Ok(stream.query() && (!self.is_legacy(&stream) || self.order().blocking(stream.device).all(|other| other.query())))
    }

    pub fn wait(&self, ticket: &Ticket, patience: Duration) {
        if !ticket.wait_until(Instant::now() + patience) {
            self.hang(patience);
        }
    }

    pub fn idle(&self, device: Option<u32>, deadline: Duration) {
        let then = Instant::now() + deadline;
        let order = self.order();
        let all = order.streams.iter().chain(self.legacy.iter().filter_map(OnceLock::get));
        let tickets: Vec<Ticket> =
            all.filter(|stream| device.is_none_or(|device| stream.device == device)).map(|stream| stream.last()).collect();
        drop(order);
        if !tickets.iter().all(|ticket| ticket.wait_until(then)) {
            self.hang(deadline);
        }
    }

    fn hang(&self, waited: Duration) -> ! {
        let (number, symbol) = entry::current();
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let kernels: Vec<String> = running.iter().map(|(name, since)| format!("`{name}` for {:?}", since.elapsed())).collect();
        let kernels = if kernels.is_empty() { "no kernel".to_owned() } else { kernels.join(", ") };
        Driver::the().record.never_returned(number, symbol);
        give_up(&format!(
            "call {number}, {symbol}, has waited {waited:?} for the device, which runs {kernels}; a real driver may wait for ever"
        ))
    }

    pub fn runs(&self, kernel: &'static str) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push((kernel, Instant::now()));
    }

    pub fn left(&self, kernel: &'static str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = running.iter().position(|(name, _)| *name == kernel) {
            running.remove(index);
        }
    }

    pub fn running(&self) -> Vec<&'static str> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(name, _)| *name).collect()
    }
}

impl Order {
    fn blocking(&self, device: u32) -> impl Iterator<Item = &Arc<Stream>> {
        self.streams.iter().filter(move |stream| stream.blocking && stream.device == device)
    }
}
