use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::fmt;

use super::messages::{Attempts, Receiving};
use super::{Channel, SendError};
use crate::control::{Command, State};
use crate::{Error, Result, RingMessage};

/// A channel as a [`Sink`](futures_sink::Sink) of messages and a [`Stream`](futures_core::Stream) of answers, of
/// [`Channel::into_duplex`]. The `split` of `futures::StreamExt` gives both to different tasks.
///
/// 1. The sink keeps one started message until the next poll sends it: [`into_channel`](Self::into_channel) returns it. A flush is ready once all
///    sent messages are in the kernel's ring.
/// 2. Closing the sink flushes, then lets the kernel answer all messages and end, as [`Channel::drain`] does, without waiting for it. Later
///    messages are errors.
/// 3. The stream ends after the last answer of a kernel that has ended without a fault. Any other error of [`Channel::recv`] is an item; the next
///    poll tries again.
/// 4. Dropping a future of the sink or the stream loses neither a message nor an answer. A pending poll is repeated at least every millisecond: a
///    thread wakes its task.
///
/// As with [`Channel::send`], receive before both rings are full: with a full output ring, the kernel pops nothing, and the sink stays pending.
///
/// ```
/// use futures::{SinkExt, StreamExt, TryStreamExt, future, stream};
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let backend = HostBackend::builder().build()?;
/// let channel = Channel::builder(ECHO).input_capacity(4).output_capacity(4).open(&backend, 0)?;
/// let (mut messages, answers) = channel.into_duplex().split();
/// let mut numbers = stream::iter((0..100).map(|number| Echo { words: [number; 8] }).map(Ok));
/// let sent = async {
///     messages.send_all(&mut numbers).await?;
///     messages.close().await // the kernel answers the last message, and ends
/// };
/// let received = answers.try_collect::<Vec<_>>();
/// let (sent, received) = futures::executor::block_on(future::join(sent, received));
/// sent?;
/// assert!(received?.iter().map(|answer| answer.words[0]).eq(0..100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Duplex<I: RingMessage, O: RingMessage> {
    channel: Channel<I, O>,
    /// Started, but not in the ring.
    started: Option<I>,
    sending: Attempts,
    receiving: Option<(Receiving, Attempts)>,
    is_closed: bool,
}

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Converts to a [`Sink`](futures_sink::Sink) of messages and a [`Stream`](futures_core::Stream) of answers.
    #[must_use]
    pub fn into_duplex(self) -> Duplex<I, O> {
        Duplex { channel: self, started: None, sending: Attempts::new(), receiving: None, is_closed: false }
    }
}

/// Nothing in it is pinned.
impl<I: RingMessage, O: RingMessage> Unpin for Duplex<I, O> {}

impl<I: RingMessage, O: RingMessage> Duplex<I, O> {
    /// Returns the channel, for its state and figures.
    #[must_use]
    pub const fn channel(&self) -> &Channel<I, O> {
        &self.channel
    }

    /// Returns the channel, mutably, for its commands.
    pub const fn channel_mut(&mut self) -> &mut Channel<I, O> {
        &mut self.channel
    }

    /// Converts back to the channel; also returns a message that was started and not sent.
    #[must_use]
    pub fn into_channel(self) -> (Channel<I, O>, Option<I>) {
        (self.channel, self.started)
    }

    fn poll_started(&mut self, cx: &Context<'_>) -> Poll<Result<(), SendError<I>>> {
        if self.started.is_none() {
            return Poll::Ready(Ok(()));
        }
        match self.channel.advance_send(&self.sending, &mut self.started) {
            Some(sent) => Poll::Ready(sent),
            None => self.sending.again(cx),
        }
    }

    fn poll_arrived(&mut self, cx: &Context<'_>) -> Poll<Result<(), SendError<I>>> {
        ready!(self.poll_started(cx))?;
        match self.channel.advance_flush(&self.sending) {
            Some(flushed) => {
                self.sending = Attempts::new();
                Poll::Ready(flushed.map_err(|error| SendError::Flush { error, message: None }))
            }
            None => self.sending.again(cx),
        }
    }
}

impl<I: RingMessage, O: RingMessage> futures_sink::Sink<I> for Duplex<I, O> {
    type Error = SendError<I>;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError<I>>> {
        self.get_mut().poll_started(cx)
    }

    fn start_send(self: Pin<&mut Self>, message: I) -> Result<(), SendError<I>> {
        let this = self.get_mut();
        if this.is_closed {
            let error = Error::Unsupported { what: "a message after the close of the sink, which ends the kernel" };
            return Err(SendError::Kernel { error, message });
        }
        if this.started.is_some() {
            return Err(SendError::Full(message));
        }
        (this.started, this.sending) = (Some(message), Attempts::new());
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError<I>>> {
        self.get_mut().poll_arrived(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError<I>>> {
        let this = self.get_mut();
        if !this.is_closed {
            this.channel.activate_if_paused();
            ready!(this.poll_arrived(cx))?;
            this.channel.control.command(Command::DRAIN);
            this.is_closed = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: RingMessage, O: RingMessage> futures_core::Stream for Duplex<I, O> {
    type Item = Result<O>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<O>>> {
        let Self { channel, receiving, .. } = self.get_mut();
        let limit = channel.recv_limit;
        let (steps, attempts) = receiving.get_or_insert_with(|| (Receiving::new(), Attempts::new()));
        let Some(received) = steps.step(channel, limit) else { return attempts.again(cx) };
        *receiving = None;
        Poll::Ready(match received {
            // Before the limit: otherwise, answers may be on their way.
            Err(Error::Kernel { state: Some(State::Terminated), is_over: true, fault: None, waited, .. })
                if limit.is_none_or(|limit| waited <= limit) =>
            {
                None
            }
            received => Some(received),
        })
    }
}

impl<I: RingMessage, O: RingMessage> fmt::Debug for Duplex<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex").field("channel", &self.channel).field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}
