use core::future::poll_fn;
use core::iter;
use core::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::error::{ReceiveError, SendError};
use super::{Channel, pause};
use crate::attach::{AttachError, Corrupt};
use crate::backend::watch;
use crate::bridge::{BatchReceiver, BatchSender, MOST_FAILURES, SLEEP};
use crate::control::State;
use crate::ring::spsc::{PopError, PushError};
use crate::{Error, Result, RingMessage};

/// Polls of the watching thread between two of a future: half a millisecond at most.
const MOST_LOOKS: u32 = 5;

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Pushes a message and flushes it; waits for room, up to the [timeout](super::Options::timeout).
    ///
    /// Receive before both rings are full: with a full output ring, the kernel pops nothing.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send); [`SendError::Kernel`] if the kernel has left, after a crash at most a millisecond later. If it leaves meanwhile, it
    /// may not read the message.
    pub fn send(&mut self, message: I) -> Result<(), SendError<I>> {
        let (begun, mut times, mut message) = (Instant::now(), 0, message);
        // A kernel that crashed leaves its last state. Only the driver knows, whose answer takes longer than a send.
        let is_due = begun.saturating_duration_since(self.asked) >= Duration::from_millis(1);
        if is_due {
            self.asked = begun;
        }
        if self.state().is_none_or(State::has_ended) || self.kernel.is_none() || is_due && self.has_returned() {
            return Err(SendError::Kernel { error: self.fault_on_return(Duration::ZERO), message });
        }
        loop {
            message = match self.try_send(message) {
                Err(SendError::Full(message)) => message,
                sent => return sent,
            };
            if self.has_left() {
                return Err(SendError::Kernel { error: self.fault_on_return(begun.elapsed()), message });
            }
            if begun.elapsed() > self.timeout {
                return Err(SendError::Full(message));
            }
            pause(&mut times);
        }
    }

    /// As [`send`](Self::send), as a future, without a time limit; a thread wakes it at least every millisecond. Cancel-safe: a future that is
    /// dropped before it is ready has sent nothing.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem_kernels::echo::{ECHO, Echo};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut channel = Channel::open(&backend, 0, ECHO)?;
    /// futures::executor::block_on(async {
    ///     channel.send_async(Echo { words: [7; 8] }).await?;
    ///     assert_eq!(channel.recv_async().await?.words, [7; 8]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); never [`SendError::Full`].
    pub fn send_async(&mut self, message: I) -> impl Future<Output = Result<(), SendError<I>>> {
        let (mut attempts, mut unsent) = (Attempts::new(), Some(message));
        poll_fn(move |context| match self.advance_send(&attempts, &mut unsent) {
            Some(sent) => Poll::Ready(sent),
            None => attempts.again(context),
        })
    }

    /// An attempt of an asynchronous send; `None` leaves the message in `unsent`.
    pub(super) fn advance_send(&mut self, attempts: &Attempts, unsent: &mut Option<I>) -> Option<Result<(), SendError<I>>> {
        let message = unsent.take()?;
        let message = match if self.has_left() { Err(SendError::Full(message)) } else { self.try_send(message) } {
            Err(SendError::Full(message)) => message,
            sent => return Some(sent),
        };
        if self.has_left() && !self.is_returning() {
            return Some(Err(SendError::Kernel { error: self.fault(attempts.begun.elapsed()), message }));
        }
        *unsent = Some(message);
        None
    }

    /// Pushes a message and flushes it; never waits, nor [checks](Self::check) the kernel.
    ///
    /// An answer may be received shortly before the slot of its message is free again.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the message unless it is in the ring.
    pub fn try_send(&mut self, message: I) -> Result<(), SendError<I>> {
        if let Err(error) = self.check_process() {
            return Err(SendError::Kernel { error, message });
        }
        let pushed = match self.sender.push(message) {
            Err(PushError::Full(message)) if self.bridge.moves() => match self.bridge.poll() {
                Ok(_) => self.sender.push(message),
                Err(error) => return Err(SendError::Flush { error, message: Some(message) }),
            },
            pushed => pushed,
        };
        self.count();
        match pushed {
            Ok(()) if self.bridge.moves() => self.bridge.flush_sent().map_err(|error| SendError::Flush { error, message: None }),
            Ok(()) => Ok(()),
            Err(PushError::Full(message)) => Err(SendError::Full(message)),
            Err(PushError::Corrupt(message, corrupt)) => Err(SendError::Corrupt(message, corrupt)),
        }
    }

    /// Pops an answer; waits until the kernel has left. Then [`restart`](Self::restart) is possible at once.
    ///
    /// # Errors
    ///
    /// [`Kernel`](crate::Error::Kernel) after an ended kernel's last answer, or after the [limit](super::Options::recv_timeout), if one is set; the
    /// last flush's error if it persists; [`Attach`](crate::Error::Attach) for a corrupt ring.
    pub fn recv(&mut self) -> Result<O> {
        self.recv_until(self.recv_limit)
    }

    /// As [`recv`](Self::recv), with this limit.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), also on timeout.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<O> {
        self.recv_until(Some(timeout))
    }

    fn recv_until(&mut self, timeout: Option<Duration>) -> Result<O> {
        let (mut receiving, mut times) = (Receiving::new(), 0);
        loop {
            if let Some(received) = receiving.step(self, timeout) {
                return received;
            }
            match self.bridge.failing().into_iter().max() {
                None | Some(0) => pause(&mut times),
                // As a pump: a failure has some time to pass.
                Some(failing) => std::thread::sleep(SLEEP * failing.min(MOST_FAILURES)),
            }
        }
    }

    /// As [`recv`](Self::recv), as a future; a thread wakes it at least every millisecond. Cancel-safe: a future that is dropped before it is ready
    /// has popped nothing.
    pub fn recv_async(&mut self) -> impl Future<Output = Result<O>> {
        let (mut receiving, mut attempts) = (Receiving::new(), Attempts::new());
        poll_fn(move |context| match receiving.step(self, self.recv_limit) {
            Some(received) => Poll::Ready(received),
            None => attempts.again(context),
        })
    }

    /// Pops an answer, with a flush if there is none; never waits.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; no answer is lost.
    pub fn try_recv(&mut self) -> Result<O, ReceiveError> {
        self.check_process().map_err(ReceiveError::Flush)?;
        let popped = match self.receiver.pop() {
            Err(PopError::Empty) if self.bridge.moves() => {
                let polled = self.bridge.poll();
                match (self.receiver.pop(), polled) {
                    (Err(PopError::Empty), Err(error)) => return Err(ReceiveError::Flush(error)),
                    // The other direction has failed, if any.
                    (popped, _) => popped,
                }
            }
            popped => popped,
        };
        self.count();
        popped.map_err(|error| match error {
            PopError::Empty => ReceiveError::Empty,
            PopError::Corrupt(corrupt) => ReceiveError::Corrupt(corrupt),
        })
    }

    /// Pushes the first of `messages` that fit; returns how many. [`flush`](Self::flush) after it; never waits.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was pushed.
    pub fn try_send_slice(&mut self, messages: &[I]) -> Result<usize, Corrupt> {
        if self.process.is_this() { self.sender.push_slice(messages) } else { Ok(0) }
    }

    /// Calls `act` with the oldest arrived answer in place, if any, and pops it if `act` returns true; returns whether it did.
    /// [`flush`](Self::flush) before it; never waits.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; `act` was not called.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem_kernels::echo::{ECHO, Echo};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut channel = Channel::open(&backend, 0, ECHO)?;
    /// assert_eq!(channel.try_send_slice(&[Echo { words: [7; 8] }])?, 1);
    /// channel.drain()?;
    /// let mut seen = 0;
    /// assert!(!channel.try_recv_with(|answer| { seen = answer.words[0]; false })?); // it stays
    /// assert_eq!((seen, channel.recv()?.words), (7, [7; 8]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_recv_with(&mut self, act: impl FnOnce(&O) -> bool) -> Result<bool, Corrupt> {
        if self.process.is_this() { self.receiver.pop_with(act) } else { Ok(false) }
    }

    /// Iterates over answers until [`recv`](Self::recv) fails, also at a timeout or fault. For its error, call [`recv`](Self::recv) in a loop instead.
    pub fn iter(&mut self) -> impl Iterator<Item = O> {
        iter::from_fn(|| self.recv().ok())
    }

    /// Iterates over arrived answers; never waits.
    pub fn try_iter(&mut self) -> impl Iterator<Item = O> {
        iter::from_fn(|| self.try_recv().ok())
    }

    /// Publishes every `every` messages: [`BatchSender`]. [`flush`](Self::flush) after it.
    pub fn send_batch(&mut self, every: usize) -> BatchSender<'_, I> {
        self.sender.batch(every)
    }

    /// Releases every `every` slots: [`BatchReceiver`]. [`flush`](Self::flush) before it.
    pub fn recv_batch(&mut self, every: usize) -> BatchReceiver<'_, O> {
        self.receiver.batch(every)
    }

    /// Moves messages between the host's and the kernel's rings; returns the counts each way, `[0, 0]` for shared rings.
    ///
    /// # Errors
    ///
    /// The backend's error; the next flush repeats the failed part.
    pub fn flush(&mut self) -> Result<[u64; 2]> {
        self.check_process()?;
        let moved = if self.bridge.moves() { self.bridge.poll() } else { Ok([0; 2]) };
        self.count();
        moved
    }

    /// Flushes until all sent messages are in the kernel's ring, as a future without a time limit; a thread wakes it at least every millisecond.
    /// Cancel-safe: the messages stay in the ring. For shared rings, it is ready at once.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem_kernels::echo::{ECHO, Echo};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut channel = Channel::open(&backend, 0, ECHO)?;
    /// futures::executor::block_on(async {
    ///     channel.try_send_slice(&[Echo { words: [1; 8] }, Echo { words: [2; 8] }])?;
    ///     channel.flush_async().await?;
    ///     assert_eq!(channel.recv_async().await?.words, [1; 8]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush); [`Kernel`](crate::Error::Kernel) if the kernel has left before.
    pub fn flush_async(&mut self) -> impl Future<Output = Result<()>> {
        let mut attempts = Attempts::new();
        poll_fn(move |context| match self.advance_flush(&attempts) {
            Some(flushed) => Poll::Ready(flushed),
            None => attempts.again(context),
        })
    }

    /// `None` while messages are on their way.
    pub(super) fn advance_flush(&mut self, attempts: &Attempts) -> Option<Result<()>> {
        if !self.process.is_this() {
            return Some(Err(self.fault(Duration::ZERO)));
        }
        if let Err(error) = self.flush() {
            return Some(Err(error));
        }
        if self.bridge.pending()[0] == 0 {
            return Some(Ok(()));
        }
        (self.has_left() && !self.is_returning()).then(|| Err(self.fault(attempts.begun.elapsed())))
    }

    /// Returns the next indices to send and to receive.
    #[must_use]
    pub const fn indices(&self) -> (u64, u64) {
        (self.sender.tail(), self.receiver.head())
    }

    /// Flushes; returns the messages that the kernel has not popped.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush); [`Attach`](crate::Error::Attach) for a corrupt ring.
    pub fn input_waiting(&mut self) -> Result<usize> {
        self.flush()?;
        self.untaken()
    }

    /// As [`input_waiting`](Self::input_waiting), without the flush.
    pub(crate) fn untaken(&mut self) -> Result<usize> {
        if let Some((untaken, polled)) = self.bridge.untaken() {
            return polled.map(|()| untaken);
        }
        Ok(self.sender.capacity() - self.sender.refresh().map_err(AttachError::Corrupt)?)
    }

    /// Flushes; returns the unreceived answers.
    ///
    /// # Errors
    ///
    /// As [`input_waiting`](Self::input_waiting).
    pub fn output_waiting(&mut self) -> Result<usize> {
        self.flush()?;
        Ok(self.receiver.refresh().map_err(AttachError::Corrupt)?)
    }
}

/// The unsuccessful polls of a future, or since a stream or sink was last ready.
pub(super) struct Attempts {
    begun: Instant,
    times: u32,
}

impl Attempts {
    pub fn new() -> Self {
        Self { begun: Instant::now(), times: 0 }
    }

    /// A GPU wakes no task: a thread does, later after each attempt.
    pub fn again<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        watch::soon(context.waker().clone(), self.times.min(MOST_LOOKS));
        self.times = self.times.saturating_add(1);
        Poll::Pending
    }
}

/// The state of a receive between its attempts.
pub(super) struct Receiving {
    begun: Instant,
    /// Polls begun when the kernel was found to have left.
    polls: Option<u64>,
    /// When all its answers were here.
    over: Option<Instant>,
    failed: Option<Error>,
}

impl Receiving {
    pub fn new() -> Self {
        Self { begun: Instant::now(), polls: None, over: None, failed: None }
    }

    pub fn step<I: RingMessage, O: RingMessage>(&mut self, channel: &mut Channel<I, O>, timeout: Option<Duration>) -> Option<Result<O>> {
        if !channel.process.is_this() {
            return Some(Err(channel.fault(Duration::ZERO)));
        }
        loop {
            match channel.try_recv() {
                Ok(answer) => return Some(Ok(answer)),
                Err(ReceiveError::Corrupt(corrupt)) => return Some(Err(AttachError::Corrupt(corrupt).into())),
                Err(ReceiveError::Flush(error)) => self.failed = Some(error),
                // An awaited poll does not end the failure.
                Err(ReceiveError::Empty) => self.failed = self.failed.take().filter(|_| channel.bridge.failing() != [0; 2]),
            }
            let [up, down] = channel.bridge.failing().map(|failing| self.failed.is_some() && failing >= MOST_FAILURES);
            let is_over = match self.polls {
                // A message that cannot be moved to the kernel gets no answer.
                None => up || down,
                // The last answers may be in flight, or lost.
                Some(polls) => down || channel.bridge.has_brought_all(polls),
            };
            let waited = self.begun.elapsed();
            let is_late = timeout.is_some_and(|timeout| waited > timeout);
            // A caller that receives this error may restart the kernel at once.
            if is_over && !is_late && channel.is_returning() && self.over.get_or_insert_with(Instant::now).elapsed() <= channel.timeout {
                return None;
            }
            if is_over || is_late {
                return Some(Err(self.failed.take().unwrap_or_else(|| channel.fault(waited))));
            }
            if self.polls.is_some() || !channel.has_left() {
                return None;
            }
            self.polls = Some(channel.bridge.polls());
            channel.bridge.hurry();
        }
    }
}
