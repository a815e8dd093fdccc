use core::fmt;

use super::{RingFlags, RingHeader, Slot};
use crate::RingMessage;
use crate::attach::AttachError;
use crate::defmt_derive::Format;

/// Offsets and sizes of a ring, computed and checked before its memory exists.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::RingLayout;
/// const LAYOUT: RingLayout = match RingLayout::of::<[u64; 8]>(1024) {
///     Ok(layout) => layout,
///     Err(_) => panic!("a power of two"),
/// };
/// assert_eq!((LAYOUT.slots_offset(), LAYOUT.slot_size(), LAYOUT.size()), (384, 64, 384 + 1024 * 64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    kind: RingFlags,
    // INVARIANT: a power of two; slots_offset + capacity * slot_size fits i64 and usize.
    capacity: u64,
    slot_size: u64,
    slots_offset: u64,
    align: u64,
}

/// Why a geometry is invalid.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::RingLayout;
/// use ringmem::ring::LayoutError;
///
/// assert_eq!(RingLayout::of::<u64>(1000), Err(LayoutError::NotAPowerOfTwo { capacity: 1000 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
#[non_exhaustive]
pub enum LayoutError {
    /// The capacity is 0 or no power of two.
    NotAPowerOfTwo {
        /// The requested capacity.
        capacity: u64,
    },
    /// The ring would not fit an address space.
    TooLarge {
        /// The requested capacity.
        capacity: u64,
        /// Bytes.
        slot_size: u64,
    },
    /// Messages without bytes need a counter, not a ring.
    ZeroSized,
    /// The alignment is no power of two, or the size no multiple of it.
    Align {
        /// Bytes of a message.
        size: u64,
        /// The requested alignment in bytes.
        align: u64,
    },
    /// None of [`RingFlags`], or more than one.
    UnknownKind {
        /// The requested kind.
        kind: u64,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPowerOfTwo { capacity } => {
                write!(f, "invalid capacity: {capacity} is not a power of two")?;
                match capacity.checked_next_power_of_two() {
                    Some(next) if *capacity > 0 => write!(f, "; the next is {next}"),
                    _ => Ok(()),
                }
            }
            Self::TooLarge { capacity, slot_size } => {
                write!(f, "{capacity} slots of {slot_size} bytes exceed the address space")
            }
            Self::UnknownKind { kind } => write!(f, "unknown ring kind {kind:#x}"),
            Self::Align { size, align } => {
                write!(f, "invalid alignment {align} of messages of {size} bytes: it must be a power of two that divides the size")
            }
            Self::ZeroSized => f.write_str("zero-sized messages are not supported"),
        }
    }
}

impl core::error::Error for LayoutError {}

impl RingLayout {
    /// Returns the layout of an SPSC ring of `capacity` messages `T`.
    ///
    /// # Errors
    ///
    /// [`LayoutError`].
    pub const fn of<T: RingMessage>(capacity: u64) -> Result<Self, LayoutError> {
        Self::of_kind::<T>(RingFlags::SPSC, capacity)
    }

    /// Returns the layout of an SPSC ring of messages of which only size and alignment are known.
    ///
    /// # Errors
    ///
    /// [`LayoutError`].
    pub const fn of_size(size: u64, align: u64, capacity: u64) -> Result<Self, LayoutError> {
        if size > 0 && !(align.is_power_of_two() && size.is_multiple_of(align)) {
            return Err(LayoutError::Align { size, align });
        }
        Self::of_slots(RingFlags::SPSC, size, align, capacity)
    }

    /// Returns the layout of a ring of any kind with `capacity` slots of `T`; a framed ring's `T` is `u64`.
    ///
    /// # Errors
    ///
    /// [`LayoutError`].
    pub const fn of_kind<T: RingMessage>(kind: RingFlags, capacity: u64) -> Result<Self, LayoutError> {
        const SPSC: u64 = RingFlags::SPSC.bits();
        const FRAMED: u64 = RingFlags::FRAMED.bits();
        const SLOTTED: [u64; 3] = [RingFlags::FLAGGED.bits(), RingFlags::MPSC.bits(), RingFlags::MPMC.bits()];
        const WORDS: [u64; 2] = [RingFlags::LOSSY.bits(), RingFlags::MAILBOX.bits()];
        const PAIRED: u64 = RingFlags::PAIRED.bits();
        if size_of::<T>() == 0 {
            return Self::of_slots(kind, 0, 1, capacity);
        }
        let bits = kind.bits();
        let (slot_size, slot_align) = if bits == SPSC || bits == FRAMED {
            (size_of::<T>() as u64, align_of::<T>() as u64)
        } else if bits == SLOTTED[0] || bits == SLOTTED[1] || bits == SLOTTED[2] {
            (size_of::<Slot<u64, T>>() as u64, align_of::<Slot<u64, T>>() as u64)
        } else if bits == WORDS[0] || bits == WORDS[1] {
            (8 + (size_of::<T>() as u64).next_multiple_of(8), 8)
        } else if bits == PAIRED {
            (pairs_of::<T>() * PAIR, PAIR)
        } else {
            return Err(LayoutError::UnknownKind { kind: bits });
        };
        Self::of_slots(kind, slot_size, slot_align, capacity)
    }

    /// `slot_align` is a power of two.
    const fn of_slots(kind: RingFlags, slot_size: u64, slot_align: u64, capacity: u64) -> Result<Self, LayoutError> {
        if !capacity.is_power_of_two() {
            return Err(LayoutError::NotAPowerOfTwo { capacity });
        }
        if slot_size == 0 {
            return Err(LayoutError::ZeroSized);
        }
        let header = size_of::<RingHeader<u64>>() as u64;
        let line = align_of::<RingHeader<u64>>() as u64;
        let align = if slot_align > line { slot_align } else { line };
        let too_large = Err(LayoutError::TooLarge { capacity, slot_size });
        let Some(slots_offset) = header.checked_next_multiple_of(align) else { return too_large };
        let Some(slots) = capacity.checked_mul(slot_size) else { return too_large };
        let Some(size) = slots.checked_add(slots_offset) else { return too_large };
        if size > isize::MAX as u64 {
            return too_large;
        }
        Ok(Self { kind, capacity, slot_size, slots_offset, align })
    }

    pub(super) fn expect(&self, kind: RingFlags) -> Result<(), AttachError> {
        if self.kind == kind { Ok(()) } else { Err(AttachError::Kind { expected: kind.bits(), got: self.kind.bits() }) }
    }

    /// Returns the kind of ring.
    #[must_use]
    pub const fn kind(&self) -> RingFlags {
        self.kind
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes from slot to slot.
    #[must_use]
    pub const fn slot_size(&self) -> u64 {
        self.slot_size
    }

    /// Returns the offset of slot 0 in bytes.
    #[must_use]
    pub const fn slots_offset(&self) -> u64 {
        self.slots_offset
    }

    /// Returns the alignment in bytes.
    #[must_use]
    pub const fn align(&self) -> u64 {
        self.align
    }

    /// Returns the total size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.slots_offset + self.capacity * self.slot_size
    }
}

/// Size and alignment of a [`Pair`](super::paired::Pair) in bytes: two words that one access reads or writes.
pub(super) const PAIR: u64 = 16;

/// Returns the pairs of a slot of a [`paired`](super::paired) ring, whose words have four bytes of the message each.
#[must_use]
pub const fn pairs_of<T>() -> u64 {
    size_of::<T>().div_ceil(8) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_geometry_is_an_error() {
        for capacity in [0, 3, 1000, u64::MAX] {
            assert_eq!(RingLayout::of::<u64>(capacity), Err(LayoutError::NotAPowerOfTwo { capacity }));
        }
        for capacity in [1 << 60, 1 << 61, 1 << 63] {
            assert_eq!(RingLayout::of::<u64>(capacity), Err(LayoutError::TooLarge { capacity, slot_size: 8 }));
        }
        assert_eq!(RingLayout::of::<[u8; 0]>(4), Err(LayoutError::ZeroSized));
        for (size, align) in [(8, 0), (8, 3), (8, 16), (12, 8), (8, u64::MAX)] {
            assert_eq!(RingLayout::of_size(size, align, 4), Err(LayoutError::Align { size, align }));
        }
        assert_eq!(RingLayout::of_size(0, 0, 4), Err(LayoutError::ZeroSized));
        let large = 1 << 63;
        assert_eq!(RingLayout::of_size(large, large, 1), Err(LayoutError::TooLarge { capacity: 1, slot_size: large }));
        assert_eq!(RingLayout::of_size(24, 8, 4), RingLayout::of::<[u64; 3]>(4));
        assert_eq!(RingLayout::of::<u8>(1).map(|layout| layout.size()), Ok(385));
    }
}
