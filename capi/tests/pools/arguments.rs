//! Invalid arguments are statuses with a text, and change nothing.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use ringmem_capi::devices::*;
use ringmem_capi::pool::*;
use ringmem_capi::status::Status;

use crate::{KIB, MIB, NO_POOL, NULL, Opened, succeeds, text};

#[track_caller]
fn fails(status: Status, expected: Status, fact: &str) {
    assert!(status == expected && text().contains(fact), "{status:?}: {}", text());
}

#[test]
fn null_pointers_are_named() {
    let devices = Opened::simulated(MIB);
    let pool = devices.pool(Memory::Device, 0);
    let (mut place, mut stream) = (null_mut(), null_mut());
    let options = PoolOptions { size: size_of::<PoolOptions>(), device: 0, memory: 0, limit: 0, slab: 0 };
    // SAFETY: each pointer is null or valid.
    unsafe {
        fails(ringmem_cuda_open(null_mut()), Status::Invalid, "`devices` is a null pointer");
        fails(ringmem_simulated_open(1, 1 << 20, null_mut()), Status::Invalid, "`devices` is a null pointer");
        fails(ringmem_stream_create(null(), 0, &raw mut stream), Status::Invalid, "`devices` is a null pointer");
        fails(ringmem_stream_create(devices.0, 0, null_mut()), Status::Invalid, "`stream` is a null pointer");
        fails(ringmem_pool_create(null(), &raw const options, &raw mut place), Status::Invalid, "`devices` is a null pointer");
        fails(ringmem_pool_create(devices.0, null(), &raw mut place), Status::Invalid, "`options` is a null pointer");
        fails(ringmem_pool_create(devices.0, &raw const options, null_mut()), Status::Invalid, "`pool` is a null pointer");
        fails(ringmem_pool_allocate(NO_POOL, 1, NULL, &raw mut stream), Status::Invalid, "`pool` is a null pointer");
        fails(ringmem_pool_allocate(pool.0, 1, NULL, null_mut()), Status::Invalid, "`address` is a null pointer");
        fails(ringmem_pool_free(NO_POOL, NULL, NULL), Status::Invalid, "`pool` is a null pointer");
        fails(ringmem_pool_read_statistics(pool.0, null_mut()), Status::Invalid, "`statistics` is a null pointer");
        fails(ringmem_pool_write_snapshot(pool.0, null()), Status::Invalid, "`file` is a null pointer");
        fails(ringmem_copy(devices.0, 0, null_mut(), null(), 1, 0, NULL), Status::Invalid, "stream 0x0 is not one of");
        succeeds(ringmem_pool_free(pool.0, NULL, NULL));
        succeeds(ringmem_pool_close(null_mut()));
        succeeds(ringmem_pool_trim(pool.0, 0, null_mut()));
        ringmem_devices_close(null_mut());
        assert_eq!((ringmem_devices_count(null()), ringmem_devices_count(devices.0)), (0, 1));
    }
    assert!(place.is_null() && stream.is_null(), "outputs are unchanged");
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn impossible_requests_are_refused_with_their_numbers() {
    let devices = Opened::simulated(4 * MIB);
    let pool = devices.pool(Memory::Device, 2 * MIB);
    for (bytes, status, fact) in [
        (0, Status::Invalid, "invalid size: 0 bytes"),
        (usize::MAX, Status::Invalid, "invalid size"),
        (3 * MIB, Status::OutOfMemory, "3 MiB requested, more than the limit of the pool, 2 MiB"),
        (2 * MIB + 1, Status::OutOfMemory, "2097153 bytes requested, more than the limit of the pool, 2097152 bytes"),
    ] {
        fails(pool.try_allocate(bytes, NULL).expect_err("impossible"), status, fact);
    }
    let unknown = std::ptr::without_provenance_mut(0x1234);
    fails(pool.try_allocate(1, unknown).expect_err("no such stream"), Status::Invalid, "no stream 0x1234 of simulated device 0");
    let block = pool.allocate(KIB, NULL);
    // SAFETY: an open pool; addresses and streams that it does not know.
    unsafe {
        fails(ringmem_pool_free(pool.0, unknown, NULL), Status::Invalid, "no live block of this pool at 0x1234");
        fails(ringmem_pool_record_stream(pool.0, unknown, NULL), Status::Invalid, "no live block of this pool at 0x1234");
        fails(ringmem_pool_record_stream(pool.0, block, unknown), Status::Invalid, "no stream 0x1234");
        fails(ringmem_pool_free(pool.0, block, unknown), Status::Invalid, "no stream 0x1234");
        fails(ringmem_pool_close(pool.0), Status::Busy, "the pool has 1 live block of 1 KiB");
        fails(ringmem_stream_destroy(devices.0, 0, unknown), Status::Invalid, "no stream 0x1234");
        fails(ringmem_stream_create(devices.0, 7, &mut null_mut()), Status::NoDevice, "no device 7: the backend has 1");
        fails(ringmem_stream_synchronize(devices.0, 9, unknown), Status::NoDevice, "no device 9: the backend has 1");
        fails(ringmem_copy(devices.0, 0, block, block, 1, 9, devices.stream()), Status::Invalid, "unknown direction 9");
        fails(ringmem_simulated_open(65, 1, &mut null_mut()), Status::Invalid, "65");
        fails(ringmem_simulated_open(0, 1 << 20, &mut null_mut()), Status::Invalid, "0 devices: expected 1 to 64");
    }
    assert_eq!(pool.statistics().live, 1, "a free that fails leaves the block");
    pool.free(block, NULL);
    // SAFETY: the address is no block any more.
    fails(unsafe { ringmem_pool_free(pool.0, block, NULL) }, Status::Invalid, "no live block of this pool");
}

#[test]
fn structures_of_other_versions_are_read_as_far_as_they_go() {
    #[repr(C)]
    struct Later {
        options: PoolOptions,
        flags: u64,
    }
    let devices = Opened::simulated(4 * MIB);
    let create = |size: usize, change: fn(&mut Later)| {
        let options = PoolOptions { size, device: 0, memory: 0, limit: 1 << 20, slab: 0 };
        let mut later = Later { options, flags: 0 };
        change(&mut later);
        let mut pool = null_mut();
        // SAFETY: open devices, and a structure of at least that size.
        let status = unsafe { ringmem_pool_create(devices.0, (&raw const later).cast(), &raw mut pool) };
        if status == Status::Ok {
            // SAFETY: just opened.
            unsafe { ringmem_pool_close(pool) };
        }
        status
    };
    let whole = size_of::<PoolOptions>();
    for size in [size_of::<usize>(), size_of::<usize>() + 8, whole, size_of::<Later>()] {
        succeeds(create(size, |_| ()));
    }
    fails(create(0, |_| ()), Status::Invalid, "`options.size` is 0");
    fails(create(usize::MAX, |_| ()), Status::Invalid, "not the size of the structure");
    fails(create(whole - 4, |_| ()), Status::Invalid, "`options.size` is 28, not the size of the structure");
    fails(create(size_of::<Later>(), |later| later.flags = 1), Status::Unsupported, "does not have, at byte 32");
    fails(create(whole, |later| later.options.memory = 3), Status::Invalid, "`options.memory` is 3");
    fails(create(whole, |later| later.options.device = 3), Status::NoDevice, "no device 3");
    fails(create(whole, |later| later.options.slab = 1), Status::Invalid, "slab size");
    fails(
        create(whole, |later| (later.options.slab, later.options.memory) = (1 << 20, 1)),
        Status::Unsupported,
        "`options.slab` is not for pinned memory",
    );

    let pool = devices.pool(Memory::Device, 0);
    let mut statistics = PoolStatistics { size: 2 * size_of::<u64>(), live_bytes: 7, ..PoolStatistics::default() };
    // SAFETY: an open pool, and a structure of at least that size.
    succeeds(unsafe { ringmem_pool_read_statistics(pool.0, &raw mut statistics) });
    assert_eq!((statistics.size, statistics.live, statistics.live_bytes), (16, 0, 7), "the rest is not written");
    for (size, fact) in [(3, "`statistics.size` is 3"), (20, "`statistics.size` is 20")] {
        statistics.size = size;
        // SAFETY: an open pool, and a structure of at least that size.
        fails(unsafe { ringmem_pool_read_statistics(pool.0, &raw mut statistics) }, Status::Invalid, fact);
    }
}

#[test]
fn a_snapshot_has_the_pool_of_each_stream() {
    let devices = Opened::simulated(4 * MIB);
    let (pool, pinned) = (devices.pool(Memory::Device, 0), devices.pool(Memory::Pinned, 0));
    let stream = devices.stream();
    let blocks = [pool.allocate(KIB, NULL), pool.allocate(MIB, stream)];
    let page = pinned.allocate(KIB, stream);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("state.json");
    let name = CString::new(file.to_str().expect("UTF-8")).expect("no zero");
    for (pool, expected) in [
        (&pool, vec!["device 0, stream 0x0".to_owned(), format!("device 0, stream {:#x}", stream.addr())]),
        (&pinned, vec!["pinned, device 0".to_owned()]),
    ] {
        // SAFETY: an open pool and a text.
        succeeds(unsafe { ringmem_pool_write_snapshot(pool.0, name.as_ptr()) });
        let state: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
        let names: Vec<&str> =
            state["pools"].as_array().expect("pools").iter().map(|pool| pool["name"].as_str().expect("a name")).collect();
        assert_eq!(names, expected);
    }
    let missing = CString::new(folder.path().join("missing/state.json").to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: an open pool and a text.
    fails(unsafe { ringmem_pool_write_snapshot(pool.0, missing.as_ptr()) }, Status::System, "missing");
    blocks.iter().for_each(|block| pool.free(*block, stream));
    pinned.free(page, stream);
}

#[test]
fn a_simulated_device_keeps_the_bytes() {
    let devices = Opened::simulated(4 * MIB);
    let pool = devices.pool(Memory::Device, 0);
    let stream = devices.stream();
    let [x, y] = [(); 2].map(|()| pool.allocate(1000, stream));
    assert!(x.addr().is_multiple_of(256) && y.addr().is_multiple_of(256));
    devices.fill(x, 7, 1000, stream);
    devices.copy(y, x, 1000, stream);
    assert_eq!(devices.read(y, 1000, stream), [7; 1000]);
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.live_bytes, statistics.live_peak, statistics.allocations), (2, 2000, 2000, 2));
    assert!(statistics.reserved_bytes >= 2048 && statistics.idle_bytes == statistics.reserved_bytes - 2048, "{statistics:?}");
    pool.free(x, stream);
    pool.free(y, stream);
}
