//! Where frames come from and go to.

use crate::DeviceBytes;
use crate::memory::{Buffer, Memory};

/// Elements that stay with their owner while a transfer of them is queued, and list it as a use: a [`Buffer`], a named buffer's
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

        /// Refuses what is not to be used so.
        fn may_queue(&self) -> Result<()> {
            Ok(())
        }

        /// An operation was queued, after all uses that are listed.
        fn used(&mut self, ticket: Ticket);

        /// One more was queued.
        fn count(&mut self) {}

        /// An operation was queued, but is not listed by its own ticket, of whose failure only one is told: not who has these elements next.
        fn used_in_silence(&mut self, ticket: Ticket, stream: &Stream) {
            self.count();
            // Until there is a mark, which a clock that is the user's may panic in.
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
