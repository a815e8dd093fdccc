//! [`RegionHeader`]: a table of contents at the start of shared memory.
//!
//! [`Plan`] computes offsets and writes the table; [`entries`] reads and checks it.

use core::ptr::NonNull;

use heapless::Vec;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::align::{is_aligned, padding};
use crate::attach::AttachError;
use crate::defmt_derive::Format;
use crate::{Word, layout_table};

/// The first word of a region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rm.regn\0");
/// The version of the format.
pub const VERSION: u64 = 1;
/// Most entries in a region.
pub const MAX_ENTRIES: usize = 32;

/// 64 bytes, then `count` entries.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::CacheLineAligned;
/// use ringmem::region::{MAGIC, Plan, RegionHeader, VERSION};
/// use ringmem::{HostWord, Word};
/// # let mut memory = CacheLineAligned::new([0_u64; 256]);
/// # let (base, len, abi) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64, 7);
///
/// // SAFETY: `len` bytes at `base` are valid and initialised, and nothing else accesses them.
/// let header: &RegionHeader<HostWord> = unsafe {
///     Plan::new().write::<HostWord>(base, len, abi)?;
///     base.cast().as_ref()
/// };
/// assert_eq!([&header.magic, &header.version, &header.count].map(Word::load), [MAGIC, VERSION, 0]);
/// # Ok::<(), ringmem::attach::AttachError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Format)]
#[repr(C, align(64))]
pub struct RegionHeader<W = u64> {
    /// [`MAGIC`]. Creator, last.
    pub magic: W,
    /// [`VERSION`]. Creator.
    pub version: W,
    /// Total size in bytes, including this header. Creator.
    pub size: W,
    /// ABI hash of the contents. Creator.
    pub abi: W,
    /// Entries that follow, at most [`MAX_ENTRIES`]. Creator.
    pub count: W,
    /// Zero.
    pub _reserved: [W; 3],
}

layout_table! {
    impl<W> RegionHeader<W>: size 64, align 64;
    0  magic: W, "creator, last";
    8  version: W, "creator";
    16 size: W, "creator";
    24 abi: W, "creator";
    32 count: W, "creator";
    40 _reserved: [W; 3], "none: zero";
}

/// An entry of a region's table, 32 bytes.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::{CacheLineAligned, HostWord};
/// use ringmem::region::{self, Plan, RegionEntry};
/// # let mut memory = CacheLineAligned::new([0_u64; 256]);
/// # let (base, len, abi) = (NonNull::from(&mut memory).cast(), size_of_val(&memory) as u64, 7);
///
/// let mut plan = Plan::new();
/// plan.place(region::kind::CONTROL, 128, 128)?;
/// // SAFETY: `len` bytes at `base` are valid and initialised, and nothing else accesses them.
/// unsafe { plan.write::<HostWord>(base, len, abi)? };
/// // SAFETY: `len` bytes at `base` are valid and initialised, and nothing else accesses them.
/// let entries = unsafe { region::entries::<HostWord>(base, len, abi)? };
/// let RegionEntry { kind, offset, size, .. } = entries[0];
/// assert_eq!((kind, offset, size), (region::kind::CONTROL, 1152, 128));
/// # Ok::<(), ringmem::attach::AttachError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout, Format)]
#[repr(C, align(32))]
pub struct RegionEntry<W = u64> {
    /// A [`kind`]. Creator.
    pub kind: W,
    /// Offset in bytes from the region's start. Creator.
    pub offset: W,
    /// Size in bytes. Creator.
    pub size: W,
    /// Zero.
    pub _reserved: W,
}

layout_table! {
    impl<W> RegionEntry<W>: size 32, align 32;
    0  kind: W, "creator";
    8  offset: W, "creator";
    16 size: W, "creator";
    24 _reserved: W, "none: zero";
}

/// The kinds of entry.
pub mod kind {
    /// A `ControlBlock`.
    pub const CONTROL: u64 = 1;
    /// A `TelemetryBuffer`.
    pub const TELEMETRY: u64 = 2;
    /// A ring from host to device.
    pub const INPUT_RING: u64 = 3;
    /// A ring from device to host.
    pub const OUTPUT_RING: u64 = 4;
    /// A ring between processes of one host.
    pub const SHARED_RING: u64 = 5;
}

/// Offsets of a region's entries, known before the memory exists.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::RingLayout;
/// use ringmem::region::{Plan, kind};
///
/// let ring = RingLayout::of::<u64>(16)?;
/// let mut plan = Plan::new();
/// assert_eq!(plan.place(kind::CONTROL, 128, 128)?, 1152); // after the table
/// assert_eq!(plan.place(kind::INPUT_RING, ring.size(), ring.align())?, 1280);
/// assert_eq!(plan.size(), 1280 + 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    entries: Vec<RegionEntry<u64>, MAX_ENTRIES>,
    end: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}

impl Plan {
    /// Returns an empty plan.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), end: TABLE_BYTES }
    }

    /// Adds an entry of `size` bytes aligned to `align`; returns its offset.
    ///
    /// # Errors
    ///
    /// [`AttachError::Count`] past [`MAX_ENTRIES`], [`AttachError::Misaligned`] (at address 0) if `align` is not a power of two,
    /// [`AttachError::TooSmall`] if the end would pass 2^63.
    pub fn place(&mut self, kind: u64, size: u64, align: u64) -> Result<u64, AttachError> {
        let padding = padding(self.end, align).ok_or(AttachError::Misaligned { address: 0, align })?;
        let too_large = AttachError::TooSmall { needed: size, got: i64::MAX as u64 - self.end };
        let offset = self.end.checked_add(padding).ok_or(too_large)?;
        let end = offset.checked_add(size).filter(|&end| i64::try_from(end).is_ok()).ok_or(too_large)?;
        self.entries
            .push(RegionEntry { kind, offset, size, _reserved: 0 })
            .map_err(|_| AttachError::Count { got: MAX_ENTRIES as u64 + 1 })?;
        self.end = end;
        Ok(offset)
    }

    /// Returns the region's size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.end
    }

    /// Writes header and table at `base`.
    ///
    /// # Errors
    ///
    /// As [`entries`], for an address or length that cannot hold the plan.
    ///
    /// # Safety
    ///
    /// `len` bytes at `base` are initialised and valid for reads and writes, without another writer meanwhile; others read them only as
    /// words.
    pub unsafe fn write<W: Word>(&self, base: NonNull<u8>, len: u64, abi: u64) -> Result<(), AttachError> {
        if len < self.end {
            return Err(AttachError::TooSmall { needed: self.end, got: len });
        }
        // SAFETY: the caller promises that `len` bytes are valid and initialised, and that nothing else writes them; `view` only needs that
        // they change as words.
        let (header, table) = unsafe { view::<W>(base, len)? };
        for (place, entry) in table.iter().zip(&self.entries) {
            place.kind.store(entry.kind);
            place.offset.store(entry.offset);
            place.size.store(entry.size);
            place._reserved.store(0);
        }
        header.version.store(VERSION);
        header.size.store(self.end);
        header.abi.store(abi);
        header.count.store(self.entries.len() as u64);
        header._reserved.iter().for_each(|word| word.store(0));
        // SYNC POINT: region laid out. Pairs with entries.
        W::publish_all([(&header.magic, MAGIC)]);
        Ok(())
    }
}

/// Returns a copy of a region's entries, checked to lie inside it.
///
/// # Errors
///
/// [`AttachError`].
///
/// # Safety
///
/// `len` bytes at `base` are valid for reads and initialised; others write only through words.
pub unsafe fn entries<W: Word>(base: NonNull<u8>, len: u64, abi: u64) -> Result<Vec<RegionEntry<u64>, MAX_ENTRIES>, AttachError> {
    // SAFETY: the caller promises that `len` bytes are valid for reads and initialised, and that others write only through words; `view`
    // needs no more.
    let (header, table) = unsafe { view::<W>(base, len)? };
    // SYNC POINT: region seen. Pairs with Plan::write.
    let expect = |expected: u64, got: u64, error: fn(u64, u64) -> AttachError| {
        if expected == got { Ok(()) } else { Err(error(expected, got)) }
    };
    expect(MAGIC, header.magic.load_acquire(), |expected, got| AttachError::Magic { expected, got })?;
    expect(VERSION, header.version.load(), |expected, got| AttachError::Version { expected, got })?;
    expect(abi, header.abi.load(), |expected, got| AttachError::Abi { expected, got })?;
    let (size, count) = (header.size.load(), header.count.load());
    if size > len {
        return Err(AttachError::TooSmall { needed: size, got: len });
    }
    if count > MAX_ENTRIES as u64 {
        return Err(AttachError::Count { got: count });
    }
    let mut entries = Vec::new();
    for place in table.iter().take(count as usize) {
        let entry = RegionEntry {
            kind: place.kind.load(),
            offset: place.offset.load(),
            size: place.size.load(),
            _reserved: place._reserved.load(),
        };
        let inside = entry.offset >= TABLE_BYTES && entry.offset.checked_add(entry.size).is_some_and(|end| end <= size);
        if !inside {
            return Err(AttachError::Offset { got: entry.offset });
        }
        entries.push(entry).map_err(|_| AttachError::Count { got: count })?;
    }
    Ok(entries)
}

const TABLE_BYTES: u64 = (size_of::<RegionHeader<u64>>() + MAX_ENTRIES * size_of::<RegionEntry<u64>>()) as u64;

type View<'a, W> = (&'a RegionHeader<W>, &'a [RegionEntry<W>; MAX_ENTRIES]);

/// # Safety
///
/// `len` bytes at `base` are valid for reads and initialised for `'a`, and written meanwhile only as words.
unsafe fn view<'a, W>(base: NonNull<u8>, len: u64) -> Result<View<'a, W>, AttachError> {
    const { assert!(size_of::<RegionHeader<W>>() == 64 && size_of::<RegionEntry<W>>() == 32) };
    let align = align_of::<RegionHeader<W>>() as u64;
    let address = base.as_ptr() as u64;
    if !is_aligned(address, align) {
        return Err(AttachError::Misaligned { address, align });
    }
    if len < TABLE_BYTES {
        return Err(AttachError::TooSmall { needed: TABLE_BYTES, got: len });
    }
    // SAFETY: aligned and long enough, checked above; words are valid for any bytes and accessed atomically.
    let header = unsafe { base.cast::<RegionHeader<W>>().as_ref() };
    // SAFETY: the table follows within TABLE_BYTES, aligned because 64 is a multiple of its alignment; words are valid for any bytes and
    // accessed atomically.
    let table = unsafe { base.add(size_of::<RegionHeader<W>>()).cast().as_ref() };
    Ok((header, table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostWord;
    use std::boxed::Box;

    #[repr(C, align(128))]
    struct Memory([u8; 4096]);

    fn region() -> (Box<Memory>, NonNull<u8>) {
        let mut memory = Box::new(Memory([0; 4096]));
        let base = NonNull::new(memory.0.as_mut_ptr()).unwrap();
        (memory, base)
    }

    #[test]
    fn planned_entries_are_read_back() {
        let (_memory, base) = region();
        let mut plan = Plan::new();
        let control = plan.place(kind::CONTROL, 128, 128).unwrap();
        let ring = plan.place(kind::INPUT_RING, 500, 128).unwrap();
        assert_eq!((control, ring), (1152, 1280));
        // SAFETY: 4096 zeroed bytes, used here only.
        unsafe {
            assert!(matches!(entries::<HostWord>(base, 4096, 9), Err(AttachError::Magic { got: 0, .. })));
            plan.write::<HostWord>(base, 4096, 9).unwrap();
            let read = entries::<HostWord>(base, 4096, 9).unwrap();
            assert_eq!(read.len(), 2);
            assert_eq!((read[1].kind, read[1].offset, read[1].size), (kind::INPUT_RING, 1280, 500));
            assert!(matches!(entries::<HostWord>(base, 4096, 8), Err(AttachError::Abi { got: 9, .. })));
            assert!(matches!(entries::<HostWord>(base, 1700, 9), Err(AttachError::TooSmall { needed: 1780, got: 1700 })));
            assert!(matches!(plan.write::<HostWord>(base, 1779, 9), Err(AttachError::TooSmall { .. })));
        }
    }

    #[test]
    fn write_overwrites_every_word_of_the_header_and_of_its_entries() {
        let (mut memory, base) = region();
        memory.0.fill(0xFF);
        let mut plan = Plan::new();
        plan.place(kind::CONTROL, 128, 128).unwrap();
        plan.place(kind::INPUT_RING, 500, 128).unwrap();
        // SAFETY: 4096 initialised bytes, used here only.
        unsafe { plan.write::<HostWord>(base, 4096, 9) }.unwrap();
        // SAFETY: the header and two entries, written above; nothing else accesses them.
        let words: &[u64; 16] = unsafe { base.cast().as_ref() };
        let header = [MAGIC, VERSION, 1780, 9, 2, 0, 0, 0];
        assert_eq!(words[..8], header);
        assert_eq!(words[8..], [kind::CONTROL, 1152, 128, 0, kind::INPUT_RING, 1280, 500, 0]);
    }

    #[test]
    fn a_plan_rejects_invalid_and_excess_entries() {
        let mut plan = Plan::new();
        assert!(plan.place(0, u64::MAX, 1).is_err());
        assert!(plan.place(0, i64::MAX as u64, 1).is_err(), "the region would end past 2^63");
        assert!(plan.place(0, 8, 3).is_err());
        for _ in 0..MAX_ENTRIES {
            plan.place(0, 0, 1).unwrap();
        }
        assert_eq!(plan.place(0, 0, 1), Err(AttachError::Count { got: 33 }));
    }

    #[test]
    fn a_default_plan_reserves_the_table() {
        assert_eq!(Plan::default().place(kind::CONTROL, 128, 128), Plan::new().place(kind::CONTROL, 128, 128));
        assert_eq!(Plan::default().size(), TABLE_BYTES);
    }

    #[test]
    fn an_entry_outside_the_region_is_an_error() {
        let (_memory, base) = region();
        let mut plan = Plan::new();
        plan.place(kind::CONTROL, 128, 128).unwrap();
        // SAFETY: 4096 zeroed bytes, used here only; each word that is written lies in the first entry.
        unsafe {
            plan.write::<HostWord>(base, 4096, 0).unwrap();
            base.cast::<u64>().add(8 + 1).write(u64::MAX - 64);
            assert_eq!(entries::<HostWord>(base, 4096, 0), Err(AttachError::Offset { got: u64::MAX - 64 }));
            base.cast::<u64>().add(8 + 1).write(0);
            assert_eq!(entries::<HostWord>(base, 4096, 0), Err(AttachError::Offset { got: 0 }));
            base.cast::<u64>().add(8 + 1).write(1152);
            assert_eq!(entries::<HostWord>(base, 4096, 0).map(|read| read.len()), Ok(1));
            base.cast::<u64>().add(8 + 2).write(129);
            let past_the_end = entries::<HostWord>(base, 4096, 0);
            assert_eq!(past_the_end, Err(AttachError::Offset { got: 1152 }), "the memory is longer than the region");
        }
    }
}
