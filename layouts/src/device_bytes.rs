use core::mem::MaybeUninit;
use core::slice;

use crate::Layout;
use crate::descriptor::check_tiles;

/// Plain bytes: every bit pattern is a valid value, without padding or pointers.
///
/// Numbers, arrays of them and `Copy` structs with [`SharedLayout`](crate::SharedLayout) implement it.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{DeviceBytes, SharedLayout};
///
/// #[derive(Clone, Copy, SharedLayout)]
/// #[repr(C)]
/// struct Pixel { red: u8, green: u8, blue: u8, alpha: u8 }
///
/// let mut pixel = Pixel { red: 1, green: 2, blue: 3, alpha: 4 };
/// assert_eq!(pixel.as_bytes(), [1, 2, 3, 4]);
/// pixel.as_bytes_mut()[1] = 200;
/// assert_eq!((pixel.green, Pixel::zeroed().alpha), (200, 0));
/// ```
///
/// The layouts that are generic over their word, such as `ControlBlock<u64>`, implement zerocopy's `FromBytes`, but not its `IntoBytes`: for a
/// generic struct, its derive requires fields without alignment. [`as_bytes`](Self::as_bytes) is the same view of them:
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{ControlBlock, DeviceBytes, RingHeader, TelemetryBuffer};
///
/// assert_eq!(ControlBlock::<u64>::zeroed().as_bytes(), [0; 128]);
/// assert_eq!(TelemetryBuffer::<u64>::zeroed().as_bytes(), [0; 64]);
/// assert_eq!(RingHeader::<u64>::zeroed().as_bytes(), [0; 384]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not plain bytes that host and device share",
    note = "derive `Clone`, `Copy` and `SharedLayout` for a struct; use an integer for an enum, `u8` for `bool`, `u32` for `char`, `u64` for `usize`"
)]
pub trait DeviceBytes: Layout + Copy + Send + Sync + 'static {
    /// Evaluating it checks that numbers fill the layout.
    #[doc(hidden)]
    const CHECKED: () = check_tiles(&Self::DESCRIPTOR);

    /// Returns the all-zero value.
    #[must_use]
    #[inline(always)]
    fn zeroed() -> Self {
        // SAFETY: by `Layout` any bytes are a valid value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// Returns the bytes of the value.
    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        const { Self::CHECKED };
        // SAFETY: `CHECKED` fails to evaluate if a byte is padding: all are initialised. A `Copy` type of numbers has no interior mutability.
        unsafe { slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// Returns the writable bytes of the value.
    #[inline(always)]
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        const { Self::CHECKED };
        // SAFETY: `CHECKED` fails to evaluate if a byte is padding, the value is borrowed mutably, and by `Layout` any bytes are a valid
        // value.
        unsafe { slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
    }

    /// Returns the bytes of values.
    #[inline(always)]
    fn slice_as_bytes(values: &[Self]) -> &[u8] {
        const { Self::CHECKED };
        // SAFETY: `CHECKED` fails to evaluate if a byte is padding: all bytes of the adjacent elements are initialised. They have no
        // interior mutability.
        unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }

    /// Returns the writable bytes of values.
    #[inline(always)]
    fn slice_as_bytes_mut(values: &mut [Self]) -> &mut [u8] {
        const { Self::CHECKED };
        // SAFETY: `CHECKED` fails to evaluate if a byte is padding, the adjacent elements are borrowed mutably, and by `Layout` any bytes
        // are valid values.
        unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
    }
}

impl<T: Layout + Copy + Send + Sync + 'static> DeviceBytes for T {}

static_assertions::assert_impl_all!(u8: DeviceBytes);
static_assertions::assert_impl_all!([[f32; 4]; 3]: DeviceBytes);
static_assertions::assert_impl_all!(crate::ControlBlock<u64>: DeviceBytes);
static_assertions::assert_not_impl_any!(crate::image::Abi: DeviceBytes);
