use super::*;
use ringmem::Error;
use ringmem::backend::MemoryLocation;
use ringmem::backend::host::Fault;
use ringmem::config::Config;
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::pool::{AnyMemory, Pools};
use ringmem::stream::{ErrorPolicy, Stream};

/// A manager of 1 MiB of device memory that falls back to the host.
fn with_fallback(policy: ErrorPolicy) -> (Clean, MemoryManager<AnyMemory>) {
    let backend = Clean::build(HostBackend::builder().device_memory(MIB).faults(Faults::new()));
    let pools = Pools::new(&backend, 0, &Config::host().with_pooling(false)).expect("a device");
    let [device, host] = [MemoryLocation::Device, MemoryLocation::Host].map(|location| pools.memory(location).expect("enabled"));
    (backend, MemoryManager::builder(device).error_policy(policy).fallback(host).build())
}

fn guarded(backend: &Arc<HostBackend>, policy: ErrorPolicy) -> Manager {
    MemoryManager::builder(Device::new(backend, 0)).error_policy(policy).build()
}

#[test]
fn a_buffer_beyond_device_memory_falls_back_to_the_host_and_says_so() {
    let (backend, manager) = with_fallback(ErrorPolicy::default());
    let full = manager.create::<u8>("full", 1 << 20, plain()).expect("all of the device");
    let id = manager.create::<u32>("late", 1000, plain()).expect("the host");
    let mut lease = manager.lease_mut(id).expect("live");
    assert_eq!((lease.is_fallback(), lease.location()), (true, MemoryLocation::Host));
    lease.view_mut().copy_from(&numbers(7, 1000)).expect("a copy");
    drop(lease);
    let statistics = manager.statistics();
    assert_eq!((statistics.retries, statistics.fallbacks, statistics.resets), (1, 1, 0));
    let of = |name: &str| statistics.buffers.iter().find(|buffer| &*buffer.name == name).expect("live").is_fallback;
    assert_eq!((of("full"), of("late"), statistics.used_bytes), (false, true, MIB + 4000));
    assert!(!manager.lease(full).expect("live").is_fallback());

    // A resize tries the device again.
    manager.free(full).expect("live");
    let mut lease = manager.lease_mut(id).expect("live");
    lease.resize(2000).expect("the device");
    assert_eq!((lease.is_fallback(), lease.location()), (false, MemoryLocation::Device));
    assert_eq!(lease.slice(..1000).expect("within").to_vec().expect("a copy"), numbers(7, 1000));
    // And a buffer that grows beyond the device moves to the host.
    lease.ensure_capacity(1 << 20).expect("the host");
    assert_eq!((lease.is_fallback(), lease.slice(..1000).expect("within").to_vec().expect("a copy")), (true, numbers(7, 1000)));
    drop(lease);
    assert!(manager.can_allocate(2 * MIB), "from the host");
    drop(manager);
    assert!(is_empty(&backend));
}

#[test]
fn without_a_fallback_memory_the_last_error_is_returned() {
    let backend = backend();
    let manager = guarded(&backend, ErrorPolicy { memory_fallback: 4, ..ErrorPolicy::default() });
    let error = manager.create::<u8>("large", 128 << 20, BufferConfig::new()).expect_err("twice the device");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let statistics = manager.statistics();
    assert_eq!((statistics.retries, statistics.fallbacks, statistics.created, statistics.used_bytes), (3, 0, 0, 0));
    let error = manager.create::<u8>("invalid", 1, BufferConfig::new().with_bytes(2, 1)).expect_err("a caller's error");
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert_eq!(manager.statistics().retries, 3, "not repeated");
}

#[test]
fn every_call_repeats_what_failed_once() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let manager = guarded(&backend, ErrorPolicy { reset: u32::MAX, ..ErrorPolicy::default() });
    let once = |verb| backend.set_faults(&Faults::new().on(verb, Fault::nth(1)));
    let repeated = |what: &str, expected: u64| assert_eq!(manager.statistics().retries, expected, "{what}");
    once(Verb::Allocate);
    let id = manager.create::<u32>("a", 4, plain().with_async(true)).expect("the second attempt");
    repeated("create", 1);
    let mut lease = manager.lease_mut(id).expect("live");
    lease.view_mut().copy_from(&[1, 2, 3, 4]).expect("a copy");
    once(Verb::Allocate);
    lease.resize(100).expect("the second attempt");
    repeated("a resize's allocation", 2);
    once(Verb::Copy);
    lease.resize(1000).expect("the second attempt");
    repeated("a resize's copy", 3);
    once(Verb::Copy);
    lease.resize_on(10_000, &stream).expect("the second attempt");
    repeated("a resize's queued copy", 4);
    lease.resize(4).expect("within");
    once(Verb::Copy);
    lease.extend_from_slice(&[5, 6]).expect("the second attempt");
    repeated("an append", 5);
    let pinned = |elements: &[u32]| PinnedBuffer::from_slice(Pinned::new(&backend, 0), elements).expect("room");
    let ours = pinned(&[7; 2]);
    once(Verb::Copy);
    lease.upload(&stream, ours, 0).expect("the second attempt").wait().expect("copied");
    repeated("an upload", 6);
    once(Verb::Fill);
    lease.fill_on(&stream, 2..3, 9).expect("the second attempt");
    repeated("a fill", 7);
    let ours = pinned(&[0; 6]);
    once(Verb::Copy);
    let ours = lease.download(&stream, .., ours).expect("the second attempt").wait().expect("copied");
    repeated("a download", 8);
    assert_eq!(ours.as_slice().expect("idle"), [7, 7, 9, 4, 5, 6]);
}

#[test]
fn a_policy_s_reset_is_counted_and_ends_the_retries() {
    let policy = ErrorPolicy { memory_fallback: 9, reset: 3, ..ErrorPolicy::default() };
    let backend = backend();
    let manager = guarded(&backend, policy);
    for resets in 1..=2 {
        let error = manager.create::<u8>("large", 128 << 20, BufferConfig::new()).expect_err("twice the device");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert_eq!((manager.statistics().retries, manager.statistics().resets), (2 * resets, resets));
    }
    let (_backend, manager) = with_fallback(policy);
    let id = manager.create::<u8>("large", 2 << 20, BufferConfig::new()).expect("the host, while the program resets the device");
    assert!(manager.lease(id).expect("live").is_fallback());
    assert_eq!((manager.statistics().fallbacks, manager.statistics().resets), (1, 1));
}
