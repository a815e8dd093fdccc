//! [`Ring`]: header and bytes in one value, for two threads or a `static`.

use core::cell::UnsafeCell;
use core::ptr::NonNull;

use super::{Consumer, Producer, SMALLEST, WORD};
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
use crate::ring::Owned;
use crate::ring::header::abi_of;
use crate::ring::{ConstantLine, ConsumerLine, MAGIC, ProducerLine, RingFlags, RingHeader};
use crate::{Host, HostWord};

/// A ring of `BYTES` bytes, a power of two of at least 16 (checked at compile time).
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::framed::Ring::<24>::new(); // 24 is no power of two
/// ```
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::framed::Ring::<8>::new(); // 8 bytes hold a length, and half of them do not
/// ```
#[repr(C)]
pub struct Ring<const BYTES: usize> {
    header: RingHeader<HostWord>,
    // INVARIANT: behind 384 bytes of a value aligned to 128, so aligned to 128 itself; initialised from the start.
    bytes: UnsafeCell<[u8; BYTES]>,
}

/// A producer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedProducer = Owned<Producer<'static, Host>>;

/// A consumer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedConsumer = Owned<Consumer<'static, Host>>;

// SAFETY: without `split`, which takes `&mut`, nothing can be reached through it.
unsafe impl<const BYTES: usize> Sync for Ring<BYTES> {}

impl<const BYTES: usize> Ring<BYTES> {
    const WORDS: u64 = (BYTES / WORD) as u64;

    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty ring whose indices, which count words of 8 bytes, begin at `start`: near `u64::MAX` a test sees them wrap.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        const {
            assert!(BYTES.is_power_of_two(), "a framed ring's capacity must be a power of two");
            assert!(Self::WORDS >= SMALLEST, "a framed ring's capacity must be at least 16 bytes");
        };
        Self {
            header: RingHeader {
                producer: ProducerLine {
                    tail: HostWord::new(start),
                    owner: HostWord::new(0),
                    waiting: HostWord::new(0),
                    _reserved: [const { HostWord::new(0) }; 13],
                },
                consumer: ConsumerLine {
                    head: HostWord::new(start),
                    owner: HostWord::new(0),
                    waiting: HostWord::new(0),
                    _reserved: [const { HostWord::new(0) }; 13],
                },
                constants: ConstantLine {
                    magic: HostWord::new(MAGIC),
                    abi: HostWord::new(abi_of::<u64>()),
                    capacity: HostWord::new(Self::WORDS),
                    slot_size: HostWord::new(WORD as u64),
                    slots_offset: HostWord::new(core::mem::offset_of!(Self, bytes) as u64),
                    flags: HostWord::new(RingFlags::FRAMED.bits()),
                    message_kind: HostWord::new(0),
                    _reserved: [const { HostWord::new(0) }; 9],
                },
            },
            bytes: UnsafeCell::new([0; BYTES]),
        }
    }

    /// Its two ends. They may go to two threads; when both are gone it can be split again, with what is left in it.
    pub fn split(&mut self) -> (Producer<'_, Host>, Consumer<'_, Host>) {
        let Self { header, bytes } = &*self;
        let slots = NonNull::from(bytes).cast();
        // SAFETY: `&mut self` lends the ring to this one pair; so many words, a power of two, aligned and initialised by the invariant.
        let producer = unsafe { Producer::over(header, header, slots, Self::WORDS) };
        // SAFETY: as above.
        let consumer = unsafe { Consumer::over(header, header, slots, Self::WORDS) };
        match (producer, consumer) {
            (Ok(producer), Ok(consumer)) => (producer.announce(), consumer.announce()),
            // Only the two ends write the indices, and they keep them within the capacity.
            _ => unreachable!("a ring's own indices are within its capacity"),
        }
    }

    /// Its two ends, each of which holds the ring: they go to any thread or task.
    #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
    #[must_use]
    pub fn into_ends(self) -> (OwnedProducer, OwnedConsumer) {
        crate::ring::owned::own(self, Self::split)
    }
}

// An end may move to another thread; it is never shared, and there are never two of it.
static_assertions::assert_impl_all!(Producer<'static, Host>: Send);
static_assertions::assert_impl_all!(Consumer<'static, Host>: Send);
static_assertions::assert_not_impl_any!(Producer<'static, Host>: Sync, Clone);
static_assertions::assert_not_impl_any!(Consumer<'static, Host>: Sync, Clone);

impl<const BYTES: usize> Default for Ring<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}
