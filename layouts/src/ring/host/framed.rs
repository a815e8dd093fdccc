use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};

use super::storage::{BareSlot, Storage, slots_of};
use crate::ring::framed::{Consumer, Producer, SMALLEST, WORD, layout};
use crate::ring::header::abi_of;
use crate::ring::{LayoutError, RingFlags, RingHeader};
use crate::{HostWord, Local, SlotCell};

/// A ring of `BYTES` bytes, a power of two of at least 16 (checked at compile time).
///
/// ```compile_fail
/// # use ringmem_layouts as ringmem;
/// let ring = ringmem::ring::framed::Ring::<24>::new(); // 24 is no power of two
/// ```
///
/// ```compile_fail
/// # use ringmem_layouts as ringmem;
/// let ring = ringmem::ring::framed::Ring::<8>::new(); // 8 bytes hold a length, and half of them do not
/// ```
pub type Ring<const BYTES: usize> = RingIn<Inline<BYTES>>;

/// A ring with its words in `S`: inline ([`Ring`]), borrowed or boxed.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::mem::MaybeUninit;
/// use ringmem::ring::framed::RingIn;
/// let mut memory = [const { MaybeUninit::uninit() }; 100];
/// let bytes = 512; // known at run time
/// let mut ring = RingIn::over(&mut memory[..bytes / 8])?;
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"hello").unwrap();
/// assert_eq!(&*consumer.peek().unwrap(), b"hello");
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[repr(C)]
pub struct RingIn<S: Storage<BareSlot<u64>>> {
    header: RingHeader<HostWord>,
    // INVARIANT: a power of two of them, at least the smallest; initialised from the start.
    words: S,
}

/// The bytes of a [`Ring`].
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::{Inline, Ring, RingIn};
///
/// let mut ring: RingIn<Inline<64>> = Ring::new(); // `Ring<64>`
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"hello")?;
/// assert_eq!(consumer.pop(&mut [0; 16]), Ok(5));
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
#[repr(C, align(8))]
pub struct Inline<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: the bytes are the words and a remainder.
unsafe impl<const BYTES: usize> Storage<BareSlot<u64>> for Inline<BYTES> {}

impl<const BYTES: usize> AsRef<[MaybeUninit<BareSlot<u64>>]> for Inline<BYTES> {
    fn as_ref(&self) -> &[MaybeUninit<BareSlot<u64>>] {
        // SAFETY: the words are within the bytes, aligned by this type; both sides of the cast are cells.
        unsafe { core::slice::from_raw_parts(self.0.get().cast(), BYTES / WORD) }
    }
}

impl<const BYTES: usize> AsMut<[MaybeUninit<BareSlot<u64>>]> for Inline<BYTES> {
    fn as_mut(&mut self) -> &mut [MaybeUninit<BareSlot<u64>>] {
        // SAFETY: the words are within the bytes, aligned by this type; both sides of the cast are cells, and the bytes are borrowed
        // mutably.
        unsafe { core::slice::from_raw_parts_mut(self.0.get().cast(), BYTES / WORD) }
    }
}

// SAFETY: only `split`, which takes `&mut`, gives access.
unsafe impl<S: Storage<BareSlot<u64>>> Sync for RingIn<S> {}

const fn header(words: u64, offset: usize, start: u64) -> RingHeader<HostWord> {
    let mut header = RingHeader::inline(RingFlags::FRAMED, words, WORD, offset, start);
    header.constants.abi = HostWord::new(abi_of::<u64>());
    header
}

impl<const BYTES: usize> Ring<BYTES> {
    const WORDS: u64 = (BYTES / WORD) as u64;

    /// Returns an empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// Returns an empty ring that begins at word `start`.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        const {
            assert!(BYTES.is_power_of_two(), "a framed ring's capacity must be a power of two");
            assert!(Self::WORDS >= SMALLEST, "a framed ring's capacity must be at least 16 bytes");
        };
        let header = header(Self::WORDS, offset_of!(Self, words), start);
        Self { header, words: Inline(UnsafeCell::new([0; BYTES])) }
    }
}

impl<S: Storage<BareSlot<u64>>> RingIn<S> {
    /// Returns an empty ring over these words, zeroed.
    ///
    /// # Errors
    ///
    /// As [`layout`].
    pub fn over(words: S) -> Result<Self, LayoutError> {
        Self::over_starting_at(words, 0)
    }

    /// Like [`over`](Self::over), beginning at `start`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub fn over_starting_at(mut words: S, start: u64) -> Result<Self, LayoutError> {
        let layout = layout((words.as_ref().len() * WORD) as u64)?;
        for word in words.as_mut() {
            word.write(SlotCell::new(0));
        }
        Ok(Self { header: header(layout.capacity(), 0, start), words })
    }

    /// Returns both ends. After both are dropped, the ring can be split again, with its messages.
    pub fn split(&mut self) -> (Producer<'_, Local>, Consumer<'_, Local>) {
        let Self { header, words } = &*self;
        let (slots, capacity) = slots_of(words);
        // SAFETY: `&mut self` lends the ring to this pair; the words are a power of two, initialised by the invariant.
        let producer = unsafe { Producer::over(header, header, slots, capacity) };
        // SAFETY: `&mut self` lends the ring to this pair; the words are a power of two, initialised by the invariant.
        let consumer = unsafe { Consumer::over(header, header, slots, capacity) };
        match (producer, consumer) {
            (Ok(producer), Ok(consumer)) => (producer.announce(), consumer.announce()),
            _ => unreachable!("a ring's own indices are within its capacity"),
        }
    }
}

static_assertions::assert_impl_all!(Producer<'static, Local>: Send);
static_assertions::assert_impl_all!(Consumer<'static, Local>: Send);
static_assertions::assert_not_impl_any!(Producer<'static, Local>: Sync, Clone);
static_assertions::assert_not_impl_any!(Consumer<'static, Local>: Sync, Clone);

impl<const BYTES: usize> Default for Ring<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}
