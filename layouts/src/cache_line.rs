//! A value that shares its cache line with nothing.

use core::ops::{Deref, DerefMut};

/// Keeps `T` at the start of 128 bytes of its own: two lines of 64, because adjacent lines are fetched in pairs, or one of 128.
///
/// ```
/// use ringmem_layouts::CacheLineAligned;
/// let mut counter = CacheLineAligned::new(7_u64);
/// *counter += 1;
/// assert_eq!(counter.into_inner(), 8);
/// assert_eq!(size_of::<CacheLineAligned<[u8; 129]>>(), 256);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct CacheLineAligned<T>(T);

impl<T> CacheLineAligned<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value.
    pub const fn get(&self) -> &T {
        &self.0
    }

    /// The value, to change.
    pub const fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }

    /// The value, unwrapped.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for CacheLineAligned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CacheLineAligned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

const _: () = {
    assert!(align_of::<CacheLineAligned<u8>>() == 128 && size_of::<CacheLineAligned<u8>>() == 128);
    assert!(size_of::<CacheLineAligned<u64>>() == 128);
    assert!(size_of::<CacheLineAligned<[u8; 129]>>() == 256);
};
