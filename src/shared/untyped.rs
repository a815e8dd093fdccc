use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};
use std::fmt;
use std::os::fd::BorrowedFd;

use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::{MAGIC, RingFlags};

use super::end::Ownership;
use super::mapping::RingMemory;
use super::{OwnerState, Side, end_lock};
use crate::wait::wake_sleepers;
use crate::{RingHeader, Word};

/// A ring's messages, by its header.
///
/// ```
/// use ringmem::RingMessage;
/// use ringmem::shared::Memory;
///
/// let memory = Memory::create::<u16>(4)?;
/// let facts = memory.untyped_consumer()?.message(); // without the type
/// assert_eq!((facts.size, facts.kind), (2, u16::KIND));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFacts {
    /// Bytes of a message, at least 1.
    pub size: usize,
    /// [`KIND`](crate::RingMessage::KIND) of the type.
    pub kind: u64,
    /// ABI hash of ring and type.
    pub abi: u64,
}

/// The producer's end of a ring of messages as bytes; a drop closes it.
///
/// ```
/// use ringmem::shared::Memory;
///
/// let memory = Memory::create::<u16>(4)?;
/// let (mut from, mut to) = (memory.untyped_consumer()?, memory.untyped_producer()?);
/// assert_eq!(to.push(&[1, 0, 2, 0]), Ok(2)); // two messages of two bytes
/// let mut bytes = [0; 4];
/// assert_eq!((from.peek(1, &mut bytes), &bytes[..2]), (Ok(1), &[2, 0][..])); // the one after the next; it stays
/// from.release(2);
/// assert_eq!(memory.indices(), (2, 2));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct UntypedProducer(Untyped);

/// The consumer's end, which reads messages as bytes and releases them separately; a drop closes it.
///
/// Unreleased messages stay in the ring, also if this process is killed.
///
/// ```
/// use ringmem::shared::Memory;
///
/// let memory = Memory::create::<u16>(4)?;
/// memory.producer::<u16>()?.push(7).expect("room");
/// let mut consumer = memory.untyped_consumer()?;
/// let mut message = [0; 2];
/// assert_eq!((consumer.peek(0, &mut message), u16::from_ne_bytes(message)), (Ok(1), 7));
/// consumer.release(1); // until here, a successor would read it again
/// assert_eq!((consumer.refresh(), consumer.head()), (Ok(0), 1));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct UntypedConsumer(Untyped);

struct Untyped {
    slots: Slots,
    index: u64,
    /// INVARIANT: `used` accepted it with `index`.
    seen: u64,
    ownership: Ownership,
    facts: MessageFacts,
}

struct Slots {
    // INVARIANT: `capacity * size` bytes from here are in the mapping, which `ownership` keeps; the first is aligned to 128.
    base: NonNull<u8>,
    // INVARIANT: a power of two.
    capacity: u64,
    // INVARIANT: at least 1.
    size: usize,
}

// SAFETY: an address in a mapping with atomic accesses only; the end that owns it is never shared.
unsafe impl Send for Slots {}

impl Slots {
    /// Reads and checks the geometry once.
    fn find(place: &RingMemory) -> Result<(Self, MessageFacts), AttachError> {
        let constants = &place.header().constants;
        // SYNC POINT: ring seen. Pairs with RingHeader::format.
        let magic = constants.magic.load_acquire();
        if magic != MAGIC {
            return Err(AttachError::Magic { expected: MAGIC, got: magic });
        }
        let flags = Word::load(&constants.flags);
        if flags != RingFlags::SPSC.bits() {
            return Err(AttachError::Kind { expected: RingFlags::SPSC.bits(), got: flags });
        }
        let (capacity, size, offset) =
            (Word::load(&constants.capacity), Word::load(&constants.slot_size), Word::load(&constants.slots_offset));
        if !capacity.is_power_of_two() {
            return Err(AttachError::Capacity { got: capacity });
        }
        if offset < size_of::<RingHeader>() as u64 || !offset.is_multiple_of(align_of::<RingHeader>() as u64) {
            return Err(AttachError::Offset { got: offset });
        }
        let needed = capacity.checked_mul(size).and_then(|slots| slots.checked_add(offset)).unwrap_or(u64::MAX);
        if needed > place.len() {
            return Err(AttachError::TooSmall { needed, got: place.len() });
        }
        if size == 0 {
            return Err(AttachError::SlotSize { expected: 1, got: 0 });
        }
        // SAFETY: `offset` is within the place, as checked.
        let base = unsafe { place.base().add(offset as usize) };
        let facts = MessageFacts { size: size as usize, kind: Word::load(&constants.message_kind), abi: Word::load(&constants.abi) };
        Ok((Self { base, capacity, size: size as usize }, facts))
    }

    /// Bytes before a slot's first word, and the number of words. The typed ends use the same partition: accesses of different sizes do not
    /// overlap.
    fn parts(&self, index: u64) -> (*mut u8, usize, usize) {
        // Below the capacity: the product was checked.
        let slot = self.base.as_ptr().wrapping_add((index & (self.capacity - 1)) as usize * self.size);
        let before = if self.size.is_multiple_of(8) { 0 } else { (slot.addr().wrapping_neg() & 7).min(self.size) };
        (slot, before, (self.size - before) / 8)
    }

    /// `into` has the size of a message.
    fn read(&self, index: u64, into: &mut [u8]) {
        let (slot, before, words) = self.parts(index);
        for place in (0..before).chain(before + 8 * words..self.size) {
            into[place] = self.byte(slot, place).load(Relaxed);
        }
        for (number, bytes) in into[before..].as_chunks_mut::<8>().0.iter_mut().take(words).enumerate() {
            *bytes = self.word(slot, before + 8 * number).load(Relaxed).to_ne_bytes();
        }
    }

    fn write(&self, index: u64, from: &[u8]) {
        let (slot, before, words) = self.parts(index);
        for place in (0..before).chain(before + 8 * words..self.size) {
            self.byte(slot, place).store(from[place], Relaxed);
        }
        for (number, bytes) in from[before..].as_chunks::<8>().0.iter().take(words).enumerate() {
            self.word(slot, before + 8 * number).store(u64::from_ne_bytes(*bytes), Relaxed);
        }
    }

    /// `place` is below the size of a message.
    fn byte(&self, slot: *mut u8, place: usize) -> &AtomicU8 {
        // SAFETY: within the slot and the mapping, which lives as long as the slots and is accessed only atomically.
        unsafe { AtomicU8::from_ptr(slot.wrapping_add(place)) }
    }

    fn word(&self, slot: *mut u8, place: usize) -> &AtomicU64 {
        let place = slot.wrapping_add(place).cast::<u64>();
        debug_assert!(place.is_aligned());
        // SAFETY: within the slot and the mapping, which lives as long as the slots and is accessed only atomically. It is aligned:
        // `before` ends where a word begins, and if it is 0, the slot begins at a multiple of 8.
        unsafe { AtomicU64::from_ptr(place) }
    }
}

impl Untyped {
    fn new(file: BorrowedFd<'_>, place: &RingMemory, side: Side) -> crate::Result<Self> {
        let ownership = Ownership::new(file, place, side)?;
        let (slots, facts) = Slots::find(place)?;
        let header = place.header();
        let (head, tail) = (header.consumer.head.load_acquire(), header.producer.tail.load_acquire());
        used(head, tail, slots.capacity).map_err(AttachError::Corrupt)?;
        let (index, seen) = if side == Side::Producer { (tail, head) } else { (head, tail) };
        end_lock::open(header, side);
        let end = Self { slots, index, seen, ownership, facts };
        // A predecessor may have died before its wake-up.
        end.wake();
        Ok(end)
    }

    fn wake(&self) {
        wake_sleepers(self.ownership.wait_words().theirs);
    }
}

impl Drop for Untyped {
    fn drop(&mut self) {
        end_lock::close(self.ownership.place().header(), self.ownership.side());
    }
}

const fn used(head: u64, tail: u64, capacity: u64) -> Result<u64, Corrupt> {
    let used = tail.wrapping_sub(head);
    if used > capacity { Err(Corrupt { head, tail, capacity }) } else { Ok(used) }
}

impl UntypedProducer {
    pub(super) fn new(file: BorrowedFd<'_>, place: &RingMemory) -> crate::Result<Self> {
        Untyped::new(file, place, Side::Producer).map(Self)
    }

    /// Pushes as many of `messages` as fit, published together, and wakes the consumer; returns how many. Ignores an incomplete last message.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the consumer's index is out of range; nothing is pushed.
    pub fn push(&mut self, messages: &[u8]) -> Result<u64, Corrupt> {
        let messages = messages.chunks_exact(self.0.facts.size);
        let mut free = self.0.slots.capacity - self.0.index.wrapping_sub(self.0.seen);
        if free < messages.len() as u64 {
            free = self.refresh()?;
        }
        let count = free.min(messages.len() as u64);
        for (message, index) in messages.zip(0..count) {
            self.0.slots.write(self.0.index.wrapping_add(index), message);
        }
        if count > 0 {
            self.0.index = self.0.index.wrapping_add(count);
            // SYNC POINT: slot published. Pairs with the consumer's refresh.
            self.0.ownership.place().header().producer.tail.store_release(self.0.index);
            self.0.wake();
        }
        Ok(count)
    }

    /// As [`Producer::refresh`](super::Producer::refresh).
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        // SYNC POINT: slot released. Pairs with the consumer's release.
        let head = self.0.ownership.place().header().consumer.head.load_acquire();
        let used = used(head, self.0.index, self.0.slots.capacity)?;
        self.0.seen = head;
        Ok(self.0.slots.capacity - used)
    }

    /// As [`Producer::tail`](super::Producer::tail).
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.0.index
    }
}

impl UntypedConsumer {
    pub(super) fn new(file: BorrowedFd<'_>, place: &RingMemory) -> crate::Result<Self> {
        Untyped::new(file, place, Side::Consumer).map(Self)
    }

    /// Copies messages that fit into `into`, from `offset` places after the next one, without releasing them; returns how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index is out of range.
    pub fn peek(&mut self, offset: u64, into: &mut [u8]) -> Result<u64, Corrupt> {
        let wanted = (into.len() / self.0.facts.size) as u64;
        let mut available = self.0.seen.wrapping_sub(self.0.index);
        if available < offset.saturating_add(wanted) {
            available = self.refresh()?;
        }
        let count = available.saturating_sub(offset).min(wanted);
        for (message, index) in into.chunks_exact_mut(self.0.facts.size).zip(0..count) {
            self.0.slots.read(self.0.index.wrapping_add(offset).wrapping_add(index), message);
        }
        Ok(count)
    }

    /// Releases the next `count` messages, at most those available at the last poll, and wakes the producer.
    pub fn release(&mut self, count: u64) {
        let count = count.min(self.0.seen.wrapping_sub(self.0.index));
        if count > 0 {
            self.0.index = self.0.index.wrapping_add(count);
            // SYNC POINT: slot released. Pairs with the producer's refresh.
            self.0.ownership.place().header().consumer.head.store_release(self.0.index);
            self.0.wake();
        }
    }

    /// As [`Consumer::refresh`](super::Consumer::refresh).
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        // SYNC POINT: slot published. Pairs with the producer's push.
        let tail = self.0.ownership.place().header().producer.tail.load_acquire();
        let used = used(self.0.index, tail, self.0.slots.capacity)?;
        self.0.seen = tail;
        Ok(used)
    }

    /// As [`Consumer::head`](super::Consumer::head).
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.0.index
    }
}

macro_rules! both {
    ($($end:ident)+) => {$(
        impl $end {
            /// Returns size, kind and ABI hash of the messages.
            #[must_use]
            pub const fn message(&self) -> MessageFacts {
                self.0.facts
            }

            /// Returns the number of slots.
            #[must_use]
            pub const fn capacity(&self) -> u64 {
                self.0.slots.capacity
            }

            /// As [`Producer::peer_state`](super::Producer::peer_state).
            #[must_use]
            pub fn peer_state(&self) -> OwnerState {
                self.0.ownership.peer_state()
            }
        }

        impl fmt::Debug for $end {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).field("message", &self.0.facts).field("index", &self.0.index).finish_non_exhaustive()
            }
        }
    )+};
}
both! { UntypedProducer UntypedConsumer }
