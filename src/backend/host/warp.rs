//! A group as a warp of 32 threads, for kernels that depend on the width of a warp.
//!
//! The lanes of a warp on a GPU exchange values by instructions; here they meet: [`Warp::meet`] returns in each lane when all have brought a value. A lane
//! that ends, also by a panic, is not waited for any longer, so that the others see its absence instead of waiting forever.

use core::ptr::NonNull;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::image::{KernelHost, LANES};

use super::inner::Group;

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

/// Runs a kernel on each lane. Fails, and runs nothing, if a thread cannot be started.
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
        all_there.get_or_init(|| lanes.is_ok());
        let panics: Vec<_> = lanes?.into_iter().filter_map(|lane| lane.join().err()).collect();
        panics.into_iter().next().map_or(Ok(()), |panic| resume_unwind(panic))
    })
}
