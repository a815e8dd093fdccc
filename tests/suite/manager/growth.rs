use std::sync::atomic::Ordering::Relaxed;

use ringmem::Error;
use ringmem::manager::{BufferConfig, Growth, MemoryManager};
use ringmem::memory::Device;

use super::{KIB, MIB, backend, holding, manager, numbers, plain, read};
use crate::rig::panicking_clock::broken;

#[test]
fn size_bounds_apply_to_the_first_allocation() {
    let backend = backend();
    let manager = manager(&backend);
    for (name, config, size) in [("positions", BufferConfig::positions(), 4104), ("forces", BufferConfig::forces(), 4104)] {
        manager.create::<[f32; 3]>(name, 1, config).expect("room");
        assert_eq!(manager.budget().used(), size, "342 of 12 bytes");
        manager.clear();
    }
    manager.create::<[u32; 8]>("edges", 1, BufferConfig::edges()).expect("room");
    manager.create::<u64>("grid", 1, BufferConfig::grid()).expect("room");
    manager.create::<u8>("other", 0, BufferConfig::default()).expect("room");
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), ((8 + 2 + 4) * KIB, (8 + 2 + 4) * KIB));
    let small = plain().with_bytes(0, 40);
    assert!(matches!(manager.create::<u32>("small", 11, small), Err(Error::Size { asked: 44, least: 0, most: 40, .. })));
    manager.create::<u32>("small", 10, small).expect("as much as it may have");
}

#[test]
fn an_empty_buffer_allocates_on_first_growth() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.create::<u32>("a", 0, plain()).expect("no memory");
    let lease = manager.lease(id).expect("nobody else");
    assert_eq!((lease.len(), lease.capacity(), lease.device_address(), lease.to_vec().expect("no copy")), (0, 0, None, vec![]));
    drop(lease);
    assert_eq!(backend.counters().device_allocations.count, 0);
    manager.lease_mut(id).expect("nobody else").push(7).expect("room");
    assert_eq!((read(&manager, id), backend.counters().device_allocations.count), (vec![7], 1));
}

#[test]
fn growth_stops_at_the_maximum_with_an_error() {
    let manager = manager(&backend());
    let id = manager.create::<u32>("a", 8, plain().with_bytes(0, 40)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    lease.ensure_capacity(9).expect("less than half more");
    assert_eq!((lease.capacity(), lease.len()), (10, 8));
    assert!(matches!(lease.ensure_capacity(11), Err(Error::Size { asked: 44, least: 0, most: 40, .. })));
    assert!(matches!(lease.resize(11), Err(Error::Size { asked: 44, least: 0, most: 40, .. })));
    assert!(matches!(lease.extend_from_slice(&[0; 3]), Err(Error::Size { asked: 44, least: 0, most: 40, .. })));
    assert_eq!((lease.capacity(), lease.len()), (10, 8));
}

#[test]
fn a_million_pushes_resize_logarithmically_often() {
    const MANY: u32 = 1_000_000;
    let backend = backend();
    for (factor, growth) in [(1.3_f64, Growth::new(13, 10)), (1.5, Growth::new(3, 2)), (2.0, Growth::new(2, 1))] {
        let manager = manager(&backend);
        let id = manager.create::<u32>("a", 1, plain().with_growth(growth)).expect("room");
        let before = backend.counters();
        let mut lease = manager.lease_mut(id).expect("nobody else");
        for number in 1..MANY {
            lease.push(number).expect("room");
        }
        lease.slice_mut(..1).expect("one").copy_from(&[0]).expect("a copy");
        drop(lease);
        let after = backend.counters();
        assert_eq!(read(&manager, id), numbers(0, MANY as usize));
        let resizes = manager.statistics().resizes;
        assert!(resizes as f64 <= (f64::from(MANY).ln() / factor.ln()).ceil() + 1.0, "{resizes} at {factor}");
        assert_eq!(after.device_allocations.count - before.device_allocations.count, resizes);
        assert_eq!(after.downloads.count, before.downloads.count, "no round trip");

        let moved = after.device_copies.bytes - before.device_copies.bytes;
        let written = after.uploads.bytes - before.uploads.bytes;
        assert_eq!((moved, written), (manager.statistics().resize_bytes, u64::from(MANY) * 4));
        if factor >= 1.5 {
            let (vec_moved, vec_written) = of_a_vec(MANY);
            assert!((moved + written) * 2 <= (vec_moved + vec_written) * 5, "{moved} and {written} at {factor}, a Vec {vec_moved}");
            assert!(moved * 2 <= vec_moved * 5, "also without the elements themselves: {moved} at {factor}, a Vec {vec_moved}");
        }
    }
}

fn of_a_vec(count: u32) -> (u64, u64) {
    let (mut vec, mut moved) = (Vec::new(), 0);
    for number in 0..count {
        if vec.len() == vec.capacity() {
            moved += size_of_val(&*vec) as u64;
        }
        vec.push(number);
    }
    (moved, size_of_val(&*vec) as u64)
}

#[test]
fn extend_copies_many_elements_per_upload() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.create::<u32>("a", 0, plain()).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    lease.extend(0..100_000).expect("room");
    assert_eq!(lease.append(|end| (100_000..100_003).try_for_each(|number| end.push(number)).map(|()| "done")).expect("room"), "done");
    assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 100_003));
    assert_eq!((backend.counters().uploads.count, backend.counters().uploads.bytes), (400_000_u64.div_ceil(64 * KIB) + 1, 400_012));
}

#[test]
fn a_failed_or_panicking_append_keeps_the_length() {
    let manager = manager(&backend());
    let id = manager.create::<u32>("a", 0, plain()).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    lease.extend_from_slice(&numbers(0, 10)).expect("room");
    let refused = lease.append(|end| {
        (0..50_000).try_for_each(|number| end.push(number))?;
        Err::<(), _>(Error::Unsupported { what: "more" })
    });
    assert!(matches!(refused, Err(Error::Unsupported { what: "more" })));
    assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 10));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lease.extend((0..50_000).inspect(|&number| assert!(number < 40_000, "of the test")))
    }));
    assert!(panicked.is_err());
    assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 10));
    lease.extend(10..20).expect("room");
    assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 20));
}

/// The return of a lease reads the clock, also while panicking, where another panic aborts.
#[test]
fn a_panicking_clock_does_not_interrupt_the_end_of_a_lease() {
    let (clock, is_broken) = broken();
    let manager = MemoryManager::builder(Device::new(&backend(), 0)).clock(clock).build();
    let id = holding(&manager, "a", &numbers(0, 10));
    is_broken.store(true, Relaxed);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut lease = manager.lease_mut(id).expect("nobody else");
        lease.extend((0..50).inspect(|&number| assert!(number < 40, "of the test")))
    }));
    assert_eq!(panicked.expect_err("it panics").downcast_ref::<&str>(), Some(&"of the test"));
    manager.lease_mut(id).expect("it was given back").push(10).expect("room");
    is_broken.store(false, Relaxed);
    assert_eq!(read(&manager, id), numbers(0, 11));
}

#[test]
fn shrink_to_fit_keeps_live_elements_and_the_minimum() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.create::<u32>("a", 0, plain().with_bytes(40, MIB)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    lease.extend(0..1000).expect("room");
    lease.push(1000).expect("room");
    lease.resize(20).expect("it is there");
    let held = 1500 * 4;
    assert_eq!((lease.capacity(), manager.budget().used()), (1500, held), "what is not live stays");
    let copied = backend.counters().device_copies.bytes;
    assert_eq!(lease.shrink_to_fit().expect("less"), held - 80);
    assert_eq!((lease.capacity(), lease.to_vec().expect("a copy")), (20, numbers(0, 20)));
    assert_eq!((manager.budget().used(), backend.counters().device_copies.bytes - copied), (80, 80));
    assert_eq!(lease.shrink_to_fit().expect("nothing"), 0);
    lease.resize(2).expect("it is there");
    assert_eq!((lease.shrink_to_fit().expect("less"), lease.capacity()), (40, 10), "as the configuration says");
}
