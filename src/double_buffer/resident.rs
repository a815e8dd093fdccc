use crate::DeviceBytes;
use crate::memory::{Buffer, Memory};

/// Elements that stay with their owner while a queued copy uses them: a [`Buffer`] or a [`LeaseMut`](crate::manager::LeaseMut).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::double_buffer::{self, Policy, Resident, Writer};
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
///
/// /// Starts a frame of a buffer, or of a lease.
/// fn publish(writer: &mut Writer<u32>, source: &mut impl Resident<u32>) -> ringmem::Result<u64> {
///     writer.start(source, ..)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let (mut writer, _reader) = double_buffer::pair::<u32, _>(Pinned::new(&backend, 0), 3, Policy::Newest)?;
/// assert_eq!(publish(&mut writer, &mut GpuBuffer::new(Device::new(&backend, 0), 100)?)?, 1);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be transferred as a frame",
    label = "later operations on it would not be ordered after the transfer",
    note = "use a `Buffer` or a `LeaseMut` with the elements of the frame"
)]
pub trait Resident<T: DeviceBytes>: sealed::Lists<T> {}

impl<T: DeviceBytes, M: Memory> Resident<T> for Buffer<T, M> {}

pub(crate) mod sealed {
    use crate::DeviceBytes;
    use crate::backend::Ticket;
    use crate::memory::{Buffer, Memory};
    use crate::stream::{Elements, Settle, Stream};

    pub trait Lists<T: DeviceBytes>: Elements<T, <Self as Lists<T>>::Memory> + Settle {
        type Memory: Memory;

        /// A later use does not take the operation's error.
        fn used_in_silence(&mut self, ticket: Ticket, stream: &Stream) {
            self.has_queued();
            // Recording an event may panic in a user's clock.
            self.used(ticket);
            if let Ok(mark) = stream.record_position() {
                self.used(mark);
            }
        }
    }

    impl<T: DeviceBytes, M: Memory> Lists<T> for Buffer<T, M> {
        type Memory = M;
    }
}
