#![cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]

use core::ptr::NonNull;

use super::{Consumer, Producer, Ring};
use crate::ring::BareSlot;
use crate::ring::kind::{Emptying, Filling};
use crate::ring::port::Port;
use crate::ring::slots::Slots;
use crate::{HostWord, Local};

impl<T, const N: usize> Ring<T, N> {
    /// Returns both ends of a new ring, also in the initial value of a `static`, unlike [`split`](super::RingIn::split), which borrows the ring
    /// exclusively.
    ///
    /// # Safety
    ///
    /// The ring is unchanged since [`new`](super::RingIn::new), and no other ends of it are made, before or later.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use std::sync::Mutex;
    ///
    /// use ringmem::Local;
    /// use ringmem::ring::spsc::{Consumer, Producer, Ring};
    ///
    /// type Ends = (Producer<'static, u32, Local>, Consumer<'static, u32, Local>);
    /// static ENDS: Mutex<Option<Ends>> = {
    ///     static RING: Ring<u32, 16> = Ring::new();
    ///     // SAFETY: nothing else names the ring.
    ///     Mutex::new(Some(unsafe { RING.split_const() }))
    /// };
    ///
    /// let (mut producer, mut consumer) = ENDS.lock().unwrap().take().unwrap();
    /// std::thread::spawn(move || producer.push(7).unwrap()).join().unwrap();
    /// assert_eq!(consumer.pop(), Ok(7));
    /// assert!(consumer.is_disconnected());
    /// ```
    #[must_use]
    pub const unsafe fn split_const(&'static self) -> (Producer<'static, T, Local>, Consumer<'static, T, Local>) {
        let slots = NonNull::from_ref(&self.slots).cast();
        // A new ring's indices are 0. They are not read: the compiler reads no other `static`.
        // SAFETY: the slots live as long as the ring, a power of two; the caller promises an unchanged ring, so both indices are 0, and no
        // other ends of it.
        unsafe { ends(Port::in_static(&self.header), Port::in_static(&self.header), slots, N as u64, 0, 0) }
    }
}

/// # Safety
///
/// As [`Producer::over`] and [`Consumer::over`], with the ring's own indices.
#[inline(always)]
pub(in crate::ring) const unsafe fn ends<'a, T>(
    to_fill: Port<'a, HostWord, true>,
    to_empty: Port<'a, HostWord, false>,
    slots: NonNull<BareSlot<T>>,
    capacity: u64,
    head: u64,
    tail: u64,
) -> (Producer<'a, T, Local>, Consumer<'a, T, Local>) {
    // SAFETY: the caller promises `capacity` valid slots for `'a`, a power of two that fits `usize`.
    let slots = unsafe { Slots::new(slots, capacity) };
    let producer = Producer { state: Filling::new(tail), port: to_fill, slots, tail, end: head.wrapping_add(capacity) };
    (producer, Consumer { state: Emptying::new(head, tail), port: to_empty, slots, head })
}
