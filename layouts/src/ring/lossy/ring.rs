//! [`Ring`]: header and slots in one value, for threads or a `static`.

use core::cell::UnsafeCell;
use core::ptr::NonNull;

use zerocopy::Unalign;

use super::cells::words_of;
use super::{Reader, Writer};
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
use crate::ring::Owned;
use crate::ring::{RingFlags, RingHeader};
use crate::{Host, HostWord, RingMessage};

/// A ring of `N` messages, a power of two (checked at compile time).
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::lossy::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::lossy::Ring::<[u8; 0], 4>::new(); // nothing to write
/// ```
#[repr(C)]
pub struct Ring<T, const N: usize> {
    header: RingHeader<HostWord>,
    slots: Slots<T, N>,
}

/// A writer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedWriter<T> = Owned<Writer<'static, T, Host>>;

/// A reader that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedReader<T> = Owned<Reader<'static, T, Host>>;

/// Room for the words of `N` slots.
// INVARIANT: no byte of it is padding, so that all of them stay initialised wherever it is moved: every type in it is aligned to 1, and a
// `RingMessage` has no padding of its own.
#[repr(C, align(8))]
struct Slots<T, const N: usize>(UnsafeCell<[Room<T>; N]>);

/// As many bytes as a slot's words, or some more: a number of words that follows from `T` is no array length yet.
#[repr(C)]
struct Room<T> {
    sequence: [u8; 8],
    value: Unalign<T>,
    rest: [u8; 7],
}

// SAFETY: without `split`, which takes `&mut`, nothing can be reached through it.
unsafe impl<T: RingMessage, const N: usize> Sync for Ring<T, N> {}

impl<T: RingMessage, const N: usize> Ring<T, N> {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty ring whose indices begin at `start`: near `u64::MAX` a test sees them wrap.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        Self::of_kind(RingFlags::LOSSY, start)
    }

    pub(in crate::ring) const fn of_kind(kind: RingFlags, start: u64) -> Self {
        const {
            assert!(N.is_power_of_two(), "a ring's capacity must be a power of two");
            assert!(size_of::<T>() > 0, "a message without bytes needs a counter, not a ring");
            assert!(size_of::<Slots<T, N>>() >= N * words_of::<T>() * 8 && core::mem::offset_of!(Self, slots) % 8 == 0);
        }
        let header = RingHeader::inline(kind, N as u64, words_of::<T>() * 8, core::mem::offset_of!(Self, slots), start);
        // SAFETY: bytes and a `T`, of which any bytes are valid.
        let slots = unsafe { core::mem::zeroed() };
        Self { header, slots }
    }

    /// Its writer and a reader at the oldest message; for more readers, clone it. When all are gone it can be split again, with what is
    /// left in it.
    pub fn split(&mut self) -> (Writer<'_, T, Host>, Reader<'_, T, Host>) {
        let Self { header, slots } = &*self;
        // From the cell, whose bytes may be written through a shared reference; aligned to 8 by `Slots`.
        let slots = NonNull::from(&slots.0).cast::<HostWord>();
        // SAFETY: `&mut self` lends the ring to this one writer; as many words as N slots have, initialised and without padding; N is a power
        // of two.
        let writer = unsafe { Writer::over(header, slots, N as u64) };
        // SAFETY: as above; readers read.
        let reader = unsafe { Reader::over(header, slots, N as u64) };
        (writer.announce(), reader)
    }

    /// As `split`, with ends that hold the ring: they go to any thread or task.
    #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
    #[must_use]
    pub fn into_ends(self) -> (OwnedWriter<T>, OwnedReader<T>)
    where
        T: Send + 'static,
    {
        crate::ring::owned::own(self, Self::split)
    }
}

// An end may move to another thread; there is one writer, and as many readers as are wanted.
static_assertions::assert_impl_all!(Writer<'static, u64, Host>: Send);
static_assertions::assert_impl_all!(Reader<'static, u64, Host>: Send, Clone);
static_assertions::assert_not_impl_any!(Writer<'static, u64, Host>: Sync, Clone);

impl<T: RingMessage, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}
