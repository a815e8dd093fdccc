use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

use super::faults::Verb;
use crate::backend::{Address, Copy, Fill, Request, StreamId};
use crate::sys::panic::at_most_one;

/// An entry, added before a caller can observe its event.
///
/// ```
/// use ringmem::backend::host::{HostBackend, Verb};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().log(true).build()?;
/// let mut buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 100)?;
/// buffer.fill(7)?;
/// let log = backend.call_log();
/// assert_eq!(log.iter().map(|call| (call.verb, call.bytes)).collect::<Vec<_>>(), [(Verb::Allocate, 400), (Verb::Fill, 400)]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// From 1.
    pub number: u64,
    /// In ns; the previous entry's if the clock panics during a panic.
    pub at_ns: u64,
    /// Phase of the call.
    pub phase: Phase,
    /// Method; of a page, the one that moved it.
    pub verb: Verb,
    /// Stream, if any.
    pub stream: Option<StreamId>,
    /// Number in the stream, if queued.
    pub ticket: Option<u64>,
    /// Bytes allocated, freed, copied, filled or moved; else 0.
    pub bytes: u64,
    /// Address read or freed, or of the moved page.
    pub from: Option<u64>,
    /// Address written or allocated.
    pub to: Option<u64>,
    /// It succeeded.
    pub ok: bool,
}

/// The phase of a call.
///
/// ```
/// use ringmem::backend::host::{HostBackend, Phase, Verb};
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().log(true).build()?;
/// let buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 100)?;
/// Stream::new(&backend, 0)?.fill(buffer, .., 7)?.wait()?;
/// let fills = backend.call_log().into_iter().filter(|call| call.verb == Verb::Fill);
/// let phases: Vec<Phase> = fills.map(|call| call.phase).collect();
/// assert!(phases.contains(&Phase::Called) && phases.contains(&Phase::Executed));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The call has returned, before the execution of a queued operation.
    Called,
    /// It was executed on its stream.
    Executed,
    /// A freed block was released.
    Freed,
    /// A page migrated to a device.
    PagedIn,
    /// A page left a device for another place.
    PagedOut,
    /// A page was evicted from a device.
    Evicted,
}

#[derive(Clone, Copy)]
pub(super) struct Facts {
    pub verb: Verb,
    pub stream: Option<StreamId>,
    pub bytes: u64,
    pub from: Option<u64>,
    pub to: Option<u64>,
}

impl Facts {
    pub const fn of(verb: Verb, stream: Option<StreamId>) -> Self {
        Self { verb, stream, bytes: 0, from: None, to: None }
    }

    pub fn allocation(request: &Request, stream: Option<StreamId>) -> Self {
        Self { bytes: request.layout.size() as u64, ..Self::of(Verb::Allocate, stream) }
    }

    pub fn copy(copy: &Copy, stream: Option<StreamId>) -> Self {
        Self { bytes: copy.bytes, from: Some(copy.from.get()), to: Some(copy.to.get()), ..Self::of(Verb::Copy, stream) }
    }

    pub fn fill(fill: &Fill, stream: Option<StreamId>) -> Self {
        Self { bytes: fill.bytes(), to: Some(fill.to.get()), ..Self::of(Verb::Fill, stream) }
    }

    pub fn publish(word: Address, stream: Option<StreamId>) -> Self {
        Self { bytes: size_of::<u64>() as u64, to: Some(word.get()), ..Self::of(Verb::Publish, stream) }
    }
}

pub(super) struct Log {
    is_on: bool,
    calls: Mutex<Vec<Call>>,
}

impl Log {
    pub const fn new(is_on: bool) -> Self {
        Self { is_on, calls: Mutex::new(Vec::new()) }
    }

    /// Under the lock: times are as monotonic as the clock.
    pub fn record(&self, facts: &Facts, phase: Phase, ticket: Option<u64>, ok: bool, clock: impl FnOnce() -> u64) {
        if !self.is_on {
            return;
        }
        let Facts { verb, stream, bytes, from, to } = *facts;
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let number = calls.len() as u64 + 1;
        let at_ns = at_most_one(clock).unwrap_or_else(|| calls.last().map_or(0, |call| call.at_ns));
        calls.push(Call { number, at_ns, phase, verb, stream, ticket, bytes, from, to, ok });
    }

    pub fn read(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
