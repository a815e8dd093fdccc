use super::lease::{Lease, LeaseMut, Leased};
use crate::backend::Ticket;
use crate::double_buffer::{Lists, Resident};
use crate::memory::{Memory, Slice};
use crate::stream::{Elements, Operand, Queued, Settle, Source, Target};
use crate::{DeviceBytes, Result};

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
    /// The buffer lists writers; readers do not order readers.
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

impl<T: DeviceBytes, M: Memory, V: Leased<Memory = M>> Elements<T, M> for LeaseMut<'_, T, M, V> {
    fn elements(&self) -> Slice<'_, T, M> {
        self.view()
    }
}

/// The buffer lists the work.
impl<T, M: Memory, V: Leased<Memory = M>> Settle for LeaseMut<'_, T, M, V> {
    fn settled(&mut self, ticket: Ticket) {
        self.value.buffer_mut().settled(ticket);
    }
    fn used(&mut self, ticket: Ticket) {
        self.value.buffer_mut().used(ticket);
    }
}

impl<T: DeviceBytes, M: Memory, V: Leased<Memory = M>> Resident<T> for LeaseMut<'_, T, M, V> {}

impl<T: DeviceBytes, M: Memory, V: Leased<Memory = M>> Lists<T> for LeaseMut<'_, T, M, V> {
    type Memory = M;

    fn may_queue(&self) -> Result<()> {
        self.value.may_queue()
    }
    fn count(&mut self) {
        self.value.has_queued();
    }
}
