//! What may travel through a ring that another agent shares, and the envelope it may travel in.

#[cfg(feature = "checksum")]
mod checksum;
mod error;
mod header;
mod reference;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(feature = "checksum")]
pub use checksum::crc32c;
pub use error::HeaderError;
pub use header::{Flags, MAGIC, MessageHeader, Priority};
pub use reference::{BufferReference, ReferenceError, ReferenceFlags};

use crate::Layout;

/// A payload that both sides understand: any bytes are valid, none are padding, the layout is described.
///
/// Safe to implement, because zerocopy's derives have already refused whatever would make it unsafe:
///
/// ```
/// use ringmem_layouts::{RingMessage, layout_table};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
/// #[repr(C)]
/// struct Tick { price: f64, volume: u64 }
/// layout_table! {
///     Tick: size 16, align 8;
///     0 price: f64, "the feed";
///     8 volume: u64, "the feed";
/// }
/// impl RingMessage for Tick { const KIND: u64 = 7; }
/// ```
///
/// ```compile_fail
/// # use ringmem_layouts::RingMessage;
/// impl RingMessage for bool { const KIND: u64 = 1; } // not every byte is a bool
/// ```
pub trait RingMessage: FromBytes + IntoBytes + Immutable + KnownLayout + Layout + Copy + Send + 'static {
    /// Tells messages of equal layout apart; stored in the ring's header and checked at attach.
    const KIND: u64;
}

macro_rules! untyped {
    ($($type:ty),*) => {$(
        /// A bare number: kind 0.
        impl RingMessage for $type { const KIND: u64 = 0; }
    )*};
}
untyped!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// An array of messages is of its element's kind; the ABI hash tells the lengths apart.
impl<T: RingMessage, const N: usize> RingMessage for [T; N] {
    const KIND: u64 = T::KIND;
}
