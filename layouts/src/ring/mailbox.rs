//! The latest value: one writer, any number of readers, no waiting.
//!
//! 1. [`Writer::publish`] always succeeds. Readers write nothing.
//! 2. [`Reader::latest`] returns the newest whole value and its version, which never decreases for a reader.
//! 3. [`Reader::take_new`] returns each version at most once.
//! 4. A writer that dies during a write blocks no reader.
//!
//! It is a [`lossy`] ring of at least two slots. A read returns [`Busy`](LatestError::Busy) only if the writer wrote all slots during each of
//! [`TRIES`] attempts: more slots help.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::mailbox::{LatestError, Mailbox, New};
//! let mut mailbox = Mailbox::<[u64; 3]>::new();
//! let (mut writer, mut reader) = mailbox.split();
//! assert_eq!(reader.latest(), Err(LatestError::Empty));
//! writer.publish([1; 3]);
//! writer.publish([2; 3]);
//! assert_eq!(reader.latest(), Ok((2, [2; 3])));
//! assert_eq!(reader.take_new(), Ok(New { version: 2, value: [2; 3], skipped: 1 }));
//! assert_eq!(reader.take_new(), Err(LatestError::Empty));
//! ```

use core::ptr::NonNull;

use super::header::{RingFlags, RingHeader};
use super::lossy;
use super::slots::place;
use crate::attach::AttachError;
use crate::{Machine, RingLayout, RingMessage};

pub use super::lossy::{LatestError, TRIES};

super::alias::host! { mailbox }

/// Publishes values. One per mailbox.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mailbox::Mailbox;
///
/// let mut mailbox = Mailbox::<u32, 2>::new();
/// let (mut writer, reader) = mailbox.split();
/// assert!(reader.latest().is_err()); // nothing published yet
/// writer.publish(7);
/// assert_eq!(reader.latest(), Ok((1, 7))); // version, value
/// ```
pub struct Writer<'a, T, M: Machine>(pub(super) lossy::Writer<'a, T, M>);

/// Reads the latest value. Any number per mailbox.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mailbox::Mailbox;
///
/// let mut mailbox = Mailbox::<u32, 2>::new();
/// let (mut writer, mut reader) = mailbox.split();
/// writer.publish(1);
/// writer.publish(2);
/// let newest = reader.take_new().unwrap();
/// assert_eq!((newest.value, newest.version, newest.skipped), (2, 2, 1));
/// assert!(reader.take_new().is_err()); // each version once
/// ```
pub struct Reader<'a, T, M: Machine>(lossy::Reader<'a, T, M>);

/// A value that its reader had not seen.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mailbox::{Mailbox, New};
///
/// let mut mailbox = Mailbox::<u32>::new();
/// let (mut writer, mut reader) = mailbox.split();
/// writer.publish(10);
/// writer.publish(20);
/// let New { version, value, skipped } = reader.take_new()?;
/// assert_eq!((version, value, skipped), (2, 20, 1));
/// # Ok::<(), ringmem::ring::mailbox::LatestError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New<T> {
    /// Number of values published up to this one.
    pub version: u64,
    /// The value.
    pub value: T,
    /// Versions skipped since the last one seen, or since attaching.
    pub skipped: u64,
}

impl<T, M: Machine> Clone for Reader<'_, T, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// With one slot, a writer that died while writing would leave no value.
fn capacity_of(layout: RingLayout) -> Result<u64, AttachError> {
    match layout.capacity() {
        1 => Err(AttachError::Capacity { got: 1 }),
        capacity => Ok(capacity),
    }
}

impl<'a, T: RingMessage, M: Machine> Writer<'a, T, M> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; the capacity must be at least 2.
    ///
    /// # Safety
    ///
    /// As [`lossy::Writer::from_raw`].
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only this writer writes them, which it
        // does by words.
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::MAILBOX, base, len)? };
        let capacity = capacity_of(layout)?;
        // SAFETY: the caller promises the only writer; `place` checked that the slots lie within `len`, and that the capacity is a power of
        // two.
        Ok(Self(unsafe { lossy::Writer::over(header, slots.cast(), capacity) }))
    }

    /// Attaches to a header and separate slots.
    ///
    /// # Errors
    ///
    /// As [`from_raw`](Self::from_raw).
    ///
    /// # Safety
    ///
    /// As [`lossy::Writer::new`].
    pub unsafe fn new(header: &'a RingHeader<M::Word>, slots: NonNull<M::Word>) -> Result<Self, AttachError> {
        let capacity = capacity_of(header.geometry_of::<T>(RingFlags::MAILBOX)?)?;
        // SAFETY: the caller promises as many valid slots for `'a` as the header says, and the only writer; `geometry_of` checked that
        // their number is a power of two.
        Ok(Self(unsafe { lossy::Writer::over(header, slots, capacity) }))
    }

    /// Marks this end as open, until it is dropped.
    #[must_use]
    pub fn announce(self) -> Self {
        Self(self.0.announce())
    }

    /// Publishes a value.
    #[inline]
    pub fn publish(&mut self, value: T) {
        self.0.push(value);
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns whether nothing was published.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.version() == 0
    }

    /// Returns the last version; 0 before the first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.written()
    }
}

impl<'a, T: RingMessage, M: Machine> Reader<'a, T, M> {
    /// Attaches to a header followed by its slots. A present value counts as new.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; the capacity must be at least 2.
    ///
    /// # Safety
    ///
    /// As [`lossy::Reader::from_raw`].
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller promises that `len` bytes are valid for reads and initialised for `'a`, and written by whole words only;
        // `place` only reads.
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::MAILBOX, base, len)? };
        let capacity = capacity_of(layout)?;
        // SAFETY: the caller promises readable slots, written by whole words only; `place` checked that they lie within `len`, and that the
        // capacity is a power of two.
        Ok(Self::at_latest(unsafe { lossy::Reader::over(header, slots.cast(), capacity) }))
    }

    /// Like [`from_raw`](Self::from_raw), with separate slots.
    ///
    /// # Errors
    ///
    /// As [`from_raw`](Self::from_raw).
    ///
    /// # Safety
    ///
    /// As [`lossy::Reader::new`].
    pub unsafe fn new(header: &'a RingHeader<M::Word>, slots: NonNull<M::Word>) -> Result<Self, AttachError> {
        let capacity = capacity_of(header.geometry_of::<T>(RingFlags::MAILBOX)?)?;
        // SAFETY: the caller promises as many readable slots for `'a` as the header says; `geometry_of` checked that this is a power of
        // two.
        Ok(Self::at_latest(unsafe { lossy::Reader::over(header, slots, capacity) }))
    }

    pub(super) fn at_latest(mut ring: lossy::Reader<'a, T, M>) -> Self {
        ring.skip(1);
        Self(ring)
    }

    /// Returns the latest value, new or not, and its version.
    ///
    /// # Errors
    ///
    /// [`LatestError`].
    #[inline]
    pub fn latest(&self) -> Result<(u64, T), LatestError> {
        self.0.latest()
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the last version; 0 before the first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.written()
    }

    /// Returns whether nothing was published.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.version() == 0
    }

    /// Returns whether there is an untaken value.
    #[must_use]
    #[inline]
    pub fn changed(&self) -> bool {
        self.0.poll() != self.0.head()
    }

    /// Returns the latest value, if untaken by this reader.
    ///
    /// # Errors
    ///
    /// [`LatestError`].
    #[inline]
    pub fn take_new(&mut self) -> Result<New<T>, LatestError> {
        let (version, value, skipped) = self.0.pop_latest()?;
        Ok(New { version, value, skipped })
    }

    /// Returns whether the announced writer was dropped; its last value remains.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.0.is_disconnected()
    }
}
