//! [`Consumer`]: the consumer's end of a ring.

use core::ffi::c_void;

use ringmem::attach::Corrupt;
use ringmem::shared::{MessageFacts, UntypedConsumer};
use ringmem::wait::WaitStrategy;

use super::{Message, OwnerState, Ring, TAKEN_BACK, left, wait_failed};
use crate::arguments::{Output, Result, borrowed, close, deadline, exclusive, handle};
use crate::status::{Failure, Status, call};

const EMPTY: Failure = Failure::known(Status::Empty, c"the ring is empty");
const STILL_EMPTY: Failure = Failure::known(Status::Timeout, c"the ring was empty until the deadline");
const NO_PRODUCER: Failure = Failure::known(Status::Disconnected, c"the producer has left or died, and no message remains");

/// The consumer's end of a ring. One thread at a time may use it.
pub struct Consumer {
    end: UntypedConsumer,
    /// Messages in place that the caller may release.
    lent: usize,
}

impl Consumer {
    /// # Safety
    ///
    /// `messages` is null or valid for writes of `count` messages.
    unsafe fn pop(&mut self, messages: *mut c_void, count: usize, argument: &str) -> Result<usize> {
        self.lent = 0;
        if messages.is_null() {
            return Err(Failure::null(argument));
        }
        // SAFETY: not null; the caller promises places for `count` messages.
        let popped = unsafe { self.end.peek_raw(0, messages.cast(), count as u64)? };
        self.end.release(popped);
        if popped == 0 && count > 0 { Err(EMPTY) } else { Ok(popped as usize) }
    }

    /// Waits for a message.
    fn wait(&mut self, timeout_ns: i64) -> Result {
        let attempt = |end: &mut UntypedConsumer| Ok::<_, Corrupt>(end.available() > 0 || end.refresh()? > 0);
        // As in `Producer::wait`.
        if attempt(&mut self.end)? {
            return Ok(());
        }
        let mut waiting = self.end.waiting(WaitStrategy::default());
        let waited = waiting.wait(deadline(timeout_ns), |end| attempt(end).map(|is_ready| is_ready.then_some(())).transpose());
        waited.map_err(|error| wait_failed(error, STILL_EMPTY, NO_PRODUCER))
    }
}

/// Takes the consumer's end of a ring, as `ringmem_producer_open` does the producer's.
///
/// A consumer continues at the last released message: those that a predecessor peeked, but did not release, are popped again.
///
/// Errors: as `ringmem_producer_open`.
///
/// # Safety
///
/// `ring` is open. `expected` is NULL or valid for reads. `consumer` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_open(ring: *const Ring, expected: *const Message, consumer: *mut *mut Consumer) -> Status {
    call(|| {
        // SAFETY: the caller promises an open ring, and that `consumer` is valid for writes.
        let (ring, consumer) = unsafe { (borrowed(ring, "ring")?, Output::new(consumer, "consumer")?) };
        // SAFETY: the caller promises NULL, or that `expected` is valid for reads.
        let end = match unsafe { expected.as_ref() } {
            Some(message) => ring.memory.untyped_consumer_of(message.facts(), message.checked_align()?)?,
            None => ring.memory.untyped_consumer()?,
        };
        consumer.set(handle(Consumer { end, lent: 0 }));
        Ok(())
    })
}

/// Closes the end, and wakes a waiting producer; NULL is ignored. Messages that were not popped or released stay in the ring, for the next consumer.
///
/// One thread calls this, once. No other call may use the end then, or run meanwhile.
///
/// # Safety
///
/// `consumer` is NULL or open, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_close(consumer: *mut Consumer) {
    // SAFETY: the caller promises NULL, or an open handle that no other call uses.
    unsafe { close(consumer) };
}

/// Moves one message out of the ring, and wakes a waiting producer.
///
/// `message` has the size of the ring's messages and needs no alignment. Messages that were peeked before must be peeked again. One thread at a time may
/// use the end.
///
/// Errors: EMPTY, even if the producer has left; INVALID for NULL; CORRUPT if the producer's index is out of range.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `message` is valid for writes of a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_pop(consumer: *mut Consumer, message: *mut c_void) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let consumer = unsafe { exclusive(consumer, "consumer")? };
        // SAFETY: the caller promises a place for a message.
        unsafe { consumer.pop(message, 1, "message") }.map(drop)
    })
}

/// Moves at most `count` messages out of the ring, releases their slots together, wakes a waiting producer, and sets `popped`.
///
/// `messages` needs no alignment. A `count` of 0 pops none. Messages that were peeked before must be peeked again. One thread at a time may use the end.
///
/// Errors: EMPTY, even if the producer has left; INVALID for NULL; CORRUPT if the producer's index is out of range.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `messages` is valid for writes of `count` messages, `popped` for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_pop_many(
    consumer: *mut Consumer,
    messages: *mut c_void,
    count: usize,
    popped: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `popped` is valid for writes.
        let (consumer, popped) = unsafe { (exclusive(consumer, "consumer")?, Output::new(popped, "popped")?) };
        // SAFETY: the caller promises places for `count` messages.
        popped.set(unsafe { consumer.pop(messages, count, "messages")? });
        Ok(())
    })
}

/// Moves one message out of the ring as `ringmem_consumer_pop` does; waits for one.
///
/// `timeout_ns` is in nanoseconds: 0 does not wait, a negative one has no limit. The call sleeps after a few microseconds; the death of a sleeping
/// end's peer is noticed within a second. One thread at a time may use the end.
///
/// Errors: TIMEOUT if the ring is empty until then; DISCONNECTED if the producer has left or died and no message remains; INVALID for NULL; CORRUPT if the
/// producer's index is out of range.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `message` is valid for writes of a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_pop_wait(consumer: *mut Consumer, message: *mut c_void, timeout_ns: i64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let consumer = unsafe { exclusive(consumer, "consumer")? };
        if message.is_null() {
            return Err(Failure::null("message"));
        }
        consumer.wait(timeout_ns)?;
        // SAFETY: the caller promises a place for a message.
        unsafe { consumer.pop(message, 1, "message") }.map(drop)
    })
}

/// Waits until the ring has a message, for `ringmem_consumer_pop` and `ringmem_consumer_peek`.
///
/// Timeout, threads and errors: as `ringmem_consumer_pop_wait`.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_wait(consumer: *mut Consumer, timeout_ns: i64) -> Status {
    // SAFETY: the caller promises an open end that no other thread uses.
    call(|| unsafe { exclusive(consumer, "consumer")? }.wait(timeout_ns))
}

/// Lends the next messages, at most `wanted`, to be read in place: sets `slots` to the first and `count` to their number. They are adjacent, so fewer than are
/// available if they reach the ring's end; after they are released, the rest can be peeked.
///
/// The messages stay in the ring until `ringmem_consumer_release`. They are lent until then, or until a pop, another peek or the close of the end. The
/// producer's process can write them meanwhile: if it is not trusted, copy a message before checking it. One thread at a time may use the end.
///
/// Errors: EMPTY, even if the producer has left; INVALID for NULL; CORRUPT if the producer's index is out of range. After an error no message is lent.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `slots` and `count` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_peek(
    consumer: *mut Consumer,
    wanted: usize,
    slots: *mut *const c_void,
    count: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let consumer = unsafe { exclusive(consumer, "consumer")? };
        consumer.lent = 0;
        // SAFETY: the caller promises that `slots` and `count` are valid for writes.
        let (slots, count) = unsafe { (Output::new(slots, "slots")?, Output::new(count, "count")?) };
        let (first, available) = consumer.end.peek_in_place(wanted as u64)?;
        if available == 0 && wanted > 0 {
            return Err(EMPTY);
        }
        consumer.lent = available as usize;
        slots.set(first.as_ptr().cast());
        count.set(consumer.lent);
        Ok(())
    })
}

/// Removes the first `count` of the messages that `ringmem_consumer_peek` lent, and wakes a waiting producer. The others stay lent, so that they can be
/// released later.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL, and for more messages than are lent; CORRUPT if the producer has moved its index back over them. Then none is removed.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_release(consumer: *mut Consumer, count: usize) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses.
        let consumer = unsafe { exclusive(consumer, "consumer")? };
        let left = left(consumer.lent, count, "release", "peeked messages")?;
        if count as u64 > consumer.end.available() {
            return Err(TAKEN_BACK);
        }
        consumer.lent = left;
        consumer.end.release(count as u64);
        Ok(())
    })
}

/// Reads the number of available messages. The producer can only increase it.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL; CORRUPT if the producer's index is out of range.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `available` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_available(consumer: *mut Consumer, available: *mut usize) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `available` is valid for writes.
        let (consumer, available) = unsafe { (exclusive(consumer, "consumer")?, Output::new(available, "available")?) };
        available.set(consumer.end.refresh()? as usize);
        Ok(())
    })
}

/// Waits until the producer's end has an owner; sets `generation` to the number of its owners so far.
///
/// An owner that left before this end was opened does not count, nor does one that an operation of this end has reported as `DISCONNECTED`: then the
/// call waits for a successor. `timeout_ns` is in nanoseconds: 0 does not wait, a negative one has no limit. One thread at a time may use the end.
///
/// Errors: TIMEOUT, with the state of the end; INVALID for NULL.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `generation` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_wait_for_peer(consumer: *mut Consumer, timeout_ns: i64, generation: *mut u64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `generation` is valid for writes.
        let (consumer, generation) = unsafe { (exclusive(consumer, "consumer")?, Output::new(generation, "generation")?) };
        generation.set(consumer.end.wait_for_peer(WaitStrategy::default(), deadline(timeout_ns))?);
        Ok(())
    })
}

/// Reads the state of the producer's owner, in any process, and the number of its owners so far.
///
/// One thread at a time may use the end.
///
/// Errors: INVALID for NULL.
///
/// # Safety
///
/// `consumer` is open, and no other thread uses it. `state` and `generation` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_peer_state(consumer: *mut Consumer, state: *mut OwnerState, generation: *mut u64) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `state` is valid for writes.
        let (consumer, state) = unsafe { (exclusive(consumer, "consumer")?, Output::new(state, "state")?) };
        // SAFETY: the caller promises that `generation` is valid for writes.
        let generation = unsafe { Output::new(generation, "generation")? };
        state.set(consumer.end.peer_state().into());
        generation.set(consumer.end.peer_generation());
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
/// `consumer` is open, and no other thread uses it. `message` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_message(consumer: *mut Consumer, message: *mut Message) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `message` is valid for writes.
        let (consumer, message) = unsafe { (exclusive(consumer, "consumer")?, Output::new(message, "message")?) };
        let MessageFacts { size, kind, abi } = consumer.end.message();
        message.set(Message { size, align: consumer.end.align(), kind, abi });
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
/// `consumer` is open, and no other thread uses it. `capacity` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_consumer_capacity(consumer: *mut Consumer, capacity: *mut usize) -> Status {
    call(|| {
        // SAFETY: the caller promises an open end that no other thread uses, and that `capacity` is valid for writes.
        let (consumer, capacity) = unsafe { (exclusive(consumer, "consumer")?, Output::new(capacity, "capacity")?) };
        capacity.set(consumer.end.capacity() as usize);
        Ok(())
    })
}
