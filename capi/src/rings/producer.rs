//! [`Producer`]: the producer's end of a ring.

use core::ffi::c_void;

use ringmem::attach::Corrupt;
use ringmem::shared::{MessageFacts, UntypedProducer};
use ringmem::wait::WaitStrategy;

use super::{Message, OwnerState, Ring, TAKEN_BACK, left, wait_failed};
use crate::arguments::{Output, Result, borrowed, close, deadline, exclusive, handle};
use crate::status::{Failure, Status, call};

const FULL: Failure = Failure::known(Status::Full, c"the ring is full");
const STILL_FULL: Failure = Failure::known(Status::Timeout, c"the ring was full until the deadline");
const NO_CONSUMER: Failure = Failure::known(Status::Disconnected, c"the consumer has left or died");

/// The producer's end of a ring. One thread at a time may use it.
pub struct Producer {
    end: UntypedProducer,
    /// Slots that the caller may commit.
    lent: usize,
}

impl Producer {
    /// # Safety
    ///
    /// `messages` is null or valid for reads of `count` messages.
    unsafe fn push(&mut self, messages: *const c_void, count: usize, argument: &str) -> Result<usize> {
        self.lent = 0;
        if messages.is_null() {
            return Err(Failure::null(argument));
        }
        // SAFETY: not null; the caller promises `count` messages.
        let pushed = unsafe { self.end.push_raw(messages.cast(), count as u64)? };
        if pushed == 0 && count > 0 { Err(FULL) } else { Ok(pushed as usize) }
    }

    /// Waits for a free slot, unless the consumer has left or died.
    fn wait(&mut self, timeout_ns: i64) -> Result {
        let attempt = |end: &mut UntypedProducer| {
            let is_ready = !end.is_disconnected() && (end.free() > 0 || end.refresh()? > 0);
            Ok::<_, Corrupt>(is_ready)
        };
        // Without the memory that a wait needs.
        if attempt(&mut self.end)? {
            return Ok(());
        }
        let mut waiting = self.end.waiting(WaitStrategy::default());
        let waited = waiting.wait(deadline(timeout_ns), |end| attempt(end).map(|is_ready| is_ready.then_some(())).transpose());
        waited.map_err(|error| wait_failed(error, STILL_FULL, NO_CONSUMER))
    }
}

/// Takes the producer's end of a ring. It has one owner at a time, in all processes; the operating system frees the end of a process that dies.
///
/// `expected` describes the messages; NULL accepts any, which `ringmem_producer_message` then returns. If it is given, each slot has that alignment.
/// After a `fork`, the first close in either process closes the end for both: a child that continues without `exec` must not close it.
///
/// Any thread may call this. The end keeps the memory: the ring may be closed before it. Close the end with `ringmem_producer_close`.
///
/// Errors: INVALID for an alignment that is no power of two; BUSY while the end has an owner; MISMATCH for other messages, with both values; CORRUPT for
/// indices out of range; SYSTEM without `/proc`, or without permission to read and write the memory.
///
/// # Safety
///
/// `ring` is open. `expected` is NULL or valid for reads. `producer` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_open(ring: *const Ring, expected: *const Message, producer: *mut *mut Producer) -> Status {
    call(|| {
        // SAFETY: the caller promises an open ring, and that `producer` is valid for writes.
        let (ring, producer) = unsafe { (borrowed(ring, "ring")?, Output::new(producer, "producer")?) };
        // SAFETY: the caller promises NULL, or that `expected` is valid for reads.
        let end = match unsafe { expected.as_ref() } {
            Some(message) => ring.memory.untyped_producer_of(message.facts(), message.checked_align()?)?,
            None => ring.memory.untyped_producer()?,
        };
        producer.set(handle(Producer { end, lent: 0 }));
        Ok(())
    })
}

/// Closes the end, and wakes a waiting consumer; NULL is ignored. Pushed messages stay in the ring, reserved slots are free.
///
/// One thread calls this, once. No other call may use the end then, or run meanwhile.
///
/// # Safety
///
/// `producer` is NULL or open, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_close(producer: *mut Producer) {
    // SAFETY: the caller promises NULL, or an open handle that no other call uses.
    unsafe { close(producer) };
}

/// Copies one message into the ring, publishes it, and wakes a waiting consumer. It pushes even if no consumer is there.
///
/// `message` has the size of the ring's messages and needs no alignment. It may be a slot that `ringmem_consumer_peek` of another ring returned. Slots
/// that were reserved before must be reserved again. One thread at a time may use the end.
///
/// Errors: FULL; INVALID for NULL; CORRUPT if the consumer's index is out of range.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `message` is valid for reads of a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_push(producer: *mut Producer, message: *const c_void) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let producer = unsafe { exclusive(producer, "producer")? };
        // SAFETY: the caller promises a message.
        unsafe { producer.push(message, 1, "message") }.map(drop)
    })
}

/// Copies as many of `count` consecutive messages as fit into the ring, publishes them together, wakes a waiting consumer, and sets `pushed`.
///
/// `messages` needs no alignment. A `count` of 0 pushes none. Slots that were reserved before must be reserved again. One thread at a time may use
/// the end.
///
/// Errors: FULL if none fits; INVALID for NULL; CORRUPT if the consumer's index is out of range.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `messages` is valid for reads of `count` messages, `pushed` for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_push_many(
    producer: *mut Producer,
    messages: *const c_void,
    count: usize,
    pushed: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `pushed` is valid for writes.
        let (producer, pushed) = unsafe { (exclusive(producer, "producer")?, Output::new(pushed, "pushed")?) };
        // SAFETY: the caller promises `count` messages.
        pushed.set(unsafe { producer.push(messages, count, "messages")? });
        Ok(())
    })
}

/// Copies one message into the ring as `ringmem_producer_push` does; waits for a free slot.
///
/// `timeout_ns` is in nanoseconds: 0 does not wait, a negative one has no limit. The call sleeps after a few microseconds; the death of a sleeping
/// end's peer is noticed within a second. One thread at a time may use the end.
///
/// Errors: TIMEOUT if the ring is full until then; DISCONNECTED if the consumer has closed its end, even if a slot is free, or has died: only a call that
/// finds the ring full notices a death; INVALID for NULL; CORRUPT if the consumer's index is out of range.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `message` is valid for reads of a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_push_wait(producer: *mut Producer, message: *const c_void, timeout_ns: i64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let producer = unsafe { exclusive(producer, "producer")? };
        if message.is_null() {
            return Err(Failure::null("message"));
        }
        producer.wait(timeout_ns)?;
        // SAFETY: the caller promises a message.
        unsafe { producer.push(message, 1, "message") }.map(drop)
    })
}

/// Waits until a slot is free, for `ringmem_producer_push` and `ringmem_producer_reserve`.
///
/// Timeout, threads and errors: as `ringmem_producer_push_wait`.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_wait(producer: *mut Producer, timeout_ns: i64) -> Status {
    // SAFETY: the caller promises an open end that no other thread uses.
    call(|| unsafe { exclusive(producer, "producer")? }.wait(timeout_ns))
}

/// Lends the next free slots, at most `wanted`, to be filled in place: sets `slots` to the first and `count` to their number. They are adjacent, so fewer than
/// are free if they reach the ring's end; after they are committed, the rest can be reserved.
///
/// A slot has the bytes of an earlier message. Fill the slots, then publish them with `ringmem_producer_commit`. They are lent until then, or until a push,
/// another reserve or the close of the end. The consumer's process can read and write them meanwhile. One thread at a time may use the end.
///
/// Errors: FULL; INVALID for NULL; CORRUPT if the consumer's index is out of range. After an error no slot is lent.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `slots` and `count` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_reserve(
    producer: *mut Producer,
    wanted: usize,
    slots: *mut *mut c_void,
    count: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let producer = unsafe { exclusive(producer, "producer")? };
        producer.lent = 0;
        // SAFETY: the caller promises that `slots` and `count` are valid for writes.
        let (slots, count) = unsafe { (Output::new(slots, "slots")?, Output::new(count, "count")?) };
        let (first, free) = producer.end.reserve(wanted as u64)?;
        if free == 0 && wanted > 0 {
            return Err(FULL);
        }
        producer.lent = free as usize;
        slots.set(first.as_ptr().cast());
        count.set(producer.lent);
        Ok(())
    })
}

/// Publishes the first `count` of the slots that `ringmem_producer_reserve` lent, and wakes a waiting consumer. The others stay lent, so that they can
/// be committed later.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL, and for more slots than are lent; CORRUPT if the consumer has moved its index back over them. Then nothing is published.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_commit(producer: *mut Producer, count: usize) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let producer = unsafe { exclusive(producer, "producer")? };
        let left = left(producer.lent, count, "commit", "reserved slots")?;
        if count as u64 > producer.end.free() {
            return Err(TAKEN_BACK);
        }
        producer.lent = left;
        producer.end.commit(count as u64);
        Ok(())
    })
}

/// Reads the number of free slots. The consumer can only increase it.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL; CORRUPT if the consumer's index is out of range.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `free` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_free(producer: *mut Producer, free: *mut usize) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `free` is valid for writes.
        let (producer, free) = unsafe { (exclusive(producer, "producer")?, Output::new(free, "free")?) };
        free.set(producer.end.refresh()? as usize);
        Ok(())
    })
}

/// Waits until the consumer's end has an owner; sets `generation` to the number of its owners so far.
///
/// An owner that left before this end was opened does not count, nor does one that an operation of this end has reported as `DISCONNECTED`: then the
/// call waits for a successor. `timeout_ns` is in nanoseconds: 0 does not wait, a negative one has no limit. One thread at a time may use the end.
///
/// Errors: TIMEOUT, with the state of the end; INVALID for NULL.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `generation` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_wait_for_peer(producer: *mut Producer, timeout_ns: i64, generation: *mut u64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `generation` is valid for writes.
        let (producer, generation) = unsafe { (exclusive(producer, "producer")?, Output::new(generation, "generation")?) };
        generation.set(producer.end.wait_for_peer(WaitStrategy::default(), deadline(timeout_ns))?);
        Ok(())
    })
}

/// Reads the state of the consumer's owner, in any process, and the number of its owners so far.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `state` and `generation` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_peer_state(producer: *mut Producer, state: *mut OwnerState, generation: *mut u64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `state` is valid for writes.
        let (producer, state) = unsafe { (exclusive(producer, "producer")?, Output::new(state, "state")?) };
        // SAFETY: the caller promises that `generation` is valid for writes.
        let generation = unsafe { Output::new(generation, "generation")? };
        state.set(producer.end.peer_state().into());
        generation.set(producer.end.peer_generation());
        Ok(())
    })
}

/// Reads the size, kind and hash of the ring's messages, and the largest alignment that all slots have.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `message` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_message(producer: *mut Producer, message: *mut Message) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `message` is valid for writes.
        let (producer, message) = unsafe { (exclusive(producer, "producer")?, Output::new(message, "message")?) };
        let MessageFacts { size, kind, abi } = producer.end.message();
        message.set(Message { size, align: producer.end.align(), kind, abi });
        Ok(())
    })
}

/// Reads the number of the ring's slots.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `producer` is open, and no other thread uses it. `capacity` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_producer_capacity(producer: *mut Producer, capacity: *mut usize) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `capacity` is valid for writes.
        let (producer, capacity) = unsafe { (exclusive(producer, "producer")?, Output::new(capacity, "capacity")?) };
        capacity.set(producer.end.capacity() as usize);
        Ok(())
    })
}
