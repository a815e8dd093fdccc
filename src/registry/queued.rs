//! Leases that queued operations take: a [`Lease`] to read, a [`LeaseMut`] to write.

use super::{Lease, LeaseMut};
use crate::DeviceBytes;
use crate::backend::Ticket;
use crate::double_buffer::{Lists, Resident};
use crate::memory::{Memory, Slice};
use crate::stream::{Elements, Operand, Queued, Settle, Source, Target};

impl<T: DeviceBytes, M: Memory> Operand for Lease<'static, T, M> {
    type Element = T;
    type Memory = M;
}
impl<T: DeviceBytes, M: Memory> Source for Lease<'static, T, M> {}
impl<T: DeviceBytes, M: Memory> Queued for Lease<'static, T, M> {}

impl<T: DeviceBytes, M: Memory> Elements<T, M> for Lease<'static, T, M> {
    fn elements(&self) -> Slice<'_, T, M> {
        self.view()
    }
    /// The buffer lists the uses of writers. Other readers do not matter to a reader.
    fn last(&self) -> Option<Ticket> {
        self.used()
    }
    fn is_written(&self) -> bool {
        false
    }
}

impl<T, M: Memory> Settle for Lease<'static, T, M> {
    fn settled(&mut self, ticket: Ticket) {
        Lease::settled(self, ticket);
    }
    fn used(&mut self, ticket: Ticket) {
        self.use_by(ticket);
    }
}

impl<T: DeviceBytes, M: Memory> Operand for LeaseMut<'static, T, M> {
    type Element = T;
    type Memory = M;
}
impl<T: DeviceBytes, M: Memory> Source for LeaseMut<'static, T, M> {}
impl<T: DeviceBytes, M: Memory> Target for LeaseMut<'static, T, M> {}
impl<T: DeviceBytes, M: Memory> Queued for LeaseMut<'static, T, M> {}

impl<T: DeviceBytes, M: Memory> Elements<T, M> for LeaseMut<'static, T, M> {
    fn elements(&self) -> Slice<'_, T, M> {
        self.view()
    }
}

/// The buffer lists the work, and its next use is ordered after it.
impl<T, M: Memory> Settle for LeaseMut<'static, T, M> {
    fn settled(&mut self, ticket: Ticket) {
        self.buffer_mut().settled(ticket);
    }
    fn used(&mut self, ticket: Ticket) {
        self.buffer_mut().used(ticket);
    }
}

impl<T: DeviceBytes, M: Memory> Resident<T> for LeaseMut<'_, T, M> {}

impl<T: DeviceBytes, M: Memory> Lists<T> for LeaseMut<'_, T, M> {
    type Memory = M;

    fn elements(&self) -> Slice<'_, T, M> {
        self.view()
    }
    fn used(&mut self, ticket: Ticket) {
        self.buffer_mut().used(ticket);
    }
}
