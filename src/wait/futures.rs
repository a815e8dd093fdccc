//! Messages as a `Stream` and a `Sink`.

mod bytes;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pub use bytes::{ByteMessages, ByteOutbox};

use super::future::{Place, outcome};
use super::park::{Os, Park};
use super::waiting::{Waiting, pop, push};
use super::{RecvError, SendError};
use crate::ring::{Pop, Push};

impl<E: Pop, P: Park<E::Word>> Waiting<E, P> {
    /// Its messages as a [`Stream`](futures_core::Stream), which ends when the other side has left, or with an error that stays.
    pub fn into_stream(self) -> Messages<E, P> {
        Messages { waiting: self, place: Place::new() }
    }
}

impl<E: Push, P: Park<E::Word>> Waiting<E, P> {
    /// A [`Sink`](futures_sink::Sink) for its messages, with room for one before it waits.
    pub fn into_sink(self) -> Outbox<E, P> {
        Outbox { waiting: Some(self), place: Place::new(), value: None }
    }
}

/// What [`Waiting::into_stream`] gives.
pub struct Messages<E: Pop, P: Park<E::Word> = Os> {
    waiting: Waiting<E, P>,
    place: Place,
}

impl<E: Pop, P: Park<E::Word>> Unpin for Messages<E, P> {}

impl<E: Pop, P: Park<E::Word>> futures_core::Stream for Messages<E, P> {
    type Item = Result<E::Item, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { waiting, place } = &mut *self;
        place.poll(waiting, cx, pop)
    }
}

impl<E: Pop, P: Park<E::Word>> Drop for Messages<E, P> {
    fn drop(&mut self) {
        self.place.leave(&self.waiting);
    }
}

/// What [`Waiting::into_sink`] gives. A value that `start_send` took is sent by `poll_ready`, `poll_flush` or `poll_close`, which also drops the end:
/// the other side then sees that it has left, and a later value comes back as [`Disconnected`](SendError::Disconnected).
pub struct Outbox<E: Push, P: Park<E::Word> = Os> {
    /// `None` once it was closed.
    waiting: Option<Waiting<E, P>>,
    place: Place,
    value: Option<E::Item>,
}

impl<E: Push, P: Park<E::Word>> Unpin for Outbox<E, P> {}

impl<E: Push, P: Park<E::Word>> Outbox<E, P> {
    fn poll_empty(&mut self, cx: &Context<'_>) -> Poll<Result<(), SendError<E::Item>>> {
        let Self { waiting: Some(waiting), place, value } = self else { return Poll::Ready(Ok(())) };
        if value.is_none() {
            return Poll::Ready(Ok(()));
        }
        place.poll(waiting, cx, |end| push(end, value)).map(|sent| outcome(sent, value))
    }
}

impl<E: Push, P: Park<E::Word>> futures_sink::Sink<E::Item> for Outbox<E, P> {
    type Error = SendError<E::Item>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_empty(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, value: E::Item) -> Result<(), Self::Error> {
        if self.waiting.is_none() {
            return Err(SendError::Disconnected(value));
        }
        // `poll_ready` has emptied it; a caller that did not ask gets its value back.
        if self.value.is_some() {
            return Err(SendError::Timeout(value));
        }
        self.value = Some(value);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_empty(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let sent = ready!(self.poll_empty(cx));
        // Its place is left: what was polled is over.
        self.waiting = None;
        Poll::Ready(sent)
    }
}

impl<E: Push, P: Park<E::Word>> Drop for Outbox<E, P> {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            self.place.leave(waiting);
        }
    }
}

impl<E: Pop + fmt::Debug, P: Park<E::Word>> fmt::Debug for Messages<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<E: Push + fmt::Debug, P: Park<E::Word>> fmt::Debug for Outbox<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}
