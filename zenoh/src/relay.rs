//! [`Relay`]: the handle of a sender or a receiver.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use zenoh::Session;

use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::{Error, Sink, Source};

/// Limits and times of a relay.
///
/// ```
/// use ringmem_zenoh::Options;
///
/// let small = Options { window_bytes: 64 << 10, ..Options::default() };
/// assert_eq!(small.batch_bytes, 32 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of messages that are sent together, about. By default 32 KiB.
    pub batch_bytes: usize,
    /// Bytes of messages that are sent and not acknowledged; the smaller value of sender and receiver counts. By default 4 MiB.
    pub window_bytes: usize,
    /// The time without an acknowledgement after which a sender asks the receiver where to continue. By default 500 ms.
    pub silence: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { batch_bytes: 32 << 10, window_bytes: 4 << 20, silence: Duration::from_millis(500) }
    }
}

/// Counters of a relay. Those of the other direction stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Sender: messages sent, each once. Receiver: messages pushed into the sink.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Sender: messages that the receiver has pushed into its sink, and that the source has released.
    pub acknowledged: u64,
    /// Sender: messages sent again.
    pub resent: u64,
    /// Receiver: messages dropped because they had arrived before.
    pub duplicates: u64,
    /// Receiver: batches dropped because an earlier one was missing, or because the window was exceeded.
    pub gaps: u64,
    /// Sender: handshakes after the first that found the receiver again. Receiver: changes of the source.
    pub reconnects: u64,
    /// Invalid messages and messages that were not for this relay; they are ignored.
    pub rejected: u64,
    /// Receiver: handshakes refused because the rings differ.
    pub refused: u64,
}

macro_rules! counters {
    ($($name:ident)+) => {
        /// The counters while the relay runs.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)+
        }

        impl Counters {
            fn read(&self) -> Metrics {
                Metrics { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}
counters! { messages bytes acknowledged resent duplicates gaps reconnects rejected refused }

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Relaxed);
}

/// The state that the handle shares with the thread and zenoh's callbacks.
#[derive(Default)]
pub(crate) struct Common {
    pub counters: Counters,
    stop: AtomicBool,
}

impl Common {
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// A sender or a receiver, which runs on a thread of its own, and its end of the ring.
///
/// Dropping it asks the thread to end and does not wait for it; [`stop`](Self::stop) waits and returns the end.
pub struct Relay<E> {
    common: Arc<Common>,
    /// Taken only by `join`.
    thread: Option<JoinHandle<(E, Result<(), Error>)>>,
}

impl<S: Source> Relay<S> {
    /// Starts to send the messages of `source` to the receiver at `key`.
    ///
    /// # Errors
    ///
    /// [`Error::Key`], [`Error::Zenoh`], [`Error::Thread`].
    pub fn sender(session: &Session, key: &str, source: S) -> Result<Self, Error> {
        Self::sender_with(session, key, source, Options::default())
    }

    /// As [`sender`](Self::sender), with options.
    ///
    /// # Errors
    ///
    /// As [`sender`](Self::sender).
    pub fn sender_with(session: &Session, key: &str, source: S, options: Options) -> Result<Self, Error> {
        let common = Arc::new(Common::default());
        let sender = Sender::new(session, key, source, options, Arc::clone(&common))?;
        Self::spawn("ring sender", common, move || sender.run())
    }
}

impl<S: Sink> Relay<S> {
    /// Starts to receive messages at `key` into `sink`.
    ///
    /// # Errors
    ///
    /// [`Error::Key`], [`Error::State`], [`Error::Zenoh`], [`Error::Thread`].
    pub fn receiver(session: &Session, key: &str, sink: S) -> Result<Self, Error> {
        Self::receiver_with(session, key, sink, Options::default())
    }

    /// As [`receiver`](Self::receiver), with options.
    ///
    /// # Errors
    ///
    /// As [`receiver`](Self::receiver).
    pub fn receiver_with(session: &Session, key: &str, sink: S, options: Options) -> Result<Self, Error> {
        let common = Arc::new(Common::default());
        let receiver = Receiver::new(session, key, sink, options, Arc::clone(&common))?;
        Self::spawn("ring receiver", common, move || receiver.run())
    }
}

impl<E: Send + 'static> Relay<E> {
    fn spawn(name: &str, common: Arc<Common>, run: impl FnOnce() -> (E, Result<(), Error>) + Send + 'static) -> Result<Self, Error> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).map_err(Error::Thread)?;
        Ok(Self { common, thread: Some(thread) })
    }
}

impl<E> Relay<E> {
    /// Returns the counters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.common.counters.read()
    }

    /// Returns whether the thread has ended, by an error or because the session was closed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the thread has ended; returns the end of the ring, and the error that ended it.
    ///
    /// Messages that are not acknowledged are still in a returned source.
    ///
    /// # Panics
    ///
    /// If the thread panicked, for example in a closure of the caller's.
    pub fn join(mut self) -> (E, Result<(), Error>) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("only this function takes the thread, and it takes the handle"),
        }
    }

    /// Asks the thread to end, and waits for it as [`join`](Self::join) does: some seconds if zenoh blocks in a publication.
    ///
    /// # Panics
    ///
    /// As [`join`](Self::join).
    pub fn stop(self) -> (E, Result<(), Error>) {
        self.common.stop.store(true, Relaxed);
        self.join()
    }
}

impl<E> Drop for Relay<E> {
    fn drop(&mut self) {
        self.common.stop.store(true, Relaxed);
    }
}

impl<E> fmt::Debug for Relay<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}
