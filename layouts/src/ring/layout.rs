//! [`RingLayout`]: where a ring's bytes are.

use core::fmt;

use super::RingHeader;
use crate::RingMessage;

/// Offsets and sizes of a ring, computed and checked before there is memory.
///
/// ```
/// use ringmem_layouts::RingLayout;
/// const LAYOUT: RingLayout = match RingLayout::of::<[u64; 8]>(1024) {
///     Ok(layout) => layout,
///     Err(_) => panic!("a power of two"),
/// };
/// assert_eq!((LAYOUT.slots_offset(), LAYOUT.slot_size(), LAYOUT.size()), (384, 64, 384 + 1024 * 64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    // INVARIANT: a power of two; slots_offset + capacity * slot_size fits i64 and usize.
    capacity: u64,
    slot_size: u64,
    slots_offset: u64,
    align: u64,
}

/// Why there is no ring of that geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LayoutError {
    /// The capacity is 0 or no power of two.
    NotAPowerOfTwo {
        /// As asked for.
        capacity: u64,
    },
    /// The ring would not fit an address space.
    TooLarge {
        /// As asked for.
        capacity: u64,
        /// Bytes.
        slot_size: u64,
    },
    /// A message without bytes needs a counter, not a ring.
    ZeroSized,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPowerOfTwo { capacity } => write!(f, "a ring's capacity must be a power of two, not {capacity}"),
            Self::TooLarge { capacity, slot_size } => {
                write!(f, "{capacity} slots of {slot_size} bytes do not fit an address space")
            }
            Self::ZeroSized => f.write_str("a message without bytes needs no ring"),
        }
    }
}

impl core::error::Error for LayoutError {}

impl RingLayout {
    /// The layout of a ring of `capacity` messages `T`.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] with what was asked for.
    pub const fn of<T: RingMessage>(capacity: u64) -> Result<Self, LayoutError> {
        let (slot_size, slot_align) = (size_of::<T>() as u64, align_of::<T>() as u64);
        if !capacity.is_power_of_two() {
            return Err(LayoutError::NotAPowerOfTwo { capacity });
        }
        if slot_size == 0 {
            return Err(LayoutError::ZeroSized);
        }
        let header = size_of::<RingHeader<u64>>() as u64;
        let line = align_of::<RingHeader<u64>>() as u64;
        let align = if slot_align > line { slot_align } else { line };
        // 384 is a multiple of 128, so slots follow at once unless they ask for more.
        let slots_offset = header.next_multiple_of(align);
        let too_large = Err(LayoutError::TooLarge { capacity, slot_size });
        let Some(slots) = capacity.checked_mul(slot_size) else { return too_large };
        let Some(size) = slots.checked_add(slots_offset) else { return too_large };
        if size > isize::MAX as u64 {
            return too_large;
        }
        Ok(Self { capacity, slot_size, slots_offset, align })
    }

    /// Slots.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes from slot to slot: the size of the message.
    #[must_use]
    pub const fn slot_size(&self) -> u64 {
        self.slot_size
    }

    /// Bytes from the header to slot 0.
    #[must_use]
    pub const fn slots_offset(&self) -> u64 {
        self.slots_offset
    }

    /// Bytes that the whole is aligned to.
    #[must_use]
    pub const fn align(&self) -> u64 {
        self.align
    }

    /// Bytes in all.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.slots_offset + self.capacity * self.slot_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_geometry_is_refused() {
        for capacity in [0, 3, 1000, u64::MAX] {
            assert_eq!(RingLayout::of::<u64>(capacity), Err(LayoutError::NotAPowerOfTwo { capacity }));
        }
        for capacity in [1 << 60, 1 << 61, 1 << 63] {
            assert_eq!(RingLayout::of::<u64>(capacity), Err(LayoutError::TooLarge { capacity, slot_size: 8 }));
        }
        assert_eq!(RingLayout::of::<[u8; 0]>(4), Err(LayoutError::ZeroSized));
        assert_eq!(RingLayout::of::<u8>(1).map(|layout| layout.size()), Ok(385));
    }
}
