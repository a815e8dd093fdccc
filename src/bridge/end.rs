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
    /// The far ring's index that the kernel writes.
    const THEIRS: Line = if Self::TO_DEVICE { Line::Head } else { Line::Tail };
    /// The far ring's index that the bridge writes.
    const OURS: Line = if Self::TO_DEVICE { Line::Tail } else { Line::Head };

    /// # Safety
    ///
    /// As of [`Near::producer`].
    unsafe fn attach(near: &Arc<Near>) -> Result<Self>;
    fn announced(self) -> Self;
    fn capacity(&self) -> u64;
    fn index(&self) -> u64;
    /// Usable slots, as last polled.
    fn usable(&self) -> u64;
    /// Polls the other end's index.
    fn refresh(&mut self) -> Result<u64, Corrupt>;
    /// # Safety
    ///
    /// The slots are usable, and no access of this end to them is outstanding.
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
                self.capacity()
            }
            fn index(&self) -> u64 {
                self.$index()
            }
            fn usable(&self) -> u64 {
                self.$usable()
            }
            fn refresh(&mut self) -> Result<u64, Corrupt> {
                self.refresh()
            }
            unsafe fn pass(&mut self, count: u64) {
                // SAFETY: usable, by the caller's promise.
                unsafe { self.advance(count) };
                // SAFETY: this end no longer uses the slots before its index, by the caller's promise.
                let (word, index) = unsafe { self.publication() };
                // SYNC POINT: slot published, slot released. Pairs with Producer::poll and Consumer::poll.
                word.store_release(index);
            }
        }
    };
}
near_end!(Consumer, true, consumer, head, available);
near_end!(Producer, false, producer, tail, free);
