use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};

use zerocopy::Unalign;

use super::storage::{Storage, slots_of};
use crate::ring::lossy::slots::words_of;
use crate::ring::lossy::{Reader, Writer};
use crate::ring::{LayoutError, RingFlags, RingHeader, RingLayout};
use crate::{HostWord, Local, RingMessage};

/// A ring of `N` messages, a power of two (checked at compile time).
///
/// ```compile_fail
/// # use ringmem_layouts as ringmem;
/// let ring = ringmem::ring::lossy::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
///
/// ```compile_fail
/// # use ringmem_layouts as ringmem;
/// let ring = ringmem::ring::lossy::Ring::<[u8; 0], 4>::new(); // nothing to write
/// ```
pub type Ring<T, const N: usize> = RingIn<T, Inline<T, N>>;

/// A ring with its slots in `S`, as [`words`]: inline ([`Ring`]), borrowed or boxed.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::mem::MaybeUninit;
/// use ringmem::ring::lossy::{RingIn, words};
/// let mut memory = [const { MaybeUninit::uninit() }; 100];
/// let capacity = 16; // known at run time
/// let mut ring = RingIn::<[u8; 20], _>::over(&mut memory[..words::<[u8; 20]>(capacity)?])?;
/// let (mut writer, mut reader) = ring.split();
/// writer.push([7; 20]);
/// assert_eq!((reader.capacity(), reader.pop()), (16, Ok([7; 20])));
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[repr(C)]
pub struct RingIn<T, S: Storage<HostWord>> {
    header: RingHeader<HostWord>,
    // INVARIANT: a power of two of slots, perhaps with a remainder; initialised from the start.
    words: S,
    _messages: PhantomData<T>,
}

/// Returns the number of words of a ring of `capacity` messages.
///
/// # Errors
///
/// [`LayoutError`].
pub const fn words<T: RingMessage>(capacity: u64) -> Result<usize, LayoutError> {
    match RingLayout::of_kind::<T>(RingFlags::LOSSY, capacity) {
        Ok(layout) => Ok(layout.capacity() as usize * words_of::<T>()),
        Err(refused) => Err(refused),
    }
}

/// The words of a [`Ring`]'s slots.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::{Inline, Ring, RingIn};
///
/// let mut ring: RingIn<u32, Inline<u32, 4>> = Ring::new(); // `Ring<u32, 4>`
/// let (mut writer, mut reader) = ring.split();
/// writer.push(7);
/// assert_eq!(reader.pop(), Ok(7));
/// ```
// INVARIANT: no byte is padding, so all stay initialised in a move: each field has alignment 1, and a `RingMessage` has no padding.
#[repr(C, align(8))]
pub struct Inline<T, const N: usize>(UnsafeCell<[Room<T>; N]>);

/// At least a slot's words: an array length cannot be computed from `T`.
#[repr(C)]
struct Room<T> {
    sequence: [u8; 8],
    value: Unalign<T>,
    rest: [u8; 7],
}

// SAFETY: the same words each time, and exclusive.
unsafe impl<T, const N: usize> Storage<HostWord> for Inline<T, N> {}

impl<T, const N: usize> AsRef<[MaybeUninit<HostWord>]> for Inline<T, N> {
    fn as_ref(&self) -> &[MaybeUninit<HostWord>] {
        const { assert!(size_of::<Self>() >= N * words_of::<T>() * 8) };
        // SAFETY: within it, aligned by this type; both sides of the cast are cells.
        unsafe { core::slice::from_raw_parts(self.0.get().cast(), N * words_of::<T>()) }
    }
}

impl<T, const N: usize> AsMut<[MaybeUninit<HostWord>]> for Inline<T, N> {
    fn as_mut(&mut self) -> &mut [MaybeUninit<HostWord>] {
        const { assert!(size_of::<Self>() >= N * words_of::<T>() * 8) };
        // SAFETY: the words are within `self`, aligned by this type; both sides of the cast are cells, and the storage is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.0.get().cast(), N * words_of::<T>()) }
    }
}

// SAFETY: only `split`, which takes `&mut`, gives access.
unsafe impl<T: RingMessage, S: Storage<HostWord>> Sync for RingIn<T, S> {}

impl<T: RingMessage, const N: usize> Ring<T, N> {
    /// Returns an empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// Returns an empty ring that begins at `start`.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        Self::of_kind(RingFlags::LOSSY, start)
    }

    pub(in crate::ring) const fn of_kind(kind: RingFlags, start: u64) -> Self {
        const {
            assert!(N.is_power_of_two(), "a ring's capacity must be a power of two");
            assert!(size_of::<T>() > 0, "a message without bytes needs a counter, not a ring");
        }
        let header = RingHeader::inline(kind, N as u64, words_of::<T>() * 8, offset_of!(Self, words), start);
        // SAFETY: bytes and a `T`, for which any bytes are valid.
        let words = unsafe { core::mem::zeroed() };
        Self { header, words, _messages: PhantomData }
    }
}

impl<T: RingMessage, S: Storage<HostWord>> RingIn<T, S> {
    /// Returns an empty ring over the slots in these words, zeroed.
    ///
    /// # Errors
    ///
    /// [`LayoutError`].
    pub fn over(words: S) -> Result<Self, LayoutError> {
        Self::over_starting_at(words, 0)
    }

    /// Like [`over`](Self::over), beginning at `start`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub fn over_starting_at(mut words: S, start: u64) -> Result<Self, LayoutError> {
        let layout = RingLayout::of_kind::<T>(RingFlags::LOSSY, (words.as_ref().len() / words_of::<T>()) as u64)?;
        for word in words.as_mut() {
            word.write(HostWord::new(0));
        }
        let header = RingHeader::inline(RingFlags::LOSSY, layout.capacity(), words_of::<T>() * 8, 0, start);
        Ok(Self { header, words, _messages: PhantomData })
    }

    /// Returns the writer and a cloneable reader at the oldest message. After all are dropped, the ring can be split again, with its messages.
    pub fn split(&mut self) -> (Writer<'_, T, Local>, Reader<'_, T, Local>) {
        let Self { header, words, .. } = &*self;
        let (slots, count) = slots_of(words);
        let capacity = count / words_of::<T>() as u64;
        // SAFETY: `&mut self` lends the ring to this one writer; the slots fulfil the invariant.
        let writer = unsafe { Writer::over(header, slots, capacity) };
        // SAFETY: `&mut self` lends the ring to these ends; the slots fulfil the invariant, and a reader only reads.
        let reader = unsafe { Reader::over(header, slots, capacity) };
        (writer.announce(), reader)
    }
}

static_assertions::assert_impl_all!(Writer<'static, u64, Local>: Send);
static_assertions::assert_impl_all!(Reader<'static, u64, Local>: Send, Clone);
static_assertions::assert_not_impl_any!(Writer<'static, u64, Local>: Sync, Clone);

impl<T: RingMessage, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}
