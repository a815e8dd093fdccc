//! [`Lease`] and [`LeaseMut`]: counted borrows of a buffer, which may end after the work that is queued with them.
//!
//! # End of a lease
//!
//! A [`Lease`] remembers in `used` the last operation that was queued with it; each further one is ordered after it, so that one ticket stands for all.
//! The buffer does not list a read, since readers do not order readers. If the lease is dropped with `used` set, the lease itself is handed to the
//! backend, which drops it after the operation: until then, the buffer is not moved, resized, written or freed.
//!
//! A [`LeaseMut`] lists queued operations in the buffer, which later uses and the free are ordered after. So it ends at its drop.
//!
//! The use is noted before the lease ends. In the reverse order, a cleanup in between could free the buffer as idle, and the note would be lost.

#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::vec::Vec;

use ringmem_layouts::kernel::DevicePointer;

use super::entry::Entry;
use super::id::BufferId;
use super::numbers::{Exclusive, Shared};
use super::{MemoryManager, Store};
use crate::backend::{DeviceAddress, MemoryLocation, Ticket, Uses};
use crate::double_buffer::{Lists, Resident};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, SliceMut, end};
use crate::stream::{Elements, Operand, Queue, Queued, Settle, Source, Stream, Target};
use crate::sys::panic::caught;
use crate::{DeviceBytes, Rejected, Result};

/// A shared lease of a buffer. The buffer is not moved, resized, freed or written before its last lease is dropped.
///
/// It borrows the manager; [`into_owned`](Self::into_owned) makes it own a handle, for queuing it on a stream. A lease that is dropped with work queued
/// ends after that work.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::MemoryManager;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Device::new(&backend, 0);
/// let manager = MemoryManager::new(memory.clone());
/// let id = manager.register(GpuBuffer::<f32>::from_slice(memory, &[1.0, 2.0])?)?;
/// let (one, two) = (manager.lease(id)?, manager.lease(id)?);
/// assert_eq!(one.slice(1..)?.to_vec()?, [2.0]);
/// assert!(manager.lease_mut(id).is_err()); // two shared leases
/// # drop(two);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Lease<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`. Taken only when this is dropped.
    pub(super) entry: ManuallyDrop<Shared<'a, Entry<M>, Store<M>>>,
    /// The last operation queued with this lease, ordered after the others.
    used: Option<Ticket>,
    _elements: PhantomData<(T, fn() -> M)>,
}

/// The exclusive lease of a buffer, for writing and resizing. After a drop with work queued, the buffer's next use is ordered after that work.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// let id = manager.create::<u32>("counts", 2, BufferConfig::new())?;
/// let mut lease = manager.lease_mut(id)?;
/// lease.view_mut().copy_from(&[1, 2])?;
/// lease.extend_from_slice(&[3, 4, 5])?; // grows if necessary
/// assert!(manager.lease(id).is_err()); // exclusive
/// drop(lease);
/// assert_eq!(manager.lease(id)?.to_vec()?, [1, 2, 3, 4, 5]);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct LeaseMut<'a, T, M: Memory> {
    // INVARIANT: a buffer of `T`. Taken only when this is dropped.
    pub(super) entry: ManuallyDrop<Exclusive<'a, Entry<M>, Store<M>>>,
    _elements: PhantomData<(T, fn() -> M)>,
}

impl<M: Memory> MemoryManager<M> {
    /// Returns a shared lease.
    ///
    /// # Errors
    ///
    /// [`Id`](crate::Error::Id) with the id's fault, [`Busy`](crate::Error::Busy) under an exclusive lease.
    #[inline]
    pub fn lease<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Lease<'_, T, M>> {
        let shared = self.table.share(self.table.own(id.table, id.index)?)?;
        // SAFETY: only this table has this number, so it created the id, for a buffer of `T` in this generation.
        Ok(unsafe { Lease::new(shared) })
    }

    /// Returns the exclusive lease, for writing and resizing. Until its drop, the buffer is not moved.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and [`Busy`](crate::Error::Busy) under any lease.
    pub fn lease_mut<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<LeaseMut<'_, T, M>> {
        let exclusive = self.table.exclusive(self.table.own(id.table, id.index)?)?;
        Ok(LeaseMut { entry: ManuallyDrop::new(exclusive), _elements: PhantomData })
    }
}

impl<'a, T, M: Memory> Lease<'a, T, M> {
    /// # Safety
    ///
    /// The buffer has elements `T`.
    #[inline(always)]
    pub(super) unsafe fn new(entry: Shared<'a, Entry<M>, Store<M>>) -> Self {
        Self { entry: ManuallyDrop::new(entry), used: None, _elements: PhantomData }
    }

    /// Makes the lease own a handle of the manager.
    #[must_use]
    pub fn into_owned(self) -> Lease<'static, T, M> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped; its entry is not used again.
        let entry = unsafe { ManuallyDrop::take(&mut this.entry) };
        Lease { entry: ManuallyDrop::new(entry.into_owned()), used: this.used, _elements: PhantomData }
    }

    /// Extends the lease over the work queued on a stream so far, even if this value is dropped. For launches by address. If the lease is
    /// forgotten, the buffers of its manager are never freed.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), or the driver's error; the lease is not extended.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        let backend = self.entry.buffer().memory().backend();
        let id = stream.on(&**backend)?;
        if let Some(earlier) = self.used.filter(|earlier| earlier.stream != id) {
            backend.stream_wait(earlier, id)?;
        }
        self.used = Some(stream.record_position()?);
        // The buffer does not list the work: after this lease is forgotten, a dropped manager must not free it.
        self.entry.hold();
        Ok(())
    }
}

impl<T, M: Memory> Drop for Lease<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        if let Some(named) = self.entry.named() {
            named.touch();
        }
        match self.used {
            // SAFETY: only here, or in `into_owned`, which does not drop.
            None => unsafe { ManuallyDrop::drop(&mut self.entry) },
            // SAFETY: only here, or in `into_owned`, which does not drop.
            Some(ticket) => keep(unsafe { ManuallyDrop::take(&mut self.entry) }, ticket),
        }
    }
}

/// Not inlined, so that the drop of a lease without an operation is.
#[cold]
#[inline(never)]
fn keep<M: Memory>(entry: Shared<'_, Entry<M>, Store<M>>, ticket: Ticket) {
    let backend = entry.buffer().memory().backend().clone();
    backend.keep(Box::new(entry.into_owned()), &Uses::of(ticket), None);
}

impl<T: DeviceBytes, M: Memory> LeaseMut<'_, T, M> {
    /// Returns the live elements for writing.
    #[must_use]
    pub fn view_mut(&mut self) -> SliceMut<'_, T, M> {
        // SAFETY: by the invariants of lease and entry the block has `len` live elements of `T`, aligned for it; the exclusive lease is
        // borrowed mutably.
        unsafe { SliceMut::new(self.entry.buffer().view(), self.len()) }
    }

    /// As [`slice`](Self::slice), for writing.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T, M>> {
        self.view_mut().slice(range)
    }

    /// Removes the buffer from the manager and returns it: a created one with its whole capacity and without its name. Its bytes no longer count
    /// towards the limit.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process: the buffer stays.
    pub fn take(self) -> Result<Buffer<T, M>> {
        let table = self.entry.handle();
        let index = self.entry.id();
        let (entry, _) = self.into_entry().remove()?;
        if entry.named().is_some() {
            table.shared.names.free(index);
        }
        let buffer = entry.counted.into_buffer();
        // SAFETY: by the invariants of lease and entry the bytes are whole elements of `T`, aligned for it.
        Ok(unsafe { buffer.retyped() })
    }
}

impl<'a, T, M: Memory> LeaseMut<'a, T, M> {
    /// As [`Lease::into_owned`].
    #[must_use]
    pub fn into_owned(self) -> LeaseMut<'static, T, M> {
        LeaseMut { entry: ManuallyDrop::new(self.into_entry().into_owned()), _elements: PhantomData }
    }

    fn into_entry(self) -> Exclusive<'a, Entry<M>, Store<M>> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again.
        unsafe { ManuallyDrop::take(&mut this.entry) }
    }

    /// As [`Buffer::ready_on`].
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        self.entry.buffer().ready_on(stream)
    }

    /// As [`Buffer::used_by`].
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        self.entry.buffer_mut().used_by(stream)
    }
}

impl<T, M: Memory> Drop for LeaseMut<'_, T, M> {
    fn drop(&mut self) {
        if let Some(named) = self.entry.named() {
            // A clock's panic during another panic would abort the process.
            match caught(|| self.entry.shared().now()) {
                Some(now) => named.used_at(now),
                None => named.touch(),
            }
        }
        // SAFETY: only here, or in `into_entry`, which does not drop.
        unsafe { ManuallyDrop::drop(&mut self.entry) };
    }
}

macro_rules! reads_of_a_lease {
    ($lease:ident) => {
        impl<T: DeviceBytes, M: Memory> $lease<'_, T, M> {
            /// Returns the live elements for reading.
            #[must_use]
            pub fn view(&self) -> Slice<'_, T, M> {
                // SAFETY: by the invariants of lease and entry the block has `len` live elements of `T`, aligned for it.
                unsafe { Slice::new(self.entry.buffer().view(), self.len()) }
            }

            /// Returns a range of the live elements for reading.
            ///
            /// # Errors
            ///
            /// [`Range`](crate::Error::Range).
            pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T, M>> {
                self.view().slice(range)
            }

            /// As [`Buffer::to_vec`].
            pub fn to_vec(&self) -> Result<Vec<T>> {
                self.view().to_vec()
            }
        }

        impl<T, M: Memory> $lease<'_, T, M> {
            /// Returns the buffer's id.
            #[must_use]
            pub fn id(&self) -> BufferId<T> {
                BufferId::new(self.entry.table().number(), self.entry.id())
            }

            /// Returns the number of live elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.entry.len::<T>()
            }

            /// Returns true without live elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the size in bytes.
            #[must_use]
            pub fn size_bytes(&self) -> usize {
                self.len() * size_of::<T>()
            }

            /// Returns the capacity in elements: of a registered buffer, its length.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.entry.buffer().len() / size_of::<T>()
            }

            /// Returns whether the buffer is in the [fallback memory](super::Builder::fallback).
            #[must_use]
            pub fn is_fallback(&self) -> bool {
                self.entry.named().is_some_and(|named| named.is_fallback())
            }

            /// Returns the memory's location.
            #[must_use]
            pub fn location(&self) -> MemoryLocation {
                self.entry.buffer().location()
            }

            /// Returns the device address, valid as long as this lease; `None` without bytes.
            #[must_use]
            pub fn device_address(&self) -> Option<DeviceAddress>
            where
                M::Visibility: DeviceReadable,
            {
                self.entry.buffer().device_address()
            }

            /// As [`device_address`](Self::device_address), for a [typed launch](crate::stream::Stream::start).
            #[must_use]
            pub fn device_pointer(&self) -> Option<DevicePointer<T>>
            where
                M::Visibility: DeviceReadable,
            {
                self.device_address().map(DeviceAddress::pointer)
            }
        }

        impl<T, M: Memory> fmt::Debug for $lease<'_, T, M> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($lease)).field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
            }
        }
    };
}

reads_of_a_lease!(Lease);
reads_of_a_lease!(LeaseMut);

impl<T: DeviceBytes, M: Memory> LeaseMut<'_, T, M> {
    /// Queues a copy of `from` to the live elements from index `at` on.
    ///
    /// # Errors
    ///
    /// The other buffer, with [`Unsupported`](crate::Error::Unsupported) unless [configured](super::BufferConfig::is_async), or as
    /// [`Stream::copy_range`]. Nothing is queued.
    pub fn upload<N: Memory>(&mut self, stream: &Stream, from: Buffer<T, N>, at: usize) -> Queue<Buffer<T, N>> {
        let queued = (|| {
            self.entry.may_queue()?;
            let end = end::<T>(at, from.len(), self.len())?;
            let target = self.slice(at..end)?;
            // SAFETY: two exclusive buffers. This one lists the copy below, the other before its next use.
            self.entry.shared().guard.retry(|| unsafe { stream.queue_copy(from.as_view(), target, [None; 2]) })
        })();
        self.list(stream, queued, from)
    }

    /// Queues a copy of live elements to the first elements of `to`.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub fn download<N: Memory>(&mut self, stream: &Stream, range: impl RangeBounds<usize>, to: Buffer<T, N>) -> Queue<Buffer<T, N>> {
        let queued = (|| {
            self.entry.may_queue()?;
            let source = self.slice(range)?;
            let target = to.slice(..source.len())?;
            // SAFETY: two exclusive buffers: this lease's, which lists the copy below, and `to`, which lists it before its next use.
            self.entry.shared().guard.retry(|| unsafe { stream.queue_copy(source, target, [None; 2]) })
        })();
        self.list(stream, queued, to)
    }

    /// Queues a [fill](Stream::fill) of live elements.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub fn fill_on(&mut self, stream: &Stream, range: impl RangeBounds<usize>, value: T) -> Result<()> {
        self.entry.may_queue()?;
        let mut ticket = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let target = self.slice(range)?;
            // SAFETY: the lease is exclusive, and the buffer lists the fill below.
            self.entry.shared().guard.retry(|| unsafe { stream.queue_fill(target, value, None, &mut ticket) })
        }));
        self.list(stream, Ok(ticket), ()).map(drop).map_err(Rejected::into_error)?;
        outcome.unwrap_or_else(|payload| resume_unwind(payload))
    }

    fn list<V: Queued>(&mut self, stream: &Stream, queued: Result<Option<Ticket>>, other: V) -> Queue<V> {
        if let Ok(Some(ticket)) = queued {
            self.entry.buffer_mut().used(ticket);
            self.has_queued();
        }
        stream.pending(queued, other)
    }
}

macro_rules! queued_with_a_lease {
    ($lease:ident) => {
        impl<T: DeviceBytes, M: Memory> Operand for $lease<'static, T, M> {
            type Element = T;
            type Memory = M;
        }
        impl<T: DeviceBytes, M: Memory> Source for $lease<'static, T, M> {}
        impl<T: DeviceBytes, M: Memory> Queued for $lease<'static, T, M> {}
    };
}

queued_with_a_lease!(Lease);
queued_with_a_lease!(LeaseMut);
impl<T: DeviceBytes, M: Memory> Target for LeaseMut<'static, T, M> {}

impl<T: DeviceBytes, M: Memory> Elements<T, M> for Lease<'_, T, M> {
    fn elements(&self) -> Slice<'_, T, M> {
        self.view()
    }
    /// The buffer lists writers; readers do not order readers.
    fn last(&self) -> Option<Ticket> {
        self.used
    }
    fn is_written(&self) -> bool {
        false
    }
    fn may_queue(&self) -> Result<()> {
        self.entry.may_queue()
    }
    fn has_queued(&self) {
        self.entry.has_queued(self.entry.shared());
    }
}

impl<T, M: Memory> Settle for Lease<'_, T, M> {
    fn settled(&mut self, ticket: Ticket) {
        self.used = self.used.filter(|&used| used != ticket);
    }
    fn used(&mut self, ticket: Ticket) {
        self.used = Some(ticket);
    }
}

impl<T: DeviceBytes, M: Memory> Elements<T, M> for LeaseMut<'_, T, M> {
    fn elements(&self) -> Slice<'_, T, M> {
        self.view()
    }
    fn may_queue(&self) -> Result<()> {
        self.entry.may_queue()
    }
    fn has_queued(&self) {
        self.entry.has_queued(self.entry.shared());
    }
}

/// The buffer lists the work.
impl<T, M: Memory> Settle for LeaseMut<'_, T, M> {
    fn settled(&mut self, ticket: Ticket) {
        self.entry.buffer_mut().settled(ticket);
    }
    fn used(&mut self, ticket: Ticket) {
        self.entry.buffer_mut().used(ticket);
    }
}

impl<T: DeviceBytes, M: Memory> Resident<T> for LeaseMut<'_, T, M> {}
impl<T: DeviceBytes, M: Memory> Lists<T> for LeaseMut<'_, T, M> {
    type Memory = M;
}
