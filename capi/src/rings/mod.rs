//! Rings between processes, in a memfd or a file: [`ringmem::shared`] with messages as bytes.
//!
//! 1. A ring handle may be used from any thread, at the same time. An end is used by one thread at a time; it may move between threads.
//! 2. An end keeps its own mapping and lock: the ring handle may be closed before it.
//! 3. A push, pop, commit or release also wakes the other side's sleepers. One that finds the ring full or empty allocates nothing.
//! 4. Slots in place are lent as addresses, never as references: the other process may write them at any time. The library counts how many it has lent,
//!    and refuses to publish or release more.
//!
//! The documentation of the exported functions becomes the C header's. It is written for C.

mod consumer;
mod producer;

use core::ffi::c_char;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ringmem::attach::Corrupt;
use ringmem::shared::{self, Memory, MessageFacts, NoPeer, Side};
use ringmem::wait::WaitError;

pub use self::consumer::*;
pub use self::producer::*;
use crate::arguments::{self, Output, Result, borrowed, close, handle};
use crate::status::{Failure, Status, call};

/// A ring in shared memory. Any thread may use it, at the same time.
pub struct Ring {
    memory: Memory,
}

/// The messages of a ring. The header of a struct, which a Rust program writes with `ringmem::describe`, has its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// Bytes of a message, at least 1.
    pub size: usize,
    /// Alignment in bytes: a power of two that divides the size.
    pub align: usize,
    /// The number that distinguishes messages of equal layout: `RINGMEM_KIND_OF_...` of a struct, 0 if the message is a plain number.
    pub kind: u64,
    /// The hash of the layout: `RINGMEM_RING_OF_...` of a struct. Programs without Rust definitions may use any number that both sides know.
    pub abi: u64,
}

/// The state of the owner of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum OwnerState {
    /// No owner yet.
    NotYet = 0,
    /// The owner has the end open. It may be slow.
    Alive = 1,
    /// The last owner closed the end.
    Left = 2,
    /// The last owner died without closing the end.
    Died = 3,
}

impl From<shared::OwnerState> for OwnerState {
    fn from(state: shared::OwnerState) -> Self {
        match state {
            shared::OwnerState::NotYet => Self::NotYet,
            shared::OwnerState::Alive => Self::Alive,
            shared::OwnerState::Left => Self::Left,
            shared::OwnerState::Died => Self::Died,
        }
    }
}

// A ring handle is used from any thread at the same time; an end moves between threads.
const _: fn() = || {
    fn is_sync<T: Send + Sync>() {}
    fn is_send<T: Send>() {}
    is_sync::<Ring>();
    is_send::<Producer>();
    is_send::<Consumer>();
};

impl Message {
    const fn facts(&self) -> MessageFacts {
        MessageFacts { size: self.size, kind: self.kind, abi: self.abi }
    }

    fn checked_align(&self) -> Result<usize> {
        if self.align.is_power_of_two() {
            return Ok(self.align);
        }
        Err(Failure::new(Status::Invalid, format!("invalid alignment: {} is no power of two", self.align)))
    }
}

const TAKEN_BACK: Failure = Failure::known(Status::Corrupt, c"the other end has moved its index back over slots that were lent");

/// Returns how many remain lent.
fn left(lent: usize, count: usize, verb: &str, what: &str) -> Result<usize> {
    lent.checked_sub(count).ok_or_else(|| Failure::new(Status::Invalid, format!("cannot {verb} {count} of {lent} {what}")))
}

fn wait_failed(error: WaitError<Corrupt>, late: Failure, disconnected: Failure) -> Failure {
    match error {
        WaitError::Timeout => late,
        WaitError::Disconnected => disconnected,
        WaitError::Refused(corrupt) => corrupt.into(),
    }
}

impl From<NoPeer> for Failure {
    fn from(error: NoPeer) -> Self {
        Self::new(Status::Timeout, error.to_string())
    }
}

/// Creates a ring of `capacity` messages, a power of two.
///
/// `path` is a new file, which only this user can access and which the caller removes; `/dev/shm` is in memory. A process that shrinks the file kills
/// the others at their next access (`SIGBUS`). If `path` is NULL, the ring is in a sealed memfd, safe from that: send the descriptor that
/// `ringmem_ring_fd` returns to the other process, or let it inherit a duplicate.
///
/// Any thread may call this. Close the ring with `ringmem_ring_close`.
///
/// Errors: INVALID for a capacity that is no power of two or too large, and for a size or alignment that a message cannot have; SYSTEM if the file
/// exists, and for other failures of the operating system; OUT_OF_MEMORY if the memory cannot be mapped.
///
/// # Safety
///
/// `path` is NULL or a text that ends with a zero byte. `message` is valid for reads, `ring` for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_create(path: *const c_char, message: *const Message, capacity: u64, ring: *mut *mut Ring) -> Status {
    call(|| {
        // SAFETY: the caller promises that `ring` is valid for writes, and that `message` is valid for reads.
        let (ring, message) = unsafe { (Output::new(ring, "ring")?, borrowed(message, "message")?) };
        let memory = if path.is_null() {
            Memory::create_untyped(message.facts(), message.align, capacity)?
        } else {
            // SAFETY: the caller promises a text.
            Memory::create_untyped_at(unsafe { arguments::path(path, "path")? }, message.facts(), message.align, capacity)?
        };
        ring.set(handle(Ring { memory }));
        Ok(())
    })
}

/// Opens a ring that another program created in a file.
///
/// A process that shrinks the file kills this one at its next access (`SIGBUS`): permissions must prevent that. A path to a memfd, such as
/// `/proc/PID/fd/N`, requires its seals. Any thread may call this. Close the ring with `ringmem_ring_close`.
///
/// Errors: SYSTEM if the file cannot be opened, is no regular file, or is a memfd without seals; MISMATCH for a file without a ring of this version, with
/// the values found; OUT_OF_MEMORY if it cannot be mapped.
///
/// # Safety
///
/// `path` is a text that ends with a zero byte. `ring` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_open(path: *const c_char, ring: *mut *mut Ring) -> Status {
    call(|| {
        // SAFETY: the caller promises that `ring` is valid for writes, and that `path` is a text.
        let (ring, path) = unsafe { (Output::new(ring, "ring")?, arguments::path(path, "path")?) };
        ring.set(handle(Ring { memory: Memory::open(path)? }));
        Ok(())
    })
}

/// Opens a ring that another program created in a memfd.
///
/// On success the library owns the descriptor and closes it, at once or later: the caller no longer uses its number. On failure it stays the caller's.
/// Any thread may call this. Close the ring with `ringmem_ring_close`.
///
/// Errors: INVALID for a negative descriptor; SYSTEM for a closed one, and for memory without the seals against shrinking, growing and further seals;
/// UNSUPPORTED for huge pages; MISMATCH for memory without a ring of this version; OUT_OF_MEMORY if it cannot be mapped.
///
/// # Safety
///
/// `fd` is the caller's to give. `ring` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_from_fd(fd: i32, ring: *mut *mut Ring) -> Status {
    call(|| {
        // SAFETY: the caller promises that `ring` is valid for writes.
        let ring = unsafe { Output::new(ring, "ring")? };
        if fd < 0 {
            return Err(Failure::new(Status::Invalid, format!("`fd` is {fd}: no descriptor")));
        }
        // SAFETY: not negative. If it is not open, which breaks the caller's promise, the duplication fails.
        let given = unsafe { BorrowedFd::borrow_raw(fd) };
        // On failure `from_fd` closes its descriptor, and the caller's must stay open.
        let own = given
            .try_clone_to_owned()
            .map_err(|error| Failure::new(Status::System, format!("cannot duplicate descriptor {fd}: {error}")))?;
        let memory = Memory::from_fd(own)?;
        // SAFETY: open, since it was duplicated. The caller owns it and gives it up.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        ring.set(handle(Ring { memory }));
        Ok(())
    })
}

/// Returns the descriptor of a ring's memory, for `ringmem_ring_from_fd` in another process; -1 if `ring` is NULL.
///
/// It stays the ring's: do not close it, and do not use it after `ringmem_ring_close`. A program started with `exec` does not inherit it, but a duplicate
/// by `dup`. Any thread may call this.
///
/// # Safety
///
/// `ring` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_fd(ring: *const Ring) -> i32 {
    let mut fd = -1;
    call(|| {
        // SAFETY: the caller promises NULL or an open ring.
        fd = unsafe { borrowed(ring, "ring")? }.memory.as_fd().as_raw_fd();
        Ok(())
    });
    fd
}

/// Closes a ring; NULL is ignored. Its ends stay open, and the memory stays mapped until they are closed.
///
/// Any thread may call this, once for a ring. No other call may use the ring then, or run meanwhile.
///
/// # Safety
///
/// `ring` is NULL or open, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_close(ring: *mut Ring) {
    // SAFETY: the caller promises NULL, or an open handle that no other call uses.
    unsafe { close(ring) };
}

/// Reads the index of the next message to pop and that of the next one to push, which count messages since the ring was created. Their difference is the
/// number of messages, unless a process writes wrong indices: they are not checked.
///
/// Any thread may call this.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `ring` is open. `head` and `tail` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_indices(ring: *const Ring, head: *mut u64, tail: *mut u64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open ring, and that `head` and `tail` are valid for writes.
        let (ring, head, tail) = unsafe { (borrowed(ring, "ring")?, Output::new(head, "head")?, Output::new(tail, "tail")?) };
        let (popped, pushed) = ring.memory.indices();
        head.set(popped);
        tail.set(pushed);
        Ok(())
    })
}

/// # Safety
///
/// `ring` is NULL or open. `state` and `generation` are NULL or valid for writes.
unsafe fn state_of(ring: *const Ring, side: Side, state: *mut OwnerState, generation: *mut u64) -> Status {
    call(|| {
        // SAFETY: the caller promises a ring that is open, and places that are valid for writes, unless they are null.
        let (ring, state) = unsafe { (borrowed(ring, "ring")?, Output::new(state, "state")?) };
        // SAFETY: the caller promises that `generation` is null or valid for writes.
        let generation = unsafe { Output::new(generation, "generation")? };
        state.set(ring.memory.state(side).into());
        generation.set(ring.memory.generation(side));
        Ok(())
    })
}

/// Reads the state of the producer's owner, in any process, and the number of its owners so far.
///
/// Any thread may call this.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `ring` is open. `state` and `generation` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_producer_state(ring: *const Ring, state: *mut OwnerState, generation: *mut u64) -> Status {
    // SAFETY: the caller promises an open ring, and places that are valid for writes.
    unsafe { state_of(ring, Side::Producer, state, generation) }
}

/// Reads the state of the consumer's owner, in any process, and the number of its owners so far.
///
/// Any thread may call this.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `ring` is open. `state` and `generation` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_ring_consumer_state(ring: *const Ring, state: *mut OwnerState, generation: *mut u64) -> Status {
    // SAFETY: the caller promises an open ring, and places that are valid for writes.
    unsafe { state_of(ring, Side::Consumer, state, generation) }
}
