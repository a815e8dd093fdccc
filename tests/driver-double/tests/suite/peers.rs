use crate::alone::{aborts, alone};
use crate::rig::{NON_BLOCKING, begin, bytes_at, device, event, function, launch, module, ok, ordered, stream};
use ringmem_driver_double::*;

const THREE: (&str, &str) = ("RINGMEM_DOUBLE_DEVICES", "3");

fn on(ordinal: i32) -> usize {
    let mut context = 0;
    // SAFETY: writes one handle, and takes it.
    unsafe {
        ok(cuDevicePrimaryCtxRetain(&raw mut context, ordinal));
        ok(cuCtxSetCurrent(context));
    }
    context
}

fn bind(context: usize) {
    // SAFETY: takes a handle.
    ok(unsafe { cuCtxSetCurrent(context) });
}

#[test]
fn each_device_has_its_own_context_memory_and_name() {
    alone("peers::each_device_has_its_own_context_memory_and_name", &[THREE, ("RINGMEM_DOUBLE_MEMORY", "10000")], || {
        begin();
        let (mut count, mut uuids, mut names) = (0, [[0; 16]; 2], [[0; 16]; 2]);
        let (first, second) = (on(0), on(1));
        // SAFETY: valid output pointers.
        unsafe {
            ok(cuDeviceGetCount(&raw mut count));
            for i in 0..2 {
                ok(cuDeviceGetUuid_v2(&raw mut uuids[i], i as i32));
                ok(cuDeviceGetPCIBusId(names[i].as_mut_ptr(), 16, i as i32));
            }
            assert_eq!(cuDeviceGet(&raw mut count, 3), 101);
            assert_eq!(cuCtxSetCurrent(second + 0x10), 201);
        }
        assert_eq!(count, 3);
        assert!(first != second && uuids[0] != uuids[1] && names[0] != names[1]);
        let at = device(9000);
        let (mut free, mut total, mut other) = (0, 0, 0);
        // SAFETY: valid output pointers.
        unsafe {
            assert_eq!(cuMemAlloc_v2(&raw mut other, 2000), 2);
            ok(cuMemGetInfo_v2(&raw mut free, &raw mut total));
            assert_eq!((free, total), (1000, 10_000));
            bind(first);
            ok(cuMemGetInfo_v2(&raw mut free, &raw mut total));
            assert_eq!((free, total), (10_000, 10_000));
            let here = device(8);
            ok(cuDevicePrimaryCtxRelease_v2(1));
            assert_eq!(cuMemFree_v2(at), 1);
            ok(cuMemFree_v2(here));
        }
    });
}

#[test]
fn objects_of_another_context_are_errors() {
    alone("peers::objects_of_another_context_are_errors", &[THREE], || {
        begin();
        let (on_first, here) = (stream(NON_BLOCKING), function(module(), c"order_of_stores"));
        on(1);
        let (on_second, event, there) = (stream(NON_BLOCKING), event(2), function(module(), c"order_of_stores"));
        let at = device(512);
        assert_eq!([launch(here, 1, on_second, &[at, 1, 0]), launch(there, 1, on_first, &[at, 1, 0])], [400; 2]);
        // SAFETY: takes handles.
        unsafe {
            assert_eq!(cuEventRecord(event, on_first), 400);
            ok(launch(there, 1, on_second, &[at, 1, 0]));
            ok(cuEventRecord(event, on_second));
            ok(cuStreamWaitEvent(on_first, event, 0));
            ok(cuStreamSynchronize(on_first));
        }
        assert_eq!(bytes_at(at + 128, 8), 1_u64.to_le_bytes());
    });
}

#[test]
fn peer_access_is_per_direction_and_must_be_enabled() {
    let matrix = ("RINGMEM_DOUBLE_PEERS", "0>1,1>2");
    alone("peers::peer_access_is_per_direction_and_must_be_enabled", &[THREE, matrix], || {
        begin();
        let (first, second, third) = (on(0), on(1), on(2));
        let mut can = [[9; 3]; 3];
        for (i, j) in (0..9).map(|n| (n / 3, n % 3)) {
            // SAFETY: writes a number.
            ok(unsafe { cuDeviceCanAccessPeer(&raw mut can[i][j], i as i32, j as i32) });
        }
        assert_eq!(can, [[0, 1, 0], [0, 0, 1], [0, 0, 0]]);
        bind(second);
        let at = device(512);
        bind(first);
        let (order, stream) = (function(module(), c"order_of_stores"), stream(NON_BLOCKING));
        let stored = |value: u64| {
            ok(launch(order, 1, stream, &[at, value, 0]));
            // SAFETY: takes a handle.
            ok(unsafe { cuStreamSynchronize(stream) });
            bytes_at(at + 128, 8) == value.to_le_bytes()
        };
        assert!(!stored(3));
        // SAFETY: takes handles, and writes numbers.
        unsafe {
            ok(cuCtxEnablePeerAccess(second, 0));
            assert!(stored(4));
            assert_eq!(cuCtxEnablePeerAccess(second, 0), 704);
            assert_eq!([cuCtxEnablePeerAccess(third, 0), cuCtxEnablePeerAccess(first, 0), cuCtxEnablePeerAccess(second, 1)], [217, 201, 1]);
            ok(cuCtxDisablePeerAccess(second));
            assert!(!stored(5));
            assert_eq!([cuCtxDisablePeerAccess(second), cuCtxDisablePeerAccess(third + 0x10)], [705, 201]);
            ok(cuCtxEnablePeerAccess(second, 0));
            assert!(stored(6));
            bind(second);
            assert_eq!(cuCtxEnablePeerAccess(first, 0), 217);
            ok(cuDevicePrimaryCtxRelease_v2(1));
            on(1);
            bind(first);
            ok(cuCtxEnablePeerAccess(second, 0));
            let mut number = 9;
            for (attribute, peer, expected) in [(1, 1, 0), (2, 1, 1), (3, 1, 1), (4, 2, 0)] {
                ok(cuDeviceGetP2PAttribute(&raw mut number, attribute, 0, peer));
                assert_eq!(number, expected);
            }
            assert_eq!([cuDeviceGetP2PAttribute(&raw mut number, 2, 0, 0), cuDeviceGetP2PAttribute(&raw mut number, 9, 0, 1)], [101, 1]);
        }
    });
}

#[test]
fn pool_access_is_set_per_pool_and_device() {
    alone("peers::pool_access_is_set_per_pool_and_device", &[THREE, ("RINGMEM_DOUBLE_PEERS", "0>1")], || {
        begin();
        let (first, second) = (on(0), on(1));
        let (at, mut pool) = (ordered(512, 0), 0);
        let access = |id, flags| Access { location: Location { kind: 1, id }, flags };
        // SAFETY: takes handles and lists; writes a handle.
        unsafe {
            ok(cuStreamSynchronize(0));
            ok(cuDeviceGetDefaultMemPool(&raw mut pool, 1));
            bind(first);
            let (order, stream) = (function(module(), c"order_of_stores"), stream(NON_BLOCKING));
            let stored = |value: u64| {
                ok(launch(order, 1, stream, &[at, value, 0]));
                ok(cuStreamSynchronize(stream));
                bytes_at(at + 128, 8) == value.to_le_bytes()
            };
            ok(cuCtxEnablePeerAccess(second, 0));
            assert!(!stored(3));
            ok(cuMemPoolSetAccess(pool, [access(0, 3)].as_ptr(), 1));
            assert!(stored(4));
            ok(cuMemPoolSetAccess(pool, [access(0, 0)].as_ptr(), 1));
            assert!(!stored(5));
            let set = |entry: Access| cuMemPoolSetAccess(pool, &raw const *Box::new(entry), 1);
            assert_eq!([set(access(2, 3)), set(access(1, 0)), set(access(0, 2)), set(access(3, 3))], [101, 1, 1, 101]);
        }
    });
}

#[test]
fn a_peer_copy_needs_both_contexts_but_no_access() {
    alone("peers::a_peer_copy_needs_both_contexts_but_no_access", &[THREE, ("RINGMEM_DOUBLE_PEERS", "none")], || {
        begin();
        let (first, second) = (on(0), on(1));
        let there = device(64);
        bind(first);
        let (here, stream) = (device(64), stream(NON_BLOCKING));
        // SAFETY: live memory.
        unsafe {
            ok(cuMemsetD8_v2(here, 1, 64));
            ok(cuMemcpyPeer(there, second, here, first, 32));
            ok(cuStreamSynchronize(0));
            ok(cuMemsetD8Async(here, 2, 64, stream));
            ok(cuMemcpyPeerAsync(there + 48, second, here, first, 16, stream));
            ok(cuStreamSynchronize(stream));
            assert_eq!(bytes_at(there, 64), [[1; 32].as_slice(), &[POISON; 16], &[2; 16]].concat());
            assert_eq!(cuMemcpyPeer(there, first, here, first, 8), 1);
            assert_eq!(cuMemcpyPeer(there, second, here, second, 8), 1);
            assert_eq!(cuMemcpyPeer(there, second + 0x10, here, first, 8), 201);
            assert_eq!(cuMemcpyPeerAsync(there + 60, second, here, first, 8, stream), 1);
        }
        assert_eq!(ringmem_double_violations(), 0);
    });
}

#[test]
fn invalid_settings_abort_with_their_name() {
    let name = "peers::invalid_settings_abort_with_their_name";
    for (variable, value) in
        [("DEVICES", "-1"), ("DEVICES", "65"), ("DEVICES", "two"), ("PEERS", "0>1"), ("ATTRIBUTES", "x"), ("MEMORY", "much")]
    {
        let variable = format!("RINGMEM_DOUBLE_{variable}");
        let stderr = aborts(name, &[(&variable, value)], begin);
        assert!(stderr.contains(&format!("{variable}={value}")), "{stderr}");
    }
}
