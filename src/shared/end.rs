use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::spsc::untrusted;
use ringmem_layouts::ring::{End, Pop, PopError, Push, PushError, ReadBytes, WaitWords, WriteBytes};

use super::liveness::Ownership;
use super::mapping::RingMemory;
use super::{NoPeer, OwnerState, Side, UntypedConsumer, UntypedProducer};
use crate::wait::{WaitStrategy, Waiting};
use crate::{HostWord, RingMessage};

/// The producer's end; a drop closes it.
///
/// ```
/// use ringmem::shared::Memory;
/// use ringmem::wait::WaitStrategy;
///
/// let memory = Memory::create::<u64>(4)?;
/// let mut consumer = memory.consumer::<u64>()?.into_waiting(WaitStrategy::default());
/// let mut producer = memory.producer::<u64>()?;
/// let thread = std::thread::spawn(move || consumer.iter().sum::<u64>());
/// (1..=3).for_each(|number| producer.push(number).unwrap());
/// drop(producer); // the consumer's iteration ends
/// println!("{}", thread.join().unwrap());
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Producer<T: RingMessage> {
    // INVARIANT: 'static stands for the lifetime of `ownership`, dropped later. No reference to the memory leaves this type.
    end: untrusted::Producer<'static, T>,
    ownership: Ownership,
}

/// The consumer's end; a drop closes it.
///
/// ```
/// use ringmem::shared::Memory;
///
/// let memory = Memory::create::<u64>(4)?;
/// let (mut producer, mut consumer) = (memory.producer::<u64>()?, memory.consumer::<u64>()?);
/// producer.push_slice(&[1, 2, 3]).unwrap();
/// assert_eq!((consumer.pop(), consumer.len()), (Ok(1), 2));
/// drop(producer);
/// assert!(consumer.is_disconnected());
/// let mut rest = [0; 4];
/// assert_eq!((consumer.pop_slice(&mut rest), rest), (Ok(2), [2, 3, 0, 0])); // still there
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Consumer<T: RingMessage> {
    // INVARIANT: as in `Producer`.
    end: untrusted::Consumer<'static, T>,
    ownership: Ownership,
}

/// An end that also waits without a peer.
struct Single<'e, E>(&'e mut E);

impl<E: End> End for Single<'_, E> {
    type Word = E::Word;
    type Corrupt = E::Corrupt;
    const LONGEST_SLEEP: Option<Duration> = E::LONGEST_SLEEP;
    fn wait_words(&self) -> WaitWords<'_, E::Word> {
        self.0.wait_words()
    }
    fn is_disconnected(&self) -> bool {
        false
    }
    fn is_here(&self) -> bool {
        self.0.is_here()
    }
    fn leave(self, after: impl FnOnce(&E::Word)) {
        after(self.0.wait_words().theirs);
    }
}

impl<T: RingMessage> Producer<T> {
    pub(super) fn new(file: BorrowedFd<'_>, place: &RingMemory) -> crate::Result<Self> {
        let ownership = Ownership::new(file, place, Side::Producer)?;
        // SAFETY: mapped until `ownership` is dropped, by the invariant. `place` is a ring, which this program accesses only atomically, through its ends,
        // header and region.
        let end = unsafe { untrusted::Producer::attach(place.base(), place.len())? }.announce();
        let producer = Self { end, ownership };
        producer.ownership.wake_peer();
        Ok(producer)
    }

    /// Pushes a value.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T, Corrupt>> {
        self.end.push(value)
    }

    /// Pushes as many of `values` as fit, published together; returns how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the consumer's index is out of range; nothing is pushed.
    pub fn push_slice(&mut self, values: &[T]) -> Result<usize, Corrupt> {
        self.end.push_slice(values)
    }

    /// Polls the consumer's index; returns the free slots.
    ///
    /// # Errors
    ///
    /// As [`push_slice`](Self::push_slice); this end keeps the previous value.
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        self.end.refresh()
    }

    /// Returns the index of the next slot to fill.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.end.tail()
    }

    /// Returns the free slots at the last poll.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.end.free()
    }

    /// Adds waiting to this end, borrowed.
    pub fn waiting(&mut self, how: WaitStrategy) -> Waiting<&mut Self> {
        <Waiting<_>>::sender(self, how)
    }

    /// Converts to a waiting end.
    #[must_use]
    pub fn into_waiting(self, how: WaitStrategy) -> Waiting<Self> {
        <Waiting<_>>::sender(self, how)
    }
}

impl<T: RingMessage> Consumer<T> {
    pub(super) fn new(file: BorrowedFd<'_>, place: &RingMemory) -> crate::Result<Self> {
        let ownership = Ownership::new(file, place, Side::Consumer)?;
        // SAFETY: mapped until `ownership` is dropped, by the invariant. `place` is a ring, which this program accesses only atomically,
        // through its ends, header and region.
        let end = unsafe { untrusted::Consumer::attach(place.base(), place.len())? }.announce();
        let consumer = Self { end, ownership };
        // As in `Producer::new`.
        consumer.ownership.wake_peer();
        Ok(consumer)
    }

    /// Pops a value.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError<Corrupt>> {
        self.end.pop()
    }

    /// Pops as many values as fit, and releases their slots together; returns how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index is out of range; nothing is popped.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, Corrupt> {
        self.end.pop_slice(values)
    }

    /// Polls the producer's index; returns the available messages.
    ///
    /// # Errors
    ///
    /// As [`pop_slice`](Self::pop_slice); this end keeps the previous value.
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        self.end.refresh()
    }

    /// Returns the index of the next slot to empty.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.end.head()
    }

    /// Returns the free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.end.free()
    }

    /// Returns the available messages at the last poll.
    #[must_use]
    pub const fn available(&self) -> usize {
        self.end.available()
    }

    /// Adds waiting to this end, borrowed.
    pub fn waiting(&mut self, how: WaitStrategy) -> Waiting<&mut Self> {
        <Waiting<_>>::receiver(self, how)
    }

    /// Converts to a waiting end.
    #[must_use]
    pub fn into_waiting(self, how: WaitStrategy) -> Waiting<Self> {
        <Waiting<_>>::receiver(self, how)
    }
}

macro_rules! ends {
    ($($end:ident, $trait:ident $operation:ident($($argument:ident)?) -> $result:ty;)+) => {$(
        impl<T: RingMessage> $end<T> {
            /// Returns the number of messages, at most the capacity whatever the peer writes.
            #[must_use]
            pub fn len(&self) -> usize {
                self.end.len()
            }

            /// Returns whether the ring is empty.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.end.is_empty()
            }

            /// Returns whether the ring is full.
            #[must_use]
            pub fn is_full(&self) -> bool {
                self.end.is_full()
            }

            /// Returns the number of slots.
            #[must_use]
            pub const fn capacity(&self) -> usize {
                self.end.capacity()
            }

        }

        impl<T: RingMessage> $trait for $end<T> {
            type Item = T;
            #[inline]
            fn $operation(&mut self $(, $argument: T)?) -> $result {
                self.end.$operation($($argument)?)
            }
        }
    )+};
}

ends! {
    Producer, Push push(value) -> Result<(), PushError<T, Corrupt>>;
    Consumer, Pop pop() -> Result<T, PopError<Corrupt>>;
}

/// Of an end with the fields `end`, whose drop closes it, and `ownership`.
macro_rules! peers {
    ($([$($generics:tt)*] $end:ty;)+) => {$(
        impl<$($generics)*> $end {
            /// Returns the state of the other end's owner: a system call, unless it has left.
            #[must_use]
            pub fn peer_state(&self) -> OwnerState {
                self.ownership.peer_state()
            }

            /// Returns the number of the other end's owners so far.
            #[must_use]
            pub fn peer_generation(&self) -> u64 {
                self.ownership.peer_generation()
            }

            /// Waits until the other end has an owner; returns its generation.
            ///
            /// An owner counts if it holds the other end when this end attaches, or attaches later, even if it has left again. It no longer counts
            /// once [`is_disconnected`](Self::is_disconnected) or a wait has seen it leave or die; then the call waits for a successor. An owner that
            /// left before this end attached does not count: its messages can be popped without a wait.
            ///
            /// # Errors
            ///
            /// [`NoPeer`]: no owner attached before the deadline.
            pub fn wait_for_peer(&mut self, how: WaitStrategy, deadline: Option<Instant>) -> Result<u64, NoPeer> {
                let attached = <Waiting<_>>::sender(Single(&mut *self), how).wait(deadline, |end| end.0.ownership.peer().map(Ok::<_, NoPeer>));
                attached.map_err(|_| NoPeer { end: self.ownership.side.other(), state: self.peer_state() })
            }

            /// Returns whether the other end's owner has left or died without a successor. Published messages can still be popped.
            ///
            /// A leave is seen at once; a death by a system call: every 64th call, and every 8th after a millisecond without one.
            #[must_use]
            pub fn is_disconnected(&self) -> bool {
                self.ownership.is_disconnected()
            }
        }

        impl<$($generics)*> Waiting<$end> {
            /// As the [end](Self::end)'s `wait_for_peer`.
            ///
            /// # Errors
            ///
            /// [`NoPeer`].
            pub fn wait_for_peer(&mut self, deadline: Option<Instant>) -> Result<u64, NoPeer> {
                let how = self.how;
                self.with_end(|end| end.wait_for_peer(how, deadline))
            }
        }

        impl<$($generics)*> End for $end {
            type Word = HostWord;
            type Corrupt = Corrupt;
            // A killed peer wakes no sleeper.
            const LONGEST_SLEEP: Option<Duration> = Some(Duration::from_millis(100));
            fn wait_words(&self) -> WaitWords<'_, HostWord> {
                self.end.wait_words()
            }
            fn is_disconnected(&self) -> bool {
                self.ownership.is_disconnected()
            }
            fn leave(self, after: impl FnOnce(&HostWord)) {
                let Self { end, ownership } = self;
                drop(end);
                ownership.release();
                after(ownership.wait_words().theirs);
            }
        }
    )+};
}

peers! {
    [T: RingMessage] Producer<T>;
    [T: RingMessage] Consumer<T>;
    [] UntypedProducer;
    [] UntypedConsumer;
}

impl WriteBytes for Producer<u8> {
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        self.end.push_slice(bytes)
    }
    fn has_room(&mut self) -> bool {
        self.free() > 0 || self.refresh() != Ok(0)
    }
}

impl ReadBytes for Consumer<u8> {
    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.pop_slice(into)
    }
    fn has_bytes(&mut self) -> bool {
        self.available() > 0 || self.refresh() != Ok(0)
    }
}

// An end may move to another thread, but exists once.
const _: fn() = || {
    fn is_send<E: Send>() {}
    is_send::<Producer<u64>>();
    is_send::<Consumer<u64>>();
    is_send::<UntypedProducer>();
    is_send::<UntypedConsumer>();
};

impl<T: RingMessage> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("end", &self.end).finish_non_exhaustive()
    }
}

impl<T: RingMessage> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("end", &self.end).finish_non_exhaustive()
    }
}
