use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::attach::{AttachError, Corrupt};
use crate::defmt_derive::Format;
use crate::{AbiHash, Layout, RingLayout, RingMessage, Word, layout_table};

/// The magic number of a ring.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rm.ring\0");

bitflags! {
    /// The kind of a ring: one bit.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::RingLayout;
    /// use ringmem::ring::RingFlags;
    ///
    /// let [spsc, flagged] = [RingFlags::SPSC, RingFlags::FLAGGED].map(|kind| RingLayout::of_kind::<u64>(kind, 64));
    /// assert_eq!((spsc?.slot_size(), flagged?.slot_size()), (8, 16)); // a flag in each slot
    /// # Ok::<(), ringmem::ring::LayoutError>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RingFlags: u64 {
        /// 1: an [`spsc`](crate::ring::spsc) ring.
        const SPSC = 1;
        /// 2: a [`flagged`](crate::ring::flagged) ring.
        const FLAGGED = 2;
        /// 4: an [`mpsc`](crate::ring::mpsc) ring.
        const MPSC = 4;
        /// 8: an [`mpmc`](crate::ring::mpmc) ring.
        const MPMC = 8;
        /// 16: a [`framed`](crate::ring::framed) ring, in 8-byte slots.
        const FRAMED = 16;
        /// 32: a [`lossy`](crate::ring::lossy) ring.
        const LOSSY = 32;
        /// 64: a [`mailbox`](crate::ring::mailbox).
        const MAILBOX = 64;
        /// 128: a [`paired`](crate::ring::paired) ring.
        const PAIRED = 128;
    }
}

/// The producer's line, the consumer's line, the constants.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{RingHeader, RingLayout};
///
/// assert_eq!(size_of::<RingHeader>(), 384);
/// let layout = RingLayout::of::<u64>(1024)?;
/// assert_eq!(layout.size(), 384 + 1024 * 8);
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Format)]
#[repr(C, align(128))]
pub struct RingHeader<W = u64> {
    /// Written by the producer.
    pub producer: ProducerLine<W>,
    /// Written by the consumer.
    pub consumer: ConsumerLine<W>,
    /// Written by the creator.
    pub constants: ConstantLine<W>,
}

/// The producer's line, 128 bytes.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::ProducerLine;
/// use ringmem::{HostWord, RingHeader, RingLayout, Word};
///
/// let header = RingHeader::<HostWord>::new::<u32>(&RingLayout::of::<u32>(8)?, 100);
/// let ProducerLine { tail, owner, waiting, .. } = &header.producer;
/// assert_eq!([tail, owner, waiting].map(Word::load), [100, 0, 0]); // no producer has attached
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Format)]
#[repr(C, align(128))]
pub struct ProducerLine<W = u64> {
    /// Next index to fill; free-running. Producer, at each publish.
    pub tail: W,
    /// Low 2 bits: 0 not opened, 1 open, 2 closed. Above: the generation, or the number of handles. Producer.
    pub owner: W,
    /// Consumers that sleep until a publish: their number in the low 32 bits, wake-ups above. Hosts of one coherence domain only; zero if all ends
    /// poll.
    pub waiting: W,
    /// Zero.
    pub _reserved: [W; 13],
}

/// The consumer's line, 128 bytes.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::ConsumerLine;
/// use ringmem::{HostWord, RingHeader, RingLayout, Word};
///
/// let header = RingHeader::<HostWord>::new::<u32>(&RingLayout::of::<u32>(8)?, 100);
/// let ConsumerLine { head, owner, waiting, .. } = &header.consumer;
/// assert_eq!([head, owner, waiting].map(Word::load), [100, 0, 0]); // no consumer has attached
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Format)]
#[repr(C, align(128))]
pub struct ConsumerLine<W = u64> {
    /// Next index to empty; free-running. Consumer, at each release.
    pub head: W,
    /// Encoded as the producer's. Consumer.
    pub owner: W,
    /// Producers that sleep until a release, likewise.
    pub waiting: W,
    /// Zero.
    pub _reserved: [W; 13],
}

/// The constants of a ring, 128 bytes.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{ConstantLine, MAGIC};
/// use ringmem::{HostWord, RingHeader, RingLayout, Word};
///
/// let header = RingHeader::<HostWord>::new::<u32>(&RingLayout::of::<u32>(8)?, 0);
/// let ConstantLine { magic, capacity, slot_size, slots_offset, .. } = &header.constants;
/// assert_eq!([magic, capacity, slot_size, slots_offset].map(Word::load), [MAGIC, 8, 4, 384]);
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Format)]
#[repr(C, align(128))]
pub struct ConstantLine<W = u64> {
    /// [`MAGIC`]. Creator, last.
    pub magic: W,
    /// Hash of this header's layout and the message's. Creator.
    pub abi: W,
    /// Slots, a power of two. Creator.
    pub capacity: W,
    /// Bytes from slot to slot. Creator.
    pub slot_size: W,
    /// Bytes from this header to slot 0. Creator.
    pub slots_offset: W,
    /// [`RingFlags`]. Creator.
    pub flags: W,
    /// [`RingMessage::KIND`]. Creator.
    pub message_kind: W,
    /// Zero.
    pub _reserved: [W; 9],
}

layout_table! {
    impl<W> RingHeader<W>: size 384, align 128;
    0   producer: ProducerLine<W>, "producer";
    128 consumer: ConsumerLine<W>, "consumer";
    256 constants: ConstantLine<W>, "creator";
}

layout_table! {
    impl<W> ProducerLine<W>: size 128, align 128;
    0  tail: W, "producer";
    8  owner: W, "producer";
    16 waiting: W, "hosts that sleep";
    24 _reserved: [W; 13], "none: zero";
}

layout_table! {
    impl<W> ConsumerLine<W>: size 128, align 128;
    0  head: W, "consumer";
    8  owner: W, "consumer";
    16 waiting: W, "hosts that sleep";
    24 _reserved: [W; 13], "none: zero";
}

layout_table! {
    impl<W> ConstantLine<W>: size 128, align 128;
    0  magic: W, "creator, last";
    8  abi: W, "creator";
    16 capacity: W, "creator";
    24 slot_size: W, "creator";
    32 slots_offset: W, "creator";
    40 flags: W, "creator";
    48 message_kind: W, "creator";
    56 _reserved: [W; 9], "none: zero";
}

/// Returns [`ConstantLine::abi`] of a ring of messages `T`.
///
/// Each end of a shared ring compares it. It does not compile for a type with padding, so no ring carries one.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::abi_of;
/// use ringmem::{HostWord, RingHeader, RingLayout, Word};
///
/// let header = RingHeader::<HostWord>::new::<u32>(&RingLayout::of::<u32>(8)?, 0);
/// assert_eq!(Word::load(&header.constants.abi), abi_of::<u32>());
/// assert_ne!(abi_of::<u32>(), abi_of::<f32>());
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[must_use]
pub const fn abi_of<T: RingMessage>() -> u64 {
    const { T::CHECKED };
    AbiHash::new().number(<RingHeader<u64> as Layout>::DESCRIPTOR.hash).number(T::DESCRIPTOR.hash).finish()
}

impl<W: Word> RingHeader<W> {
    /// Returns the header of an empty ring of `T` that begins at `start`. Slots with words must be vacant: zeroed for start 0, otherwise
    /// [`Slot::vacant`](super::Slot::vacant).
    #[must_use]
    pub fn new<T: RingMessage>(layout: &RingLayout, start: u64) -> Self {
        let zero = || W::new(0);
        Self {
            producer: ProducerLine { tail: W::new(start), owner: zero(), waiting: zero(), _reserved: core::array::from_fn(|_| zero()) },
            consumer: ConsumerLine { head: W::new(start), owner: zero(), waiting: zero(), _reserved: core::array::from_fn(|_| zero()) },
            constants: ConstantLine {
                magic: W::new(MAGIC),
                abi: W::new(abi_of::<T>()),
                capacity: W::new(layout.capacity()),
                slot_size: W::new(layout.slot_size()),
                slots_offset: W::new(layout.slots_offset()),
                flags: W::new(layout.kind().bits()),
                message_kind: W::new(T::KIND),
                _reserved: core::array::from_fn(|_| zero()),
            },
        }
    }

    /// Writes the header of an empty ring of `T`. Slots as for [`new`](Self::new).
    ///
    /// # Safety
    ///
    /// No endpoint is attached to this header.
    pub unsafe fn format<T: RingMessage>(&self, layout: &RingLayout, start: u64) {
        // SAFETY: the caller promises that no endpoint is attached.
        unsafe { self.format_untyped(layout, T::KIND, abi_of::<T>(), start) };
    }

    /// As [`format`](Self::format), for messages with the number `kind` and the ring's hash `abi` (see [`abi_of`]).
    ///
    /// # Safety
    ///
    /// No endpoint is attached to this header.
    pub unsafe fn format_untyped(&self, layout: &RingLayout, kind: u64, abi: u64, start: u64) {
        let Self { producer, consumer, constants } = self;
        constants.magic.store(0);
        for word in [&producer.owner, &producer.waiting, &consumer.owner, &consumer.waiting] {
            word.store(0);
        }
        for word in producer._reserved.iter().chain(&consumer._reserved).chain(&constants._reserved) {
            word.store(0);
        }
        producer.tail.store(start);
        consumer.head.store(start);
        constants.abi.store(abi);
        constants.capacity.store(layout.capacity());
        constants.slot_size.store(layout.slot_size());
        constants.slots_offset.store(layout.slots_offset());
        constants.flags.store(layout.kind().bits());
        constants.message_kind.store(kind);
        // SYNC POINT: ring formatted. Pairs with RingHeader::geometry.
        W::publish_all([(&constants.magic, MAGIC)]);
    }

    /// Reads an SPSC ring's geometry once, and checks it against `T`.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn geometry<T: RingMessage>(&self) -> Result<RingLayout, AttachError> {
        self.geometry_of::<T>(RingFlags::SPSC)
    }

    /// Like [`geometry`](Self::geometry), for this kind of ring.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn geometry_of<T: RingMessage>(&self, ring: RingFlags) -> Result<RingLayout, AttachError> {
        let constants = &self.constants;
        // SYNC POINT: ring seen. Pairs with RingHeader::format.
        let magic = constants.magic.load_acquire();
        if magic != MAGIC {
            return Err(AttachError::Magic { expected: MAGIC, got: magic });
        }
        let abi = constants.abi.load();
        if abi != abi_of::<T>() {
            return Err(AttachError::Abi { expected: abi_of::<T>(), got: abi });
        }
        let flags = constants.flags.load();
        if flags != ring.bits() {
            return Err(AttachError::Kind { expected: ring.bits(), got: flags });
        }
        let kind = constants.message_kind.load();
        if kind != T::KIND {
            return Err(AttachError::Kind { expected: T::KIND, got: kind });
        }
        let capacity = constants.capacity.load();
        let layout = RingLayout::of_kind::<T>(ring, capacity).map_err(|_| AttachError::Capacity { got: capacity })?;
        let slot_size = constants.slot_size.load();
        if slot_size != layout.slot_size() {
            return Err(AttachError::SlotSize { expected: layout.slot_size(), got: slot_size });
        }
        let offset = constants.slots_offset.load();
        if offset != layout.slots_offset() {
            return Err(AttachError::Offset { got: offset });
        }
        Ok(layout)
    }
}

pub(super) const fn used(head: u64, tail: u64, capacity: u64) -> Result<u64, Corrupt> {
    let used = tail.wrapping_sub(head);
    if used > capacity { Err(Corrupt { head, tail, capacity }) } else { Ok(used) }
}
