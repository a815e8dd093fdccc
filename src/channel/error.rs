use core::fmt;

use crate::Error;
use crate::attach::Corrupt;
use crate::error::{debug_with_causes, with_causes};

/// An error of [`send`](super::Channel::send) or [`try_send`](super::Channel::try_send).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::{Channel, SendError};
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::builder(ECHO).input_capacity(2).output_capacity(2).open(&backend, 0)?;
/// let refused = loop {
///     match channel.try_send(Echo { words: [7; 8] }) {
///         Ok(()) => continue,
///         Err(SendError::Full(message)) => break message, // receive, then try again
///         Err(error) => return Err(error.into()),
///     }
/// };
/// assert_eq!(refused.words, [7; 8]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(thiserror::Error)]
pub enum SendError<T> {
    /// The ring is full.
    #[error("the input ring is full: receive answers first: the kernel reads no messages while its output ring is full")]
    Full(T),
    /// The kernel's index is out of range.
    #[error("{1}")]
    Corrupt(T, Corrupt),
    /// Moving messages to the kernel failed.
    #[error("cannot move messages to the kernel")]
    Flush {
        /// Cause.
        #[source]
        error: Error,
        /// Unsent message; `None` if in the ring: do not resend it.
        message: Option<T>,
    },
    /// The kernel has left, or, in a forked process, is the parent's.
    #[error("cannot send to the kernel")]
    Kernel {
        /// How it ended.
        #[source]
        error: Error,
        /// Unsent message.
        message: T,
    },
}

impl<T> SendError<T> {
    /// Returns the message, unless it is in the ring.
    pub fn into_inner(self) -> Option<T> {
        match self {
            Self::Full(message) | Self::Corrupt(message, _) | Self::Kernel { message, .. } => Some(message),
            Self::Flush { message, .. } => message,
        }
    }
}

/// Drops the message.
impl<T> From<SendError<T>> for Error {
    fn from(error: SendError<T>) -> Self {
        match error {
            SendError::Full(_) => Self::Busy { what: "the input ring is full: receive answers first" },
            SendError::Corrupt(_, corrupt) => corrupt.into(),
            SendError::Flush { error, .. } | SendError::Kernel { error, .. } => error,
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_causes(self, f)
    }
}

/// An error of [`try_recv`](super::Channel::try_recv).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::{Channel, ReceiveError};
/// use ringmem_kernels::echo::ECHO;
///
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::open(&backend, 0, ECHO)?;
/// assert!(matches!(channel.try_recv(), Err(ReceiveError::Empty)));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(thiserror::Error)]
pub enum ReceiveError {
    /// No answer yet.
    #[error("no answer has arrived")]
    Empty,
    /// The kernel's index is out of range.
    #[error(transparent)]
    Corrupt(Corrupt),
    /// Moving messages failed; the next flush repeats it. In a forked process always.
    #[error("cannot move messages between host and kernel")]
    Flush(#[source] Error),
}

impl From<ReceiveError> for Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Empty => Self::Busy { what: "no answer has arrived" },
            ReceiveError::Corrupt(corrupt) => corrupt.into(),
            ReceiveError::Flush(error) => error,
        }
    }
}

debug_with_causes! { ReceiveError }
