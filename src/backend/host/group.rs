//! [`Group`]: a block of a launch, as one thread, or as 32 threads for each of its warps for kernels that depend on the number of lanes.
//!
//! The lanes of a block on a GPU exchange values by instructions and barriers; here they meet: [`Lanes::meet`] returns in each lane when all have brought a
//! value. A lane that ends, also by a panic, is not waited for any longer, so that the others see its absence instead of waiting forever.
//!
//! Groups may wait for each other, too. So no lane runs before the lanes of all groups have threads: the groups join an [`Assembly`].

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::vec::Vec;

use ringmem_layouts::image::{KernelHost, LANES};

use super::faults::Verb;
use super::inner::Inner;
use super::log::Facts;
use crate::backend::MemoryLocation;
use crate::sys::panic;

/// A block of a launch, as its kernel sees it.
pub(super) struct Group<'a> {
    pub inner: &'a Inner,
    pub device: u32,
    pub number: u64,
    pub groups: u64,
    pub warps: u32,
    pub facts: &'a Facts,
    /// All groups of the launch.
    pub assembly: &'a Assembly,
    /// It has joined the assembly.
    pub has_arrived: AtomicBool,
}

impl KernelHost for Group<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        // Also freed blocks: those that the launch uses stay allocated until it is complete.
        let found = self.inner.ranges.read().find(address, bytes, true, Verb::Launch.name()).ok()?;
        let is_seen = match found.location {
            MemoryLocation::Host => false,
            MemoryLocation::Device => self.inner.peers.reaches(self.device, found.device),
            MemoryLocation::Pinned | MemoryLocation::Unified => true,
        };
        if found.location == MemoryLocation::Unified {
            self.inner.touch(&found, bytes, Some(self.device), self.facts);
        }
        is_seen.then_some(found.place)
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }

    fn group(&self) -> u64 {
        self.number
    }

    fn groups(&self) -> u64 {
        self.groups
    }

    fn pause(&self, times: u32) {
        match times {
            0..100 => core::hint::spin_loop(),
            100..4000 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }

    fn on_each_lane(&self, kernel: &(dyn Fn(&dyn KernelHost) + Sync)) -> bool {
        let has_lanes = self.inner.thread_per_lane;
        if has_lanes {
            run(self, kernel);
        }
        has_lanes
    }
}

struct Lanes {
    meeting: Mutex<Meeting>,
    over: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Seat {
    /// The value of the present meeting.
    brought: Option<u64>,
    /// That of the one before. The next meeting cannot end before each lane has returned from this one: a lane brings a value, or ends, after it.
    seen: Option<u64>,
    has_ended: bool,
}

struct Meeting {
    /// The number of meetings that are over.
    number: u64,
    /// A lane each.
    seats: Vec<Seat>,
}

impl Lanes {
    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the meeting when each lane has brought a value or ended.
    fn close(&self, meeting: &mut Meeting) {
        if meeting.seats.iter().all(|seat| seat.has_ended || seat.brought.is_some()) {
            meeting.seats.iter_mut().for_each(|seat| seat.seen = seat.brought.take());
            meeting.number += 1;
            self.over.notify_all();
        }
    }

    fn meet(&self, lane: usize, value: u64, each: &mut dyn FnMut(u32, Option<u64>)) {
        let mut meeting = self.meeting();
        let number = meeting.number;
        meeting.seats[lane].brought = Some(value);
        self.close(&mut meeting);
        let meeting = self.over.wait_while(meeting, |meeting| meeting.number == number).unwrap_or_else(PoisonError::into_inner);
        (0..).zip(&meeting.seats).for_each(|(lane, seat)| each(lane, seat.seen));
    }
}

struct Lane<'a> {
    group: &'a Group<'a>,
    lanes: &'a Lanes,
    number: usize,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut meeting = self.lanes.meeting();
        meeting.seats[self.number].has_ended = true;
        self.lanes.close(&mut meeting);
    }
}

impl KernelHost for Lane<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.group.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        self.group.now_ns()
    }
    fn group(&self) -> u64 {
        self.group.group()
    }
    fn groups(&self) -> u64 {
        self.group.groups()
    }
    fn pause(&self, times: u32) {
        self.group.pause(times);
    }
    fn lane(&self) -> u32 {
        self.number as u32
    }
    fn lanes(&self) -> u32 {
        self.group.warps * LANES as u32
    }
    fn all_gather(&self, value: u64, each: &mut dyn FnMut(u32, Option<u64>)) {
        self.lanes.meet(self.number, value, each);
    }
}

/// The groups of a launch, until the lanes of all have threads, or cannot have them.
pub struct Assembly {
    state: Mutex<Assembling>,
    complete: Condvar,
}

struct Assembling {
    missing: u64,
    /// Why the lanes of a group have no threads.
    failure: Option<io::Error>,
}

impl Assembly {
    pub fn new(groups: u64) -> Self {
        Self { state: Mutex::new(Assembling { missing: groups, failure: None }), complete: Condvar::new() }
    }

    /// A group arrives once, whatever number of kernels it runs.
    fn arrive(&self, has_arrived: &AtomicBool, failure: Option<io::Error>) -> MutexGuard<'_, Assembling> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.missing -= u64::from(!has_arrived.swap(true, Relaxed));
        state.failure = state.failure.take().or(failure);
        if state.missing == 0 {
            self.complete.notify_all();
        }
        state
    }

    /// Waits for the other groups; returns whether all have their lanes.
    fn join(&self, has_arrived: &AtomicBool, failure: Option<io::Error>) -> bool {
        let state = self.arrive(has_arrived, failure);
        self.complete.wait_while(state, |state| state.missing > 0).unwrap_or_else(PoisonError::into_inner).failure.is_none()
    }

    /// Lets the others go on without a group that has ended, perhaps without lanes.
    pub fn leave(&self, has_arrived: &AtomicBool) {
        drop(self.arrive(has_arrived, None));
    }

    /// Returns why no group has run.
    pub fn into_failure(self) -> Option<io::Error> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).failure
    }
}

/// Starts a thread for each number. They begin when the gate is set, and run nothing if it is false. After an error the caller sets it to false: the threads
/// that have started wait for it.
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    numbers: Range<u64>,
    gate: &'scope OnceLock<bool>,
    run: impl Fn(u64) -> T + Copy + Send + 'scope,
) -> io::Result<Vec<ScopedJoinHandle<'scope, Option<T>>>> {
    let one = |number| thread::Builder::new().spawn_scoped(scope, move || gate.wait().then(|| run(number)));
    numbers.map(one).collect()
}

/// Runs a kernel on each lane, unless a thread of any group cannot be started.
pub fn run(group: &Group<'_>, kernel: &(dyn Fn(&dyn KernelHost) + Sync)) {
    let count = LANES * group.warps as usize;
    let meeting = Meeting { number: 0, seats: std::vec![Seat::default(); count] };
    let (lanes, gate) = (&Lanes { meeting: Mutex::new(meeting), over: Condvar::new() }, OnceLock::new());
    thread::scope(|scope| {
        let started = start(scope, 0..count as u64, &gate, move |number| kernel(&Lane { group, lanes, number: number as usize }));
        let (threads, failure) = match started {
            Ok(threads) => (threads, None),
            Err(failure) => (Vec::new(), Some(failure)),
        };
        gate.get_or_init(|| group.assembly.join(&group.has_arrived, failure));
        // The last panic resumes; the payloads of the others are leaked, as their drop may panic.
        panic::each(threads, |lane| lane.join().map_or_else(|panic| resume_unwind(panic), drop));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_begins_if_one_of_them_has_no_lanes() {
        for has_failed in [false, true] {
            let whole = Assembly::new(4);
            let assembly = &whole;
            let begin = thread::scope(|scope| {
                let failure = |has_failed: bool| has_failed.then(|| io::Error::other("no thread"));
                let groups = [false, has_failed, false]
                    .map(|has_failed| scope.spawn(move || assembly.join(&AtomicBool::new(false), failure(has_failed))));
                assembly.leave(&AtomicBool::new(false));
                groups.map(|group| group.join().expect("no panic"))
            });
            assert_eq!((begin, whole.into_failure().is_some()), ([!has_failed; 3], has_failed));
        }
    }
}
