//! [`Near`]: the host's ring of a pair, in pinned memory; and the ends that its users have.

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use ringmem_layouts::ring::{Bells, End, Pop, Push};

use crate::attach::Corrupt;
use crate::backend::{Backend, MemoryLocation, Place};
use crate::memory::Pages;
use crate::ring::spsc::{self, BatchConsumer, BatchProducer, PopError, PushError};
use crate::{Error, Host, HostWord, Result, RingHeader, RingLayout, RingMessage};

/// A ring in pinned memory, header and slots in one piece.
pub(super) struct Near {
    pub pages: Pages,
    // INVARIANT: `layout.size()` bytes of `pages`, in which a ring was formatted.
    base: NonNull<u8>,
    pub layout: RingLayout,
}

// SAFETY: a pointer into memory that it owns, which is shared by the ring's protocol.
unsafe impl Send for Near {}
// SAFETY: as above.
unsafe impl Sync for Near {}

impl Near {
    pub fn new<T: RingMessage>(backend: &Arc<dyn Backend>, device: u32, capacity: u64, start: u64) -> Result<Self> {
        let layout = RingLayout::of::<T>(capacity)?;
        let pages = Pages::new(backend, device, MemoryLocation::Pinned, layout.size())?;
        let base = pages.host().ok_or(Error::Unsupported { what: "pinned memory at an address of the host" })?;
        // SAFETY: as long as the layout and aligned to a page; nobody else knows of it.
        unsafe { base.cast::<RingHeader<HostWord>>().as_ref().format::<T>(&layout, start) };
        Ok(Self { pages, base, layout })
    }

    pub fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: the invariant; headers are words.
        unsafe { self.base.cast().as_ref() }
    }

    /// Where the slot of an index is.
    pub fn slot(&self, index: u64) -> Place {
        let offset = self.layout.slots_offset() + (index & (self.layout.capacity() - 1)) * self.layout.slot_size();
        // SAFETY: a slot of the ring, within by the invariant.
        Place::Host(unsafe { self.base.add(offset as usize) })
    }

    /// # Safety
    ///
    /// Called once for a ring whose producer is needed.
    pub unsafe fn producer<T: RingMessage>(self: &Arc<Self>) -> Result<spsc::Producer<'static, T, Host>> {
        // SAFETY: the invariant; the only producer, by the caller's promise. Whoever asks keeps the `Arc` beside it.
        Ok(unsafe { spsc::Producer::from_raw(self.base, self.layout.size()) }?.announce())
    }

    /// # Safety
    ///
    /// Called once for a ring whose consumer is needed.
    pub unsafe fn consumer<T: RingMessage>(self: &Arc<Self>) -> Result<spsc::Consumer<'static, T, Host>> {
        // SAFETY: as in `producer`.
        Ok(unsafe { spsc::Consumer::from_raw(self.base, self.layout.size()) }?.announce())
    }
}

/// The end that gives messages to a bridge.
pub struct Sender<T: RingMessage> {
    // INVARIANT: 'static stands for as long as `_ring`, which is dropped after it, and no reference to the memory leaves this type.
    end: spsc::Producer<'static, T, Host>,
    _ring: Arc<Near>,
}

/// The end that takes what a bridge has brought.
pub struct Receiver<T: RingMessage> {
    // INVARIANT: as in `Sender`.
    end: spsc::Consumer<'static, T, Host>,
    _ring: Arc<Near>,
}

impl<T: RingMessage> Sender<T> {
    /// # Safety
    ///
    /// Called once for a ring.
    pub(super) unsafe fn new(ring: &Arc<Near>) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self { end: unsafe { ring.producer() }?, _ring: Arc::clone(ring) })
    }

    /// Pushes a message; never waits.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the message.
    #[inline]
    pub fn push(&mut self, message: T) -> Result<(), PushError<T>> {
        self.end.push(message)
    }

    /// Pushes as many as fit, from the first; how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was taken.
    pub fn push_slice(&mut self, messages: &[T]) -> Result<usize, Corrupt> {
        self.end.push_slice(messages)
    }

    /// Pushes without publishing each message: see [`spsc::Producer::batch`].
    pub fn batch(&mut self, every: u64) -> BatchProducer<'_, 'static, T, Host> {
        self.end.batch(every)
    }

    /// Slots that are free now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the other index claims what cannot be.
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        self.end.refresh()
    }

    /// Index of the next message.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.end.tail()
    }

    /// Slots in all.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.end.capacity()
    }

    /// Whether the bridge is gone: nobody takes messages any more. Always `false` where the device itself does.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
}

impl<T: RingMessage> Receiver<T> {
    /// # Safety
    ///
    /// Called once for a ring.
    pub(super) unsafe fn new(ring: &Arc<Near>) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self { end: unsafe { ring.consumer() }?, _ring: Arc::clone(ring) })
    }

    /// Pops a message; never waits.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        self.end.pop()
    }

    /// Pops as many as wait and fit; how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was popped.
    pub fn pop_slice(&mut self, messages: &mut [T]) -> Result<usize, Corrupt> {
        self.end.pop_slice(messages)
    }

    /// Pops without releasing each slot: see [`spsc::Consumer::batch`].
    pub fn batch(&mut self, every: u64) -> BatchConsumer<'_, 'static, T, Host> {
        self.end.batch(every)
    }

    /// Messages that wait now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the other index claims what cannot be.
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        self.end.refresh()
    }

    /// Index of the next message.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.end.head()
    }

    /// Slots in all.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.end.capacity()
    }

    /// Whether the bridge is gone: what it brought can still be popped. Always `false` where the device itself brings it.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
}

macro_rules! ends {
    ($($end:ident, $trait:ident $operation:ident($($argument:ident)?) -> $result:ty, $theirs:ident;)+) => {$(
        impl<T: RingMessage> End for $end<T> {
            type Word = HostWord;
            fn bells(&self) -> Bells<'_, HostWord> {
                self.end.bells()
            }
            fn is_disconnected(&self) -> bool {
                self.end.is_disconnected()
            }
            fn leave(self, after: impl FnOnce(&HostWord)) {
                let Self { end, _ring: ring } = self;
                drop(end);
                after(&ring.header().$theirs.waiting);
            }
        }
        impl<T: RingMessage> $trait for $end<T> {
            type Item = T;
            fn $operation(&mut self $(, $argument: T)?) -> $result {
                self.end.$operation($($argument)?)
            }
        }
        impl<T: RingMessage> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).field("capacity", &self.capacity()).finish_non_exhaustive()
            }
        }
    )+};
}
ends! {
    Sender, Push push(value) -> Result<(), PushError<T>>, producer;
    Receiver, Pop pop() -> Result<T, PopError>, consumer;
}
