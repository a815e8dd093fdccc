use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use zenoh::Session;

use crate::metrics::Common;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::{Error, Metrics, Options, RingType, Sink, Source};

fn check(ring: &RingType) -> Result<(), Error> {
    if ring.size == 0 && !ring.framed { Err(Error::ZeroSized) } else { Ok(()) }
}

/// A sender or receiver on its own thread. Dropping it stops the thread without waiting; [`stop`](Self::stop) returns the ring's end.
pub struct Relay<E> {
    common: Arc<Common>,
    thread: Option<JoinHandle<(E, Result<(), Error>)>>,
}

impl<S: Source> Relay<S> {
    /// Sends `source` to the receiver at `key`.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroSized`], [`Error::Key`], [`Error::Zenoh`], [`Error::Thread`].
    pub fn sender(session: &Session, key: &str, source: S) -> Result<Self, Error> {
        Self::sender_with(session, key, source, Options::default())
    }

    /// As [`sender`](Self::sender), with options.
    ///
    /// # Errors
    ///
    /// [`Error::Option`], and those of `sender`.
    pub fn sender_with(session: &Session, key: &str, source: S, options: Options) -> Result<Self, Error> {
        options.check()?;
        check(source.ring())?;
        let common = Arc::new(Common::default());
        let sender = Sender::new(session, key, source, options, Arc::clone(&common))?;
        Self::spawn("ring sender", common, move || sender.run())
    }
}

impl<S: Sink> Relay<S> {
    /// Receives at `key` into `sink`.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroSized`], [`Error::Key`], [`Error::State`], [`Error::InvalidState`], [`Error::Zenoh`], [`Error::Thread`].
    pub fn receiver(session: &Session, key: &str, sink: S) -> Result<Self, Error> {
        Self::receiver_with(session, key, sink, Options::default())
    }

    /// As [`receiver`](Self::receiver), with options.
    ///
    /// # Errors
    ///
    /// [`Error::Option`], and those of `receiver`.
    pub fn receiver_with(session: &Session, key: &str, sink: S, options: Options) -> Result<Self, Error> {
        options.check()?;
        check(sink.ring())?;
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

    /// Returns whether the thread ended: by an error or a closed session.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread to end; returns the ring's end and the thread's error.
    ///
    /// A returned source still has its unacknowledged messages.
    ///
    /// # Panics
    ///
    /// If the thread panicked, for example in a closure.
    pub fn join(mut self) -> (E, Result<(), Error>) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("only this function takes the thread, and it takes the handle"),
        }
    }

    /// Stops the thread, then [`join`](Self::join)s it: some seconds if zenoh blocks in a publication. Panics as `join`.
    pub fn stop(self) -> (E, Result<(), Error>) {
        self.common.stop();
        self.join()
    }
}

impl<E> Drop for Relay<E> {
    fn drop(&mut self) {
        self.common.stop();
    }
}

impl<E> fmt::Debug for Relay<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}
