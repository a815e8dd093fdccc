//! [`ServiceType`]: the message type of a service.

use core::fmt::{self, Write};

use iceoryx2::prelude::{AttributeSet, AttributeVerifier, MessagingPattern, Node, SemanticString as _, Service, ServiceName};
use iceoryx2::service::static_config::message_type_details::TypeVariant;
use iceoryx2::service::static_config::messaging_pattern;
use iceoryx2::service::static_config::publish_subscribe::StaticConfig;
use ringmem::RingMessage;

const LONGEST: usize = 256;

/// The type of messages of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceType {
    /// iceoryx2's name of the payload type.
    pub name: String,
    /// Whether a sample is a slice of payloads.
    pub slice: bool,
    /// Size of the payload in bytes; 1 for frames.
    pub size: usize,
    /// Alignment of the payload in bytes.
    pub align: usize,
    /// The attributes that begin with `ringmem.`; the two sides compare them.
    pub attributes: Vec<(String, String)>,
    /// Whether a full subscriber loses its oldest sample; a link needs `false`.
    pub overflow: bool,
    /// Most subscribers; a link needs 1.
    pub subscribers: usize,
    /// Samples that a new subscriber gets although its predecessor had them; a link needs 0.
    pub history: usize,
}

impl ServiceType {
    fn link(name: &str, slice: bool, size: usize, align: usize, attributes: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let attributes = attributes.into_iter().map(|(key, value)| (format!("ringmem.{key}"), value)).collect();
        Self { name: name.to_owned(), slice, size, align, attributes, overflow: false, subscribers: 1, history: 0 }
    }

    /// Returns the type that a link of `T` needs.
    #[must_use]
    pub fn messages<T: RingMessage>() -> Self {
        let layout = T::DESCRIPTOR;
        let mut fields = String::new();
        for field in layout.fields {
            let _ = write!(fields, "{}{}: {} at {}", if fields.is_empty() { "" } else { ", " }, field.name, field.type_name, field.offset);
        }
        fields = fields.escape_default().take(LONGEST - 1).collect();
        // iceoryx2 sorts by key, and has no empty values.
        let fields = Some(("fields", fields)).filter(|(_, fields)| !fields.is_empty());
        let attributes = [("abi", format!("{:#018x}", layout.hash))].into_iter().chain(fields).chain([("kind", T::KIND.to_string())]);
        Self::link(layout.name, false, size_of::<T>(), align_of::<T>(), attributes)
    }

    /// Returns the type that a link of frames of up to `largest` bytes needs.
    #[must_use]
    pub fn frames(largest: usize) -> Self {
        Self::link("u8", true, 1, 1, [("largest", largest.to_string())])
    }

    pub(crate) fn of(attributes: &AttributeSet, settings: &StaticConfig) -> Self {
        let payload = &settings.message_type_details().payload;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let attributes = attributes.iter().map(|attribute| (text(attribute.key().as_bytes()), text(attribute.value().as_bytes())));
        Self {
            name: payload.type_name().to_string(),
            slice: payload.variant() == TypeVariant::Dynamic,
            size: payload.size(),
            align: payload.alignment(),
            attributes: attributes.filter(|(key, _)| key.starts_with("ringmem.")).collect(),
            overflow: settings.has_safe_overflow(),
            subscribers: settings.max_subscribers(),
            history: settings.history_size(),
        }
    }

    pub(crate) fn find<S: Service>(node: &Node<S>, name: &ServiceName) -> Option<Self> {
        let found = S::details(name, node.config(), MessagingPattern::PublishSubscribe).ok()??.static_details;
        match found.messaging_pattern() {
            messaging_pattern::MessagingPattern::PublishSubscribe(settings) => Some(Self::of(found.attributes(), settings)),
            _ => None,
        }
    }

    /// Returns the attributes as a requirement; `None` if iceoryx2 rejects one.
    pub(crate) fn verifier(&self) -> Option<AttributeVerifier> {
        self.attributes.iter().try_fold(AttributeVerifier::new(), |verifier, (key, value)| {
            verifier.require(&key.as_str().try_into().ok()?, &value.as_str().try_into().ok()?).ok()
        })
    }

    /// Returns whether such a service carries what `ring` needs.
    pub(crate) fn serves(&self, ring: &Self) -> bool {
        let Self { name, slice, size, align, attributes, overflow, subscribers, history } = ring;
        (name, slice, size) == (&self.name, &self.slice, &self.size)
            && (overflow, subscribers, history) == (&self.overflow, &self.subscribers, &self.history)
            && self.align >= *align
            && attributes.iter().all(|needed| self.attributes.contains(needed))
    }
}

impl fmt::Display for ServiceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, slice, size, align, attributes, overflow, subscribers, history } = self;
        let what = if *slice { "slices of " } else { "" };
        let overflow = if *overflow { "with" } else { "without" };
        // A peer's text may hold control characters.
        write!(
            f,
            "{what}`{}`, size {size}, align {align}, {overflow} overflow, subscribers {subscribers}, history {history}",
            name.escape_debug()
        )?;
        if attributes.is_empty() {
            write!(f, ", no attributes of ringmem")?;
        }
        for (key, value) in attributes {
            write!(f, "\n    {}: {}", key.escape_debug(), value.escape_debug())?;
        }
        Ok(())
    }
}
