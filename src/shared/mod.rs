//! Rings between mutually untrusting processes of one Linux machine.
//!
//! Use [`ring`](crate::ring) over your own mapping between trusting processes, and [`wait`](crate::wait) between threads.
//!
//! 1. [`Memory`] has one SPSC ring, in a sealed memfd or a file. Its ends ([`Producer`], [`Consumer`]) own their mapping and [trust no
//!    word](crate::ring::spsc::untrusted) of the peer.
//! 2. Each end has one owner, by a lock that the operating system releases when the owner dies, or when its last forked child without `exec` has died.
//!    Duplicated or inherited descriptors do not carry the lock. After a `fork`, the first drop of an end releases it for both: a child that continues
//!    without `exec` must forget it.
//! 3. [`OwnerState`] distinguishes a dead owner from a slow one. A successor continues at the last published index: unpublished messages
//!    are lost, unreleased ones are popped again.
//! 4. A malicious peer can corrupt messages and stop. It cannot cause an access outside the ring, a panic, or the loss of a memfd's memory:
//!    the size is sealed, holes read as zeros, huge pages are rejected. Like any memory at its first access, a hole needs a free page: where the system has
//!    none, it ends the process.
//!
//! After the remaining messages, a wait whose peer has left or died fails with `Disconnected`. [`Producer::wait_for_peer`] and
//! [`Consumer::wait_for_peer`] wait for the first peer or a successor; a peer that
//! left before this end attached is absent. A death wakes no sleeper, but with
//! [`WaitStrategy::Sleep`](crate::wait::WaitStrategy) a sleeper checks every 100 ms, and notices it within a second.
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
mod liveness;
pub(crate) mod mapping;
mod memory;
pub(crate) mod private_file;
mod untyped;
mod view;

pub use end::{Consumer, Producer};
pub(crate) use liveness::lock;
pub use memory::Memory;
pub use untyped::{MessageFacts, UntypedConsumer, UntypedProducer};
pub use view::{Figures, View};

/// No peer came before the deadline.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use ringmem::shared::{Memory, NoPeer, OwnerState, Side};
/// use ringmem::wait::WaitStrategy;
///
/// let memory = Memory::create::<u64>(4)?;
/// let mut producer = memory.producer::<u64>()?;
/// let deadline = Instant::now() + Duration::from_millis(10);
/// let waited = producer.wait_for_peer(WaitStrategy::default(), Some(deadline));
/// assert_eq!(waited, Err(NoPeer { end: Side::Consumer, state: OwnerState::NotYet }));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {} attached before the deadline: {}", end.name(), state.text())]
pub struct NoPeer {
    /// The other end.
    pub end: Side,
    /// Its state at the deadline.
    pub state: OwnerState,
}

/// An end of a ring.
///
/// ```
/// use ringmem::shared::{Memory, OwnerState, Side};
///
/// let memory = Memory::create::<u64>(4)?;
/// drop(memory.producer::<u64>()?);
/// let _successor = memory.producer::<u64>()?;
/// assert_eq!(memory.generation(Side::Producer), 2);
/// assert_eq!(memory.state(Side::Consumer), OwnerState::NotYet);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The producer.
    Producer,
    /// The consumer.
    Consumer,
}

/// The state of an end's owner.
///
/// ```
/// use ringmem::shared::{Memory, OwnerState};
///
/// let memory = Memory::create::<u64>(4)?;
/// let (producer, consumer) = (memory.producer::<u64>()?, memory.consumer::<u64>()?);
/// assert_eq!(consumer.peer_state(), OwnerState::Alive);
/// drop(producer);
/// assert_eq!(consumer.peer_state(), OwnerState::Left);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// No owner yet.
    NotYet,
    /// The owner holds the lock; it may be slow.
    Alive,
    /// The last owner closed the end.
    Left,
    /// The last owner died without closing the end.
    Died,
}

impl OwnerState {
    const fn text(self) -> &'static str {
        match self {
            Self::NotYet => "none has attached yet",
            Self::Alive => "one attached just after the deadline",
            Self::Left => "the last one was dropped",
            Self::Died => "the last one died",
        }
    }
}
