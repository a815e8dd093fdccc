use ringmem::Error;
use ringmem::config::ConfigError;
use ringmem::error::IdError;
use ringmem::manager::{BufferConfig, Growth};

use super::{backend, holding, is_empty, manager, numbers, plain, read};

#[test]
fn a_duplicate_name_is_an_error_and_keeps_the_buffer() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "positions", &numbers(0, 10));
    let allocations = backend.counters().device_allocations;
    match manager.create::<u32>("positions", 1000, plain()) {
        Err(Error::AlreadyExists { name, configs: None }) => assert_eq!(&*name, "positions"),
        other => panic!("{other:?}"),
    }
    assert_eq!((read(&manager, id), backend.counters().device_allocations), (numbers(0, 10), allocations));
    for name in ["", "position", "positions ", "Positions"] {
        manager.create::<u32>(name, 1, plain()).expect("another name");
    }
    drop(manager);
    assert!(is_empty(&backend));
}

#[test]
fn another_element_type_is_an_error_with_both_names() {
    let manager = manager(&backend());
    manager.create::<f32>("masses", 4, plain()).expect("room");
    match manager.find::<i32>("masses") {
        Err(Error::Id(IdError::Elements { expected: "f32", got: "i32" })) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(manager.get_or_create::<i32>("masses", 4, plain()), Err(Error::Id(IdError::Elements { .. }))));
    assert!(manager.find::<f32>("masses").is_ok());
}

#[test]
fn an_unknown_name_is_not_found() {
    let manager = manager(&backend());
    match manager.find::<u32>("forces") {
        Err(Error::NotFound { what: "buffer", name, .. }) => assert_eq!(&*name, "forces"),
        other => panic!("{other:?}"),
    }
    let id = manager.create::<u32>("forces", 1, plain()).expect("room");
    assert_eq!(manager.find::<u32>("forces").expect("it is there"), id);
    assert_eq!(manager.free(id).expect("nobody has it"), 0);
    assert!(matches!(manager.find::<u32>("forces"), Err(Error::NotFound { what: "buffer", .. })));
}

#[test]
fn get_or_create_returns_only_a_matching_buffer() {
    let manager = manager(&backend());
    let first = manager.get_or_create::<u32>("grid", 10, plain()).expect("room");
    assert_eq!(manager.get_or_create::<u32>("grid", 99, plain()).expect("it is there"), first);
    assert_eq!(manager.lease(first).expect("nobody else").len(), 10, "as it was");
    let other = plain().with_growth(Growth::new(2, 1));
    match manager.get_or_create::<u32>("grid", 10, other) {
        Err(Error::AlreadyExists { name, configs: Some(configs) }) => {
            assert_eq!((&*name, *configs), ("grid", [plain(), other].map(|config| format!("{config:?}"))));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_invalid_configuration_creates_nothing() {
    let backend = backend();
    let manager = manager(&backend);
    let growth = plain().with_growth(Growth::new(1, 2));
    assert!(matches!(manager.create::<u32>("a", 1, growth), Err(Error::Config(ConfigError::Growth { numerator: 1, denominator: 2 }))));
    let error = manager.create::<f32>("a", 1, BufferConfig::positions()).expect_err("a position has three");
    assert!(matches!(error, Error::Config(ConfigError::Element { wanted: 12, got: 4 })), "{error}");
    assert!(error.to_string().starts_with("invalid bytes_per_element: got 12"), "{error}");
    assert!(matches!(manager.create::<[f32; 3]>("a", 1 << 40, BufferConfig::positions()), Err(Error::Size { .. })));
    assert!(matches!(manager.create::<u32>("a", usize::MAX, plain()), Err(Error::Size { .. })));
    let unbounded = manager.create::<f32>("a", usize::MAX / 4, plain().with_bytes(0, u64::MAX));
    assert!(matches!(unbounded, Err(Error::Size { asked, most, .. }) if asked > most), "what was asked for is not possible: {unbounded:?}");
    assert_eq!((backend.counters().device_allocations.count, manager.budget().used(), manager.statistics().buffers.len()), (0, 0, 0));
    manager.create::<[f32; 3]>("a", 1, BufferConfig::positions()).expect("the name is free");
}

#[test]
fn an_id_is_valid_in_its_manager_until_its_free() {
    let backend = backend();
    let (one, other) = (manager(&backend), manager(&backend));
    let id = one.create::<u32>("a", 1, plain()).expect("room");
    other.create::<u32>("a", 1, plain()).expect("room");
    assert!(matches!(other.lease(id), Err(Error::Id(IdError::Foreign { .. }))));
    assert!(matches!(other.free(id), Err(Error::Id(IdError::Foreign { .. }))));
    assert!(one.contains(id) && !other.contains(id));
    one.free(id).expect("nobody has it");
    let next = one.create::<u32>("a", 1, plain()).expect("the name is free");
    assert!(matches!(one.lease(id), Err(Error::Id(IdError::Stale { .. }))));
    assert!(matches!(one.free(id), Err(Error::Id(IdError::Stale { .. }))));
    assert!(!one.contains(id) && one.contains(next));
}

#[test]
fn a_buffer_freed_under_a_lease_loses_its_name_at_once() {
    let backend = backend();
    let manager = manager(&backend);
    let old = holding(&manager, "a", &numbers(0, 100));
    let lease = manager.lease(old).expect("nobody else").into_owned();
    assert_eq!(manager.free(old).expect("it is there"), 1);
    assert!(matches!(manager.lease(old), Err(Error::Id(IdError::Released { leases: 1, .. }))));
    let new = holding(&manager, "a", &numbers(500, 100));
    assert_eq!((manager.find::<u32>("a").expect("the new one"), manager.budget().used()), (new, 800));
    assert_eq!((lease.to_vec().expect("a copy"), read(&manager, new)), (numbers(0, 100), numbers(500, 100)));
    drop(lease);
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (400, 400));
    let lease = manager.lease_mut(new).expect("nobody else");
    assert_eq!(manager.free(new).expect("it is there"), 1);
    assert!(matches!(manager.find::<u32>("a"), Err(Error::NotFound { what: "buffer", .. })));
    assert_eq!(lease.to_vec().expect("a copy"), numbers(500, 100));
    drop(lease);
    assert_eq!(manager.budget().used(), 0);
    assert!(is_empty(&backend));
}

#[test]
fn clear_frees_all_buffers_and_names() {
    let backend = backend();
    let manager = manager(&backend);
    let ids = ["a", "b", "c"].map(|name| holding(&manager, name, &numbers(0, 100)));
    assert_eq!((manager.clear(), manager.budget().used(), manager.statistics().buffers.len()), (3, 0, 0));
    assert!(ids.iter().all(|&id| !manager.contains(id)));
    assert!(is_empty(&backend));
}

#[test]
fn lease_mut_excludes_all_other_leases() {
    let manager = manager(&backend());
    let id = holding(&manager, "a", &numbers(0, 10));
    {
        let _one = manager.lease(id).expect("nobody else");
        let _other = manager.lease(id).expect("readers only");
        assert!(matches!(manager.lease_mut(id), Err(Error::Busy { .. })));
        assert!(matches!(manager.resize_group([(id.into(), 20)]), Err(Error::Busy { .. })));
    }
    let _alone = manager.lease_mut(id).expect("nobody else");
    assert!(matches!((manager.lease(id), manager.lease_mut(id)), (Err(Error::Busy { .. }), Err(Error::Busy { .. }))));
}
