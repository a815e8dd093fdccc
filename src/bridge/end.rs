//! [`NearEnd`]: the bridge's end of a host's ring.

use std::sync::Arc;

use super::far::Line;
use super::near::Near;
use crate::attach::Corrupt;
use crate::ring::spsc::{Consumer, Producer};
use crate::{Host, Result, RingMessage, Word};

pub(super) trait NearEnd: Sized {
    type Message: RingMessage;
    const TO_DEVICE: bool;
    const THEIRS: Line = if Self::TO_DEVICE { Line::Head } else { Line::Tail };
    const OURS: Line = if Self::TO_DEVICE { Line::Tail } else { Line::Head };

    /// # Safety
    ///
    /// As [`Near::producer`].
    unsafe fn attach(near: &Arc<Near>) -> Result<Self>;
    fn announced(self) -> Self;
    fn capacity(&self) -> u64;
    fn index(&self) -> u64;
    fn usable(&self) -> u64;
    fn refresh(&mut self) -> Result<(), Corrupt>;
    /// # Safety
    ///
    /// Usable, and no longer accessed by this end.
    unsafe fn pass(&mut self, count: u64);
}

macro_rules! near_end {
    ($end:ident, $to_device:literal, $attach:ident, $index:ident, $usable:ident) => {
        impl<T: RingMessage> NearEnd for $end<'static, T, Host> {
            type Message = T;
            const TO_DEVICE: bool = $to_device;
            unsafe fn attach(near: &Arc<Near>) -> Result<Self> {
                // SAFETY: the caller's promise.
                unsafe { near.$attach() }
            }
            fn announced(self) -> Self {
                self.announce()
            }
            fn capacity(&self) -> u64 {
                self.capacity() as u64
            }
            fn index(&self) -> u64 {
                self.$index()
            }
            fn usable(&self) -> u64 {
                self.$usable() as u64
            }
            fn refresh(&mut self) -> Result<(), Corrupt> {
                self.refresh().map(drop)
            }
            unsafe fn pass(&mut self, count: u64) {
                // SAFETY: usable: the caller's promise.
                unsafe { self.advance(count) };
                // SAFETY: this end uses no slots before its index: the caller's promise.
                let (word, index) = unsafe { self.publication() };
                // SYNC POINT: slot published, slot released. Pairs with Producer::poll and Consumer::poll.
                word.store_release(index);
            }
        }
    };
}
near_end!(Consumer, true, consumer, head, available);
near_end!(Producer, false, producer, tail, free);
