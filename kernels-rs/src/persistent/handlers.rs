//! Handlers that `kernels!` makes of a function: how the lanes divide a batch.
//!
//! | handler | declared by | its messages are answered by |
//! |---|---|---|
//! | [`Each`] | a function of a message and its answer | all lanes: lane `l` has the messages `l`, `l + width`, ... |
//! | [`Fold`] | one with a state, too | lane 0, in order |
//! | [`Actor`] | one whose answer is optional, and which is also called without a message | lane 0, in order |
//! | [`Typed`] | another handler, whose messages it names | that handler |

use core::marker::PhantomData;

use ringmem_layouts::{Machine, RingMessage};

use super::{Batch, Handler};
use crate::Lanes;

/// A handler that distributes messages over the lanes.
pub struct Each<I, O, F> {
    step: F,
    _messages: PhantomData<fn(&I, &mut O)>,
}

impl<I, O, F: Fn(&I, &mut O)> Each<I, O, F> {
    /// Creates a handler that calls `step` with each message and the slot of its answer, which has unspecified bytes.
    pub const fn new(step: F) -> Self {
        Self { step, _messages: PhantomData }
    }
}

impl<M: Machine, L: Lanes, I: RingMessage, O: RingMessage, F: Fn(&I, &mut O)> Handler<M, L> for Each<I, O, F> {
    type Input = I;
    type Output = O;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, I, O, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            // SAFETY: below the length. Lane `l` has the indices `l + k * width`, and `Lanes` numbers the lanes from 0 to `width`, each
            // once. The caller promises that no other handler answers this batch before a barrier.
            unsafe { batch.exchange(index, |message, answer| (self.step)(message, answer)) };
            index += u64::from(lanes.width());
        }
        0
    }
}

/// A handler with a state: lane 0 answers the messages in order.
pub struct Fold<S, I, O, F> {
    state: S,
    step: F,
    _messages: PhantomData<fn(&I, &mut O)>,
}

impl<S: Default, I, O, F: Fn(&mut S, &I, &mut O)> Fold<S, I, O, F> {
    /// Like [`Each::new`], with the state.
    pub fn new(step: F) -> Self {
        Self { state: S::default(), step, _messages: PhantomData }
    }
}

impl<M: Machine, L: Lanes, S, I: RingMessage, O: RingMessage, F: Fn(&mut S, &I, &mut O)> Handler<M, L> for Fold<S, I, O, F> {
    type Input = I;
    type Output = O;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, I, O, M>) -> u64 {
        if lanes.lane() == 0 {
            for index in 0..batch.len() {
                // SAFETY: below the length. Only lane 0 exchanges, of which `Lanes` has one, and the caller promises that no other handler
                // answers this batch before a barrier.
                unsafe { batch.exchange(index, |message, answer| (self.step)(&mut self.state, message, answer)) };
            }
        }
        0
    }
}

/// A handler with a state that sends messages of its own. Lane 0 calls the function with each message, in order, then without one as long as it returns
/// messages and slots are free.
pub struct Actor<S, I, O, F> {
    state: S,
    step: F,
    _messages: PhantomData<fn(&I) -> O>,
}

impl<S: Default, I, O, F: Fn(&mut S, Option<&I>) -> Option<O>> Actor<S, I, O, F> {
    /// Creates a handler that calls `step` with the state.
    pub fn new(step: F) -> Self {
        Self { state: S::default(), step, _messages: PhantomData }
    }
}

impl<M: Machine, L: Lanes, S, I: RingMessage, O: RingMessage, F: Fn(&mut S, Option<&I>) -> Option<O>> Handler<M, L> for Actor<S, I, O, F> {
    type Input = I;
    type Output = O;
    const INITIATES: bool = true;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, I, O, M>) -> u64 {
        if lanes.lane() == 0 {
            let mut sent = 0;
            for index in 0..batch.len() {
                // SAFETY: below the length.
                if let Some(message) = unsafe { batch.message(index, |message| (self.step)(&mut self.state, Some(message))) } {
                    // SAFETY: at most `index`, which is below the room. Only lane 0 writes, of which `Lanes` has one, and the caller promises that no other
                    // handler answers this batch before a barrier.
                    unsafe { batch.write(sent, message) };
                    sent += 1;
                }
            }
            // Messages without an answer leave their slots.
            while batch.may_initiate() && sent < batch.room() {
                let Some(message) = (self.step)(&mut self.state, None) else { break };
                // SAFETY: below the room. Only lane 0 writes, of which `Lanes` has one, and the caller promises that no other handler answers this batch before
                // a barrier.
                unsafe { batch.write(sent, message) };
                sent += 1;
            }
            batch.send(sent);
        }
        0
    }
}

/// A handler with explicit message types.
pub struct Typed<I, O, H> {
    handler: H,
    _messages: PhantomData<fn(I) -> O>,
}

impl<I, O, H> Typed<I, O, H> {
    /// Declares the message types of `handler`.
    pub const fn new(handler: H) -> Self {
        Self { handler, _messages: PhantomData }
    }
}

impl<M: Machine, L: Lanes, I: RingMessage, O: RingMessage, H: Handler<M, L, Input = I, Output = O>> Handler<M, L> for Typed<I, O, H> {
    type Input = I;
    type Output = O;
    const ACCOUNTS: bool = H::ACCOUNTS;
    const INITIATES: bool = H::INITIATES;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, I, O, M>) -> u64 {
        // SAFETY: the caller promises that every lane calls this once with its copy of the batch, and that no other handler answers it;
        // both hold for this call, the only one.
        unsafe { self.handler.answer(lanes, batch) }
    }
}
