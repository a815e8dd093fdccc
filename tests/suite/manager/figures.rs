use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ringmem::memory::Device;

use super::cleanup::{clocked, seconds};
use super::{MIB, Manager, backend, holding, manager, numbers, plain};

#[test]
fn statistics_are_exact_after_a_script() {
    let (manager, clock) = clocked(&backend());
    let a = holding(&manager, "a", &numbers(0, 100));
    clock.store(seconds(1), Relaxed);
    let b = manager.create::<u8>("b", 10, plain().with_bytes(64, MIB)).expect("room");
    let c = manager.create::<u64>("c", 0, plain()).expect("room");
    clock.store(seconds(3), Relaxed);
    manager.lease_mut(a).expect("nobody else").extend_from_slice(&numbers(0, 1)).expect("room");
    manager.resize_group([(a.into(), 120), (b.into(), 65)]).expect("room");
    manager.free(c).expect("nobody has it");
    let reserved = manager.reserve(1000).expect("room");
    clock.store(seconds(10), Relaxed);

    let figures = manager.statistics();
    assert_eq!(figures.buffers.len(), 2);
    let [of_a, of_b] = &figures.buffers[..] else { panic!("{figures:?}") };
    assert_eq!((&*of_a.name, of_a.element, of_a.element_bytes), ("a", "u32", 4));
    assert_eq!((of_a.len, of_a.capacity, of_a.used_bytes(), of_a.capacity_bytes(), of_a.resizes), (120, 150, 480, 600, 1));
    assert_eq!((of_a.utilisation(), of_a.age, of_a.idle), (0.8, Duration::from_secs(10), Duration::from_secs(7)));
    assert_eq!((&*of_b.name, of_b.element, of_b.len, of_b.capacity, of_b.resizes), ("b", "u8", 65, 96, 1));
    assert_eq!((of_b.age, of_b.idle), (Duration::from_secs(9), Duration::from_secs(7)));

    assert_eq!((figures.used_bytes, figures.buffer_bytes(), figures.other_bytes()), (1696, 696, 1000));
    assert_eq!((figures.peak_bytes, figures.limit_bytes), (1696, 6 << 30));
    assert_eq!((figures.created, figures.freed, figures.resizes, figures.resize_bytes, figures.queued), (3, 1, 2, 410, 0));
    assert_eq!(figures.utilisation(), 545.0 / 696.0);
    drop(reserved);
    let figures = manager.statistics();
    assert_eq!((figures.used_bytes, figures.other_bytes(), figures.peak_bytes), (696, 0, 1696));
}

#[test]
fn statistics_list_every_buffer_sorted_by_name() {
    let manager = manager(&backend());
    let ids: Vec<_> = (0..100).map(|k| holding(&manager, &format!("buffer {k:02}"), &numbers(0, k + 1))).collect();
    let figures = manager.statistics();
    assert_eq!((figures.buffers.len(), figures.created, figures.buffer_bytes()), (100, 100, 5050 * 4));
    assert!(figures.buffers.is_sorted_by(|a, b| a.name < b.name) && figures.buffers.iter().all(|buffer| buffer.utilisation() == 1.0));
    for &id in &ids[..40] {
        manager.free(id).expect("nobody has it");
    }
    assert_eq!((manager.statistics().buffers.len(), manager.statistics().freed), (60, 40));
}

#[test]
fn statistics_include_exclusively_leased_buffers() {
    let manager = manager(&backend());
    let id = holding(&manager, "a", &numbers(0, 10));
    let _alone = manager.lease_mut(id).expect("nobody else");
    let figures = manager.statistics();
    assert_eq!((figures.buffers.len(), figures.buffers[0].len), (1, 10));
}

#[test]
fn the_limit_is_6_gib_or_four_fifths_of_the_device() {
    let backend = backend();
    let memory = || Device::new(&backend, 0);
    assert_eq!(manager(&backend).budget().limit(), 6 << 30);
    assert_eq!(Manager::with_limit(memory(), 7).budget().limit(), 7);
    let of_device = Manager::builder(memory()).limit_of_device().expect("a device").build();
    assert_eq!(of_device.budget().limit(), 64 * MIB * 4 / 5);
    assert!(Manager::builder(Device::new(&backend, 9)).limit_of_device().is_err());
}
