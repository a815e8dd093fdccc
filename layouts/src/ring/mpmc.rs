//! A multi-producer multi-consumer queue with a sequence number in each slot. Lock-free.
//!
//! 1. Every value is popped once. Messages leave in the order of their claims: those of one producer in its order.
//! 2. Lock-free: `push` and `pop` return at once if the ring is full or empty, and retry only if another handle won. Slots that were given up are
//!    skipped at most once each.
//! 3. Several slots are claimed with one compare-exchange: [`Producer::push_slice`], [`Producer::reserve`], [`Consumer::take`].
//! 4. An end without handles is closed, and the other end's `is_disconnected` returns true.
//!
//! It does not wait or wake.
//!
//! # Effects of a stalled handle
//!
//! A producer that stops between claim and publish blocks the messages *after* its slots: consumers find the ring empty there. Producers continue
//! until the ring is full. A consumer that stops between claim and release blocks the producers one lap later, at its slots: they find the ring
//! full there. No handle spins on a stalled one, and all continue when it does. A handle that never continues (killed thread, forgotten grant or
//! batch) stalls the ring permanently. A grant that is *dropped*, also by a panic, gives its unwritten slots up: consumers skip them. Until then
//! they take up room and count in `len`.
//!
//! # Orderings
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | slot published | the store of the slot's word by its producer | the load of it by a consumer |
//! | slot released | the store of the slot's word by its consumer | the load of it by a producer |
//! | end closed | the exchange of `owner` by the last handle | the load of it in `is_disconnected` |
//!
//! Claims order nothing: they only assign slots.
//!
//! Compare-exchanges are atomic within one coherence domain: across a bus between CPU and GPU they need the hardware's promise, which is
//! [`SystemAtomics`].
//!
//! ```
//! use ringmem_layouts::ring::mpmc::Ring;
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

super::alias::rings! { Mpmc, WordSlot, "mpmc" }
super::alias::many_producers! { MPMC, "mpmc" }

/// Writes an empty MPMC ring of `T` whose indices begin at `start` into memory: the header, and the word of each slot.
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
    // SAFETY: the caller's promise.
    unsafe { kind::format::<T, M>(base, len, layout, start) }
}
