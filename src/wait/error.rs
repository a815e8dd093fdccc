use std::convert::Infallible;

/// An error of sending, with the value.
///
/// ```
/// use ringmem::wait::{self, SendError};
///
/// let (mut sender, receiver) = wait::bounded::<u32>(2);
/// drop(receiver);
/// let Err(SendError::Disconnected(value)) = sender.send(7) else { unreachable!("no receiver") };
/// assert_eq!(value, 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T, C = Infallible> {
    /// The deadline passed.
    #[error("the ring was full until the deadline")]
    Timeout(T),
    /// The receiver was dropped.
    #[error("the receiver was dropped")]
    Disconnected(T),
    /// The other end's index is out of range.
    #[error("{1}")]
    Corrupt(T, C),
}

impl<T, C> SendError<T, C> {
    /// Returns the value.
    pub fn into_inner(self) -> T {
        match self {
            Self::Timeout(value) | Self::Disconnected(value) | Self::Corrupt(value, _) => value,
        }
    }
}

// `unwrap` then needs no `Debug` value.
impl<T, C> std::fmt::Debug for SendError<T, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Timeout(_) => "Timeout(..)",
            Self::Disconnected(_) => "Disconnected(..)",
            Self::Corrupt(..) => "Corrupt(..)",
        })
    }
}

/// An error of [`try_send`](super::Waiting::try_send), with the value.
///
/// ```
/// use ringmem::wait::{self, TrySendError};
///
/// let (mut sender, receiver) = wait::bounded::<u32>(1);
/// sender.try_send(1).unwrap();
/// assert!(matches!(sender.try_send(2), Err(TrySendError::Full(2))));
/// drop(receiver);
/// assert!(matches!(sender.try_send(3), Err(TrySendError::Disconnected(3))));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T, C = Infallible> {
    /// The ring is full.
    #[error("the ring is full")]
    Full(T),
    /// The receiver was dropped.
    #[error("the receiver was dropped")]
    Disconnected(T),
    /// The other end's index is out of range.
    #[error("{1}")]
    Corrupt(T, C),
}

impl<T, C> TrySendError<T, C> {
    /// Returns the value.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Disconnected(value) | Self::Corrupt(value, _) => value,
        }
    }
}

impl<T, C> std::fmt::Debug for TrySendError<T, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Disconnected(_) => "Disconnected(..)",
            Self::Corrupt(..) => "Corrupt(..)",
        })
    }
}

/// An error of [`try_recv`](super::Waiting::try_recv).
///
/// ```
/// use ringmem::wait::{self, TryRecvError};
///
/// let (mut sender, mut receiver) = wait::bounded::<u32>(1);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// sender.send(7).unwrap();
/// drop(sender);
/// assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(7), Err(TryRecvError::Disconnected)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TryRecvError<C = Infallible> {
    /// The ring is empty.
    #[error("the ring is empty")]
    Empty,
    /// The ring is empty, and the sender was dropped.
    #[error("the sender was dropped, and all its messages were received")]
    Disconnected,
    /// The other end's index is out of range.
    #[error(transparent)]
    Corrupt(C),
}

/// An error of receiving.
///
/// ```
/// use ringmem::wait::{self, RecvError};
///
/// let (mut sender, mut receiver) = wait::bounded::<u32>(2);
/// sender.send(7).unwrap();
/// drop(sender);
/// assert_eq!((receiver.recv(), receiver.recv()), (Ok(7), Err(RecvError::Disconnected)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError<C = Infallible> {
    /// The deadline passed.
    #[error("the ring was empty until the deadline")]
    Timeout,
    /// The ring is empty, and the sender was dropped.
    #[error("the sender was dropped, and all its messages were received")]
    Disconnected,
    /// The other end's index is out of range.
    #[error(transparent)]
    Corrupt(C),
}

/// An error of [`wait`](super::Waiting::wait).
///
/// ```
/// use ringmem::ring::framed::{PopError, PushError, Ring};
/// use ringmem::wait::{WaitError, WaitStrategy, pair};
///
/// let mut ring = Ring::<64>::new();
/// let (producer, consumer) = ring.split();
/// let (mut sender, mut receiver) = pair(producer, consumer, WaitStrategy::default());
/// assert!(matches!(sender.send_bytes(&[0; 1000]), Err(WaitError::Refused(PushError::TooLarge { .. }))));
/// sender.send_bytes(b"hello")?;
/// let small = receiver.recv_bytes(&mut [0; 2]);
/// assert_eq!(small, Err(WaitError::Refused(PopError::TooSmall { needed: 5 })));
/// # Ok::<(), WaitError<PushError>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError<R> {
    /// The deadline passed.
    #[error("the deadline passed")]
    Timeout,
    /// The other end was dropped; the attempt cannot succeed.
    #[error("the other end has left")]
    Disconnected,
    /// The attempt failed.
    #[error(transparent)]
    Refused(R),
}
