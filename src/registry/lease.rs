//! [`Lease`] and [`LeaseMut`]: a registered buffer, for as long as somebody has it.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use std::boxed::Box;

use super::slots::{Exclusive, Shared};
use super::stored::Stored;
use super::{BufferId, forked};
use crate::backend::{DeviceAddress, MemoryLocation, Ticket, Uses};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, SliceMut};
use crate::stream::Stream;
use crate::{DeviceBytes, Result};

/// A registered buffer, to read. It is neither moved nor freed nor written to until the last lease of it has been given back.
///
/// Borrowed from the registry; [`into_owned`](Self::into_owned) holds it, so that it can be queued on a stream. Dropped with work queued, it is
/// given back after that work.
pub struct Lease<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`. Taken out when this is dropped, and not before.
    stored: ManuallyDrop<Shared<'a, Stored<M>>>,
    /// The last operation that was queued with this lease, after all others that were.
    used: Option<Ticket>,
    _elements: PhantomData<T>,
}

impl<'a, T: DeviceBytes, M: Memory> Lease<'a, T, M> {
    /// # Safety
    ///
    /// The buffer was registered with elements `T`.
    #[inline(always)]
    pub(super) unsafe fn new(stored: Shared<'a, Stored<M>>) -> Self {
        Self { stored: ManuallyDrop::new(stored), used: None, _elements: PhantomData }
    }

    /// All elements.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the buffer's own.
        unsafe { Slice::new(self.stored.buffer.view(), self.len()) }
    }

    /// Some of the elements.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }
}

impl<'a, T, M: Memory> Lease<'a, T, M> {
    /// The same lease, which holds the registry.
    #[must_use]
    pub fn into_owned(self) -> Lease<'static, T, M> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its lease not used again.
        let stored = unsafe { ManuallyDrop::take(&mut this.stored) };
        Lease { stored: ManuallyDrop::new(stored.into_owned()), used: this.used, _elements: PhantomData }
    }

    /// Keeps the lease for what is queued on a stream now, also if this is dropped: for launches, which name memory by its address. If it is forgotten,
    /// the registry's buffers are never freed.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), what the driver said; nothing is kept.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        let backend = self.stored.buffer.memory().backend();
        let id = stream.on(&**backend)?;
        if let Some(earlier) = self.used.filter(|earlier| earlier.stream != id) {
            backend.after(earlier, id)?;
        }
        self.used = Some(stream.mark()?);
        // The buffer does not list it. So a registry that is dropped must not free it where this is forgotten.
        self.stored.hold();
        Ok(())
    }

    /// What the next operation with this lease comes after.
    pub(super) fn used(&self) -> Option<Ticket> {
        self.used
    }

    /// An operation with it was queued, after those before.
    pub(super) fn use_by(&mut self, ticket: Ticket) {
        self.used = Some(ticket);
    }

    /// An operation with it is over.
    pub(super) fn settled(&mut self, ticket: Ticket) {
        if self.used == Some(ticket) {
            self.used = None;
        }
    }
}

impl<T, M: Memory> Drop for Lease<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: here only, or in `into_owned`, which does not drop.
        let stored = unsafe { ManuallyDrop::take(&mut self.stored) };
        if let Some(ticket) = self.used {
            let stored = stored.into_owned();
            let backend = stored.buffer.memory().backend().clone();
            backend.keep(Box::new(stored), &Uses::of(ticket), None);
        }
    }
}

impl<T, M: Memory> fmt::Debug for Lease<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A registered buffer, to write: nobody else has a lease. Dropped with work queued, whoever has the buffer next comes after that work.
pub struct LeaseMut<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`.
    stored: Exclusive<'a, Stored<M>>,
    _elements: PhantomData<T>,
}

impl<'a, T: DeviceBytes, M: Memory> LeaseMut<'a, T, M> {
    /// # Safety
    ///
    /// The buffer was registered with elements `T`.
    pub(super) unsafe fn new(stored: Exclusive<'a, Stored<M>>) -> Self {
        Self { stored, _elements: PhantomData }
    }

    /// All elements, to read.
    #[must_use]
    pub fn view(&self) -> Slice<'_, T, M> {
        // SAFETY: the invariant, and the buffer's own.
        unsafe { Slice::new(self.stored.buffer.view(), self.len()) }
    }

    /// All elements, to write.
    #[must_use]
    pub fn view_mut(&mut self) -> SliceMut<'_, T, M> {
        // SAFETY: as above; the one lease, borrowed mutably.
        unsafe { SliceMut::new(self.stored.buffer.view(), self.len()) }
    }

    /// Some of the elements, to read.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
        self.view().slice(range)
    }

    /// Some of the elements, to write.
    ///
    /// # Errors
    ///
    /// [`Range`](crate::Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.view_mut().slice(range)
    }

    /// Takes the buffer out of the registry.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a fork: the buffer stays.
    pub fn take(self) -> Result<Buffer<T, M>> {
        let (stored, _) = self.stored.remove().ok_or_else(forked)?;
        // SAFETY: the invariant.
        Ok(unsafe { stored.into_buffer() })
    }
}

impl<'a, T, M: Memory> LeaseMut<'a, T, M> {
    /// The same lease, which holds the registry.
    #[must_use]
    pub fn into_owned(self) -> LeaseMut<'static, T, M> {
        LeaseMut { stored: self.stored.into_owned(), _elements: PhantomData }
    }

    /// Makes what is queued on a stream from now on wait for everything that is listed as a use: for launches.
    ///
    /// # Errors
    ///
    /// As [`Buffer::ready_on`].
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        self.stored.buffer.ready_on(stream)
    }

    /// Lists what is queued on a stream now as a use, as [`Buffer::used_by`] does: for launches, which name memory by its address. Whoever has the
    /// buffer next comes after it. It may be moved or freed only then, too.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), what the driver said; nothing is listed.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        self.stored.buffer.used_by(stream)
    }

    pub(super) fn buffer_mut(&mut self) -> &mut Buffer<u8, M> {
        &mut self.stored.buffer
    }
}

/// What both kinds of lease say of their buffer.
macro_rules! says_of_its_buffer {
    ($lease:ident) => {
        impl<T, M: Memory> $lease<'_, T, M> {
            /// The buffer's id.
            #[must_use]
            pub fn id(&self) -> BufferId<T> {
                BufferId::new(self.stored.registry(), self.stored.id())
            }

            /// Elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.stored.buffer.len() / size_of::<T>()
            }

            /// Whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.stored.buffer.is_empty()
            }

            /// Bytes.
            #[must_use]
            pub fn size_bytes(&self) -> usize {
                self.stored.buffer.size_bytes()
            }

            /// Where it is.
            #[must_use]
            pub fn location(&self) -> MemoryLocation {
                self.stored.buffer.location()
            }

            /// Where kernels find it as long as this lives; `None` without bytes.
            #[must_use]
            pub fn device_address(&self) -> Option<DeviceAddress>
            where
                M::Visibility: DeviceReadable,
            {
                self.stored.buffer.device_address()
            }
        }
    };
}

says_of_its_buffer!(Lease);
says_of_its_buffer!(LeaseMut);

impl<T, M: Memory> fmt::Debug for LeaseMut<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseMut").field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
    }
}
