use std::io;
use std::path::PathBuf;

use ringmem::attach::Corrupt;

use crate::RingType;

/// An error that ends a relay; lost links and restarted peers do not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rings have different kinds or messages.
    #[error("the rings differ\n  source: {source_ring}\n  sink: {sink_ring}")]
    Mismatch {
        /// The ring that the sender reads.
        source_ring: Box<RingType>,
        /// The ring that the receiver fills.
        sink_ring: Box<RingType>,
    },
    /// The local ring's other end wrote an index or length out of range.
    #[error("{0}")]
    Corrupt(Corrupt),
    /// The local ring failed, or broke a rule of [`Source`](crate::Source) or [`Sink`](crate::Sink); the text says how.
    #[error("{0}")]
    End(String),
    /// The local ring cannot be opened.
    #[error(transparent)]
    Ring(#[from] ringmem::Error),
    /// An option is out of range.
    #[error("invalid option: {name} must be {allowed}, got {value}")]
    Option {
        /// The field of [`Options`](crate::Options).
        name: &'static str,
        /// Its least and greatest value.
        allowed: &'static str,
        /// The value.
        value: String,
    },
    /// The ring's messages have no bytes.
    #[error("messages of 0 bytes cannot be relayed")]
    ZeroSized,
    /// The key is invalid or has wildcards.
    #[error("invalid key `{0}`: a relay needs a key expression without wildcards")]
    Key(String),
    /// The state of a sink could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    State {
        /// What failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The stored state of a sink is not one. Without it, the messages that arrived unacknowledged would arrive again.
    #[error(
        "the sink's stored state is invalid: {bytes} bytes, not 0 to 9 entries of 16 bytes; for a ring in a file, remove the file PATH.relay to begin at \
         the source's first unacknowledged message"
    )]
    InvalidState {
        /// Bytes of the state.
        bytes: usize,
    },
    /// The file system reports no creation time, which distinguishes rings at one path.
    #[error("the ring's file system reports no creation time")]
    Identity(#[source] io::Error),
    /// A thread did not start.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// A zenoh call failed.
    #[error("zenoh: {call} failed")]
    Zenoh {
        /// The call.
        call: &'static str,
        /// zenoh's error.
        #[source]
        source: zenoh::Error,
    },
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

pub(crate) fn of(call: &'static str) -> impl Fn(zenoh::Error) -> Error {
    move |source| Error::Zenoh { call, source }
}
