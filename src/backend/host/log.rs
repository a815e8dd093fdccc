//! What happened, call by call, for a test that wants to see an order.

use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

use super::faults::Verb;
use crate::backend::panic::at_most_one;
use crate::backend::{Copy, Fill, Place, Request, StreamId};

/// One thing that happened. They are listed in the order in which they did, before anybody could be told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// From 1.
    pub number: u64,
    /// By the backend's clock, in ns; the time before, where a thread that panics called and the clock panicked as well.
    pub at_ns: u64,
    /// What of the call.
    pub phase: Phase,
    /// Which call; for a page that moved, the one that moved it.
    pub verb: Verb,
    /// Whose it is, where it is a stream's.
    pub stream: Option<StreamId>,
    /// The operation's number in its stream, where it was queued.
    pub ticket: Option<u64>,
    /// Bytes asked for, given back, copied, filled or moved; 0 where there are none.
    pub bytes: u64,
    /// Where bytes were read, what was freed, or the page that moved: an address.
    pub from: Option<u64>,
    /// Where bytes were written or allocated: an address.
    pub to: Option<u64>,
    /// Whether it succeeded.
    pub ok: bool,
}

/// How far a call had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// It is over for its caller. What was queued may not be executed yet.
    Called,
    /// It was executed on its stream.
    Executed,
    /// The memory that was freed is really gone: its uses are over.
    Freed,
    /// A page of managed memory came to a device.
    PagedIn,
    /// A page of managed memory left a device: for the host or another device, who touched it.
    PagedOut,
    /// A page of managed memory left a device, to make room.
    Evicted,
}

/// A call's facts, before anything is known of its end.
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
        Self { bytes: copy.bytes, from: Some(number(copy.from)), to: Some(number(copy.to)), ..Self::of(Verb::Copy, stream) }
    }

    pub fn fill(fill: &Fill, stream: Option<StreamId>) -> Self {
        Self { bytes: fill.bytes(), to: Some(number(fill.to)), ..Self::of(Verb::Fill, stream) }
    }

    pub fn publish(word: Place, stream: Option<StreamId>) -> Self {
        Self { bytes: size_of::<u64>() as u64, to: Some(number(word)), ..Self::of(Verb::Publish, stream) }
    }
}

/// The log while it is written.
pub(super) struct Log {
    is_on: bool,
    calls: Mutex<Vec<Call>>,
}

impl Log {
    pub const fn new(is_on: bool) -> Self {
        Self { is_on, calls: Mutex::new(Vec::new()) }
    }

    /// The clock is read under the lock, so that times do not go back where it does not.
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

fn number(place: Place) -> u64 {
    match place {
        Place::Device(address) => address.get(),
        Place::Host(place) => place.as_ptr().addr() as u64,
    }
}
