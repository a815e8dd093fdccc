//! Ownership of an end of a shared ring, and how the other end notices a leave or a death: [`EndLock`], [`Ownership`].
//!
//! An owner holds a lock on one byte of the ring's file, by an open file description of its own: no other description has the lock, and the system releases
//! it when its last descriptor is closed, which is when the owner's process ends, however it ends. A forked child has a descriptor too: while it lives and has
//! not called `exec`, a dead owner counts as alive, unless one of both drops the end, which releases the lock for both. The lock cannot tell a leave from a
//! death, or one owner from the next. The owner word of the ring's header does: a generation, counted up by each owner, and in the low two bits the state that
//! the owner has stored.
//!
//! | generation and state in the word | lock | [`OwnerState`] |
//! |---|---|---|
//! | `FREE`: no owner so far | - | `NotYet` |
//! | `CLOSED`: the last owner has left | - | `Left` |
//! | `OPEN` | held, by its owner or by a successor that has not stored its own `OPEN` yet | `Alive` |
//! | `OPEN` | free, and the word is unchanged after that query | `Died` |
//! | `OPEN` | the system does not say | `Alive` |
//!
//! An owner takes the lock, then stores `OPEN`; it stores `CLOSED`, then releases the lock. So the word is written by the holder of the lock only (but for the
//! second drop of an end that a fork has copied, which `shared` forbids). An observer loads the word, queries the lock, and loads the word again: without the
//! second load, an owner that closes the end between load and query would seem dead. A word that has changed is judged again; after the eighth change, each by
//! a new owner or its leave, the end counts as alive.
//!
//! The state 3, which no owner stores, counts as `OPEN`. A hostile peer can write anything into the words. That only makes this end wait, find an owner where
//! none is, or none where one is.
//!
//! # A death
//!
//! A consumer dies, for example:
//!
//! 1. The system releases its lock. The ring's memory does not change: the owner word says `OPEN`, the head is the last one published, so messages that it
//!    popped without releasing their slots are still in the ring, and if it died asleep, the wait word still counts it.
//! 2. No sleeper is woken. The producer's own `push` and `push_slice` succeed until the ring is full. `send` of a waiting end asks
//!    [`Ownership::is_disconnected`] first, and in each turn of a wait; it makes the system call in some of these. A sleeper wakes every 100 ms, and asks the
//!    system at the fourth time at the latest. From the call on that notices the death, `send` fails with `Disconnected`; `push` and `push_slice` never do.
//! 3. A successor takes the lock and clears the count of sleepers ([`Ownership::new`]), attaches at the published head, and so pops the unreleased messages
//!    again. It stores `OPEN` with the next generation (`announce`, in the rings of `ringmem-layouts`) and wakes the producer, which is connected again: a
//!    death is remembered with its owner word. Until it has stored `OPEN`, an observer that remembers the death stays disconnected, although `peer_state`
//!    returns `Alive` once the successor has the lock.
//!
//! A successor that fails between its lock and `OPEN`, because the ring is corrupt, releases the lock, wakes the peer, and leaves the predecessor's owner word:
//! the end is in the same state as before, of the same generation, and its count of sleepers stays cleared.
//!
//! If a producer dies, its unpublished messages are lost, and the consumer's waits fail only after the published ones have been popped. The owner word orders a
//! leave, since `CLOSED` is stored with release, but not a death: the messages of a dead producer come by the tail, which the last attempt loads after the
//! system has said that the lock is free.

use std::cell::Cell;
use std::format;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::AcqRel;
use std::time::{Duration, Instant};

use ringmem_layouts::ring::WaitWords;
use ringmem_layouts::ring::owner::{self, CLOSED, FREE, STATE};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::mapping::RingMemory;
use super::{OwnerState, Side};
use crate::wait::wake_sleepers;
use crate::{Error, HostWord, Result, RingHeader, Word};

/// The lock of one end, held until it is dropped or its process ends.
struct EndLock {
    fd: OwnedFd,
    side: Side,
}

impl Side {
    const fn byte(self) -> libc::off_t {
        match self {
            Self::Producer => 0,
            Self::Consumer => 1,
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Producer => Self::Consumer,
            Self::Consumer => Self::Producer,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
        }
    }

    const fn taken(self) -> &'static str {
        match self {
            Self::Producer => "the ring has a producer, in this process or another",
            Self::Consumer => "the ring has a consumer, in this process or another",
        }
    }

    pub(super) fn wait_words(self, header: &RingHeader<HostWord>) -> WaitWords<'_, HostWord> {
        let (producer, consumer) = (&header.producer.waiting, &header.consumer.waiting);
        match self {
            Self::Producer => WaitWords { theirs: producer, ours: consumer },
            Self::Consumer => WaitWords { theirs: consumer, ours: producer },
        }
    }

    pub(super) const fn owner(self, header: &RingHeader<HostWord>) -> &HostWord {
        match self {
            Self::Producer => &header.producer.owner,
            Self::Consumer => &header.consumer.owner,
        }
    }
}

impl EndLock {
    fn take(file: BorrowedFd<'_>, side: Side) -> Result<Self> {
        // A duplicate descriptor would share the original's locks.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // A peer with a lease on the file would delay a blocking call.
        let opened = fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        let fd = opened.map_err(|errno| unopened(&path, errno))?;
        match lock(&fd, libc::F_OFD_SETLK, libc::F_WRLCK, side.byte()) {
            Ok(_) => Ok(Self { fd, side }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Err(Error::Busy { what: side.taken() }),
            Err(source) => Err(Error::System { call: "fcntl(F_OFD_SETLK)", path: None, answer: source }),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn release(&self) {
        // Closing also releases it, except while a forked child has a copy.
        let _ = lock(&self.fd, libc::F_OFD_SETLK, libc::F_UNLCK, self.side.byte());
    }
}

impl Drop for EndLock {
    fn drop(&mut self) {
        self.release();
    }
}

fn unopened(path: &str, errno: Errno) -> Error {
    let answer = io::Error::from(errno);
    let why = match errno {
        Errno::NOENT => "an end opens the ring's file again, which needs /proc",
        Errno::ACCESS | Errno::PERM => {
            "an end opens the ring's file again, which needs permission to read and write: take the end before dropping rights"
        }
        _ => return Error::of_file("open", path.as_ref(), answer),
    };
    Error::of_file("open", path.as_ref(), io::Error::new(answer.kind(), format!("{answer}: {why}")))
}

/// Returns the owner word, and the state that it and the lock show: by system calls, usually one, unless the end had no owner or the last one has left. `file`
/// is not the description that holds the lock, which the query would ignore.
pub(super) fn owner_state(header: &RingHeader<HostWord>, side: Side, file: BorrowedFd<'_>) -> (u64, OwnerState) {
    let owner = side.owner(header);
    owner_state_by(|| owner.load_acquire(), side, file)
}

/// As [`owner_state`]; `load` loads the owner word.
pub(super) fn owner_state_by(load: impl Fn() -> u64, side: Side, file: BorrowedFd<'_>) -> (u64, OwnerState) {
    let mut word = load();
    for _ in 0..8 {
        if let Some(state) = closed_state(word) {
            return (word, state);
        }
        // Without an answer, the owner counts as alive.
        match lock(&file, libc::F_OFD_GETLK, libc::F_WRLCK, side.byte()) {
            Ok(libc::F_UNLCK) => {}
            _ => return (word, OwnerState::Alive),
        }
        let now = load();
        if now == word {
            return (word, OwnerState::Died);
        }
        word = now;
    }
    (word, OwnerState::Alive)
}

pub(super) fn generation(header: &RingHeader<HostWord>, side: Side) -> u64 {
    owner::generation(side.owner(header).load_acquire())
}

/// The state of an end without an owner; `None` if it is open, when the word does not tell whether the owner is alive.
const fn closed_state(word: u64) -> Option<OwnerState> {
    match word & STATE {
        FREE => Some(OwnerState::NotYet),
        CLOSED => Some(OwnerState::Left),
        _ => None,
    }
}

pub(crate) fn lock(fd: &impl AsFd, command: libc::c_int, kind: libc::c_int, byte: libc::off_t) -> io::Result<libc::c_int> {
    // SAFETY: integers, valid as zero. The process id must be 0.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (byte, 1);
    // SAFETY: the borrowed descriptor is open; these commands take such a structure.
    let result = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(lock.l_type.into()) }
}

/// An owner's claim to its end: the lock, the mapping, and what it knows of the other end's owner.
///
/// A leave is read from the owner word at each check. A death needs a system call, which would cost more than a push: one check in 64 makes it, and one in 8
/// if a millisecond has passed since the last. So a spinning end notices a death within 64 checks, and a sleeping one,
/// which checks at least twice at each of its wake-ups, within four of them.
///
/// Dropping it releases the lock, then wakes the peer, then unmaps: a woken successor finds the end free, and the wait word is still mapped.
pub(super) struct Ownership {
    pub side: Side,
    lock: EndLock,
    place: RingMemory,
    /// Number of checks of the other end that its word did not decide.
    checks: Cell<u32>,
    /// Time of the last system call.
    checked_at: Cell<Instant>,
    /// The owner word of a peer that is known to be dead: with this word it stays dead.
    dead: Cell<Option<u64>>,
    /// The last generation of the other end that is known to have left or died, before this end came or since; 0 for none.
    departed_generation: Cell<u64>,
}

impl Ownership {
    /// Fails only before the lock is taken: the ring is unchanged then.
    pub fn new(file: BorrowedFd<'_>, place: &RingMemory, side: Side) -> crate::Result<Self> {
        let lock = EndLock::take(file, side)?;
        let ownership = Self {
            side,
            lock,
            place: place.clone(),
            checks: Cell::new(0),
            checked_at: Cell::new(Instant::now()),
            dead: Cell::new(None),
            departed_generation: Cell::new(0),
        };
        // A peer that left before this end came is absent: `wait_for_peer` waits for its successor.
        let (word, state) = owner_state(ownership.place.header(), side.other(), ownership.lock.fd());
        if matches!(state, OwnerState::Left | OwnerState::Died) {
            ownership.departed_generation.set(owner::generation(word));
        }
        // A predecessor killed while asleep is still counted.
        ownership.wait_words().ours.fetch_and(!u64::from(u32::MAX), AcqRel);
        Ok(ownership)
    }

    /// Releases the lock before the drop, so that a waiter that is woken next finds the end free. The drop unlocks again, which does not touch a successor's
    /// lock: it is of another description.
    pub fn release(&self) {
        self.lock.release();
    }

    pub fn wait_words(&self) -> WaitWords<'_, HostWord> {
        self.side.wait_words(self.place.header())
    }

    pub fn wake_peer(&self) {
        wake_sleepers(self.wait_words().theirs);
    }

    pub fn peer_state(&self) -> OwnerState {
        owner_state(self.place.header(), self.side.other(), self.lock.fd()).1
    }

    pub fn peer_generation(&self) -> u64 {
        generation(self.place.header(), self.side.other())
    }

    /// `None` if none attached, or if the last owner is known to have left or died: asking is for [`is_disconnected`](Self::is_disconnected).
    pub fn peer(&self) -> Option<u64> {
        Some(self.peer_generation()).filter(|generation| *generation != self.departed_generation.get())
    }

    /// False before the first owner: an end without a peer waits for it.
    pub fn is_disconnected(&self) -> bool {
        let departed = self.departed();
        if let Some(word) = departed {
            self.departed_generation.set(owner::generation(word));
        }
        departed.is_some()
    }

    /// Returns the owner word of a peer that has left or died.
    fn departed(&self) -> Option<u64> {
        const EVERY: u32 = 64;
        const READ_THE_CLOCK: u32 = 8;
        const INTERVAL: Duration = Duration::from_millis(1);
        let word = self.side.other().owner(self.place.header()).load_acquire();
        if let Some(state) = closed_state(word) {
            return (state == OwnerState::Left).then_some(word);
        }
        if self.dead.get() == Some(word) {
            return Some(word);
        }
        let checks = self.checks.get();
        self.checks.set(checks.wrapping_add(1));
        let is_due = checks.is_multiple_of(EVERY) || checks.is_multiple_of(READ_THE_CLOCK) && self.checked_at.get().elapsed() >= INTERVAL;
        if !is_due {
            return None;
        }
        self.checked_at.set(Instant::now());
        let (word, state) = owner_state(self.place.header(), self.side.other(), self.lock.fd());
        self.dead.set((state == OwnerState::Died).then_some(word));
        matches!(state, OwnerState::Died | OwnerState::Left).then_some(word)
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        // A woken waiter finds the end free; the memory is unmapped last.
        self.lock.release();
        self.wake_peer();
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::vec::Vec;

    use ringmem_layouts::ring::owner::OPEN;

    use super::*;
    use crate::shared::Memory;

    const fn word(generation: u64, state: u64) -> u64 {
        generation << 2 | state
    }

    /// The state by these loads of the owner word, the last one repeated, in a file without a lock.
    fn state_of(loads: &[u64]) -> (u64, OwnerState) {
        let memory = Memory::create::<u64>(4).expect("a ring");
        let next = Cell::new(0);
        let load = || loads[next.replace(next.get() + 1).min(loads.len() - 1)];
        owner_state_by(load, Side::Producer, memory.as_fd())
    }

    #[test]
    fn an_unlocked_open_end_is_dead_only_if_its_owner_word_is_unchanged() {
        for (loads, expected) in [
            (&[word(0, FREE)][..], OwnerState::NotYet),
            (&[word(1, CLOSED)], OwnerState::Left),
            (&[word(1, OPEN)], OwnerState::Died),
            // The owner closed the end between the first load and the query of its lock.
            (&[word(1, OPEN), word(1, CLOSED)], OwnerState::Left),
            // A successor attached, and died.
            (&[word(1, OPEN), word(2, OPEN)], OwnerState::Died),
            (&[word(1, OPEN), word(2, OPEN), word(2, CLOSED)], OwnerState::Left),
        ] {
            assert_eq!(state_of(loads), (loads[loads.len() - 1], expected), "{loads:?}");
        }
        let changing: Vec<_> = (1..100).map(|generation| word(generation, OPEN)).collect();
        assert_eq!(state_of(&changing).1, OwnerState::Alive, "each load has a new owner");
    }
}
