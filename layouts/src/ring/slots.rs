//! The slots of a ring.

use core::marker::PhantomData;
use core::ptr::NonNull;

use super::header::{RingFlags, RingHeader};
use super::layout::RingLayout;
use crate::align::is_aligned;
use crate::attach::AttachError;
use crate::{Machine, RingMessage, SliceCell, Word};

/// A slot with a word next to the payload.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::{Host, HostWord, RingHeader, RingLayout, SlotCell};
/// use ringmem::ring::{RingFlags, Slot, WordSlot, mpmc};
///
/// let layout = RingLayout::of_kind::<u64>(RingFlags::MPMC, 4)?;
/// let header = RingHeader::<HostWord>::new::<u64>(&layout, 0);
/// let slots: [WordSlot<u64>; 4] = core::array::from_fn(|place| Slot::vacant(SlotCell::new(0), place as u64, 4, 0));
/// // SAFETY: only these two handles access the header and its four slots.
/// unsafe {
///     let mut producer = mpmc::Producer::<u64, Host>::new(&header, NonNull::from(&slots).cast())?;
///     let mut consumer = mpmc::Consumer::<u64, Host>::new(&header, NonNull::from(&slots).cast())?;
///     producer.push(7)?;
///     assert_eq!(consumer.pop(), Ok(7));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[repr(C)]
pub struct Slot<W, C> {
    /// The ring's kind defines its writer.
    pub(super) word: W,
    pub(super) cell: C,
}

impl<W, C> Slot<W, C> {
    /// Returns an unused slot, with word 0.
    pub const fn new(zero: W, cell: C) -> Self {
        Self { word: zero, cell }
    }
}

impl<W: Word, C> Slot<W, C> {
    /// Returns the free slot at `place` of an MPSC or MPMC ring that begins at `start`.
    pub fn vacant(cell: C, place: u64, capacity: u64, start: u64) -> Self {
        Self { word: W::new(free(first_use(start, place, capacity), capacity)), cell }
    }
}

pub(super) const fn free(index: u64, capacity: u64) -> u64 {
    (index & !(capacity - 1)) << 1
}

pub(super) const fn first_use(start: u64, place: u64, capacity: u64) -> u64 {
    start.wrapping_add(place.wrapping_sub(start) & (capacity - 1))
}

/// The payload cells of a ring from one index on.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::spsc;
/// # use ringmem::{Host, HostWord, RingHeader, RingLayout};
/// use ringmem::SlotCell;
/// use ringmem::ring::{BareSlot, Row};
///
/// fn read(row: Row<'_, BareSlot<u64>>, offset: u64) -> u64 {
///     // SAFETY: the slot is initialised, and no other end accesses it.
///     row.at(offset).with(|slot| unsafe { *slot })
/// }
///
/// # let header = RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(4)?, 0);
/// # let slots: [BareSlot<u64>; 4] = [10, 11, 12, 13].map(SlotCell::new);
/// # let producer = unsafe { spsc::Producer::<u64, Host>::new(&header, &header, NonNull::from(&slots).cast())? };
/// let row = producer.row(); // of an `spsc::Producer` at index 0 of four slots
/// assert_eq!((read(row, 1), read(row, 5)), (11, 11));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Row<'a, C> {
    // INVARIANT: a cell lives for 'a at each of the first `mask + 1` multiples of `stride` from here; `mask + 1` is a power of two.
    base: NonNull<C>,
    mask: u64,
    stride: usize,
    first: u64,
    _cells: PhantomData<&'a C>,
}

impl<C> Clone for Row<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Row<'_, C> {}

impl<'a, C> Row<'a, C> {
    /// Returns the cell `offset` places on, for any offset.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self, offset: u64) -> &'a C {
        let place = self.first.wrapping_add(offset) & self.mask;
        // SAFETY: below the capacity; valid by the invariant.
        unsafe { self.base.byte_add(place as usize * self.stride).as_ref() }
    }
}

pub struct Slots<'a, C> {
    // INVARIANT: `mask + 1` slots from here live for 'a, a power of two.
    base: NonNull<C>,
    mask: u64,
    _slots: PhantomData<&'a C>,
}

impl<C> Clone for Slots<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Slots<'_, C> {}

impl<'a, C> Slots<'a, C> {
    /// # Safety
    ///
    /// `capacity` slots at `base` live for `'a`; `capacity` is a power of two that fits `usize`.
    pub(super) const unsafe fn new(base: NonNull<C>, capacity: u64) -> Self {
        Self { base, mask: capacity - 1, _slots: PhantomData }
    }

    #[inline(always)]
    pub(super) const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    #[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
    pub(super) const fn base(&self) -> NonNull<C> {
        self.base
    }

    #[inline(always)]
    pub(super) const fn mask(&self) -> u64 {
        self.mask
    }

    #[inline(always)]
    pub(super) const fn at(&self, index: u64) -> &'a C {
        // SAFETY: masked, so below the capacity; valid by the invariant.
        unsafe { self.base.add((index & self.mask) as usize).as_ref() }
    }

    /// The slots as `D`s, `offset` bytes into each slot.
    ///
    /// # Safety
    ///
    /// Every slot has a `D` there.
    #[inline(always)]
    pub(super) const unsafe fn row<D>(&self, index: u64, offset: usize) -> Row<'a, D> {
        // SAFETY: the caller promises a `D` at `offset` in every slot, so `offset` is within the first one.
        let base = unsafe { self.base.byte_add(offset) }.cast();
        Row { base, mask: self.mask, stride: size_of::<C>(), first: index, _cells: PhantomData }
    }

    /// A kilobyte in slots. The hardware prefetches slots of many lines.
    const AHEAD: Option<usize> = match size_of::<C>() {
        64..=512 => Some(1024 / size_of::<C>().next_power_of_two()),
        _ => None,
    };

    /// Prefetches a slot after `index`, the first of `ready`: lines then come from the other core in parallel.
    #[inline(always)]
    pub(super) fn prefetch_ahead<const TO_WRITE: bool>(&self, index: u64, ready: usize) {
        if let Some(ahead) = const { Self::AHEAD }
            && ready > ahead
        {
            let slot = core::ptr::from_ref(self.at(index.wrapping_add(ahead as u64))).cast::<u8>();
            for line in (0..size_of::<C>()).step_by(64) {
                prefetch::<TO_WRITE>(slot.wrapping_add(line));
            }
        }
    }

    /// The values from `index` up to the wrap.
    #[inline(always)]
    pub(super) fn run<T>(&self, index: u64) -> NonNull<T>
    where
        C: SliceCell<T>,
    {
        // SAFETY: masked, so below the capacity and within the slots of the invariant; a `SliceCell` has the bytes of its `T`.
        unsafe { self.base.add((index & self.mask) as usize) }.cast()
    }

    #[inline(always)]
    pub(super) fn runs(&self, index: u64, count: usize) -> [&'a [C]; 2] {
        let count = count.min(self.capacity() as usize);
        let first = self.before_wrap(index, count);
        // SAFETY: `first` slots are before the wrap, the rest is at most the capacity; valid by the invariant.
        unsafe {
            let here = self.base.add((index & self.mask) as usize);
            [NonNull::slice_from_raw_parts(here, first).as_ref(), NonNull::slice_from_raw_parts(self.base, count - first).as_ref()]
        }
    }

    #[inline(always)]
    pub(super) const fn before_wrap(&self, index: u64, count: usize) -> usize {
        let room = self.until_wrap(index) as usize;
        if count < room { count } else { room }
    }

    #[inline(always)]
    pub(super) const fn until_wrap(&self, index: u64) -> u64 {
        self.capacity() - (index & self.mask)
    }
}

pub(super) fn geometry_of_both<T: RingMessage, W: Word>(
    kind: RingFlags,
    own: &RingHeader<W>,
    peer: &RingHeader<W>,
) -> Result<RingLayout, AttachError> {
    let layout = own.geometry_of::<T>(kind)?;
    if !core::ptr::eq(own, peer) {
        let other = peer.geometry_of::<T>(kind)?;
        if other != layout {
            return Err(AttachError::Capacity { got: other.capacity() });
        }
    }
    Ok(layout)
}

type Parts<'a, M> = (&'a RingHeader<<M as Machine>::Word>, RingLayout, NonNull<u8>);

/// # Safety
///
/// For `'a`, `len` bytes at `base` are valid for reads and initialised, and others access the header only as words.
pub(super) unsafe fn place<'a, T: RingMessage, M: Machine>(
    kind: RingFlags,
    base: NonNull<u8>,
    len: u64,
) -> Result<Parts<'a, M>, AttachError> {
    const {
        assert!(size_of::<RingHeader<M::Word>>() == 384 && size_of::<M::Cell<T>>() == size_of::<T>());
        assert!(size_of::<Slot<M::Word, M::Cell<T>>>() == size_of::<Slot<u64, T>>());
    };
    let address = base.as_ptr() as u64;
    let align = align_of::<RingHeader<M::Word>>() as u64;
    if !is_aligned(address, align) {
        return Err(AttachError::Misaligned { address, align });
    }
    if len < size_of::<RingHeader<M::Word>>() as u64 {
        return Err(AttachError::TooSmall { needed: size_of::<RingHeader<M::Word>>() as u64, got: len });
    }
    // SAFETY: aligned and long enough, checked above; words are valid for any bytes.
    let header = unsafe { base.cast::<RingHeader<M::Word>>().as_ref() };
    let layout = header.geometry_of::<T>(kind)?;
    if !is_aligned(address, layout.align()) {
        return Err(AttachError::Misaligned { address, align: layout.align() });
    }
    if len < layout.size() {
        return Err(AttachError::TooSmall { needed: layout.size(), got: len });
    }
    // SAFETY: slots_offset is within the layout's size, which is within `len`.
    let slots = unsafe { base.add(layout.slots_offset() as usize) };
    Ok((header, layout, slots))
}

/// A hint.
#[inline(always)]
pub fn prefetch<const TO_WRITE: bool>(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse"))]
    // SAFETY: hints read nothing and never fault. The intrinsic would prefetch for a read.
    unsafe {
        if TO_WRITE {
            core::arch::asm!("prefetchw [{}]", in(reg) line.addr(), options(nomem, nostack, preserves_flags));
        } else {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse")))]
    let _ = line;
}
