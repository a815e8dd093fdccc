use super::heap::{PartId, UNIT};
use crate::backend::{Block, MemoryLocation};

/// From the low bits: part number (24 bits), size class (8), size in units (29), location (2), and whether the pages are locked (1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(pub u64);

impl Tag {
    const CLASS_SHIFT: u32 = 24;
    const PARTS: u64 = (1 << Self::CLASS_SHIFT) - 1;
    const UNITS_SHIFT: u32 = 32;
    const LOCATION_SHIFT: u32 = 61;
    const UNITS: u64 = (1 << (Self::LOCATION_SHIFT - Self::UNITS_SHIFT)) - 1;
    const PINNED: u64 = 1 << 63;

    /// The largest size in bytes.
    pub const LARGEST: u64 = Self::UNITS * UNIT;

    /// Blocks without a class are not cached.
    pub const NO_CLASS: u64 = 0xff;

    pub const fn new(part: PartId, class: Option<usize>, bytes: u64, slab: &Block) -> Self {
        let class = match class {
            Some(class) => class as u64,
            None => Self::NO_CLASS,
        };
        // Fewer than 255 classes exist, and the largest block is 128 GiB - 256.
        let (class, units) = (class << Self::CLASS_SHIFT, ((bytes / UNIT) & Self::UNITS) << Self::UNITS_SHIFT);
        Self(part.index() as u64 | class | units | Self::location_bits(slab))
    }

    /// For a block outside the slabs.
    pub const fn direct(block: &Block) -> Self {
        Self(Self::NO_CLASS << Self::CLASS_SHIFT | Self::location_bits(block))
    }

    const fn location_bits(block: &Block) -> u64 {
        let pinned = if block.is_pinned { Self::PINNED } else { 0 };
        block.location.bits() << Self::LOCATION_SHIFT | pinned
    }

    pub const fn is_direct(self) -> bool {
        self.0 & Self::PARTS == 0
    }

    pub const fn bytes(self) -> u64 {
        (self.0 >> Self::UNITS_SHIFT & Self::UNITS) * UNIT
    }
    pub const fn class(self) -> usize {
        (self.0 >> Self::CLASS_SHIFT & 0xff) as usize
    }
    pub const fn part(self) -> Option<PartId> {
        PartId::from_index((self.0 & Self::PARTS) as u32)
    }
    pub const fn location(self) -> MemoryLocation {
        MemoryLocation::from_bits(self.0 >> Self::LOCATION_SHIFT)
    }
    pub const fn is_pinned(self) -> bool {
        self.0 & Self::PINNED != 0
    }
}
