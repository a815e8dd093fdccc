//! An SPSC ring with an untrusted peer: a process that may write anything at any time.
//!
//! 1. Constants and an end's own index are read and checked on attaching only.
//! 2. The other end's index is read once per operation; beyond the capacity it is [`Corrupt`].
//! 3. Payload is copied by relaxed atomic accesses. The other end may be one of [`spsc`](super).

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::attach::{AttachError, Corrupt};
use crate::host::HostCell;
use crate::ring::Indexed;
use crate::ring::kind::{Access, OneConsumer, OneProducer, Sealed};
use crate::{Host, HostWord, ReadOnly, RingHeader, RingMessage, SlotCell};

/// Atomic access to payload, which the other end may write at any time.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Host;
/// use ringmem::ring::spsc::untrusted::{self, Bytewise};
/// use ringmem::ring::{Consumer, Indexed};
///
/// fn waiting(consumer: &Consumer<'_, Indexed<Bytewise>, u64, Host>) -> usize {
///     consumer.len()
/// }
///
/// let _: fn(&untrusted::Consumer<'_, u64>) -> usize = waiting; // the same type
/// ```
pub struct Bytewise(());

/// Fills slots and publishes them. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::{CacheLineAligned, HostWord, RingHeader, RingLayout};
/// use ringmem::ring::spsc::untrusted::{Consumer, Producer};
///
/// # let mut memory = CacheLineAligned::new([0_u64; 64]);
/// # let (base, len) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64);
/// # unsafe { base.cast::<RingHeader<HostWord>>().as_ref().format::<u64>(&RingLayout::of::<u64>(16)?, 0) };
/// // SAFETY: `len` bytes at `base` are mapped, initialised and reached by atomic accesses only.
/// let mut producer = unsafe { Producer::<u64>::attach(base, len)? };
/// // SAFETY: `len` bytes at `base` are mapped, initialised and reached by atomic accesses only; usually in another process.
/// let mut consumer = unsafe { Consumer::<u64>::attach(base, len)? };
/// assert_eq!(producer.push_slice(&[1, 2, 3])?, 3);
/// assert_eq!(consumer.pop(), Ok(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Producer<'a, T> = crate::ring::Producer<'a, Indexed<Bytewise>, T, Host>;
/// Empties slots and releases them. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::{CacheLineAligned, HostWord, RingHeader, RingLayout, Word};
/// use ringmem::ring::PopError;
/// use ringmem::ring::spsc::untrusted::Consumer;
///
/// # let mut memory = CacheLineAligned::new([0_u64; 64]);
/// # let (base, len) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64);
/// # let header: &RingHeader<HostWord> = unsafe { base.cast().as_ref() };
/// # unsafe { header.format::<u64>(&RingLayout::of::<u64>(16)?, 0) };
/// // SAFETY: `len` bytes at `base` are mapped, initialised and reached by atomic accesses only.
/// let mut consumer = unsafe { Consumer::<u64>::attach(base, len)? };
/// Word::store(&header.producer.tail, 1000); // a producer that lies
/// assert!(matches!(consumer.pop(), Err(PopError::Corrupt(corrupt)) if corrupt.tail == 1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Consumer<'a, T> = crate::ring::Consumer<'a, Indexed<Bytewise>, T, Host>;

impl<'a, T: RingMessage> Producer<'a, T> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are mapped for reading and writing and initialised, and this program accesses them atomically only. Other
    /// processes may write them.
    pub unsafe fn attach(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises mapped, initialised bytes that this program accesses atomically only. `from_raw` also requires that
        // the peer keeps to the protocol; without that, each of its indices is checked, and `Bytewise` reads any payload as atomic bytes.
        unsafe { Self::from_raw(base, len) }
    }

    /// Pushes the first of `values` that fit, and publishes them together; returns their number.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was pushed. The messages of a forgotten batch may have been published.
    pub fn push_slice(&mut self, values: &[T]) -> Result<usize, Corrupt> {
        if self.free() < values.len() {
            Indexed::room(self)?;
        }
        let count = values.len().min(self.free());
        for value in &values[..count] {
            Indexed::fill(self, *value);
        }
        if count > 0 {
            Indexed::publish(self);
        }
        Ok(count)
    }

    /// Returns the untrusted words of the ring, for loads only.
    ///
    /// ```compile_fail,E0277
    /// # use ringmem_layouts as ringmem;
    /// # use ringmem::{HostWord, Word, ring::spsc::untrusted};
    /// fn spoils(end: &untrusted::Producer<'_, u64>) {
    ///     Word::store(&end.header().producer.tail, 7); // the other end may trust this value
    /// }
    /// ```
    #[must_use]
    pub const fn header(&self) -> &'a RingHeader<ReadOnly<HostWord>> {
        read_only(self.port.own)
    }
}

impl<'a, T: RingMessage> Consumer<'a, T> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// As [`Producer::attach`].
    pub unsafe fn attach(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises mapped, initialised bytes that this program accesses atomically only. `from_raw` also requires that the peer keeps to the
        // protocol; without that, each of its indices is checked, and `Bytewise` reads any payload as atomic bytes.
        unsafe { Self::from_raw(base, len) }
    }

    /// Pops as many values as fit and releases their slots together; returns their number.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was popped.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, Corrupt> {
        let count = Indexed::ready(self, values.len())?;
        for value in &mut values[..count] {
            *value = Indexed::take(self);
        }
        if count > 0 {
            Indexed::release(self);
        } else {
            // The messages may be missing because a forgotten batch keeps the ring full.
            Indexed::release_deferred(self);
        }
        Ok(count)
    }

    /// Returns the untrusted words of the ring, for loads only.
    ///
    /// ```compile_fail,E0277
    /// # use ringmem_layouts as ringmem;
    /// # use ringmem::{HostWord, Word, ring::spsc::untrusted};
    /// fn spoils(end: &untrusted::Consumer<'_, u64>) {
    ///     Word::store(&end.header().producer.tail, 7); // the other end may trust this value
    /// }
    /// ```
    #[must_use]
    pub const fn header(&self) -> &'a RingHeader<ReadOnly<HostWord>> {
        read_only(self.port.own)
    }
}

/// No stores by safe code: the other end may trust this program.
const fn read_only(header: &RingHeader<HostWord>) -> &RingHeader<ReadOnly<HostWord>> {
    // SAFETY: `ReadOnly` is transparent, and a header is `repr(C)` and generic in its words only: equal layouts.
    unsafe { &*core::ptr::from_ref(header).cast() }
}

impl Sealed for Bytewise {}
impl<T: RingMessage> Access<T, Host> for Bytewise {
    #[inline(always)]
    unsafe fn write(cell: &HostCell<T>, value: T) {
        let slot: *mut u8 = cell.with_mut(<*mut T>::cast);
        let (first, rest) = value.as_bytes().split_at(before_words::<T>(slot));
        let (words, last) = rest.as_chunks::<8>();
        let after = first.len() + size_of_val(words);
        for (place, byte) in first.iter().enumerate().chain(last.iter().enumerate().map(|(place, byte)| (after + place, byte))) {
            // SAFETY: `place` is below the size of a `T`, so within the mapped slot.
            let place = unsafe { AtomicU8::from_ptr(slot.add(place)) };
            place.store(*byte, Relaxed);
        }
        for (place, word) in words.iter().enumerate() {
            // SAFETY: within the slot, and aligned: `first` ends where a word begins.
            let place = unsafe { word_at(slot.add(first.len() + 8 * place)) };
            place.store(u64::from_ne_bytes(*word), Relaxed);
        }
    }

    #[inline(always)]
    unsafe fn read(cell: &HostCell<T>) -> T {
        let slot: *mut u8 = cell.with_mut(<*mut T>::cast);
        let mut value = T::zeroed();
        let (first, rest) = value.as_bytes_mut().split_at_mut(before_words::<T>(slot));
        let before = first.len();
        let (words, last) = rest.as_chunks_mut::<8>();
        let after = before + size_of_val(words);
        for (place, byte) in first.iter_mut().enumerate().chain(last.iter_mut().enumerate().map(|(place, byte)| (after + place, byte))) {
            // SAFETY: `place` is below the size of a `T`, so within the slot, which lives as long as `cell`.
            let place = unsafe { AtomicU8::from_ptr(slot.add(place)) };
            *byte = place.load(Relaxed);
        }
        for (place, word) in words.iter_mut().enumerate() {
            // SAFETY: within the slot, and aligned: `first` ends where a word begins.
            let place = unsafe { word_at(slot.add(before + 8 * place)) };
            *word = place.load(Relaxed).to_ne_bytes();
        }
        value
    }
}

/// Bytes before a slot's first whole word; equal at both ends of a 128-byte aligned ring.
#[inline(always)]
fn before_words<T>(slot: *mut u8) -> usize {
    if size_of::<T>().is_multiple_of(8) { 0 } else { (slot.addr().wrapping_neg() & 7).min(size_of::<T>()) }
}

/// # Safety
///
/// Eight bytes at `place` are mapped for `'a` and accessed by this program atomically only; `place` is a multiple of 8.
#[inline(always)]
unsafe fn word_at<'a>(place: *mut u8) -> &'a AtomicU64 {
    // Tests run on machines that tolerate misalignment.
    debug_assert!(place.cast::<AtomicU64>().is_aligned());
    // SAFETY: the caller promises eight mapped bytes for `'a` at a multiple of 8; this program accesses them atomically only.
    unsafe { AtomicU64::from_ptr(place.cast()) }
}
