use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};
use std::fmt;
use std::os::fd::BorrowedFd;

use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::ring::{MAGIC, RingFlags, WaitWords, abi_of, owner};

use super::Side;
use super::liveness::Ownership;
use super::mapping::RingMemory;
use crate::wait::{WaitStrategy, Waiting, wake_sleepers};
use crate::{HostWord, RingHeader, RingMessage, Word};

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

impl MessageFacts {
    /// Returns the facts of a type.
    #[must_use]
    pub const fn of<T: RingMessage>() -> Self {
        Self { size: size_of::<T>(), kind: T::KIND, abi: abi_of::<T>() }
    }
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
///
/// Messages can be written in place:
///
/// ```
/// use ringmem::shared::Memory;
///
/// let memory = Memory::create::<u64>(4)?;
/// let mut producer = memory.untyped_producer()?;
/// let (slots, count) = producer.reserve(10).expect("valid indices");
/// assert_eq!(count, 4);
/// for place in 0..3 {
///     // SAFETY: a reserved slot, aligned as its message. Volatile: another process may access it.
///     unsafe { slots.cast::<u64>().add(place).write_volatile(7) };
/// }
/// producer.commit(3);
/// assert_eq!(memory.consumer::<u64>()?.pop(), Ok(7));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct UntypedProducer {
    // Dropped first: it closes the end, whose lock `ownership` then releases.
    pub(super) end: Untyped,
    pub(super) ownership: Ownership,
}

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
pub struct UntypedConsumer {
    // As in `UntypedProducer`.
    pub(super) end: Untyped,
    pub(super) ownership: Ownership,
}

/// The words of an end that has an owner. A drop stores that the owner has left.
pub(super) struct Untyped {
    slots: Slots,
    index: u64,
    /// INVARIANT: `used` accepted it with `index`.
    seen: u64,
    place: RingMemory,
    side: Side,
    facts: MessageFacts,
}

struct Slots {
    // INVARIANT: `capacity * size` bytes from here are in the mapping, which `Untyped::place` keeps; the first is aligned to 128.
    base: NonNull<u8>,
    // INVARIANT: a power of two.
    capacity: u64,
    // INVARIANT: at least 1.
    size: usize,
    // INVARIANT: a power of two that divides `size`, the address of the first slot, and its offset in the ring.
    align: usize,
}

// SAFETY: an address in a mapping with atomic accesses only; the end that owns it is never shared.
unsafe impl Send for Slots {}

impl Slots {
    /// Reads and checks the geometry once; and that the messages are `expected`, if any, in slots with that alignment.
    fn find(place: &RingMemory, expected: Option<(MessageFacts, usize)>) -> Result<(Self, MessageFacts), AttachError> {
        let constants = &place.header().constants;
        // SYNC POINT: ring seen. Pairs with RingHeader::format.
        let magic = constants.magic.load_acquire();
        if magic != MAGIC {
            return Err(AttachError::Magic { expected: MAGIC, got: magic });
        }
        let abi = Word::load(&constants.abi);
        if let Some((MessageFacts { abi: expected, .. }, _)) = expected
            && expected != abi
        {
            return Err(AttachError::Abi { expected, got: abi });
        }
        let flags = Word::load(&constants.flags);
        if flags != RingFlags::SPSC.bits() {
            return Err(AttachError::Kind { expected: RingFlags::SPSC.bits(), got: flags });
        }
        let kind = Word::load(&constants.message_kind);
        if let Some((MessageFacts { kind: expected, .. }, _)) = expected
            && expected != kind
        {
            return Err(AttachError::Kind { expected, got: kind });
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
        let address = base.as_ptr().addr() as u64;
        let align = 1_usize << (address | offset | size).trailing_zeros();
        if let Some((MessageFacts { size: expected, .. }, wanted)) = expected {
            if expected as u64 != size {
                return Err(AttachError::SlotSize { expected: expected as u64, got: size });
            }
            if !align.is_multiple_of(wanted) {
                return Err(AttachError::Misaligned { address, align: wanted as u64 });
            }
        }
        Ok((Self { base, capacity, size: size as usize, align }, MessageFacts { size: size as usize, kind, abi }))
    }

    /// Returns the slot of an index, and the number of slots from it to the last one in memory.
    fn at(&self, index: u64) -> (NonNull<u8>, u64) {
        let place = index & (self.capacity - 1);
        // SAFETY: `place` is below the capacity, so the slot is in the mapping, by the invariant.
        (unsafe { self.base.add(place as usize * self.size) }, self.capacity - place)
    }

    /// Bytes before a slot's first word, and the number of words. The typed ends use the same partition: accesses of different sizes do not
    /// overlap.
    fn parts(&self, index: u64) -> (*mut u8, usize, usize) {
        let slot = self.at(index).0.as_ptr();
        let before = if self.size.is_multiple_of(8) { 0 } else { (slot.addr().wrapping_neg() & 7).min(self.size) };
        (slot, before, (self.size - before) / 8)
    }

    /// # Safety
    ///
    /// `into` is valid for writes of the size of a message.
    unsafe fn read(&self, index: u64, into: *mut u8) {
        let (slot, before, words) = self.parts(index);
        for place in (0..before).chain(before + 8 * words..self.size) {
            let byte = self.byte(slot, place).load(Relaxed);
            // SAFETY: below the size of a message, for which the caller promises valid writes.
            unsafe { into.add(place).write(byte) };
        }
        for place in (0..words).map(|number| before + 8 * number) {
            let word = self.word(slot, place).load(Relaxed);
            // SAFETY: `words` end within the size of a message, for which the caller promises valid writes.
            unsafe { into.add(place).cast::<u64>().write_unaligned(word) };
        }
    }

    /// # Safety
    ///
    /// `from` is valid for reads of the size of a message.
    unsafe fn write(&self, index: u64, from: *const u8) {
        let (slot, before, words) = self.parts(index);
        for place in (0..before).chain(before + 8 * words..self.size) {
            // SAFETY: below the size of a message, for which the caller promises valid reads.
            let byte = unsafe { from.add(place).read() };
            self.byte(slot, place).store(byte, Relaxed);
        }
        for place in (0..words).map(|number| before + 8 * number) {
            // SAFETY: `words` end within the size of a message, for which the caller promises valid reads.
            let word = unsafe { from.add(place).cast::<u64>().read_unaligned() };
            self.word(slot, place).store(word, Relaxed);
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
    /// Opens an end, whose lock the caller holds, as its new owner.
    fn open(place: &RingMemory, side: Side, expected: Option<(MessageFacts, usize)>) -> crate::Result<Self> {
        let (slots, facts) = Slots::find(place, expected)?;
        let header = place.header();
        let (head, tail) = (header.consumer.head.load_acquire(), header.producer.tail.load_acquire());
        used(head, tail, slots.capacity).map_err(AttachError::Corrupt)?;
        let (index, seen) = if side == Side::Producer { (tail, head) } else { (head, tail) };
        owner::open(side.owner(header));
        let end = Self { slots, index, seen, place: place.clone(), side, facts };
        // A predecessor may have died before its wake-up.
        end.wake();
        Ok(end)
    }

    fn header(&self) -> &RingHeader<HostWord> {
        self.place.header()
    }

    pub fn wait_words(&self) -> WaitWords<'_, HostWord> {
        self.side.wait_words(self.header())
    }

    fn wake(&self) {
        wake_sleepers(self.wait_words().theirs);
    }
}

impl Drop for Untyped {
    fn drop(&mut self) {
        owner::close(self.side.owner(self.header()));
    }
}

const fn used(head: u64, tail: u64, capacity: u64) -> Result<u64, Corrupt> {
    let used = tail.wrapping_sub(head);
    if used > capacity { Err(Corrupt { head, tail, capacity }) } else { Ok(used) }
}

impl UntypedProducer {
    pub(super) fn new(file: BorrowedFd<'_>, place: &RingMemory, expected: Option<(MessageFacts, usize)>) -> crate::Result<Self> {
        let ownership = Ownership::new(file, place, Side::Producer)?;
        Ok(Self { end: Untyped::open(place, Side::Producer, expected)?, ownership })
    }

    /// Pushes as many of `messages` as fit, published together, and wakes the consumer; returns how many. Ignores an incomplete last message.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the consumer's index is out of range; nothing is pushed.
    pub fn push(&mut self, messages: &[u8]) -> Result<u64, Corrupt> {
        // SAFETY: a slice is valid for reads of its whole messages.
        unsafe { self.push_raw(messages.as_ptr(), (messages.len() / self.end.facts.size) as u64) }
    }

    /// As [`push`](Self::push), for `count` messages at an address, which need not be aligned. They may be in slots of any ring: if another process
    /// writes those meanwhile, the pushed bytes are arbitrary.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    ///
    /// # Safety
    ///
    /// `messages` is valid for reads of the first `count` messages, or of [`capacity`](Self::capacity) messages, whichever are fewer.
    pub unsafe fn push_raw(&mut self, messages: *const u8, count: u64) -> Result<u64, Corrupt> {
        let count = self.room(count)?.min(count);
        for place in 0..count {
            // SAFETY: `place` is below `count` and the capacity, for which the caller promises valid reads.
            unsafe { self.end.slots.write(self.end.index.wrapping_add(place), messages.add(place as usize * self.end.facts.size)) };
        }
        self.commit(count);
        Ok(count)
    }

    /// Returns the address of the next free slots, at most `count`, and their number; 0 if the ring is full. Fewer than are free if they begin at
    /// the ring's end and continue at its start.
    ///
    /// A slot has the bytes of an earlier message. Its address is valid until this end is dropped. The slots stay free until [`commit`](Self::commit)
    /// publishes them; a push fills the same slots.
    ///
    /// The consumer's process may read and write the slots at any time. Access them by volatile or atomic operations, and make no reference to them.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the consumer's index is out of range.
    pub fn reserve(&mut self, count: u64) -> Result<(NonNull<u8>, u64), Corrupt> {
        let (slot, adjacent) = self.end.slots.at(self.end.index);
        let wanted = count.min(adjacent);
        Ok((slot, self.room(wanted)?.min(wanted)))
    }

    /// Publishes the next `count` slots, at most those free at the last poll, and wakes the consumer.
    pub fn commit(&mut self, count: u64) {
        let count = count.min(self.free());
        if count > 0 {
            self.end.index = self.end.index.wrapping_add(count);
            // SYNC POINT: slot published. Pairs with the consumer's refresh.
            self.end.header().producer.tail.store_release(self.end.index);
            self.end.wake();
        }
    }

    /// Returns the free slots; polls if there were fewer than `wanted` at the last poll.
    fn room(&mut self, wanted: u64) -> Result<u64, Corrupt> {
        let free = self.free();
        if free < wanted { self.refresh() } else { Ok(free) }
    }

    /// As [`Producer::refresh`](super::Producer::refresh).
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        // SYNC POINT: slot released. Pairs with the consumer's release.
        let head = self.end.header().consumer.head.load_acquire();
        let used = used(head, self.end.index, self.end.slots.capacity)?;
        self.end.seen = head;
        Ok(self.end.slots.capacity - used)
    }

    /// As [`Producer::tail`](super::Producer::tail).
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.end.index
    }

    /// As [`Producer::free`](super::Producer::free).
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.end.slots.capacity - self.end.index.wrapping_sub(self.end.seen)
    }

    /// As [`Producer::waiting`](super::Producer::waiting).
    pub fn waiting(&mut self, how: WaitStrategy) -> Waiting<&mut Self> {
        <Waiting<_>>::sender(self, how)
    }
}

impl UntypedConsumer {
    pub(super) fn new(file: BorrowedFd<'_>, place: &RingMemory, expected: Option<(MessageFacts, usize)>) -> crate::Result<Self> {
        let ownership = Ownership::new(file, place, Side::Consumer)?;
        Ok(Self { end: Untyped::open(place, Side::Consumer, expected)?, ownership })
    }

    /// Copies messages that fit into `into`, from `offset` places after the next one, without releasing them; returns how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index is out of range.
    pub fn peek(&mut self, offset: u64, into: &mut [u8]) -> Result<u64, Corrupt> {
        // SAFETY: a slice is valid for writes of the messages that fit into it.
        unsafe { self.peek_raw(offset, into.as_mut_ptr(), (into.len() / self.end.facts.size) as u64) }
    }

    /// As [`peek`](Self::peek), for at most `count` messages to an address, which need not be aligned. It may be in slots of any ring.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    ///
    /// # Safety
    ///
    /// `into` is valid for writes of `count` messages, or of [`capacity`](Self::capacity) messages, whichever are fewer.
    pub unsafe fn peek_raw(&mut self, offset: u64, into: *mut u8, count: u64) -> Result<u64, Corrupt> {
        let count = self.ready(offset.saturating_add(count))?.saturating_sub(offset).min(count);
        let first = self.end.index.wrapping_add(offset);
        for place in 0..count {
            // SAFETY: `place` is below `count` and the capacity, for which the caller promises valid writes.
            unsafe { self.end.slots.read(first.wrapping_add(place), into.add(place as usize * self.end.facts.size)) };
        }
        Ok(count)
    }

    /// Returns the address of the next messages in their slots, at most `count`, and their number; 0 if the ring is empty. Fewer than are available if
    /// they begin at the ring's end and continue at its start.
    ///
    /// The address is valid until this end is dropped. The messages stay until [`release`](Self::release).
    ///
    /// The producer's process may write the slots at any time. Access them by volatile or atomic operations, make no reference to them, and copy a
    /// value before checking it.
    ///
    /// ```
    /// use ringmem::shared::Memory;
    ///
    /// let memory = Memory::create::<u64>(4)?;
    /// memory.producer::<u64>()?.push_slice(&[7, 8, 9]).expect("valid indices");
    /// let mut consumer = memory.untyped_consumer()?;
    /// let (slots, count) = consumer.peek_in_place(u64::MAX).expect("valid indices");
    /// // SAFETY: the second of three slots, aligned as its message. Volatile: another process may write it.
    /// let second = unsafe { slots.cast::<u64>().add(1).read_volatile() };
    /// assert_eq!((count, second), (3, 8));
    /// consumer.release(2);
    /// assert_eq!(memory.indices(), (2, 3));
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index is out of range.
    pub fn peek_in_place(&mut self, count: u64) -> Result<(NonNull<u8>, u64), Corrupt> {
        let (slot, adjacent) = self.end.slots.at(self.end.index);
        let wanted = count.min(adjacent);
        Ok((slot, self.ready(wanted)?.min(wanted)))
    }

    /// Releases the next `count` messages, at most those available at the last poll, and wakes the producer.
    pub fn release(&mut self, count: u64) {
        let count = count.min(self.available());
        if count > 0 {
            self.end.index = self.end.index.wrapping_add(count);
            // SYNC POINT: slot released. Pairs with the producer's refresh.
            self.end.header().consumer.head.store_release(self.end.index);
            self.end.wake();
        }
    }

    /// Returns the available messages; polls if there were fewer than `wanted` at the last poll.
    fn ready(&mut self, wanted: u64) -> Result<u64, Corrupt> {
        let available = self.available();
        if available < wanted { self.refresh() } else { Ok(available) }
    }

    /// As [`Consumer::refresh`](super::Consumer::refresh).
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        // SYNC POINT: slot published. Pairs with the producer's commit.
        let tail = self.end.header().producer.tail.load_acquire();
        let used = used(self.end.index, tail, self.end.slots.capacity)?;
        self.end.seen = tail;
        Ok(used)
    }

    /// As [`Consumer::head`](super::Consumer::head).
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.end.index
    }

    /// As [`Consumer::available`](super::Consumer::available).
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.end.seen.wrapping_sub(self.end.index)
    }

    /// As [`Consumer::waiting`](super::Consumer::waiting).
    pub fn waiting(&mut self, how: WaitStrategy) -> Waiting<&mut Self> {
        <Waiting<_>>::receiver(self, how)
    }
}

macro_rules! both {
    ($($end:ident)+) => {$(
        impl $end {
            /// Returns size, kind and ABI hash of the messages.
            #[must_use]
            pub const fn message(&self) -> MessageFacts {
                self.end.facts
            }

            /// Returns the largest power of two that all slots are aligned to. A ring created with it has the same layout.
            #[must_use]
            pub const fn align(&self) -> usize {
                self.end.slots.align
            }

            /// Returns the number of slots.
            #[must_use]
            pub const fn capacity(&self) -> u64 {
                self.end.slots.capacity
            }
        }

        impl fmt::Debug for $end {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).field("message", &self.end.facts).field("index", &self.end.index).finish_non_exhaustive()
            }
        }
    )+};
}
both! { UntypedProducer UntypedConsumer }
