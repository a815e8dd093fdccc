use std::ptr::NonNull;

use ringmem::error::OperationFault;

use ringmem::backend::Ticket;
use ringmem::backend::host::{Fault, Faults, Verb};

use super::*;

fn blocks(backend: &Arc<HostBackend>) -> [Given; 3] {
    [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified]
        .map(|location| give(backend, location, 0, 4096).expect("room"))
}

fn value(backend: &Arc<HostBackend>, place: Address) -> u64 {
    let word = AtomicU64::new(0);
    // SAFETY: both are words, one local.
    unsafe { backend.copy_now(&Copy { to: Address::Host(NonNull::from(&word).cast()), from: place, bytes: 8 }) }.expect("live");
    word.load(Acquire)
}

#[test]
fn a_word_is_published_unless_an_operation_since_failed() {
    let backend = build(HostBackend::builder());
    let word = AtomicU64::new(0);
    let blocks = blocks(&backend);
    let pageable = Address::Host(NonNull::from(&word).cast());
    for place in blocks.iter().map(|block| start(block)).chain([pageable]) {
        let stream = Stream::new(&backend, 0).expect("a stream");
        let publish = |number, since| {
            // SAFETY: a live word, accessed as one.
            unsafe { backend.publish(place, number, since, stream.id()) }.expect("it is queued")
        };
        // SAFETY: a live word, accessed as one.
        unsafe { backend.publish_now(place, 7) }.expect("live");
        assert_eq!(value(&backend, place), 7);

        let first = Ticket { stream: stream.id(), number: 1 };
        let ticket = publish(8, first);
        assert!(backend.wait(ticket, Some(LIMIT)).expect("it succeeds"));
        assert_eq!(value(&backend, place), 8);

        backend.set_faults(&Faults::new().on(Verb::Publish, Fault::nth(1).when_executed()));
        let failing = publish(9, ticket);
        let held = publish(10, failing);
        let later = publish(11, Ticket { number: held.number + 1, ..held });
        assert!(matches!(backend.wait(failing, Some(LIMIT)), Err(Error::Injected { call: "publish", .. })));
        assert!(
            matches!(backend.wait(held, Some(LIMIT)), Err(Error::Operation { what: OperationFault::Unpublished, number: failed, .. }) if failed == failing.number)
        );
        assert!(backend.wait(later, Some(LIMIT)).expect("it succeeds"));
        assert_eq!(value(&backend, place), 11);
        backend.set_faults(&Faults::new());
    }
}

#[test]
fn publishing_outside_live_memory_is_an_error() {
    let backend = build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let block = give(&backend, MemoryLocation::Device, 0, 4096).expect("room");
    let at = |offset| Address::Device(block.device_address.expect("a device's").offset(offset).expect("within"));
    let since = Ticket { stream: stream.id(), number: 1 };
    // SAFETY: a live word.
    unsafe { backend.publish_now(at(0), 5) }.expect("live");
    for offset in [4, 4092, 4096] {
        // SAFETY: rejected without effect.
        let (now, queued) = unsafe { (backend.publish_now(at(offset), 1), backend.publish(at(offset), 1, since, stream.id())) };
        for refused in [now, queued.map(drop)] {
            match offset {
                4 => assert!(matches!(refused, Err(Error::Cast { needed: 8, .. })), "{refused:?}"),
                4092 => assert!(matches!(refused, Err(Error::Range { .. })), "{refused:?}"),
                _ => assert!(matches!(refused, Err(Error::Foreign { call: "publish", layouts: None, .. })), "{refused:?}"),
            }
        }
    }
    assert_eq!(value(&backend, at(0)), 5);
}
