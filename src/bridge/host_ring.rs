//! [`HostRing`]: the host's ring of one direction, and the bridge's end of it, [`HostEnd`].
//!
//! 1. Each end exists once: a user's [`Sender`](super::Sender) or [`Receiver`](super::Receiver), and the bridge's [`HostEnd`] or, in a shared ring, the
//!    kernel's.
//! 2. The memory lives as long as the last end, and as the last queued operation that uses it.
//! 3. A thread that sleeps at the ring is woken after a publication that it has not seen ([`WakeFlag`]).

use core::ptr::NonNull;
use std::sync::Arc;

use ringmem_layouts::Word;
use ringmem_layouts::ring::RingFlags;

use super::device_ring::Line;
use crate::attach::Corrupt;
use crate::backend::{Address, Backend, MemoryLocation};
use crate::dump::Indices;
use crate::memory::Pages;
use crate::ring::flagged;
use crate::ring::spsc::{self, Consumer, Producer};
use crate::sys::barrier::{Barrier, System};
use crate::sys::fork::Process;
use crate::wait::wake_sleepers;
use crate::{Error, Host, HostWord, Result, RingHeader, RingLayout, RingMessage};

/// Attempts to read both indices of a ring with flags at one moment; after that, the tail may be that of an earlier one.
const INDEX_TRIES: u32 = 16;

/// A ring in pinned memory, between the user's end and the bridge; in a shared ring, between the user's end and the kernel.
pub(super) struct HostRing {
    pub pages: Pages,
    // INVARIANT: `layout.size()` bytes of `pages`, formatted as a ring.
    base: NonNull<u8>,
    pub layout: RingLayout,
    /// Whether a publication must check for a sleeping user's end.
    wake_flag: WakeFlag<HostWord>,
    process: Process,
}

// SAFETY: owned memory, shared by the ring's protocol.
unsafe impl Send for HostRing {}
// SAFETY: owned memory, shared by the ring's protocol.
unsafe impl Sync for HostRing {}

impl HostRing {
    pub fn new<T: RingMessage>(backend: &Arc<dyn Backend>, device: u32, kind: RingFlags, capacity: u64, start: u64) -> Result<Self> {
        let layout = RingLayout::of_kind::<T>(kind, capacity)?;
        let pages = Pages::new(backend, device, MemoryLocation::Pinned, layout.size())?;
        let base = pages.host().ok_or(Error::Unsupported { what: "pinned memory at a caller's host address" })?;
        // SAFETY: long enough, page-aligned, zeroed, not shared yet.
        unsafe { base.cast::<RingHeader<HostWord>>().as_ref().format::<T>(&layout, start) };
        System::prepare();
        Ok(Self { pages, base, layout, wake_flag: WakeFlag::new(), process: Process::this() })
    }

    /// False in a forked process: a driver's pinned memory is not mapped there, so even a drop must not access it.
    pub fn is_here(&self) -> bool {
        self.process.is_this()
    }

    pub fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: by the invariant a formatted ring begins at `base`; its header consists of words.
        unsafe { self.base.cast().as_ref() }
    }

    /// Reads both indices without taking an end; in a forked process, they are 0. A ring with flags stores only the consumer's index: its tail is found by
    /// counting flags from there.
    pub fn indices<T: RingMessage>(&self) -> Indices {
        if !self.is_here() {
            return Indices { head: 0, tail: 0, capacity: self.layout.capacity() };
        }
        let seen = Indices::of(self.header());
        if self.layout.kind() != RingFlags::FLAGGED {
            return seen;
        }
        let mut found = seen;
        for _ in 0..INDEX_TRIES {
            // SAFETY: by the invariant a formatted ring of this size begins at `base`; this end only counts, and announces nothing.
            let Ok(ring) = (unsafe { flagged::Consumer::<T, Host>::from_raw(self.base, self.layout.size()) }) else { break };
            // If the consumer's index has moved meanwhile, the counted flags may belong to another lap.
            found = Indices { head: ring.head(), tail: ring.head().wrapping_add(ring.len() as u64), ..seen };
            if Indices::of(self.header()).head == found.head {
                break;
            }
        }
        found
    }

    /// Returns the header's address.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn slots(&self) -> NonNull<u8> {
        // SAFETY: by the invariant `layout.size()` bytes begin at `base`, so the offset of the slots is within them.
        unsafe { self.base.add(self.layout.slots_offset() as usize) }
    }

    pub fn slot(&self, index: u64) -> Address {
        let offset = self.layout.slots_offset() + (index & (self.layout.capacity() - 1)) * self.layout.slot_size();
        // SAFETY: by the invariant `layout.size()` bytes begin at `base`, and a slot's index is below the capacity.
        Address::Host(unsafe { self.base.add(offset as usize) })
    }

    /// # Safety
    ///
    /// Only one of a ring's producers is used; others at most [announce](spsc::Producer::announce). The `Arc` is kept as long as the
    /// producer.
    pub unsafe fn producer<T: RingMessage>(self: &Arc<Self>) -> Result<spsc::Producer<'static, T, Host>> {
        // SAFETY: `base` has a ring's bytes by the invariant, as long as the `Arc`, which the caller promises to keep; it also promises
        // that only this producer is used.
        Ok(unsafe { spsc::Producer::from_raw(self.base, self.layout.size()) }?)
    }

    /// # Safety
    ///
    /// As [`producer`](Self::producer), for the ring's consumers.
    pub unsafe fn consumer<T: RingMessage>(self: &Arc<Self>) -> Result<spsc::Consumer<'static, T, Host>> {
        // SAFETY: `base` has a ring's bytes by the invariant, as long as the `Arc`, which the caller promises to keep; it also promises
        // that only this consumer is used.
        Ok(unsafe { spsc::Consumer::from_raw(self.base, self.layout.size()) }?)
    }

    /// Wakes both ends, for example because the bridge has left; none in a forked process.
    pub fn wake(&self) {
        if !self.is_here() {
            return;
        }
        let header = self.header();
        self.wake_at(&header.producer.waiting);
        self.wake_at(&header.consumer.waiting);
    }

    /// Wakes the threads that sleep at a wait word, after a publication.
    #[inline]
    pub fn wake_at(&self, wait_word: &HostWord) {
        if self.wake_flag.has_sleepers::<System>() {
            wake_sleepers(wait_word);
        }
    }

    /// Announces that the caller may sleep at a wait word of this ring.
    #[inline]
    pub fn expect_sleepers(&self) {
        self.wake_flag.raise::<System>();
    }
}

/// The bridge's end of a host ring: the consumer of messages to the device, or the producer of messages to the host.
pub(super) trait HostEnd: Sized {
    type Message: RingMessage;
    const TO_DEVICE: bool;
    /// The index of the device ring that the kernel writes.
    const THEIRS: Line = if Self::TO_DEVICE { Line::Head } else { Line::Tail };
    /// The index of the device ring that the bridge writes.
    const OURS: Line = if Self::TO_DEVICE { Line::Tail } else { Line::Head };

    /// # Safety
    ///
    /// As [`HostRing::producer`].
    unsafe fn attach(ring: &Arc<HostRing>) -> Result<Self>;
    /// Marks the end as present: until it is dropped, the user's end is not disconnected.
    fn announced(self) -> Self;
    /// Lets the drop access nothing.
    fn abandon(&mut self);
    fn capacity(&self) -> u64;
    /// The end's own index.
    fn index(&self) -> u64;
    /// Slots between the own index and the other end's, as last refreshed: messages to copy, or slots to copy into.
    fn usable(&self) -> u64;
    fn refresh(&mut self) -> Result<(), Corrupt>;
    /// Passes slots to the user's end: releases copied messages, or publishes arrived ones.
    ///
    /// # Safety
    ///
    /// The slots are usable, and this end accesses them no longer.
    unsafe fn pass(&mut self, count: u64);
}

macro_rules! host_end {
    ($end:ident, $to_device:literal, $attach:ident, $index:ident, $usable:ident) => {
        impl<T: RingMessage> HostEnd for $end<'static, T, Host> {
            type Message = T;
            const TO_DEVICE: bool = $to_device;
            unsafe fn attach(ring: &Arc<HostRing>) -> Result<Self> {
                // SAFETY: the caller promises that only this end of its side is used and that the `Arc` is kept; `producer` and `consumer`
                // require the same.
                unsafe { ring.$attach() }
            }
            fn announced(self) -> Self {
                self.announce()
            }
            fn abandon(&mut self) {
                self.abandon();
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
                // SAFETY: the caller promises that the slots are usable.
                unsafe { self.advance(count) };
                // SAFETY: the caller promises that this end accesses no slots before its index.
                let (word, index) = unsafe { self.publication() };
                // SYNC POINT: slot published, slot released. Pairs with Producer::poll and Consumer::poll.
                word.store_release(index);
            }
        }
    };
}
host_end!(Consumer, true, consumer, head, available);
host_end!(Producer, false, producer, tail, free);

/// Whether a thread may sleep at a ring's wait word.
///
/// Only a thread that has borrowed the wait words can sleep. Until the first borrow, a publication skips `wake_sleepers`: its fence would wait until
/// all copied slots before it are visible, which costs more than the rest of a flush.
///
/// | value | meaning | a publication |
/// |---|---|---|
/// | `NEVER` | no thread has borrowed the wait words | does not look for sleepers |
/// | `REQUESTED` | a borrower runs the process-wide barrier | looks for sleepers |
/// | `RAISED` | that barrier is complete | looks for sleepers; later borrowers need no barrier |
///
/// The borrower stores `REQUESTED`, runs the barrier, and only then checks the ring and sleeps. The publisher stores the index, then loads this flag. The
/// process-wide barrier (`seldom`) orders one side's store before the other's load, so either the borrower sees the message or the publisher sees the
/// flag; `often` is the publisher's half, a compiler fence where the system has that barrier. With the steps swapped on either side, a wake-up is lost.
pub(super) struct WakeFlag<W>(W);

const NEVER: u64 = 0;
const REQUESTED: u64 = 1;
const RAISED: u64 = 2;

impl<W: Word> WakeFlag<W> {
    pub fn new() -> Self {
        Self(W::new(NEVER))
    }

    #[inline]
    pub fn raise<B: Barrier>(&self) {
        // SYNC POINT: flag raised, by another thread. Pairs with raise_first.
        if self.0.load_acquire() != RAISED {
            self.raise_first::<B>();
        }
    }

    #[cold]
    fn raise_first<B: Barrier>(&self) {
        // SYNC POINT: flag requested. Pairs with has_sleepers: the barriers put one side's store before the other's load.
        self.0.store(REQUESTED);
        // If the system refuses the barrier, the next call tries again. Until then a thread may be woken late, after its `LONGEST_SLEEP`.
        if B::seldom() {
            // SYNC POINT: flag raised. Pairs with raise.
            self.0.store_release(RAISED);
        }
    }

    /// Returns whether a thread that has not seen the publication before this call may be asleep.
    #[inline]
    pub fn has_sleepers<B: Barrier>(&self) -> bool {
        B::often();
        // SYNC POINT: flag requested. Pairs with raise_first.
        self.0.load() != NEVER
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::loom_machine::{LoomWord, STRONG};
    use crate::sys::barrier::tests::{Both, Weakened};

    fn scene<B: Barrier>() {
        loom::model(|| {
            let shared = Arc::new((WakeFlag::<LoomWord<STRONG>>::new(), LoomWord::<STRONG>::new(0)));
            let sleeper = |shared: Arc<(WakeFlag<LoomWord<STRONG>>, LoomWord<STRONG>)>| {
                move || {
                    shared.0.raise::<B>();
                    shared.1.load() == 1
                }
            };
            let sleepers = [thread::spawn(sleeper(Arc::clone(&shared))), thread::spawn(sleeper(Arc::clone(&shared)))];
            shared.1.store_release(1);
            let is_woken = shared.0.has_sleepers::<B>();
            for sleeper in sleepers {
                assert!(sleeper.join().unwrap() | is_woken, "asleep for ever");
            }
        });
    }

    #[test]
    fn a_sleeper_that_missed_a_publication_is_woken() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "asleep for ever")]
    fn without_the_publisher_barrier_a_wake_up_is_lost() {
        scene::<Weakened>();
    }
}
