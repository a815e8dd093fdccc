//! A hybrid logical clock shared by processes: this program with a number in its environment ([`child_role`]).
#![cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]

use std::io::stdin;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::{Duration, Instant};
use std::{hint, thread};

use ringmem::clock::{HybridClock, Stamp};
use ringmem::{CacheLineAligned, HostWord};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::LIMIT;

const PROCESSES: usize = 3;
const STAMPS: usize = 400_000;
const ROUNDS: usize = 100;
const ROLE: &str = "RINGMEM_CLOCK_ROLE";

#[repr(C)]
struct Shared {
    clock: CacheLineAligned<HybridClock<HostWord>>,
    came: CacheLineAligned<HostWord>,
    stamps: [[HostWord; STAMPS]; PROCESSES],
}

fn map(fd: BorrowedFd<'_>) -> &'static Shared {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping.
    let place = unsafe { mmap(null_mut(), size_of::<Shared>(), protection, flags, fd, 0) }.unwrap();
    // SAFETY: page-aligned, never unmapped, atomic words.
    unsafe { NonNull::new(place).unwrap().cast().as_ref() }
}

fn stamp(shared: &Shared, process: usize) {
    let deadline = Instant::now() + LIMIT;
    for (round, places) in (1..).zip(shared.stamps[process].chunks(STAMPS / ROUNDS)) {
        shared.came.get().fetch_add(1, AcqRel);
        while shared.came.get().load(Acquire) < PROCESSES as u64 * round {
            assert!(Instant::now() < deadline, "the others did not come");
            hint::spin_loop();
            thread::yield_now();
        }
        for (number, place) in places.iter().enumerate() {
            let stamp = shared.clock.get().tick(round * 100 + (number / 50 + process) as u64);
            place.store(stamp.bits(), Relaxed);
        }
    }
}

#[test]
fn child_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    stamp(map(stdin().as_fd()), role.parse().unwrap());
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_that_share_a_clock_get_unique_stamps() {
    let fd = memfd_create(c"clock", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size_of::<Shared>() as u64).unwrap();
    let shared = map(fd.as_fd());
    let start = |number: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["clock::child_role", "--exact", "--test-threads=1", "-q"]).env(ROLE, number.to_string());
        Process(command.stdin(Stdio::from(fd.try_clone().unwrap())).stdout(Stdio::null()).spawn().unwrap())
    };
    let mut others: Vec<Process> = (1..PROCESSES).map(start).collect();
    stamp(shared, 0);
    let deadline = Instant::now() + LIMIT;
    for Process(other) in &mut others {
        let status = loop {
            if let Some(status) = other.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "a process did not end");
            thread::sleep(Duration::from_millis(1));
        };
        assert!(status.success(), "{status}");
    }
    let mut all: Vec<Stamp> = Vec::new();
    for given in &shared.stamps {
        let given: Vec<Stamp> = given.iter().map(|word| Stamp::from_bits(word.load(Relaxed))).collect();
        assert!(given.is_sorted_by(|a, b| a < b), "not rising in its own process");
        all.extend(given);
    }
    all.sort_unstable();
    let twice = all.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(twice, 0, "of {} stamps", all.len());
}
