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
use crate::{Error, RingType, Sink, Source};

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
    /// Approximate bytes of messages per batch: 1 byte to 64 MiB. By default 32 KiB.
    pub batch_bytes: usize,
    /// Most unacknowledged bytes: 1 byte to 1 TiB; the smaller value of sender and receiver applies. By default 4 MiB.
    pub window_bytes: usize,
    /// The time without an acknowledgement after which a sender repeats the handshake: 1 ms to 1 day. By default 500 ms.
    pub silence: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { batch_bytes: 32 << 10, window_bytes: 4 << 20, silence: Duration::from_millis(500) }
    }
}

const MOST_BATCH: usize = 64 << 20;
/// The receiver doubles it.
const MOST_WINDOW: usize = if usize::BITS > 40 { 1 << 40 } else { 1 << 29 };
const SHORTEST_SILENCE: Duration = Duration::from_millis(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(24 * 60 * 60);

impl Options {
    /// Without a byte to send or a time to wait, a relay would be silent or busy without an error; larger values overflow sums.
    fn check(&self) -> Result<(), Error> {
        let Self { batch_bytes, window_bytes, silence } = *self;
        let error = |name, allowed, value| Err(Error::Option { name, allowed, value });
        if !(1..=MOST_BATCH).contains(&batch_bytes) {
            return error("batch_bytes", "1 to 67108864 (64 MiB)", batch_bytes.to_string());
        }
        if !(1..=MOST_WINDOW).contains(&window_bytes) {
            let allowed = if MOST_WINDOW > 1 << 29 { "1 to 1099511627776 (1 TiB)" } else { "1 to 536870912 (512 MiB)" };
            return error("window_bytes", allowed, window_bytes.to_string());
        }
        if !(SHORTEST_SILENCE..=LONGEST_SILENCE).contains(&silence) {
            return error("silence", "1ms to 86400s (a day)", format!("{silence:?}"));
        }
        Ok(())
    }
}

fn check(ring: &RingType) -> Result<(), Error> {
    if ring.size == 0 && !ring.framed { Err(Error::ZeroSized) } else { Ok(()) }
}

/// Counters of a relay. Those of the other direction stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Sender: messages sent, each once. Receiver: messages pushed into the sink.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Sender: messages that the receiver pushed and the source released.
    pub acknowledged: u64,
    /// Sender: messages sent again.
    pub resent: u64,
    /// Receiver: repeated messages dropped.
    pub duplicates: u64,
    /// Receiver: batches dropped after a gap, or beyond the window.
    pub gaps: u64,
    /// Sender: successful handshakes after the first. Receiver: changes of the source.
    pub reconnects: u64,
    /// Ignored messages: invalid, or not for this relay.
    pub rejected: u64,
    /// Receiver: handshakes refused because the rings differ.
    pub refused: u64,
}

macro_rules! counters {
    ($($name:ident)+) => {
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
