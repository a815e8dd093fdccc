//! Why nothing was sent or received.

use crate::attach::Corrupt;

/// The value that was not sent, and why.
#[derive(thiserror::Error)]
pub enum SendError<T> {
    /// The deadline has passed.
    #[error("the ring was full until the deadline")]
    Timeout(T),
    /// Nobody receives any more.
    #[error("the receiver was dropped")]
    Disconnected(T),
    /// The other side's index claims what cannot be.
    #[error("ring is corrupt: the receiving end's index is out of range")]
    Corrupt(T),
}

impl<T> SendError<T> {
    /// The value that was not sent.
    pub fn into_inner(self) -> T {
        match self {
            Self::Timeout(value) | Self::Disconnected(value) | Self::Corrupt(value) => value,
        }
    }
}

// The value needs no `Debug` for `unwrap` to work.
impl<T> std::fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Timeout(_) => "Timeout(..)",
            Self::Disconnected(_) => "Disconnected(..)",
            Self::Corrupt(_) => "Corrupt(..)",
        })
    }
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// The deadline has passed.
    #[error("the ring was empty until the deadline")]
    Timeout,
    /// Nothing is left, and nobody sends any more.
    #[error("the sender was dropped, and all its messages were received")]
    Disconnected,
    /// The other side's index claims what cannot be.
    #[error(transparent)]
    Corrupt(Corrupt),
}

/// Why a wait for something else than a value gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError<R> {
    /// The deadline has passed.
    #[error("the deadline passed")]
    Timeout,
    /// The other end has left, and nothing comes of it any more.
    #[error("the other end has left")]
    Disconnected,
    /// Waiting longer would not help.
    #[error(transparent)]
    Refused(R),
}
