//! [`Link`]: a service whose type was compared with the ring's.

use iceoryx2::node::Node;
use iceoryx2::prelude::{AttributeVerifier, PortFactory as _, Service, ServiceName};
use iceoryx2::service::builder::publish_subscribe::{Builder, PublishSubscribeOpenError, PublishSubscribeOpenOrCreateError as OpenError};
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use iceoryx2::service::static_config::publish_subscribe::StaticConfig;
use ringmem::RingMessage;

use crate::{Error, Message, Payload, ServiceType};

/// Limits of a link. An existing service must have at least these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Samples in a subscriber's queue: 1 to 65,536, and at most 1 TiB of the largest messages. By default 64.
    pub queue: usize,
    /// Most publishers: 1 to 256. By default 2: a killed one counts until it is cleaned up.
    pub publishers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { queue: 64, publishers: 2 }
    }
}

fn check(what: &'static str, value: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&value) { Ok(()) } else { Err(Error::Limit { what, value, most }) }
}

const MOST_SAMPLES: usize = 1 << 16;
const MOST_PUBLISHERS: usize = 256;
/// A publisher reserves this address space: 1 TiB.
const MOST_BYTES: usize = if usize::BITS > 40 { 1 << 40 } else { 1 << 30 };

fn check_bytes(samples: usize, largest: usize) -> Result<(), Error> {
    check("bytes of a queue of the largest messages", samples.saturating_mul(largest), MOST_BYTES)
}

/// Checks the limits of a service. Another program may have made it, without the checks of [`Options`]; ports reserve what it says.
fn check_service(settings: &StaticConfig, largest: usize) -> Result<(), Error> {
    let (queue, borrowed) = (settings.subscriber_max_buffer_size(), settings.subscriber_max_borrowed_samples());
    check("queue of the existing service", queue, MOST_SAMPLES)?;
    check("publishers of the existing service", settings.max_publishers(), MOST_PUBLISHERS)?;
    check("borrowed samples of the existing service", borrowed, MOST_SAMPLES)?;
    check_bytes(queue + borrowed, largest)
}

impl Options {
    /// Beyond some limits iceoryx2 panics or reserves terabytes.
    fn check(self, largest: usize) -> Result<(), Error> {
        check("queue", self.queue, MOST_SAMPLES)?;
        check("publishers", self.publishers, MOST_PUBLISHERS)?;
        check_bytes(self.queue, largest)
    }

    fn apply<P: Payload + ?Sized, S: Service>(self, builder: Builder<P, (), S>) -> Builder<P, (), S> {
        let builder = builder.enable_safe_overflow(false).max_subscribers(1).history_size(0);
        builder.subscriber_max_buffer_size(self.queue).max_publishers(self.publishers)
    }
}

/// A service for the messages of a ring, with one subscriber and without overflow.
///
/// ```
/// use iceoryx2::prelude::*;
/// use ringmem_iceoryx2::{Error, Link};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use iceoryx2::prelude::local as ipc; // in this process
/// let node = NodeBuilder::new().create::<ipc::Service>()?;
/// let _link = Link::messages::<u64>(&node, "orders")?;
/// match Link::messages::<[u64; 2]>(&node, "orders").err() {
///     Some(Error::Mismatch { service, ring, .. }) => assert_eq!((service.size, ring.size), (8, 16)),
///     other => panic!("{other:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Link<S: Service, P: Payload + ?Sized> {
    service: PortFactory<S, P, ()>,
    pub(crate) largest: usize,
}

impl<S: Service> Link<S, [u8]> {
    /// Opens or creates the service `name` for frames of up to `largest` bytes, at most 1 GiB.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`], [`Error::Name`], [`Error::Mismatch`], [`Error::Open`].
    pub fn frames(node: &Node<S>, name: &str, largest: usize) -> Result<Self, Error> {
        Self::frames_with(node, name, largest, Options::default())
    }

    /// As [`frames`](Self::frames), with options and the same errors.
    pub fn frames_with(node: &Node<S>, name: &str, largest: usize, options: Options) -> Result<Self, Error> {
        check("bytes of a frame", largest, 1 << 30)?;
        options.check(largest)?;
        Self::open(node, name, largest, ServiceType::frames(largest), |name, verifier| {
            let builder = options.apply(node.service_builder(name).publish_subscribe::<[u8]>());
            builder.open_or_create_with_attributes(verifier)
        })
    }

    /// Opens or creates the service `name` for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`], [`Error::Name`], [`Error::TypeName`], [`Error::Mismatch`], [`Error::Open`].
    pub fn messages<T: RingMessage>(node: &Node<S>, name: &str) -> Result<Link<S, Message<T>>, Error> {
        Self::messages_with(node, name, Options::default())
    }

    /// As [`messages`](Self::messages), with options and the same errors.
    pub fn messages_with<T: RingMessage>(node: &Node<S>, name: &str, options: Options) -> Result<Link<S, Message<T>>, Error> {
        const { assert!(size_of::<T>() > 0, "a message has at least one byte") };
        options.check(size_of::<T>())?;
        let type_name = T::DESCRIPTOR.name;
        // iceoryx2 ends the process for other names.
        if type_name.is_empty() || type_name.len() > 255 || !type_name.is_ascii() {
            return Err(Error::TypeName(type_name));
        }
        Link::open(node, name, size_of::<T>(), ServiceType::messages::<T>(), |name, verifier| {
            let builder = options.apply(node.service_builder(name).publish_subscribe::<Message<T>>());
            builder.open_or_create_with_attributes(verifier)
        })
    }
}

impl<S: Service, P: Payload + ?Sized> Link<S, P> {
    fn open(
        node: &Node<S>,
        name: &str,
        largest: usize,
        ring: ServiceType,
        open: impl FnOnce(&ServiceName, &AttributeVerifier) -> Result<PortFactory<S, P, ()>, OpenError>,
    ) -> Result<Self, Error> {
        let (Ok(service_name), Some(verifier)) = (ServiceName::new(name), ring.verifier()) else {
            return Err(Error::Name(name.to_owned()));
        };
        let mismatch = |service| Error::Mismatch { name: name.to_owned(), service: Box::new(service), ring: Box::new(ring.clone()) };
        match open(&service_name, &verifier) {
            Ok(service) => match ServiceType::of(service.attributes(), service.static_config()) {
                found if found.serves(&ring) => {
                    check_service(service.static_config(), largest)?;
                    Ok(Self { service, largest })
                }
                found => Err(mismatch(found)),
            },
            Err(source) => Err(match ServiceType::find(node, &service_name) {
                Some(found) if differs(&source) && !found.serves(&ring) => mismatch(found),
                _ => Error::Open { name: name.to_owned(), source },
            }),
        }
    }

    /// Returns the service, for ports of your own.
    ///
    /// A publisher with iceoryx2's default strategy loses nothing if it repeats each `send` that returns 0: `send` blocks while a connected
    /// subscriber's queue is full, but discards the sample if there is no subscriber, or the queue of an unconnected one is full.
    #[must_use]
    pub const fn service(&self) -> &PortFactory<S, P, ()> {
        &self.service
    }

    /// Returns how many samples the queue holds.
    #[must_use]
    pub fn queue(&self) -> usize {
        self.service.static_config().subscriber_max_buffer_size()
    }
}

const fn differs(error: &OpenError) -> bool {
    use PublishSubscribeOpenError::{IncompatibleAttributes, IncompatibleOverflowBehavior, IncompatibleTypes};
    matches!(error, OpenError::PublishSubscribeOpenError(IncompatibleTypes | IncompatibleAttributes | IncompatibleOverflowBehavior))
}
