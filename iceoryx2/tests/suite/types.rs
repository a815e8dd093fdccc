use iceoryx2::prelude::*;
use ringmem::{RingMessage, SharedLayout};
use ringmem_iceoryx2::{Error, Link, Message, Options, ServiceType};

use crate::host::Host;

macro_rules! message {
    ($module:ident, $kind:literal, $($field:ident: $type:ty),+) => {
        mod $module {
            #[derive(Clone, Copy, ringmem::SharedLayout)]
            #[repr(C)]
            #[layout(message = $kind)]
            pub struct Order {
                $(pub $field: $type,)+
            }
        }
    };
}
message!(order, 7, price: f64, volume: u64);
message!(same, 7, price: f64, volume: u64);
message!(renamed, 7, volume: f64, price: u64);
message!(other_kind, 8, price: f64, volume: u64);
message!(larger, 7, price: f64, volume: u64, side: u64);

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
struct Größe {
    value: u64,
}

#[track_caller]
fn mismatch<T>(result: Result<T, Error>) -> (ServiceType, ServiceType, String) {
    match result {
        Err(error @ Error::Mismatch { .. }) => {
            let text = error.to_string();
            let Error::Mismatch { name, service, ring } = error else { unreachable!() };
            assert_eq!(name, "orders");
            (*service, *ring, text)
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    }
}

fn against<T: RingMessage>() -> (ServiceType, ServiceType, String) {
    let host = Host::new();
    let (here, there) = (host.node(), host.node());
    let _service = Link::messages::<order::Order>(&there, "orders").unwrap();
    mismatch(Link::messages::<T>(&here, "orders"))
}

#[test]
fn equal_messages_of_two_programs_match() {
    let host = Host::new();
    let (here, there) = (host.node(), host.node());
    let _service = Link::messages::<order::Order>(&there, "orders").unwrap();
    Link::messages::<same::Order>(&here, "orders").unwrap();
}

#[test]
fn another_abi_is_an_error_with_both_tables() {
    let (service, ring, text) = against::<renamed::Order>();
    assert_eq!((service.size, &service.name), (ring.size, &ring.name));
    let abi = |of: &ServiceType| of.attributes.iter().find(|(key, _)| key == "ringmem.abi").cloned().unwrap();
    assert_ne!(abi(&service), abi(&ring));
    for of in [&service, &ring] {
        assert!(text.contains(&abi(of).1), "{text}");
    }
    for fact in ["price: f64 at 0, volume: u64 at 8", "volume: f64 at 0, price: u64 at 8"] {
        assert!(text.contains(fact), "{text}");
    }
}

#[test]
fn another_kind_is_an_error_with_both_kinds() {
    let (.., text) = against::<other_kind::Order>();
    assert!(text.contains("ringmem.kind: 7") && text.contains("ringmem.kind: 8"), "{text}");
}

#[test]
fn another_size_is_an_error_with_both_sizes() {
    let (service, ring, text) = against::<larger::Order>();
    assert_eq!((service.size, ring.size), (16, 24));
    assert!(text.contains("size 16") && text.contains("size 24"), "{text}");
}

#[test]
fn frames_of_another_limit_are_an_error() {
    let host = Host::new();
    let node = host.node();
    let _service = Link::frames(&node, "orders", 64).unwrap();
    let (.., text) = mismatch(Link::frames(&node, "orders", 65));
    assert!(text.contains("ringmem.largest: 64") && text.contains("ringmem.largest: 65"), "{text}");
    mismatch(Link::messages::<order::Order>(&node, "orders"));
}

#[test]
fn a_service_without_attributes_is_an_error() {
    let host = Host::new();
    let node = host.node();
    let builder = node.service_builder(&"orders".try_into().unwrap()).publish_subscribe::<Message<order::Order>>();
    let _service = builder.enable_safe_overflow(false).max_subscribers(1).create().unwrap();
    let (service, ..) = mismatch(Link::messages::<order::Order>(&node, "orders"));
    assert_eq!(service.attributes, []);
}

#[test]
fn slices_of_messages_are_an_error() {
    let host = Host::new();
    let node = host.node();
    let builder = node.service_builder(&"orders".try_into().unwrap()).publish_subscribe::<[Message<order::Order>]>();
    let _service = builder.enable_safe_overflow(false).max_subscribers(1).create_with_attributes(&attributes()).unwrap();
    let (service, ring, text) = mismatch(Link::messages::<order::Order>(&node, "orders"));
    assert!(service.slice && !ring.slice && text.contains("slices of `Order`"), "{text}");
}

/// The attributes of a link of orders, and a hostile one.
fn attributes() -> AttributeSpecifier {
    let mut attributes = AttributeSpecifier::new();
    let hostile = ("ringmem.note".to_owned(), "\u{1b}[2J".to_owned());
    for (key, value) in ServiceType::messages::<order::Order>().attributes.iter().chain([&hostile]) {
        attributes = attributes.define(&key.as_str().try_into().unwrap(), &value.as_str().try_into().unwrap()).unwrap();
    }
    attributes
}

/// Another program's service, with the attributes of a link.
fn foreign(overflow: bool, subscribers: usize) -> (ServiceType, String) {
    let host = Host::new();
    let node = host.node();
    let builder = node.service_builder(&"orders".try_into().unwrap()).publish_subscribe::<Message<order::Order>>();
    let builder = builder.enable_safe_overflow(overflow).max_subscribers(subscribers).subscriber_max_buffer_size(64);
    let _service = builder.create_with_attributes(&attributes()).unwrap();
    let (service, _, text) = mismatch(Link::messages::<order::Order>(&node, "orders"));
    (service, text)
}

#[test]
fn a_service_that_may_lose_or_double_messages_is_an_error() {
    let (service, text) = foreign(true, 1);
    assert!(service.overflow && text.contains("with overflow") && text.contains("without overflow"), "{text}");
    let (service, text) = foreign(false, 2);
    assert!(service.subscribers == 2 && text.contains("subscribers 2") && text.contains("subscribers 1"), "{text}");
    assert!(service.attributes.contains(&("ringmem.note".to_owned(), "\u{1b}[2J".to_owned())));
    assert!(!text.contains('\u{1b}') && text.contains(r"\u{1b}[2J"), "{text}");
}

#[test]
fn invalid_names_are_errors() {
    let host = Host::new();
    let node = host.node();
    for name in ["", &"x".repeat(256)] {
        assert!(matches!(Link::frames(&node, name, 64), Err(Error::Name(named)) if named == name), "{name}");
    }
    assert!(matches!(Link::messages::<Größe>(&node, "orders"), Err(Error::TypeName("Größe"))));
}

#[test]
fn limits_that_iceoryx2_cannot_hold_are_errors() {
    let host = Host::new();
    let node = host.node();
    let limit = |result: Result<(), Error>| match result {
        Err(Error::Limit { what, value, .. }) => (what, value),
        other => panic!("{other:?}"),
    };
    for value in [0, 1 << 32, usize::MAX] {
        let queue = Options { queue: value, ..Options::default() };
        assert_eq!(limit(Link::messages_with::<u64>(&node, "orders", queue).map(drop)), ("queue", value));
        assert_eq!(limit(Link::frames_with(&node, "orders", 64, queue).map(drop)), ("queue", value));
        let publishers = Options { publishers: value, ..Options::default() };
        assert_eq!(limit(Link::frames_with(&node, "orders", 64, publishers).map(drop)), ("publishers", value));
        assert_eq!(limit(Link::frames(&node, "orders", value).map(drop)), ("bytes of a frame", value));
    }
    let most = Options { queue: 1 << 16, publishers: 256 };
    let link = Link::messages_with::<u8>(&node, "orders", most).unwrap();
    ringmem_iceoryx2::Publish::messages(&link).unwrap();
    ringmem_iceoryx2::Feed::new(&link).unwrap();
    Link::frames(&node, "most", 1 << 30).unwrap();
}

#[test]
fn limits_of_another_programs_service_beyond_those_of_a_link_are_errors() {
    const LARGE: usize = 1 << 40;
    for (limit, [queue, publishers, borrowed]) in
        [("queue", [LARGE, 2, 2]), ("publishers", [64, 257, 2]), ("borrowed samples", [64, 2, LARGE])]
    {
        let host = Host::new();
        let node = host.node();
        let builder = node.service_builder(&"orders".try_into().unwrap()).publish_subscribe::<Message<order::Order>>();
        let builder = builder.enable_safe_overflow(false).max_subscribers(1).history_size(0).max_publishers(publishers);
        let builder = builder.subscriber_max_buffer_size(queue).subscriber_max_borrowed_samples(borrowed);
        let _service = builder.create_with_attributes(&attributes()).unwrap();
        let error = Link::messages::<order::Order>(&node, "orders").err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(&format!("{limit} of the existing service"))), "{limit}: {error:?}");
    }
}

#[test]
fn queues_of_more_than_a_tebibyte_are_an_error() {
    let host = Host::new();
    let node = host.node();
    let most = Options { queue: 1 << 16, ..Options::default() };
    let error = Link::frames_with(&node, "orders", 1 << 30, most).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|error| error.contains("bytes")), "{error:?}");
}

#[test]
fn a_service_that_repeats_old_samples_is_an_error() {
    let host = Host::new();
    let node = host.node();
    let builder = node.service_builder(&"orders".try_into().unwrap()).publish_subscribe::<Message<order::Order>>();
    let builder = builder.enable_safe_overflow(false).max_subscribers(1).history_size(3).subscriber_max_buffer_size(64);
    let _service = builder.create_with_attributes(&attributes()).unwrap();
    let (.., text) = mismatch(Link::messages::<order::Order>(&node, "orders"));
    assert!(text.contains("history 3") && text.contains("history 0"), "{text}");
}

#[test]
fn a_smaller_queue_is_an_error_of_iceoryx2() {
    let host = Host::new();
    let node = host.node();
    let small = Options { queue: 2, ..Options::default() };
    let link = Link::messages_with::<u64>(&node, "orders", small).unwrap();
    assert_eq!(link.queue(), 2);
    assert!(matches!(Link::messages::<u64>(&node, "orders"), Err(Error::Open { .. })));
}
