use super::*;
use ringmem::memory::{Failing, When};

#[test]
fn an_id_is_valid_until_its_release() {
    let (backend, registry) = (backend(), Registry::new());
    let id = registry.register(buffer(&backend, &[1_u32, 2, 3])).expect("room");
    let other = registry.register(buffer(&backend, &[4_u32])).expect("room");
    assert_eq!(registry.lease(id).expect("live").view().to_vec().expect("live"), [1, 2, 3]);
    assert_eq!((registry.lease(id).expect("live").id(), registry.contains(id)), (id, true));
    assert_ne!(id, other);
    assert_eq!(registry.release(id).expect("live"), 0);
    assert_eq!((registry.contains(id), blocks(&backend)), (false, 1));
    assert!(matches!(id_error(registry.lease(id)), IdError::Stale { .. }));
    assert!(matches!(id_error(registry.lease_mut(id)), IdError::Stale { .. }));
    assert!(matches!(id_error(registry.take(id)), IdError::Stale { .. }));
    assert!(matches!(id_error(registry.release(id)), IdError::Stale { .. }), "once");
    assert_eq!(registry.lease(other).expect("live").view().to_vec().expect("live"), [4]);
}

#[test]
fn a_reused_slot_has_a_new_id() {
    let (backend, registry) = (backend(), Registry::new());
    let mut old = Vec::new();
    for round in 0..100_u32 {
        let id = registry.register(buffer(&backend, &[round])).expect("room");
        assert!(!old.contains(&id));
        for &gone in &old {
            assert!(matches!(id_error(registry.lease(gone)), IdError::Stale { .. }));
        }
        assert_eq!(registry.lease(id).expect("live").view().to_vec().expect("live"), [round]);
        registry.release(id).expect("live");
        old.push(id);
    }
    assert_eq!(registry.statistics().registered, 100);
}

#[test]
fn an_id_of_another_registry_is_an_error_with_both_numbers() {
    let backend = backend();
    let (registry, stranger) = (Registry::new(), Registry::new());
    assert_ne!(registry.number(), stranger.number());
    let id = registry.register(buffer(&backend, &[1_u8])).expect("room");
    stranger.register(buffer(&backend, &[2_u8])).expect("room");
    let expected = IdError::Foreign { expected: stranger.number(), got: registry.number() };
    assert_eq!(id_error(stranger.lease(id)), expected);
    assert_eq!(id_error(stranger.release(id)), expected);
    assert!(!stranger.contains(id) && registry.clone().contains(id), "a clone is the same registry");
}

#[test]
fn take_returns_the_registered_buffer() {
    let (backend, registry) = (backend(), Registry::new());
    let given = buffer(&backend, &[1.5_f64, 2.5]);
    let address = given.device_address();
    let id = registry.register(given).expect("room");
    let lease = registry.lease(id).expect("live");
    assert_eq!((lease.device_address(), lease.len(), lease.size_bytes()), (address, 2, 16));
    assert!(is_busy(registry.take(id)), "a lease is on it");
    drop(lease);
    let back = registry.take(id).expect("not leased");
    assert_eq!((back.device_address(), back.to_vec().expect("live")), (address, vec![1.5, 2.5]));
    assert_eq!((registry.statistics().live(), registry.statistics().bytes, blocks(&backend)), (0, 0, 1));
    let id = registry.register(back).expect("room");
    assert_eq!(registry.lease_mut(id).expect("live").take().expect("no fork").to_vec().expect("live"), [1.5, 2.5]);
}

#[test]
fn an_empty_buffer_has_an_id() {
    let (backend, registry) = (backend(), Registry::new());
    let id = registry.register(buffer::<u64>(&backend, &[])).expect("room");
    let lease = registry.lease(id).expect("live");
    assert_eq!((lease.is_empty(), lease.device_address(), lease.view().to_vec().expect("live")), (true, None, vec![]));
}

#[test]
fn statistics_count_buffers_and_leases_exactly() {
    let (backend, registry) = (backend(), Registry::new());
    let ids: Vec<_> = (0..10).map(|_| registry.register(buffer(&backend, &[0_u32; 100])).expect("room")).collect();
    assert_eq!((registry.statistics().live(), registry.statistics().bytes), (10, 4000));
    let leases = [registry.lease(ids[0]).expect("live"), registry.lease(ids[0]).expect("live"), registry.lease(ids[1]).expect("live")];
    let alone = registry.lease_mut(ids[2]).expect("live");
    assert_eq!(registry.statistics().leases, 4);
    assert_eq!(ids.iter().take(4).map(|&id| registry.release(id).expect("live")).collect::<Vec<_>>(), [2, 1, 1, 0]);
    let statistics = registry.statistics();
    assert_eq!((statistics.released, statistics.freed, statistics.kept(), statistics.live()), (4, 1, 3, 6));
    assert_eq!((statistics.bytes, blocks(&backend)), (3600, 9));
    assert_eq!(registry.clear(), 6);
    assert_eq!((registry.statistics().live(), registry.statistics().kept(), blocks(&backend)), (0, 3, 3));
    drop((leases, alone));
    let statistics = registry.statistics();
    assert_eq!((statistics.freed, statistics.kept(), statistics.leases, statistics.bytes), (10, 0, 0, 0));
    assert_eq!(blocks(&backend), 0);
}

#[test]
fn release_returns_the_error_of_the_memory() {
    let backend = backend();
    let memory = Failing::new(Device::new(&backend, 0)).frees(When::Call(1));
    let registry = Registry::new();
    let id = registry.register(Buffer::<u8, _>::new(memory, 100).expect("room")).expect("room");
    assert!(matches!(registry.release(id), Err(Error::Injected { .. })));
    assert_eq!((registry.statistics().freed, registry.contains(id)), (1, false), "gone all the same");
}

#[test]
fn a_dropped_registry_frees_its_buffers_after_the_last_lease() {
    let (backend, registry) = (backend(), Registry::new());
    let ids = [1_u8, 2].map(|value| registry.register(buffer(&backend, &[value])).expect("room"));
    let lease = registry.lease(ids[0]).expect("live").into_owned();
    drop(registry);
    assert_eq!((blocks(&backend), lease.view().to_vec().expect("live")), (2, vec![1]), "the lease holds them all");
    drop(lease);
    assert_eq!(blocks(&backend), 0);
}
