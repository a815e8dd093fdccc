//! Rings between processes, and what holds when one of them dies or lies.
//!
//! 1. [`Memory`] is a region with one ring in it, in a sealed memfd or in a file. Its ends ([`Producer`], [`Consumer`]) own what they map, and
//!    believe nothing that the other process writes: see [`untrusted`](crate::ring::spsc::untrusted).
//! 2. One owner for each end, by a lock of the kernel that dies with its owner. The lock belongs to an open file description, and each end opens
//!    its own, so neither a duplicated nor an inherited descriptor carries it along. Only a `fork` without `exec` does: the end stays owned as long
//!    as either process has it, and whichever drops it gives it up for both. A child that goes on without `exec` forgets its copy.
//! 3. A producer or consumer that died is told from a slow one ([`OwnerState`]). Its successor goes on at the index that it published last: what it
//!    had not published is lost, what it had popped and not released is popped again.
//! 4. A process that holds the memory can do harm to what goes through the ring, and refuse to go on. It cannot make this one read or
//!    write elsewhere, or panic. It cannot take a memfd away: its size is sealed, and the next access fills a hole that it punches with zeros.
//!    Huge pages may lack a page for a hole, which would raise `SIGBUS`, so a memfd of huge pages is refused.
//!
//! A wait at an end whose peer has left or died fails with `Disconnected`. [`Producer::wait_for_peer`] and [`Consumer::wait_for_peer`] wait for
//! the first peer or for a successor; then the end continues.
//!
//! A death wakes nobody: a process that waits by [`How::Sleep`](crate::wait::How) for one that may be killed waits with a deadline.
//!
//! Linux only: elsewhere there are no memfds, or no locks of this kind.
//!
//! ```
//! use std::os::fd::AsFd;
//!
//! use ringmem::shared::{Memory, OwnerState};
//!
//! # fn main() -> ringmem::Result<()> {
//! let memory = Memory::create::<u64>(64)?;
//! // The descriptor goes to another process, which inherits it or gets it through a socket ...
//! let sent = memory.as_fd().try_clone_to_owned().unwrap();
//! // ... and there:
//! let theirs = Memory::from_fd(sent)?;
//! let mut consumer = theirs.consumer::<u64>()?;
//!
//! let mut producer = memory.producer::<u64>()?;
//! assert!(memory.producer::<u64>().is_err(), "one owner for each end");
//! producer.push(7).unwrap();
//! drop(producer);
//! assert_eq!(consumer.pop(), Ok(7));
//! assert_eq!(consumer.peer_state(), OwnerState::Left);
//! # Ok(())
//! # }
//! ```

mod end;
mod mapping;
mod memory;
mod seat;

pub use end::{Consumer, Producer};
pub use memory::Memory;

/// The error of a wait for a peer: no owner attached to the other end before the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {} attached before the deadline: {}", end.name(), state.said())]
pub struct NoPeer {
    /// The other end.
    pub end: Side,
    /// Its state at the deadline.
    pub state: OwnerState,
}

/// An end of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that fills.
    Producer,
    /// The end that empties.
    Consumer,
}

/// Who is at an end of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// Nobody was there yet.
    NotYet,
    /// Its owner holds the lock; it may be slow.
    Alive,
    /// Its last owner said that it leaves.
    Left,
    /// Its last owner is gone and has not said that it leaves.
    Died,
}

impl OwnerState {
    /// Returns the end of a sentence about the state.
    const fn said(self) -> &'static str {
        match self {
            Self::NotYet => "none has attached yet",
            Self::Alive => "one attached just after the deadline",
            Self::Left => "the last one was dropped",
            Self::Died => "the last one died",
        }
    }
}
