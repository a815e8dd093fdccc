//! [`Resident`]: elements that a frame is copied from or to, and that list the copy as a use.

use crate::DeviceBytes;
use crate::memory::{Buffer, Memory};

/// Elements that stay with their owner while a copy of them is queued, and list it as a use: a [`Buffer`], a named buffer's
/// [`LeaseMut`](crate::manager::LeaseMut), a registered buffer's [`LeaseMut`](crate::registry::LeaseMut).
#[diagnostic::on_unimplemented(
    message = "`{Self}` lists no transfers",
    label = "what is done with it next would not come after the frame",
    note = "a `Buffer` or a `LeaseMut` of such elements"
)]
pub trait Resident<T: DeviceBytes>: sealed::Lists<T> {}

impl<T: DeviceBytes, M: Memory> Resident<T> for Buffer<T, M> {}

pub(crate) mod sealed {
    use crate::backend::Ticket;
    use crate::memory::{Buffer, Memory, Slice};
    use crate::stream::Stream;
    use crate::{DeviceBytes, Result};

    pub trait Lists<T: DeviceBytes> {
        type Memory: Memory;

        fn elements(&self) -> Slice<'_, T, Self::Memory>;

        /// Returns an error if the elements must not be used this way.
        fn may_queue(&self) -> Result<()> {
            Ok(())
        }

        /// Lists an operation that is ordered after all listed uses.
        fn used(&mut self, ticket: Ticket);

        /// Counts a queued operation.
        fn count(&mut self) {}

        /// Lists an operation by an event behind it, so that a later use of these elements does not take its error.
        fn used_in_silence(&mut self, ticket: Ticket, stream: &Stream) {
            self.count();
            // Until there is an event: recording it may panic in a user's clock.
            self.used(ticket);
            if let Ok(mark) = stream.mark() {
                self.used(mark);
            }
        }
    }

    impl<T: DeviceBytes, M: Memory> Lists<T> for Buffer<T, M> {
        type Memory = M;

        fn elements(&self) -> Slice<'_, T, M> {
            self.as_view()
        }
        fn used(&mut self, ticket: Ticket) {
            Buffer::used(self, ticket);
        }
    }
}
