//! Many producers, many consumers, a word in each slot; no lock anywhere.
//!
//! 1. Everything pushed is popped once. Messages leave in the order of their claims: those of one producer in its order.
//! 2. Lock-free: `push` and `pop` return at once if the ring is full or empty, and try again only when another handle got ahead; slots that
//!    were given up are passed over once a slot at most, however many laps of them there are.
//! 3. A run of slots is claimed with one compare-exchange: [`Producer::push_slice`], [`Producer::reserve`], [`Consumer::take`].
//! 4. An end with no handle left is closed, and the other end's `is_disconnected` says so.
//!
//! It does not wait and does not wake.
//!
//! # What a stalled claimer holds up
//!
//! A producer that has claimed slots and stands still before it publishes them holds up every message *behind* them: consumers find the
//! ring empty there. Producers go on until the ring is full. A consumer that has claimed messages and stands still before it releases
//! their slots holds up the producers one lap later, at those slots: they find the ring full there. Nobody spins on a stalled handle,
//! and when it goes on, so does all the rest. One that will never go on (its thread was killed, its grant or batch was forgotten) has
//! stalled for good. A grant that is *dropped*, also by a panic, gives its unwritten slots up: consumers pass over them. Until one
//! has, they take up room and count in `len`.
//!
//! # Orderings
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | slot published | the store of the slot's word by its producer | the load of it by a consumer |
//! | slot released | the store of the slot's word by its consumer | the load of it by a producer |
//! | end closed | the exchange of `owner` by the last handle | the load of it in `is_disconnected` |
//!
//! Claims order nothing: they only say whose slot it is.
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

/// Claims slots, fills and publishes them. Clone it for another producer.
pub type Producer<'a, T, M> = ManyProducer<'a, T, M, { RingFlags::MPMC.bits() }>;

/// Writes an empty MPMC ring of `T` whose indices begin at `start` into memory: the header, and the word of each slot.
///
/// # Errors
///
/// [`AttachError`] if the memory is misaligned or too small, or `layout` is another ring's.
///
/// # Safety
///
/// `len` bytes at `base` are valid for reads and writes and initialised, and nobody is attached to them.
pub unsafe fn format<T: RingMessage, M: Machine>(base: NonNull<u8>, len: u64, layout: &RingLayout, start: u64) -> Result<(), AttachError> {
    layout.expect(RingFlags::MPMC)?;
    // SAFETY: the caller's promise.
    unsafe { kind::format::<T, M>(base, len, layout, start) }
}
