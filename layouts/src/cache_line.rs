use core::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{Field, Layout, LayoutDescriptor, check};

/// A `T` that shares no cache line: aligned to [`LINES`](crate::align::LINES), 128 bytes, and padded to a multiple of them.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::CacheLineAligned;
/// let mut counter = CacheLineAligned::new(7_u64);
/// *counter += 1;
/// assert_eq!(counter.into_inner(), 8);
/// assert_eq!(size_of::<CacheLineAligned<[u8; 129]>>(), 256);
/// ```
///
/// It is [`DeviceBytes`](crate::DeviceBytes) only for arrays of numbers that fill 128, 256, 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
pub struct CacheLineAligned<T>(T);

impl<T> CacheLineAligned<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value.
    pub const fn get(&self) -> &T {
        &self.0
    }

    /// Returns the value mutably.
    pub const fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }

    /// Unwraps the value.
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

macro_rules! whole_lines {
    ($($lines:literal),+: $number:ty) => {$(
        // SAFETY: the layout of the array, which fills the struct: checked below.
        #[diagnostic::do_not_recommend]
        unsafe impl Layout for CacheLineAligned<[$number; $lines * 128 / size_of::<$number>()]> {
            const DESCRIPTOR: LayoutDescriptor = {
                type Array = [$number; $lines * 128 / size_of::<$number>()];
                check::no_padding("CacheLineAligned", "value", size_of::<Array>(), size_of::<Self>());
                LayoutDescriptor::of::<Self>("CacheLineAligned", &[Field {
                    name: "value",
                    offset: 0,
                    size: size_of::<Array>(),
                    type_name: stringify!([$number; $lines * 128 / size_of::<$number>()]),
                    type_hash: Array::DESCRIPTOR.hash,
                    layout: &Array::DESCRIPTOR,
                    writer: "",
                }])
            };
        }
        const _: LayoutDescriptor = <CacheLineAligned<[$number; $lines * 128 / size_of::<$number>()]> as Layout>::DESCRIPTOR;
    )+};
    ($($number:ty)+) => { $(whole_lines!(1, 2, 4, 8, 16, 32: $number);)+ };
}
whole_lines!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

const _: () = {
    assert!(align_of::<CacheLineAligned<u8>>() == 128 && size_of::<CacheLineAligned<u8>>() == 128);
    assert!(size_of::<CacheLineAligned<u64>>() == 128);
    assert!(size_of::<CacheLineAligned<[u8; 129]>>() == 256);
};
static_assertions::assert_impl_all!(CacheLineAligned<[u8; 128]>: crate::DeviceBytes);
static_assertions::assert_not_impl_any!(CacheLineAligned<u64>: Layout);
static_assertions::assert_not_impl_any!(CacheLineAligned<[u8; 129]>: Layout);
