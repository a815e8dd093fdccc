//! Fills with elements of any size: of which elements one [`Fill`] of a backend suffices, and how others are spread by copies.
//!
//! 1. An element of 1, 2, 4, 8 or 16 bytes is one fill, and so is an element that repeats so many bytes, for example 32 equal ones ([`Fill::repeating`]).
//! 2. Any other element, for example of 12 bytes, is copied from the host to the first place. Then copies on the device double the written part until all
//!    elements have it ([`Address::doublings`]): 20 copies for a million elements.
//!
//! [`FillSteps`] decides. Two functions take its steps: `SliceMut::fill` (`src/memory/slice.rs`), which blocks, and `Stream::queue_fill`
//! (`src/stream/transfer.rs`). If a backend refuses a later copy of a queued fill, the earlier ones are listed with the buffer; the rest is unwritten.
//!
//! Backends execute a [`Fill`]; for CUDA, see `src/backend/cuda/memset.rs`, which spreads patterns that the driver has no call for by the same doublings.

use core::ptr::{self, NonNull};
use core::slice;

use super::bytes::aligned;
use super::{Address, Copy};
use crate::{DeviceBytes, Error, Result};

/// A fill of `count` elements of `size` bytes.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// // Elements of 1, 2, 4, 8 or 16 bytes take one fill; others are copied once and doubled.
/// let mut points = GpuBuffer::<[f32; 4]>::new(Device::new(&backend, 0), 1000)?;
/// points.fill([0.0, 0.0, 0.0, 1.0])?;
/// assert_eq!(backend.counters().fills.count, 1);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// First element, aligned to `size`, or at any address if that is 16.
    pub to: Address,
    /// Element, in the low bytes.
    pub pattern: u128,
    /// Bytes of an element: 1, 2, 4, 8 or 16.
    pub size: u8,
    /// Number of elements.
    pub count: u64,
}

/// The operations that fill a place with an element.
pub(crate) enum FillSteps<C> {
    /// One operation.
    Fill(Fill),
    /// A copy of so many bytes, the element, from the host to the start. Then, in order, copies within the place.
    Copies(u64, C),
}

/// The operations that fill `count` elements at `to` with a value.
pub(crate) fn fill_steps<T: DeviceBytes>(to: Address, value: &T, count: u64) -> FillSteps<impl Iterator<Item = Copy> + use<T>> {
    let size = size_of::<T>() as u64;
    Fill::repeating(to, value, count).map_or_else(|| FillSteps::Copies(size, to.doublings(size, count)), FillSteps::Fill)
}

const fn takes(size: usize) -> bool {
    matches!(size, 1 | 2 | 4 | 8 | MOST)
}

/// The alignment that a fill needs, 1 for elements of 16 bytes: most are arrays of shorter ones, such as four `f32`, and aligned as these.
pub(crate) const fn alignment(size: usize) -> usize {
    if takes(size) && size < MOST { size } else { 1 }
}

/// The largest element, in bytes.
pub(crate) const MOST: usize = size_of::<u128>();

impl Fill {
    /// Returns a fill with copies of an element; compiles only for 1, 2, 4, 8 or 16 bytes.
    pub fn of<T: DeviceBytes>(to: Address, value: T, count: u64) -> Self {
        const { assert!(takes(size_of::<T>()), "a fill takes elements of 1, 2, 4, 8 or 16 bytes") };
        let mut bytes = [0; MOST];
        // SAFETY: at most `MOST` bytes, initialised by the promise of `DeviceBytes`.
        unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes.as_mut_ptr(), size_of::<T>()) };
        Self { to, pattern: u128::from_le_bytes(bytes), size: size_of::<T>() as u8, count }
    }

    /// `None` unless the element has 1, 2, 4, 8 or 16 bytes, or repeats so many. Of 2, 4 or 8 it repeats only as many as its alignment, which a fill needs.
    fn repeating<T: DeviceBytes>(to: Address, value: &T, count: u64) -> Option<Self> {
        // SAFETY: initialised by the promise of `DeviceBytes`, and borrowed.
        let bytes = unsafe { slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        let repeats = |&size: &usize| bytes.len().is_multiple_of(size) && bytes.chunks(size).all(|chunk| chunk == &bytes[..size]);
        let size = match bytes.len() {
            size if takes(size) => size,
            _ => [1, 2, 4, 8, MOST].into_iter().filter(|&size| size <= align_of::<T>() || size == MOST).find(repeats)?,
        };
        let mut pattern = [0; MOST];
        pattern[..size].copy_from_slice(&bytes[..size]);
        let count = count.checked_mul((bytes.len() / size) as u64)?;
        Some(Self { to, pattern: u128::from_le_bytes(pattern), size: size as u8, count })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.size as u64)
    }

    pub(crate) fn check_size(&self) -> Result<()> {
        if takes(self.size.into()) {
            return Ok(());
        }
        Err(Error::Unsupported { what: "a fill whose element size is not 1, 2, 4, 8 or 16 bytes" })
    }

    /// Checks the alignment of its first element, whose address may be another than `to`.
    pub(crate) fn check_alignment(&self, first: u64) -> Result<()> {
        aligned(first, self.bytes(), alignment(self.size.into()) as u64)
    }
}

impl Address {
    /// Returns the copies that spread the first of `count` elements over the others: as many as `count` has doublings, rounded up.
    ///
    /// Each copy reads right before its target. So if one fails, and its target becomes invalid, the next ones read invalid elements and fail too.
    pub(crate) fn doublings(self, size: u64, count: u64) -> impl Iterator<Item = Copy> {
        let written = move |step: u32| count.div_ceil(1 << step);
        (0..count.next_power_of_two().trailing_zeros()).rev().map(move |step| {
            let (before, after) = (written(step + 1), written(step));
            let len = after - before;
            Copy { to: self.further(before * size), from: self.further((before - len) * size), bytes: len * size }
        })
    }
}

/// # Safety
///
/// At `place`, `fill.count` elements of `fill.size` bytes (1, 2, 4, 8 or 16) are aligned as [`Fill::to`], writable and exclusive; `fill.to` is not used.
pub(crate) unsafe fn filled(place: NonNull<u8>, fill: &Fill) {
    let Fill { pattern, size, count, .. } = *fill;
    // SAFETY: the caller promises `count` writable and exclusive elements of `size` bytes, aligned but for those of 16, for which an array of bytes stands.
    unsafe {
        match size {
            1 => place.write_bytes(pattern as u8, count as usize),
            2 => repeat(place.as_ptr().cast(), (pattern as u16).to_le(), count),
            4 => repeat(place.as_ptr().cast(), (pattern as u32).to_le(), count),
            8 => repeat(place.as_ptr().cast(), (pattern as u64).to_le(), count),
            _ => repeat(place.as_ptr().cast(), pattern.to_le_bytes(), count),
        }
    }
}

/// # Safety
///
/// At `first`, `count` elements are aligned, writable and exclusive.
unsafe fn repeat<T: core::marker::Copy>(first: *mut T, value: T, count: u64) {
    for i in 0..count as usize {
        // SAFETY: the caller promises `count` aligned and writable elements, and `i` is below it.
        unsafe { first.add(i).write(value) };
    }
}
