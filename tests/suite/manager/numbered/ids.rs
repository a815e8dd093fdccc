use super::*;
use ringmem::memory::{Failing, When};

#[test]
fn an_id_is_valid_until_its_release() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[1_u32, 2, 3])).expect("room");
    let other = manager.register(buffer(&backend, &[4_u32])).expect("room");
    assert_eq!(manager.lease(id).expect("live").view().to_vec().expect("live"), [1, 2, 3]);
    assert_eq!((manager.lease(id).expect("live").id(), manager.contains(id)), (id, true));
    assert_ne!(id, other);
    assert_eq!(manager.free(id).expect("live"), 0);
    assert_eq!((manager.contains(id), blocks(&backend)), (false, 1));
    assert!(matches!(id_error(manager.lease(id)), IdError::Stale { .. }));
    assert!(matches!(id_error(manager.lease_mut(id)), IdError::Stale { .. }));
    assert!(matches!(id_error(manager.take(id)), IdError::Stale { .. }));
    assert!(matches!(id_error(manager.free(id)), IdError::Stale { .. }), "once");
    assert_eq!(manager.lease(other).expect("live").view().to_vec().expect("live"), [4]);
}

#[test]
fn a_reused_slot_has_a_new_id() {
    let backend = backend();
    let manager = manager(&backend);
    let mut old = Vec::new();
    for round in 0..100_u32 {
        let id = manager.register(buffer(&backend, &[round])).expect("room");
        assert!(!old.contains(&id));
        for &gone in &old {
            assert!(matches!(id_error(manager.lease(gone)), IdError::Stale { .. }));
        }
        assert_eq!(manager.lease(id).expect("live").view().to_vec().expect("live"), [round]);
        manager.free(id).expect("live");
        old.push(id);
    }
    assert_eq!(manager.statistics().registered, 100);
}

#[test]
fn an_id_of_another_manager_is_an_error_with_both_numbers() {
    let backend = backend();
    let [manager, stranger] = [(); 2].map(|()| manager(&backend));
    assert_ne!(manager.number(), stranger.number());
    let id = manager.register(buffer(&backend, &[1_u8])).expect("room");
    stranger.register(buffer(&backend, &[2_u8])).expect("room");
    let expected = IdError::Foreign { expected: stranger.number(), got: manager.number() };
    assert_eq!(id_error(stranger.lease(id)), expected);
    assert_eq!(id_error(stranger.free(id)), expected);
    assert!(!stranger.contains(id) && manager.clone().contains(id), "a clone is the same manager");
}

#[test]
fn take_returns_the_registered_buffer() {
    let backend = backend();
    let manager = manager(&backend);
    let given = buffer(&backend, &[1.5_f64, 2.5]);
    let address = given.device_address();
    let id = manager.register(given).expect("room");
    let lease = manager.lease(id).expect("live");
    assert_eq!((lease.device_address(), lease.len(), lease.size_bytes()), (address, 2, 16));
    assert!(is_busy(manager.take(id)), "a lease is on it");
    drop(lease);
    let back = manager.take(id).expect("not leased");
    assert_eq!((back.device_address(), back.to_vec().expect("live")), (address, vec![1.5, 2.5]));
    assert_eq!((manager.statistics().live(), manager.statistics().used_bytes, blocks(&backend)), (0, 0, 1));
    let id = manager.register(back).expect("room");
    assert_eq!(manager.lease_mut(id).expect("live").take().expect("no fork").to_vec().expect("live"), [1.5, 2.5]);
}

#[test]
fn an_empty_buffer_has_an_id() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer::<u64>(&backend, &[])).expect("room");
    let lease = manager.lease(id).expect("live");
    assert_eq!((lease.is_empty(), lease.device_address(), lease.view().to_vec().expect("live")), (true, None, vec![]));
}

#[test]
fn statistics_count_buffers_and_leases_exactly() {
    let backend = backend();
    let manager = manager(&backend);
    let ids: Vec<_> = (0..10).map(|_| manager.register(buffer(&backend, &[0_u32; 100])).expect("room")).collect();
    assert_eq!((manager.statistics().live(), manager.statistics().used_bytes), (10, 4000));
    let leases = [manager.lease(ids[0]).expect("live"), manager.lease(ids[0]).expect("live"), manager.lease(ids[1]).expect("live")];
    let alone = manager.lease_mut(ids[2]).expect("live");
    assert_eq!(manager.statistics().leases, 4);
    assert_eq!(ids.iter().take(4).map(|&id| manager.free(id).expect("live")).collect::<Vec<_>>(), [2, 1, 1, 0]);
    let statistics = manager.statistics();
    assert_eq!((statistics.released, statistics.freed, statistics.kept(), statistics.live()), (4, 1, 3, 6));
    assert_eq!((statistics.used_bytes, blocks(&backend)), (3600, 9));
    assert_eq!(manager.clear(), 6);
    assert_eq!((manager.statistics().live(), manager.statistics().kept(), blocks(&backend)), (0, 3, 3));
    drop((leases, alone));
    let statistics = manager.statistics();
    assert_eq!((statistics.freed, statistics.kept(), statistics.leases, statistics.used_bytes), (10, 0, 0, 0));
    assert_eq!(blocks(&backend), 0);
}

#[test]
fn release_returns_the_error_of_the_memory() {
    let backend = backend();
    let memory = Failing::new(Device::new(&backend, 0)).frees(When::Call(1));
    let manager = MemoryManager::new(memory.clone());
    let id = manager.register(Buffer::<u8, _>::new(memory, 100).expect("room")).expect("room");
    assert!(matches!(manager.free(id), Err(Error::Injected { .. })));
    assert_eq!((manager.statistics().freed, manager.contains(id)), (1, false), "gone all the same");
}

#[test]
fn a_dropped_manager_frees_its_buffers_after_the_last_lease() {
    let backend = backend();
    let manager = manager(&backend);
    let ids = [1_u8, 2].map(|value| manager.register(buffer(&backend, &[value])).expect("room"));
    let lease = manager.lease(ids[0]).expect("live").into_owned();
    drop(manager);
    assert_eq!((blocks(&backend), lease.view().to_vec().expect("live")), (2, vec![1]), "the lease holds them all");
    drop(lease);
    assert_eq!(blocks(&backend), 0);
}
