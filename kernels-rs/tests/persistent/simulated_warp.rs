//! A warp whose lanes are threads of the host.

use std::cell::Cell;
use std::sync::{Condvar, Mutex};
use std::thread;

use ringmem_kernels::{Lanes, Launch, Simulated, WarpLanes};
use ringmem_layouts::RingMessage;
use ringmem_layouts::image::KernelHost;

use crate::memory::Device;
use crate::rig::Rig;

pub const WIDTH: usize = 32;

struct Warp {
    meeting: Mutex<Meeting>,
    over: Condvar,
}

struct Meeting {
    number: u64,
    brought: [Option<u64>; WIDTH],
    told: [Option<u64>; WIDTH],
    left: [bool; WIDTH],
}

impl Meeting {
    fn close_if_complete(&mut self, over: &Condvar) {
        if (0..WIDTH).all(|lane| self.left[lane] || self.brought[lane].is_some()) {
            self.told = std::mem::take(&mut self.brought);
            self.number += 1;
            over.notify_all();
        }
    }
}

impl Warp {
    fn new() -> Self {
        let meeting = Meeting { number: 0, brought: [None; WIDTH], told: [None; WIDTH], left: [false; WIDTH] };
        Self { meeting: Mutex::new(meeting), over: Condvar::new() }
    }

    fn meet(&self, lane: usize, value: u64) -> [Option<u64>; WIDTH] {
        let mut meeting = self.meeting.lock().expect("no lane panics here");
        let number = meeting.number;
        meeting.brought[lane] = Some(value);
        meeting.close_if_complete(&self.over);
        let meeting = self.over.wait_while(meeting, |meeting| meeting.number == number).expect("no lane panics here");
        meeting.told
    }

    fn leave(&self, lane: usize) {
        let mut meeting = self.meeting.lock().expect("no lane panics here");
        meeting.left[lane] = true;
        meeting.close_if_complete(&self.over);
    }
}

pub struct Lane<'a> {
    warp: &'a Warp,
    device: &'a Device,
    lane: usize,
    place: [u64; 2],
    looks: Cell<u64>,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.warp.leave(self.lane);
    }
}

// SAFETY: the test makes a thread per lane, with its own number; `meet` returns once every lane that has not left has come, through a mutex.
unsafe impl Lanes for Lane<'_> {
    fn width(&self) -> u32 {
        Self::WIDTH
    }
    fn lane(&self) -> u32 {
        self.lane as u32
    }
    fn group(&self) -> u64 {
        self.place[0]
    }
    fn groups(&self) -> u64 {
        self.place[1]
    }
    fn broadcast(&self, value: u64) -> u64 {
        self.warp.meet(self.lane, value)[0].expect("lane 0 is here")
    }
    fn sum(&self, value: u64) -> u64 {
        self.warp.meet(self.lane, value).into_iter().flatten().fold(0, u64::wrapping_add)
    }
    fn barrier(&self) {
        self.warp.meet(self.lane, 0);
    }
    fn barrier_and(&self, answer: bool) -> bool {
        self.warp.meet(self.lane, u64::from(answer)).into_iter().all(|answer| answer == Some(1))
    }
    fn pause(&self, times: u32) {
        if self.lane == 0 {
            self.device.pause(times);
        }
    }
    fn now_ns(&self) -> u64 {
        self.looks.set(self.looks.get() + 1);
        self.device.now_ns() + if self.lane.is_multiple_of(2) { 0 } else { 200_000 * self.looks.get() }
    }
    unsafe fn remember(&self, _: u64, _: u32, _: u64) {
        assert_eq!(self.lane, 0, "lane 0 alone remembers");
    }
}

// SAFETY: the test makes a thread per lane.
unsafe impl WarpLanes for Lane<'_> {
    const WIDTH: u32 = WIDTH as u32;

    fn ballot(&self, answer: bool) -> u32 {
        let told = self.warp.meet(self.lane, u64::from(answer));
        (0..WIDTH).fold(0, |votes, lane| votes | u32::from(told[lane] == Some(1)) << lane)
    }
}

/// `place`: the number of the group, and how many there are.
pub fn on_a_warp(device: &Device, place: [u64; 2], kernel: impl Fn(&Simulated<'_>, &Lane<'_>) + Sync) -> usize {
    let warp = Warp::new();
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..WIDTH)
            .map(|lane| {
                let (warp, kernel) = (&warp, &kernel);
                scope.spawn(move || kernel(&Simulated(device), &Lane { warp, device, lane, place, looks: Cell::new(0) }))
            })
            .collect();
        lanes.into_iter().map(|lane| usize::from(lane.join().is_err())).sum()
    })
}

pub fn with_a_warp<I: RingMessage, O: RingMessage>(
    rig: &mut Rig<'_, I, O>,
    device: &Device,
    kernel: impl Fn(&Simulated<'_>, &Lane<'_>, &Launch) + Sync + Send,
    host: impl FnOnce(&mut Rig<'_, I, O>),
) -> usize {
    let launch = rig.launch;
    let mut panicked = 0;
    let place = &mut panicked;
    let (_, ended) = rig.run(move || *place = on_a_warp(device, [0, 1], |machine, lanes| kernel(machine, lanes, &launch)), host);
    ended.expect("the lanes' own panics were caught");
    panicked
}
