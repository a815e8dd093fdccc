//! [`Sender`] and [`Receiver`]: the user's ends of a bridge's host rings.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use ringmem_layouts::ring::{End, Pop, Push, RingFlags, WaitWords};

use super::host_ring::HostRing;
use crate::attach::Corrupt;
use crate::ring::flagged;
use crate::ring::spsc::{self, PopError, PushError};
use crate::{Host, HostWord, Result, RingMessage};

enum Either<I, F> {
    Indexed(I),
    Flagged(F),
}

macro_rules! either {
    ($either:expr, $end:ident => $what:expr) => {
        match $either {
            Either::Indexed($end) => $what,
            Either::Flagged($end) => $what,
        }
    };
}

type Giving<T> = Either<spsc::Producer<'static, T, Host>, flagged::Producer<'static, T, Host>>;
type Taking<T> = Either<spsc::Consumer<'static, T, Host>, flagged::Consumer<'static, T, Host>>;

/// The user's end of the input ring: pushes messages for the kernel.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Sync);
/// let Opened { mut sender, mut bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// sender.push(Echo { words: [7; 8] }).expect("room"); // into the host's ring
/// assert_eq!(bridge.flush_to_device()?, 1); // to the kernel's
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Sender<T: RingMessage> {
    // INVARIANT: 'static stands for the lifetime of `ring`, dropped after it. No reference to the memory leaves this type.
    end: Giving<T>,
    ring: Arc<HostRing>,
}

/// The user's end of the output ring: pops messages from the kernel.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem::wait::{RecvError, WaitStrategy, Waiting};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Sync);
/// let Opened { receiver, bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// let mut receiver = <Waiting<_>>::receiver(receiver, WaitStrategy::default()); // waits for answers
/// drop(bridge);
/// assert_eq!(receiver.recv().err(), Some(RecvError::Disconnected));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Receiver<T: RingMessage> {
    // INVARIANT: as in `Sender`.
    end: Taking<T>,
    ring: Arc<HostRing>,
}

/// Publishes in batches: see [`spsc::BatchProducer`] and [`flagged::BatchProducer`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Sync);
/// let Opened { mut sender, mut bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// let mut batch = sender.batch(4);
/// (0..3).for_each(|id| batch.push(Echo { words: [id; 8] }).expect("room"));
/// assert_eq!(bridge.flush_to_device()?, 1); // only the first, into an empty ring, is published yet
/// batch.flush();
/// assert_eq!(bridge.flush_to_device()?, 2);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct BatchSender<'s, T: RingMessage>(Either<spsc::BatchProducer<'s, 'static, T, Host>, flagged::BatchProducer<'s, 'static, T, Host>>);

/// Releases in batches: see [`spsc::BatchConsumer`] and [`flagged::BatchConsumer`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::open(&backend, 0, ECHO)?;
/// for id in 0..6 {
///     channel.send(Echo { words: [id; 8] })?;
/// }
/// channel.drain()?; // all answers have arrived
/// let mut batch = channel.recv_batch(4);
/// let answers: Vec<u64> = std::iter::from_fn(|| batch.pop().ok()).map(|answer| answer.words[0]).collect();
/// assert_eq!(answers, [0, 1, 2, 3, 4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BatchReceiver<'r, T: RingMessage>(
    Either<spsc::BatchConsumer<'r, 'static, T, Host>, flagged::BatchConsumer<'r, 'static, T, Host>>,
);

impl<T: RingMessage> BatchSender<'_, T> {
    /// Pushes a message; publishes it with its batch.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the message; earlier ones are published.
    #[inline]
    pub fn push(&mut self, message: T) -> Result<(), PushError<T, Corrupt>> {
        either!(&mut self.0, batch => batch.push(message))
    }

    /// Publishes the pending messages.
    #[inline]
    pub fn flush(&mut self) {
        either!(&mut self.0, batch => batch.flush());
    }
}

impl<T: RingMessage> BatchReceiver<'_, T> {
    /// Pops a message; releases its slot with its batch.
    ///
    /// # Errors
    ///
    /// [`PopError`]; earlier slots are released.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError<Corrupt>> {
        either!(&mut self.0, batch => batch.pop())
    }

    /// Releases the popped slots.
    #[inline]
    pub fn flush(&mut self) {
        either!(&mut self.0, batch => batch.flush());
    }
}

impl<T: RingMessage> Sender<T> {
    /// # Safety
    ///
    /// Once for a ring.
    pub(super) unsafe fn new(ring: &Arc<HostRing>) -> Result<Self> {
        let end = if ring.layout.kind() == RingFlags::FLAGGED {
            // SAFETY: the ring's memory is formatted, and its `Arc` is kept with the end; the caller promises that it is the only producer.
            Either::Flagged(unsafe { flagged::Producer::from_raw(ring.base(), ring.layout.size()) }?.announce())
        } else {
            // SAFETY: the caller promises that it is the only producer; the `Arc` is kept with the end.
            Either::Indexed(unsafe { ring.producer() }?.announce())
        };
        Ok(Self { end, ring: Arc::clone(ring) })
    }

    /// Pushes a message; never waits.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the message.
    #[inline]
    pub fn push(&mut self, message: T) -> Result<(), PushError<T, Corrupt>> {
        either!(&mut self.end, end => end.push(message))
    }

    /// Pushes as many as fit, from the first; returns how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was pushed.
    pub fn push_slice(&mut self, messages: &[T]) -> Result<usize, Corrupt> {
        either!(&mut self.end, end => end.push_slice(messages))
    }

    /// Pushes and publishes every `every` messages.
    pub fn batch(&mut self, every: usize) -> BatchSender<'_, T> {
        BatchSender(match &mut self.end {
            Either::Indexed(end) => Either::Indexed(end.batch(every)),
            Either::Flagged(end) => Either::Flagged(end.batch(every)),
        })
    }

    /// Polls the consumer's index; returns the free slots.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        either!(&mut self.end, end => end.refresh())
    }

    /// Returns the index of the next message.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        either!(&self.end, end => end.tail())
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        either!(&self.end, end => end.capacity())
    }

    /// Returns true if the bridge was dropped or its [pump](super::Pump) gave up; never for a shared ring.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        either!(&self.end, end => end.is_disconnected())
    }
}

impl<T: RingMessage> Receiver<T> {
    /// # Safety
    ///
    /// Once for a ring.
    pub(super) unsafe fn new(ring: &Arc<HostRing>) -> Result<Self> {
        let end = if ring.layout.kind() == RingFlags::FLAGGED {
            // SAFETY: the ring's memory is formatted, and its `Arc` is kept with the end; the caller promises that it is the only consumer.
            Either::Flagged(unsafe { flagged::Consumer::from_raw(ring.base(), ring.layout.size()) }?.announce())
        } else {
            // SAFETY: the caller promises that it is the only consumer; the `Arc` is kept with the end.
            Either::Indexed(unsafe { ring.consumer() }?.announce())
        };
        Ok(Self { end, ring: Arc::clone(ring) })
    }

    /// Pops a message; never waits.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError<Corrupt>> {
        either!(&mut self.end, end => end.pop())
    }

    /// Pops as many as fit; returns how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was popped.
    pub fn pop_slice(&mut self, messages: &mut [T]) -> Result<usize, Corrupt> {
        match &mut self.end {
            Either::Indexed(end) => end.pop_slice(messages),
            Either::Flagged(end) => Ok(end.pop_slice(messages)),
        }
    }

    /// As [`Channel::try_recv_with`](crate::channel::Channel::try_recv_with), for the arrived messages.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; `act` was not called.
    pub fn pop_with(&mut self, act: impl FnOnce(&T) -> bool) -> Result<bool, Corrupt> {
        either!(&mut self.end, end => {
            let chunk = match end.peek(1) {
                Ok(chunk) => chunk,
                Err(PopError::Empty) => return Ok(false),
                Err(PopError::Corrupt(corrupt)) => return Err(corrupt),
            };
            let is_popped = chunk.with(0, act).unwrap_or(false);
            chunk.release(usize::from(is_popped));
            Ok(is_popped)
        })
    }

    /// Pops and releases every `every` slots.
    pub fn batch(&mut self, every: usize) -> BatchReceiver<'_, T> {
        BatchReceiver(match &mut self.end {
            Either::Indexed(end) => Either::Indexed(end.batch(every)),
            Either::Flagged(end) => Either::Flagged(end.batch(every)),
        })
    }

    /// Polls the producer's index; returns the messages in the ring.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        match &mut self.end {
            Either::Indexed(end) => end.refresh(),
            Either::Flagged(end) => Ok(end.len()),
        }
    }

    /// Returns the index of the next message.
    #[must_use]
    pub const fn head(&self) -> u64 {
        either!(&self.end, end => end.head())
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        either!(&self.end, end => end.capacity())
    }

    /// As [`Sender::is_disconnected`]. Arrived messages can still be popped.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        either!(&self.end, end => end.is_disconnected())
    }
}

macro_rules! ends {
    ($($end:ident, $trait:ident $operation:ident($($argument:ident)?) -> $result:ty, $theirs:ident;)+) => {$(
        impl<T: RingMessage> End for $end<T> {
            type Word = HostWord;
            type Corrupt = Corrupt;
            // The system may refuse the barrier that a wake-up needs; see `WakeFlag`.
            const LONGEST_SLEEP: Option<Duration> = Some(Duration::from_secs(1));
            fn wait_words(&self) -> WaitWords<'_, HostWord> {
                self.ring.expect_sleepers();
                either!(&self.end, end => End::wait_words(end))
            }
            fn is_disconnected(&self) -> bool {
                Self::is_disconnected(self)
            }
            fn leave(self, after: impl FnOnce(&HostWord)) {
                let ring = Arc::clone(&self.ring);
                drop(self);
                after(&ring.header().$theirs.waiting);
            }
            fn is_here(&self) -> bool {
                self.ring.is_here()
            }
        }
        impl<T: RingMessage> Drop for $end<T> {
            fn drop(&mut self) {
                if !self.ring.is_here() {
                    either!(&mut self.end, end => end.abandon());
                }
            }
        }
        impl<T: RingMessage> $trait for $end<T> {
            type Item = T;
            fn $operation(&mut self $(, $argument: T)?) -> $result {
                either!(&mut self.end, end => end.$operation($($argument)?))
            }
        }
        impl<T: RingMessage> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).field("capacity", &self.capacity()).finish_non_exhaustive()
            }
        }
    )+};
}
ends! {
    Sender, Push push(value) -> Result<(), PushError<T, Corrupt>>, producer;
    Receiver, Pop pop() -> Result<T, PopError<Corrupt>>, consumer;
}

impl<T: RingMessage> fmt::Debug for BatchSender<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSender").finish_non_exhaustive()
    }
}

impl<T: RingMessage> fmt::Debug for BatchReceiver<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchReceiver").finish_non_exhaustive()
    }
}
