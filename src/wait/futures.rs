mod bytes;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pub use bytes::{ByteSink, ByteStream};

use super::future::{WakerEntry, outcome};
use super::park::{Os, Park};
use super::waiting::{Sent, Waiting, pop, push};
use super::{RecvError, SendError};
use crate::ring::{Pop, Push};

impl<E: Pop, P: Park<E::Word>> Waiting<E, P> {
    /// Converts to a [`Stream`](futures_core::Stream) that ends with the other side's drop; errors repeat.
    pub fn into_stream(self) -> MessageStream<E, P> {
        MessageStream { waiting: self, place: WakerEntry::new() }
    }
}

impl<E: Push, P: Park<E::Word>> Waiting<E, P> {
    /// Converts to a [`Sink`](futures_sink::Sink) that buffers one message.
    pub fn into_sink(self) -> MessageSink<E, P> {
        MessageSink { waiting: Some(self), place: WakerEntry::new(), value: None }
    }
}

/// The stream of [`Waiting::into_stream`].
///
/// ```
/// use futures::StreamExt;
/// use ringmem::wait;
///
/// let (mut sender, receiver) = wait::bounded::<u32>(16);
/// (1..=3).for_each(|number| sender.send(number).unwrap());
/// drop(sender); // ends the stream
/// let messages: Vec<_> = futures::executor::block_on(receiver.into_stream().collect());
/// assert_eq!(messages, [Ok(1), Ok(2), Ok(3)]);
/// ```
pub struct MessageStream<E: Pop, P: Park<E::Word> = Os> {
    waiting: Waiting<E, P>,
    place: WakerEntry,
}

impl<E: Pop, P: Park<E::Word>> Unpin for MessageStream<E, P> {}

impl<E: Pop, P: Park<E::Word>> futures_core::Stream for MessageStream<E, P> {
    type Item = Result<E::Item, RecvError<E::Corrupt>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { waiting, place } = &mut *self;
        place.poll(waiting, cx, pop)
    }
}

impl<E: Pop, P: Park<E::Word>> Drop for MessageStream<E, P> {
    fn drop(&mut self) {
        self.place.leave(&self.waiting);
    }
}

/// The sink of [`Waiting::into_sink`]; each poll sends the started value. `poll_close` also drops the end; later values return in
/// [`Disconnected`](SendError::Disconnected).
///
/// ```
/// use futures::SinkExt;
/// use ringmem::wait;
///
/// let (sender, receiver) = wait::bounded::<u32>(16);
/// let mut sink = sender.into_sink();
/// futures::executor::block_on(async {
///     sink.feed(1).await?; // stays in the sink until the next call
///     sink.send(2).await?;
///     sink.close().await
/// })?;
/// assert_eq!(receiver.into_iter().collect::<Vec<_>>(), [1, 2]);
/// # Ok::<(), wait::SendError<u32>>(())
/// ```
pub struct MessageSink<E: Push, P: Park<E::Word> = Os> {
    waiting: Option<Waiting<E, P>>,
    place: WakerEntry,
    value: Option<E::Item>,
}

impl<E: Push, P: Park<E::Word>> Unpin for MessageSink<E, P> {}

impl<E: Push, P: Park<E::Word>> MessageSink<E, P> {
    fn poll_empty(&mut self, cx: &Context<'_>) -> Poll<Sent<E>> {
        let Self { waiting: Some(waiting), place, value } = self else { return Poll::Ready(Ok(())) };
        if value.is_none() {
            return Poll::Ready(Ok(()));
        }
        place.poll(waiting, cx, |end| push(end, value)).map(|sent| outcome(sent, value))
    }
}

impl<E: Push, P: Park<E::Word>> futures_sink::Sink<E::Item> for MessageSink<E, P> {
    type Error = SendError<E::Item, E::Corrupt>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_empty(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, value: E::Item) -> Result<(), Self::Error> {
        if self.waiting.is_none() {
            return Err(SendError::Disconnected(value));
        }
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
        self.waiting = None;
        Poll::Ready(sent)
    }
}

impl<E: Push, P: Park<E::Word>> Drop for MessageSink<E, P> {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            self.place.leave(waiting);
        }
    }
}

impl<E: Pop + fmt::Debug, P: Park<E::Word>> fmt::Debug for MessageStream<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageStream").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<E: Push + fmt::Debug, P: Park<E::Word>> fmt::Debug for MessageSink<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSink").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}
