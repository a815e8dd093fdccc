//! A multi-producer multi-consumer queue with a sequence number in each slot. Lock-free.
//!
//! 1. Every value is popped once, in the order of claims, and so in each producer's order.
//! 2. `push` and `pop` return at once if the ring is full or empty, and retry only if another handle claimed the slot first, or gave it up.
//! 3. [`Producer::push_slice`], [`Producer::reserve`] and [`Consumer::take`] claim several slots with one compare-exchange.
//! 4. When the last handle of an end is dropped, the end is closed.
//!
//! # Effects of a stalled handle
//!
//! A producer that stops between claim and publish blocks messages *after* its slots: consumers find the ring empty. A consumer that stops between claim and
//! release makes the ring full one lap later. No handle spins on a stalled one. A killed thread, a forgotten grant with unwritten slots, or a forgotten batch
//! or [`Taken`], stalls the ring permanently. A *dropped* grant gives up its unwritten slots, which count in `len` until consumers skip them.
//!
//! Between CPU and GPU, compare-exchanges need [`SystemAtomics`].
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::mpmc::Ring;
//! static RING: Ring<u64, 8> = Ring::new();
//! let (mut producer, mut consumer) = RING.split();
//! producer.clone().push(7).unwrap();
//! producer.push(8).unwrap();
//! assert_eq!((consumer.pop(), consumer.clone().pop()), (Ok(7), Ok(8)));
//! ```

mod consumer;
mod grant;
mod handle;
mod producer;

use core::ptr::NonNull;

pub use consumer::{Consumer, Taken};
pub use grant::{BatchProducer, Grant};
pub use handle::Handle;
pub use producer::ManyProducer;

pub use super::kind::SystemAtomics;
use super::{RingFlags, RingLayout, kind};
use crate::attach::AttachError;
use crate::{Machine, RingMessage};

super::alias::host! { mpmc, boxed }
pub use super::error::{PopError, PushError, ReserveError};
super::alias::many_producers! { ManyProducer: MPMC, "mpmc" }

/// Writes an empty MPMC ring of `T` that begins at `start`.
///
/// # Errors
///
/// [`AttachError`] if the memory is misaligned or too small, or `layout` is another ring's.
///
/// # Safety
///
/// `len` bytes at `base` are valid for reads and writes and initialised, and nothing is attached to them.
pub unsafe fn format<T: RingMessage, M: Machine>(base: NonNull<u8>, len: u64, layout: &RingLayout, start: u64) -> Result<(), AttachError> {
    layout.expect(RingFlags::MPMC)?;
    // SAFETY: the caller promises that `len` bytes are initialised and valid for reads and writes, and that nothing is attached; the layout
    // is of this kind.
    unsafe { kind::format::<T, M>(base, len, layout, start) }
}
