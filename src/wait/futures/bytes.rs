use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Os, Park, Waiting, WakerEntry};
use crate::ring::framed::{PopError, PushError};
use crate::ring::{End, PopBytes, PushBytes};
use crate::wait::WaitError;
use crate::wait::bytes::{pop, push};

impl<E: PopBytes, P: Park<E::Word>> Waiting<E, P> {
    /// As [`into_stream`](Self::into_stream), for bytes.
    pub fn into_bytes_stream(self) -> ByteStream<E, P> {
        ByteStream { waiting: self, place: WakerEntry::new() }
    }
}

impl<E: PushBytes, P: Park<E::Word>> Waiting<E, P> {
    /// As [`into_sink`](Self::into_sink), for bytes.
    pub fn into_bytes_sink(self) -> ByteSink<E, P> {
        ByteSink { waiting: Some(self), place: WakerEntry::new(), message: None, refused: None }
    }
}

/// The stream of [`Waiting::into_bytes_stream`].
///
/// ```
/// use futures::StreamExt;
/// use ringmem::ring::framed;
/// use ringmem::wait::{WaitStrategy, pair};
///
/// let mut ring = framed::Ring::<64>::new();
/// let (producer, consumer) = ring.split();
/// let (mut sender, receiver) = pair(producer, consumer, WaitStrategy::default());
/// sender.send_bytes(b"hello").unwrap();
/// let mut messages = receiver.into_bytes_stream();
/// assert_eq!(futures::executor::block_on(messages.next()), Some(Ok(b"hello".to_vec())));
/// ```
pub struct ByteStream<E: PopBytes, P: Park<E::Word> = Os> {
    waiting: Waiting<E, P>,
    place: WakerEntry,
}

impl<E: PopBytes, P: Park<E::Word>> Unpin for ByteStream<E, P> {}

impl<E: PopBytes, P: Park<E::Word>> futures_core::Stream for ByteStream<E, P> {
    type Item = Result<Vec<u8>, WaitError<PopError<E::Corrupt>>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { waiting, place } = &mut *self;
        place.poll(waiting, cx, take)
    }
}

type Received<E> = Result<Vec<u8>, WaitError<PopError<<E as End>::Corrupt>>>;

fn take<E: PopBytes>(end: &mut E) -> Option<Received<E>> {
    let mut bytes = Vec::new();
    loop {
        match pop(end, &mut bytes)? {
            // The message, at most half the ring, stays until it fits.
            Err(WaitError::Refused(PopError::TooSmall { needed })) if needed > bytes.len() => bytes.resize(needed, 0),
            taken => {
                return Some(taken.map(|len| {
                    bytes.truncate(len);
                    bytes
                }));
            }
        }
    }
}

impl<E: PopBytes, P: Park<E::Word>> Drop for ByteStream<E, P> {
    fn drop(&mut self) {
        self.place.leave(&self.waiting);
    }
}

/// The sink of [`Waiting::into_bytes_sink`]; each poll sends the started message. `poll_close` also drops the end; later messages are
/// [`Disconnected`](WaitError::Disconnected). [`refused`](Self::refused) keeps a failed message.
///
/// ```
/// use futures::SinkExt;
/// use ringmem::ring::framed;
/// use ringmem::wait::{WaitStrategy, pair};
///
/// let mut ring = framed::Ring::<64>::new();
/// let (producer, consumer) = ring.split();
/// let (sender, mut receiver) = pair(producer, consumer, WaitStrategy::default());
/// let mut sink = sender.into_bytes_sink();
/// let too_long = futures::executor::block_on(sink.send(vec![0; 1000]));
/// assert!(too_long.is_err() && sink.refused().is_some_and(|message| message.len() == 1000));
/// futures::executor::block_on(sink.send(b"hello".to_vec())).unwrap();
/// assert_eq!(receiver.recv_bytes(&mut [0; 64]), Ok(5));
/// ```
pub struct ByteSink<E: PushBytes, P: Park<E::Word> = Os> {
    waiting: Option<Waiting<E, P>>,
    place: WakerEntry,
    message: Option<Vec<u8>>,
    refused: Option<Vec<u8>>,
}

impl<E: PushBytes, P: Park<E::Word>> Unpin for ByteSink<E, P> {}

impl<E: PushBytes, P: Park<E::Word>> ByteSink<E, P> {
    /// Takes the message of the last error.
    pub const fn refused(&mut self) -> Option<Vec<u8>> {
        self.refused.take()
    }

    fn poll_empty(&mut self, cx: &Context<'_>) -> Poll<Result<(), WaitError<PushError<E::Corrupt>>>> {
        let Self { waiting: Some(waiting), place, message: Some(message), .. } = self else { return Poll::Ready(Ok(())) };
        let sent = ready!(place.poll(waiting, cx, |end| push(end, message))).unwrap_or(Err(WaitError::Disconnected));
        let message = self.message.take();
        if sent.is_err() {
            self.refused = message;
        }
        Poll::Ready(sent)
    }
}

impl<E: PushBytes, P: Park<E::Word>> futures_sink::Sink<Vec<u8>> for ByteSink<E, P> {
    type Error = WaitError<PushError<E::Corrupt>>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_empty(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Vec<u8>) -> Result<(), Self::Error> {
        let refused = match (&self.waiting, &self.message) {
            (None, _) => WaitError::Disconnected,
            (Some(_), Some(_)) => WaitError::Timeout,
            (Some(_), None) => {
                self.message = Some(message);
                return Ok(());
            }
        };
        self.refused = Some(message);
        Err(refused)
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

impl<E: PushBytes, P: Park<E::Word>> Drop for ByteSink<E, P> {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            self.place.leave(waiting);
        }
    }
}

impl<E: PopBytes + fmt::Debug, P: Park<E::Word>> fmt::Debug for ByteStream<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<E: PushBytes + fmt::Debug, P: Park<E::Word>> fmt::Debug for ByteSink<E, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteSink").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}
