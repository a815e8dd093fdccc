//! [`BorrowedEnd`]: a borrowed end of a copy that completes before its call returns.

use crate::DeviceBytes;
use crate::backend::Ticket;
use crate::memory::{Memory, Slice};
use crate::stream::{Elements, Operand, Queued, Settle, Source, Target};

pub(crate) struct BorrowedEnd<'a, T, M> {
    view: Slice<'a, T, M>,
    last: Option<Ticket>,
}

impl<'a, T, M> BorrowedEnd<'a, T, M> {
    /// # Safety
    ///
    /// Its copies are complete before the borrow ends, even after a panic. Written elements are exclusive.
    pub const unsafe fn new(view: Slice<'a, T, M>) -> Self {
        Self { view, last: None }
    }
}

impl<T: DeviceBytes, M: Memory> Operand for BorrowedEnd<'_, T, M> {
    type Element = T;
    type Memory = M;
}
impl<T: DeviceBytes, M: Memory> Source for BorrowedEnd<'_, T, M> {}
impl<T: DeviceBytes, M: Memory> Target for BorrowedEnd<'_, T, M> {}
impl<T: DeviceBytes, M: Memory> Queued for BorrowedEnd<'_, T, M> {}

impl<T: DeviceBytes, M: Memory> Elements<T, M> for BorrowedEnd<'_, T, M> {
    fn elements(&self) -> Slice<'_, T, M> {
        self.view
    }
    fn last(&self) -> Option<Ticket> {
        self.last
    }
}

impl<T, M> Settle for BorrowedEnd<'_, T, M> {
    fn settled(&mut self, ticket: Ticket) {
        self.last = self.last.filter(|&last| last != ticket);
    }
    fn used(&mut self, ticket: Ticket) {
        self.last = Some(ticket);
    }
}
