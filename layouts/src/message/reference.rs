//! [`BufferReference`]: a range of elements of a registered buffer, sent instead of them.
//!
//! Every bit pattern is a value, which [`part`](BufferReference::part) validates.

use core::fmt;
use core::ops::Range;

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::defmt_derive::Format;
use crate::{Layout, RingMessage, layout_table};

bitflags! {
    /// Flags of a reference.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::BufferReference;
    /// use ringmem::message::ReferenceFlags;
    ///
    /// let reference = BufferReference::new::<f32>(9, 7 << 32 | 3, 0..16).handed_over();
    /// assert_eq!(ReferenceFlags::from_bits(reference.flags), Some(ReferenceFlags::HANDED_OVER));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReferenceFlags: u64 {
        /// 1: ownership moves to the receiver. Resolving it, possible once, ends the registration; the receiver's lease frees the buffer.
        const HANDED_OVER = 1;
    }
}

/// A range of elements of a manager's buffer, in 64 bytes. The host's `MemoryManager` creates and resolves it.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::BufferReference;
///
/// assert_eq!(size_of::<BufferReference>(), 64);
/// assert!(BufferReference::default().part::<f32>().is_err()); // references nothing
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct BufferReference {
    /// Number of the manager, as a registry of buffers: unique among all processes; 0 references nothing.
    pub registry: u64,
    /// The buffer's generation in the high 32 bits, its number in the low 32.
    pub id: u64,
    /// ABI hash of the element type.
    pub element: u64,
    /// Offset in bytes, a multiple of the element size.
    pub offset: u64,
    /// Length in bytes, a multiple of the element size.
    pub length: u64,
    /// [`ReferenceFlags`].
    pub flags: u64,
    /// For the sender's own use, such as a batch number.
    pub tag: u64,
    /// Zero.
    pub _reserved: u64,
}

layout_table! {
    BufferReference: size 64, align 8;
    0  registry: u64, "sender";
    8  id: u64, "sender";
    16 element: u64, "sender";
    24 offset: u64, "sender";
    32 length: u64, "sender";
    40 flags: u64, "sender";
    48 tag: u64, "sender";
    56 _reserved: u64, "none: zero";
}

#[diagnostic::do_not_recommend]
impl RingMessage for BufferReference {
    const KIND: u64 = u64::from_le_bytes(*b"rm.bref\0");
}

impl BufferReference {
    /// References elements `part` of a buffer of type `T`.
    #[must_use]
    pub const fn new<T: Layout>(registry: u64, id: u64, part: Range<u64>) -> Self {
        let size = T::DESCRIPTOR.size as u64;
        let (offset, length) = (part.start.saturating_mul(size), part.end.saturating_sub(part.start).saturating_mul(size));
        Self { registry, id, element: T::DESCRIPTOR.hash, offset, length, flags: 0, tag: 0, _reserved: 0 }
    }

    /// Hands the buffer over to the receiver.
    #[must_use]
    pub const fn handed_over(self) -> Self {
        Self { flags: self.flags | ReferenceFlags::HANDED_OVER.bits(), ..self }
    }

    /// Sets the sender's tag.
    #[must_use]
    pub const fn with_tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// Returns whether the sender hands over the buffer.
    #[inline]
    #[must_use]
    pub const fn is_handed_over(&self) -> bool {
        self.flags & ReferenceFlags::HANDED_OVER.bits() != 0
    }

    /// Returns the range of elements of type `T`; does not check that the buffer exists or contains it.
    ///
    /// # Errors
    ///
    /// [`ReferenceError`] of the first failed check.
    #[inline]
    pub const fn part<T: Layout>(&self) -> Result<Range<u64>, ReferenceError> {
        let (expected, size) = (T::DESCRIPTOR.hash, T::DESCRIPTOR.size as u64);
        if self.registry == 0 {
            return Err(ReferenceError::Empty);
        }
        if self.flags & !ReferenceFlags::all().bits() != 0 {
            return Err(ReferenceError::Flags { got: self.flags });
        }
        if self._reserved != 0 {
            return Err(ReferenceError::Reserved { got: self._reserved });
        }
        if self.element != expected {
            return Err(ReferenceError::Elements { expected, got: self.element });
        }
        let (offset, length) = (self.offset, self.length);
        match offset.checked_add(length) {
            Some(end) if size > 0 && offset.is_multiple_of(size) && length.is_multiple_of(size) => Ok(offset / size..end / size),
            _ => Err(ReferenceError::Part { offset, length, size }),
        }
    }
}

/// An invalid reference, or one to elements of another type.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::BufferReference;
/// use ringmem::message::ReferenceError;
///
/// let reference = BufferReference::new::<f32>(9, 7 << 32 | 3, 0..16);
/// assert_eq!(reference.part::<f32>(), Ok(0..16));
/// assert!(matches!(reference.part::<i32>(), Err(ReferenceError::Elements { .. })));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The reference is empty.
    Empty,
    /// An unknown flag is set.
    Flags {
        /// The value found.
        got: u64,
    },
    /// A reserved field is not zero.
    Reserved {
        /// The value found.
        got: u64,
    },
    /// The elements are of another type.
    Elements {
        /// ABI hash of the expected type.
        expected: u64,
        /// ABI hash in the reference.
        got: u64,
    },
    /// The range is not a whole number of elements, or exceeds 64 bits.
    Part {
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Size of an element in bytes.
        size: u64,
    },
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty buffer reference"),
            Self::Flags { got } => write!(f, "flags {got:#b} are unknown"),
            Self::Reserved { got } => write!(f, "reserved field is {got:#x}, expected zero"),
            Self::Elements { expected, got } => write!(f, "reference to elements with layout {got:#018x}, expected {expected:#018x}"),
            Self::Part { offset, length, size } => write!(f, "{length} bytes at offset {offset} are not whole elements of {size} bytes"),
        }
    }
}

impl core::error::Error for ReferenceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_return_their_range_or_the_exact_error() {
        let reference = BufferReference::new::<f32>(9, 7 << 32 | 3, 10..30).with_tag(5);
        assert_eq!((reference.offset, reference.length, reference.tag), (40, 80, 5));
        assert_eq!(reference.part::<f32>(), Ok(10..30));
        let (expected, got) = (i32::DESCRIPTOR.hash, f32::DESCRIPTOR.hash);
        assert_eq!(reference.part::<i32>(), Err(ReferenceError::Elements { expected, got }));
        assert_eq!(BufferReference::default().part::<f32>(), Err(ReferenceError::Empty));
        assert_eq!(BufferReference { flags: 6, ..reference }.part::<f32>(), Err(ReferenceError::Flags { got: 6 }));
        assert_eq!(BufferReference { _reserved: 1, ..reference }.part::<f32>(), Err(ReferenceError::Reserved { got: 1 }));
        for (offset, length) in [(1, 4), (4, 6), (u64::MAX - 3, 8)] {
            let part = ReferenceError::Part { offset, length, size: 4 };
            assert_eq!(BufferReference { offset, length, ..reference }.part::<f32>(), Err(part), "{offset} {length}");
        }
        assert_eq!(BufferReference { offset: u64::MAX - 7, length: 4, ..reference }.part::<f32>(), Ok((1 << 62) - 2..(1 << 62) - 1));
    }

    #[test]
    fn handed_over_sets_only_its_flag() {
        let reference = BufferReference::new::<u8>(1, 1 << 32, 0..0);
        assert!(!reference.is_handed_over() && reference.handed_over().is_handed_over());
        assert_eq!(BufferReference { flags: 0, ..reference.handed_over() }, reference);
        assert_eq!(reference.handed_over().part::<u8>(), Ok(0..0));
    }
}
