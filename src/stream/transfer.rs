use core::ops::RangeBounds;
use core::ptr::NonNull;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::metrics::Work;
use super::{Pending, Queue, Source, Stream, Target};
use crate::backend::fill::{FillSteps, fill_steps};
use crate::backend::{Address, Copy, Prefetch, Ticket, Uses, same_backend};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, end, same_len};
use crate::{DeviceBytes, Rejected, Result};

impl Stream {
    /// Queues a copy of all of `from` to all of `to`.
    ///
    /// # Errors
    ///
    /// The buffers, with [`Size`](crate::Error::Size), [`OtherBackend`](crate::Error::OtherBackend) or the backend's error.
    pub fn copy<A: Source, B: Target<Element = A::Element>>(&self, from: A, to: B) -> Queue<(A, B)> {
        if let Err(error) = same_len(to.elements().len(), from.elements().len()) {
            return Err(Rejected { error, value: (from, to) });
        }
        self.copy_range(from, .., to, 0)
    }

    /// Queues a copy of a range of `from` to `to`, from `at` on; the source is read at execution.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy), and [`Range`](crate::Error::Range).
    pub fn copy_range<A: Source, B: Target<Element = A::Element>>(
        &self,
        from: A,
        range: impl RangeBounds<usize>,
        to: B,
        at: usize,
    ) -> Queue<(A, B)> {
        let queued = (|| {
            from.may_queue()?;
            to.may_queue()?;
            let (source, target) = (from.elements().slice(range)?, to.elements());
            let target = target.slice(at..end::<A::Element>(at, source.len(), target.len())?)?;
            // SAFETY: until executed, exclusive of the target, shared with the source's readers; dropped operands are freed after it.
            unsafe { self.queue_copy(source, target, [from.last(), to.last()]) }
        })();
        if let Ok(Some(_)) = queued {
            from.has_queued();
            to.has_queued();
        }
        self.pending(queued, (from, to))
    }

    /// Queues a fill of a range with `value`.
    ///
    /// Elements of 1, 2, 4, 8 or 16 bytes, or of repeated bytes, take one fill; others log2(n) + 1 copies, rounded up.
    ///
    /// # Errors
    ///
    /// The buffer, as [`copy_range`](Self::copy_range). If a later copy is refused, the buffer lists the earlier ones; the range is
    /// unspecified.
    pub fn fill<B: Target>(&self, to: B, range: impl RangeBounds<usize>, value: B::Element) -> Queue<B> {
        let mut ticket = None;
        // SAFETY: the target is exclusive until executed.
        let fill = || unsafe { self.queue_fill(to.elements().slice(range)?, value, to.last(), &mut ticket) };
        let outcome = catch_unwind(AssertUnwindSafe(|| to.may_queue().and_then(|()| fill())));
        if ticket.is_some() {
            to.has_queued();
        }
        let pending = Pending::new(to, ticket, self.clone());
        match outcome {
            Ok(Ok(())) => Ok(pending),
            Ok(Err(error)) => Err(Rejected { error, value: pending.detach() }),
            Err(payload) => resume_unwind(payload),
        }
    }

    /// For as many elements as both have; `None` for none.
    ///
    /// # Safety
    ///
    /// The target is exclusive, without overlap; before any other access, the caller lists the ticket as a use of both buffers.
    pub(crate) unsafe fn queue_copy<T: DeviceBytes, A: Memory, B: Memory>(
        &self,
        from: Slice<'_, T, A>,
        to: Slice<'_, T, B>,
        last: [Option<Ticket>; 2],
    ) -> Result<Option<Ticket>> {
        self.owns(from.memory())?;
        self.owns(to.memory())?;
        let bytes = (from.len().min(to.len()) * size_of::<T>()) as u64;
        let (Some(source), Some(target), 1..) = (from.address(), to.address(), bytes) else { return Ok(None) };
        let copy = Copy { to: target, from: source, bytes };
        let last = last.map(Uses::from);
        let work = Work::copy(from.device(), to.device(), bytes);
        // SAFETY: by the slices' invariant both places have `bytes` bytes. The caller promises an exclusive target without overlap, and
        // that it lists the ticket before any other access.
        self.queue(&[from.uses(), to.uses(), &last[0], &last[1]], work, |backend, id| unsafe { backend.copy(&copy, id) }).map(Some)
    }

    /// Sets the last queued operation, whose outcome is that of all, also before an error or a panic.
    ///
    /// # Safety
    ///
    /// As [`queue_copy`](Self::queue_copy).
    pub(crate) unsafe fn queue_fill<T: DeviceBytes, M: Memory>(
        &self,
        to: Slice<'_, T, M>,
        value: T,
        last: Option<Ticket>,
        ticket: &mut Option<Ticket>,
    ) -> Result<()> {
        self.owns(to.memory())?;
        let (Some(target), count @ 1.., 1..) = (to.address(), to.len() as u64, size_of::<T>()) else { return Ok(()) };
        let uses = [to.uses(), &Uses::from(last)];
        let (size, doublings) = match fill_steps(target, &value, count) {
            FillSteps::Fill(fill) => {
                // SAFETY: by the slice's invariant the place has all elements. The caller promises an exclusive target, and that it lists the
                // ticket before any other access.
                *ticket = Some(self.queue(&uses, Work::fill(fill.bytes()), |backend, id| unsafe { backend.fill(&fill, id) })?);
                return Ok(());
            }
            FillSteps::Copies(size, doublings) => (size, doublings),
        };
        let mut element = Box::new(value);
        let first = Copy { to: target, from: Address::Host(NonNull::from(&mut *element).cast()), bytes: size };
        // SAFETY: by the slice's invariant the place has an element, and the caller promises an exclusive target; the source is kept until
        // the copy is complete.
        let queued = self.queue(&uses, Work::copy(None, to.device(), size), |backend, id| unsafe { backend.copy(&first, id) })?;
        self.backend().keep(element, &Uses::of(queued), None);
        *ticket = Some(queued);
        for doubling in doublings {
            let work = Work::copy(to.device(), to.device(), doubling.bytes);
            // SAFETY: a doubling copies elements of the place to later ones of it, without overlap; the caller promises an exclusive
            // target.
            *ticket = Some(self.queue(&[], work, |backend, id| unsafe { backend.copy(&doubling, id) })?);
        }
        Ok(())
    }

    /// Queues a hint to move managed memory to a device (`None`: the host).
    ///
    /// # Errors
    ///
    /// The buffer, with [`OtherBackend`](crate::Error::OtherBackend), or [`Unsupported`](crate::Error::Unsupported) for other memory or without
    /// [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access).
    pub fn prefetch<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>>(
        &self,
        buffer: Buffer<T, M>,
        to: Option<u32>,
    ) -> Queue<Buffer<T, M>> {
        let queued = (|| {
            self.owns(buffer.memory())?;
            let Some(address) = buffer.device_address() else { return Ok(None) };
            let prefetch = Prefetch { address, bytes: buffer.size_bytes() as u64, to };
            self.queue(&[buffer.uses()], Work::prefetch(prefetch.bytes), |backend, id| backend.prefetch(&prefetch, id)).map(Some)
        })();
        self.pending(queued, buffer)
    }

    fn owns(&self, memory: &impl Memory) -> Result<()> {
        same_backend(&*self.shared.backend, &**memory.backend())
    }
}
