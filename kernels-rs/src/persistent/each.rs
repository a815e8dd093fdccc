//! Handlers that [`kernels!`](crate::kernels) makes.

use core::marker::PhantomData;

use ringmem_layouts::{Machine, RingMessage};

use super::{Batch, Handler};
use crate::Lanes;

/// A handler that answers each message by itself, each lane another one.
pub struct Each<I, O, F> {
    step: F,
    _messages: PhantomData<fn(&I, &mut O)>,
}

impl<I, O, F: Fn(&I, &mut O)> Each<I, O, F> {
    /// Calls `step` with each message and the slot of its answer, which holds any bytes.
    pub const fn new(step: F) -> Self {
        Self { step, _messages: PhantomData }
    }
}

impl<M: Machine, L: Lanes, I: RingMessage, O: RingMessage, F: Fn(&I, &mut O)> Handler<M, L> for Each<I, O, F> {
    type Input = I;
    type Output = O;

    #[inline(always)]
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, I, O, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            // SAFETY: below the length; the lanes take turns, so no other lane is at this index.
            unsafe { batch.exchange(index, |message, answer| (self.step)(message, answer)) };
            index += u64::from(L::WIDTH);
        }
        0
    }
}

/// A handler whose messages are declared apart from it.
pub struct Typed<I, O, H> {
    handler: H,
    _messages: PhantomData<fn(I) -> O>,
}

impl<I, O, H> Typed<I, O, H> {
    /// Declares its messages.
    pub const fn new(handler: H) -> Self {
        Self { handler, _messages: PhantomData }
    }
}

impl<M: Machine, L: Lanes, I: RingMessage, O: RingMessage, H: Handler<M, L, Input = I, Output = O>> Handler<M, L> for Typed<I, O, H> {
    type Input = I;
    type Output = O;
    const ACCOUNTS: bool = H::ACCOUNTS;

    #[inline(always)]
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, I, O, M>) -> u64 {
        self.handler.answer(lanes, batch)
    }
}
