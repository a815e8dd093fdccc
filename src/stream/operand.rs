use super::Queued;
use crate::DeviceBytes;
use crate::memory::{Buffer, Memory};

/// Elements that a queued operation owns.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be queued",
    label = "the stream takes it by value and returns it",
    note = "an operand is a `Buffer`, or a `Lease` or `LeaseMut` that owns its manager: call `into_owned` on the lease"
)]
pub trait Operand: Queued + sealed::Elements<<Self as Operand>::Element, <Self as Operand>::Memory> {
    /// The element type.
    type Element: DeviceBytes;
    /// Their memory.
    type Memory: Memory;
}

/// A source: a [`Buffer`], a [`Lease`](crate::manager::Lease) or a [`LeaseMut`](crate::manager::LeaseMut).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, DeviceOnly, GpuBuffer, Memory, Pinned, PinnedBuffer};
/// use ringmem::stream::{Source, Stream};
///
/// /// Copies a buffer, or a lease, to a new buffer on the stream's device.
/// fn upload<A: Source>(stream: &Stream, from: A, len: usize) -> ringmem::Result<GpuBuffer<A::Element>> {
///     let target = GpuBuffer::new(Device::new(stream.backend(), stream.device()), len)?;
///     Ok(stream.copy(from, target)?.wait()?.1)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let pinned = PinnedBuffer::<u32>::from_slice(Pinned::new(&backend, 0), &[1, 2, 3])?;
/// assert_eq!(upload(&Stream::new(&backend, 0)?, pinned, 3)?.to_vec()?, [1, 2, 3]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be queued",
    label = "the stream takes it by value and returns it",
    note = "an operand is a `Buffer`, or a `Lease` or `LeaseMut` that owns its manager: call `into_owned` on the lease"
)]
pub trait Source: Operand {}

/// A target: a [`Buffer`] or a [`LeaseMut`](crate::manager::LeaseMut).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Stream, Target};
///
/// /// Fills a buffer, or a lease, and returns it.
/// fn ones<B: Target<Element = f32>>(stream: &Stream, target: B) -> ringmem::Result<B> {
///     Ok(stream.fill(target, .., 1.0)?.wait()?)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let buffer = ones(&Stream::new(&backend, 0)?, GpuBuffer::new(Device::new(&backend, 0), 3)?)?;
/// assert_eq!(buffer.to_vec()?, [1.0; 3]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be queued to be written",
    label = "the stream takes it by value and returns it",
    note = "a target is a `Buffer`, or a `LeaseMut` that owns its manager: call `into_owned` on the lease"
)]
pub trait Target: Operand {}

impl<T: DeviceBytes, M: Memory> Operand for Buffer<T, M> {
    type Element = T;
    type Memory = M;
}
impl<T: DeviceBytes, M: Memory> Source for Buffer<T, M> {}
impl<T: DeviceBytes, M: Memory> Target for Buffer<T, M> {}

pub(crate) mod sealed {
    use crate::backend::Ticket;
    use crate::memory::{Buffer, Memory, Slice};
    use crate::{DeviceBytes, Result};

    pub trait Elements<T, M> {
        fn elements(&self) -> Slice<'_, T, M>;
        /// Another operation to order after.
        fn last(&self) -> Option<Ticket> {
            None
        }
        fn is_written(&self) -> bool {
            true
        }
        /// Returns an error for elements that are not configured for queued transfers.
        fn may_queue(&self) -> Result<()> {
            Ok(())
        }
        /// Counts a queued transfer.
        fn has_queued(&self) {}
    }

    impl<T: DeviceBytes, M: Memory> Elements<T, M> for Buffer<T, M> {
        fn elements(&self) -> Slice<'_, T, M> {
            self.as_view()
        }
    }
}
