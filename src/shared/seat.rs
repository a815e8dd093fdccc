//! [`Seat`]: ownership of an end, by a lock on one byte of the file, with its own open file description.

use std::format;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use super::{OwnerState, Side};
use crate::{Error, HostWord, Result, RingHeader, Word};

/// In the low 2 bits of an owner word.
const STATE: u64 = 3;
const NOBODY: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;

/// Held until dropped or until its process ends.
pub(super) struct Seat {
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

    pub(super) const fn owner(self, header: &RingHeader<HostWord>) -> &HostWord {
        match self {
            Self::Producer => &header.producer.owner,
            Self::Consumer => &header.consumer.owner,
        }
    }
}

impl Seat {
    pub fn take(file: BorrowedFd<'_>, side: Side) -> Result<Self> {
        // A duplicate descriptor would share the original's locks.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let fd = opened.map_err(|errno| unopened(&path, errno))?;
        match lock(&fd, libc::F_OFD_SETLK, libc::F_WRLCK, side.byte()) {
            Ok(_) => Ok(Self { fd, side }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Err(Error::Busy { what: side.taken() }),
            Err(source) => Err(Error::System { call: "fcntl(F_OFD_SETLK)", path: None, answer: source }),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn give_up(&self) {
        // Closing also releases it, except while a child is between `fork` and `exec`.
        let _ = lock(&self.fd, libc::F_OFD_SETLK, libc::F_UNLCK, self.side.byte());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.give_up();
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

pub(super) fn state(header: &RingHeader<HostWord>, side: Side, file: BorrowedFd<'_>) -> (u64, OwnerState) {
    let owner = side.owner(header);
    state_by(|| owner.load_acquire(), side, file)
}

/// As [`state`]; `load` loads the owner word.
pub(super) fn state_by(load: impl Fn() -> u64, side: Side, file: BorrowedFd<'_>) -> (u64, OwnerState) {
    let mut word = load();
    for _ in 0..8 {
        match word & STATE {
            NOBODY => return (word, OwnerState::NotYet),
            CLOSED => return (word, OwnerState::Left),
            _ => {}
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

/// The caller holds the lock.
pub(super) fn open(header: &RingHeader<HostWord>, side: Side) {
    let owner = side.owner(header);
    Word::store(owner, (Word::load(owner) & !STATE).wrapping_add(STATE + 1) | OPEN);
}

/// The caller holds the lock.
pub(super) fn close(header: &RingHeader<HostWord>, side: Side) {
    let owner = side.owner(header);
    // SYNC POINT: end closed. Pairs with `state` and `said`.
    owner.store_release(Word::load(owner) & !STATE | CLOSED);
}

pub(super) fn generation(header: &RingHeader<HostWord>, side: Side) -> u64 {
    generation_of(side.owner(header).load_acquire())
}

pub(super) const fn generation_of(owner: u64) -> u64 {
    owner >> 2
}

/// Without a system call; `None` for an owner that has not closed the end.
pub(super) fn said(header: &RingHeader<HostWord>, side: Side) -> (u64, Option<OwnerState>) {
    let word = side.owner(header).load_acquire();
    let said = match word & STATE {
        NOBODY => Some(OwnerState::NotYet),
        CLOSED => Some(OwnerState::Left),
        _ => None,
    };
    (word, said)
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

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::vec::Vec;

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
        state_by(load, Side::Producer, memory.as_fd())
    }

    #[test]
    fn an_unlocked_open_end_is_dead_only_if_its_owner_word_is_unchanged() {
        for (loads, expected) in [
            (&[word(0, NOBODY)][..], OwnerState::NotYet),
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
