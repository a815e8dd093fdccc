//! A multi-producer single-consumer queue with a sequence number in each slot. Lock-free.
//!
//! 1. Order, producers and the effects of stalled handles are those of an [MPMC ring](crate::ring::mpmc).
//! 2. The single consumer uses no compare-exchange, and reads messages in place.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::mpsc::Ring;
//! let mut ring = Ring::<u64, 8>::new();
//! let (mut producer, mut consumer) = ring.split();
//! let mut other = producer.clone();
//! producer.push(7).unwrap();
//! other.push(8).unwrap();
//! assert_eq!((consumer.pop(), consumer.pop()), (Ok(7), Ok(8)));
//! ```

use core::ptr::NonNull;

use super::mpmc::ManyProducer;
pub use super::mpmc::{BatchProducer, Grant, SystemAtomics};
use super::{RingFlags, RingLayout, kind};
use crate::attach::AttachError;
use crate::{Machine, RingMessage};

super::alias::host! { mpsc, boxed }
pub use super::error::{PopError, PushError, ReserveError};
super::alias::one_consumer! { Mpsc, "mpsc" }
super::alias::many_producers! { ManyProducer: MPSC, "mpsc" }

/// Writes an empty MPSC ring of `T` that begins at `start`.
///
/// # Errors
///
/// As [`mpmc::format`](crate::ring::mpmc::format).
///
/// # Safety
///
/// As [`mpmc::format`](crate::ring::mpmc::format).
pub unsafe fn format<T: RingMessage, M: Machine>(base: NonNull<u8>, len: u64, layout: &RingLayout, start: u64) -> Result<(), AttachError> {
    layout.expect(RingFlags::MPSC)?;
    // SAFETY: the caller promises that `len` bytes are initialised and valid for reads and writes, and that nothing is attached; the layout
    // is of this kind.
    unsafe { kind::format::<T, M>(base, len, layout, start) }
}
