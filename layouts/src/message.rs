//! [`RingMessage`]: types that a shared ring can carry, and [`BufferReference`]: one for a part of a buffer.
//!
//! For a message of fixed size, derive [`SharedLayout`](crate::SharedLayout) with `#[layout(message = N)]`; for bytes of any length, see
//! [`ring::framed`](crate::ring::framed).

#[cfg(feature = "bytemuck")]
mod pod;
mod reference;

#[cfg(feature = "bytemuck")]
pub use pod::PodMessage;
pub use reference::{BufferReference, ReferenceError, ReferenceFlags};

use crate::DeviceBytes;

/// A message of a ring shared with a kernel or another process.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{RingMessage, SharedLayout};
///
/// #[derive(Clone, Copy, SharedLayout)]
/// #[repr(C)]
/// #[layout(message = 7)]
/// struct Tick { price: f64, volume: u64 }
///
/// assert_eq!(Tick::KIND, 7);
/// ```
///
/// Types with invalid byte patterns are refused:
///
/// ```compile_fail
/// # use ringmem_layouts as ringmem;
/// # use ringmem::RingMessage;
/// impl RingMessage for bool { const KIND: u64 = 1; } // not every byte is a bool
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message of a shared ring",
    note = "a message is a struct that derives `SharedLayout` with `#[layout(message = N)]`, a number, or an array of these"
)]
pub trait RingMessage: DeviceBytes {
    /// Distinguishes messages of equal layout: unique and stable among the messages of a program. Numbers have 0. Checked on attach.
    const KIND: u64;
}

macro_rules! untyped {
    ($($type:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl RingMessage for $type { const KIND: u64 = 0; }
    )*};
}
untyped!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// The kind of its element; the ABI hash distinguishes lengths.
#[diagnostic::do_not_recommend]
impl<T: RingMessage, const N: usize> RingMessage for [T; N] {
    const KIND: u64 = T::KIND;
}
