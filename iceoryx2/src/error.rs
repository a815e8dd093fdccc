use iceoryx2::port::publisher::PublisherCreateError;
use iceoryx2::port::subscriber::SubscriberCreateError;
use iceoryx2::port::{LoanError, ReceiveError, SendError};
use iceoryx2::service::builder::publish_subscribe::PublishSubscribeOpenOrCreateError;
use ringmem::attach::Corrupt;
use ringmem::ring::framed;

use crate::ServiceType;

/// An error of a link or its ports. An absent, killed or restarted peer is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service carries other messages, or may lose or double them.
    #[error("the service `{name}` differs\n  service: {service}\n  ring: {ring}")]
    Mismatch {
        /// The service.
        name: String,
        /// The service's own type.
        service: Box<ServiceType>,
        /// The type that the ring needs.
        ring: Box<ServiceType>,
    },
    /// The name is not 1 to 255 ASCII characters.
    #[error("invalid service name `{0}`: 1 to 255 ASCII characters are allowed")]
    Name(String),
    /// iceoryx2 does not accept the name of the message type.
    #[error("invalid type name `{0}`: at most 255 ASCII characters are allowed; rename the message type")]
    TypeName(&'static str),
    /// A limit is 0 or too large: one of [`Options`](crate::Options), or one of a service that another program made.
    #[error("invalid limit: {what} must be 1 to {most}, got {value}")]
    Limit {
        /// The limit.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The largest allowed value.
        most: usize,
    },
    /// The service was not opened or created.
    #[error("cannot open the service `{name}`: {source:?}")]
    Open {
        /// The service.
        name: String,
        /// iceoryx2's error.
        source: PublishSubscribeOpenOrCreateError,
    },
    /// The publisher was not created.
    #[error("cannot create a publisher: {0}")]
    Publisher(#[source] PublisherCreateError),
    /// The subscriber was not created: a link has one.
    #[error("cannot create a subscriber: {0}")]
    Subscriber(#[source] SubscriberCreateError),
    /// A sample was not received.
    #[error("cannot receive: {0}")]
    Receive(#[source] ReceiveError),
    /// A sample was not loaned.
    #[error("cannot loan a sample: {0}")]
    Loan(#[source] LoanError),
    /// A sample was not sent; its message remains in the ring.
    #[error("cannot send: {0}")]
    Send(#[source] SendError),
    /// The link or the ring can never hold the message. It remains the next one: see [`Feed::skip`](crate::Feed::skip).
    #[error("message too large: {bytes} bytes, at most {largest}")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// Most bytes.
        largest: usize,
    },
    /// The ring's other end wrote an index out of range.
    #[error("{0}")]
    Corrupt(Corrupt),
    /// The ring's other end wrote an invalid or too large frame.
    #[error("{0}")]
    Frame(#[source] framed::PopError),
    /// The channel did not move its messages; the next call repeats it.
    #[error(transparent)]
    Channel(#[from] ringmem::Error),
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}
