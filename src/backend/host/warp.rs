//! A group as a warp of 32 threads, for kernels that depend on the width of a warp.
//!
//! The lanes of a warp on a GPU exchange values by instructions; here they meet: [`Warp::meet`] returns in each lane when all have brought a value. A lane
//! that ends, also by a panic, is not waited for any longer, so that the others see its absence instead of waiting forever.
//!
//! Groups may wait for each other, too. So no lane runs before the lanes of all groups have threads: the groups join an [`Assembly`].

use core::ptr::NonNull;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::image::{KernelHost, LANES};

use super::inner::Group;
use crate::sys::panic;

type Values = [Option<u64>; LANES];

struct Warp {
    meeting: Mutex<Meeting>,
    over: Condvar,
}

struct Meeting {
    /// The number of meetings that are over.
    number: u64,
    /// The values of the present meeting.
    brought: Values,
    /// Those of the one before. The next cannot be over before each lane that waited for this one has returned, since it brings a value, or ends, after it.
    seen: Values,
    has_ended: [bool; LANES],
}

impl Warp {
    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the meeting if nobody is waited for.
    fn close(&self, meeting: &mut Meeting) {
        if meeting.brought.iter().zip(meeting.has_ended).all(|(value, has_ended)| has_ended || value.is_some()) {
            meeting.seen = core::mem::take(&mut meeting.brought);
            meeting.number += 1;
            self.over.notify_all();
        }
    }

    fn meet(&self, lane: usize, value: u64) -> Values {
        let mut meeting = self.meeting();
        let number = meeting.number;
        meeting.brought[lane] = Some(value);
        self.close(&mut meeting);
        self.over.wait_while(meeting, |meeting| meeting.number == number).unwrap_or_else(PoisonError::into_inner).seen
    }
}

struct Lane<'a> {
    group: &'a Group<'a>,
    warp: &'a Warp,
    number: usize,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut meeting = self.warp.meeting();
        meeting.has_ended[self.number] = true;
        self.warp.close(&mut meeting);
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
    fn all_gather(&self, value: u64) -> Values {
        self.warp.meet(self.number, value)
    }
}

/// The groups of a launch, until the lanes of all have threads, or cannot have them.
pub struct Assembly {
    state: Mutex<Assembling>,
    complete: Condvar,
}

struct Assembling {
    missing: u64,
    has_failed: bool,
}

impl Assembly {
    pub fn new(groups: u64) -> Self {
        Self { state: Mutex::new(Assembling { missing: groups, has_failed: false }), complete: Condvar::new() }
    }

    fn arrive(&self, has_failed: bool) -> MutexGuard<'_, Assembling> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.missing -= 1;
        state.has_failed |= has_failed;
        if state.missing == 0 {
            self.complete.notify_all();
        }
        state
    }

    /// Waits for the other groups; returns whether all have their lanes.
    fn join(&self, has_failed: bool) -> bool {
        let state = self.arrive(has_failed);
        !self.complete.wait_while(state, |state| state.missing > 0).unwrap_or_else(PoisonError::into_inner).has_failed
    }

    pub fn has_failed(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_failed
    }

    /// Lets the others go on without a group that has no lanes.
    pub fn leave(&self) {
        drop(self.arrive(false));
    }
}

/// Runs a kernel on each lane. If a thread of any group cannot be started, it runs nothing, and fails for that group.
pub fn run(group: &Group<'_>, kernel: &(dyn Fn(&dyn KernelHost) + Sync)) -> io::Result<()> {
    let meeting = Meeting { number: 0, brought: [None; LANES], seen: [None; LANES], has_ended: [false; LANES] };
    let (warp, all_there) = (Warp { meeting: Mutex::new(meeting), over: Condvar::new() }, OnceLock::new());
    thread::scope(|scope| {
        let start = |number| {
            let (warp, all_there) = (&warp, &all_there);
            thread::Builder::new().spawn_scoped(scope, move || {
                if *all_there.wait() {
                    kernel(&Lane { group, warp, number });
                }
            })
        };
        let lanes: io::Result<Vec<_>> = (0..LANES).map(start).collect();
        let may_run = match group.has_arrived.set(()) {
            Ok(()) => group.assembly.join(lanes.is_err()),
            // A second kernel of the group.
            Err(()) => lanes.is_ok(),
        };
        all_there.get_or_init(|| may_run);
        // The last panic resumes; the payloads of the others are leaked, as their drop may panic.
        panic::each(lanes?, |lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_begins_if_one_of_them_has_no_lanes() {
        for has_failed in [false, true] {
            let assembly = &Assembly::new(4);
            let begin = thread::scope(|scope| {
                let groups = [false, has_failed, false].map(|has_failed| scope.spawn(move || assembly.join(has_failed)));
                assembly.leave();
                groups.map(|group| group.join().expect("no panic"))
            });
            assert_eq!((begin, assembly.has_failed()), ([!has_failed; 3], has_failed));
        }
    }
}
