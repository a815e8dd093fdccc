use std::ffi::c_void;
use std::ptr::null_mut;

use crate::alone::alone;
use crate::rig::{NON_BLOCKING, begin, bytes_at, device, ok, ordered, pinned, stream};
use ringmem_driver_double::*;

const LEN: usize = 3 * 4096;
const NOWHERE: i32 = -2;
const HOST: i32 = -1;

fn managed() -> u64 {
    let mut at = 0;
    // SAFETY: writes one address.
    ok(unsafe { cuMemAllocManaged(&raw mut at, LEN, 1) });
    at
}

fn range<const N: usize>(attribute: u32, at: u64, bytes: usize) -> [i32; N] {
    let mut list = [7; N];
    // SAFETY: of the stated length.
    ok(unsafe { cuMemRangeGetAttribute(list.as_mut_ptr().cast(), size_of_val(&list), attribute, at, bytes) });
    list
}

#[test]
fn managed_memory_has_one_address_on_host_and_device() {
    alone("managed::managed_memory_has_one_address_on_host_and_device", &[], || {
        begin();
        let (at, stream) = (managed(), stream(NON_BLOCKING));
        let place = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        let order = crate::rig::function(crate::rig::module(), c"order_of_stores");
        // SAFETY: live memory, which the host leaves alone until it has waited.
        unsafe {
            assert_eq!(place.read(), POISON);
            place.write(5);
            assert_eq!(bytes_at(at, 1), [5]);
            ok(crate::rig::launch(order, 1, stream, &[at, 3, 0]));
            ok(cuStreamSynchronize(stream));
            assert_eq!(place.add(128).cast::<u64>().read(), 3);
            ok(cuStreamAttachMemAsync(stream, at, 0, 4));
            ok(cuStreamAttachMemAsync(stream, at, LEN, 1));
            assert_eq!(cuStreamAttachMemAsync(0, at, 0, 4), 1);
            assert_eq!(cuStreamAttachMemAsync(stream, at + 4096, 0, 1), 1);
            assert_eq!(cuStreamAttachMemAsync(stream, at, LEN - 1, 1), 1);
            assert_eq!(cuStreamAttachMemAsync(stream, device(64), 0, 1), 1);
            ok(cuStreamSynchronize(stream));
            assert_eq!(cuMemFreeHost(place.cast()), 1);
            ok(cuMemFree_v2(at));
            assert_eq!(cuMemFree_v2(at), 1);
            let mut other = 0;
            assert_eq!(cuMemAllocManaged(&raw mut other, 8, 4), 1);
            assert_eq!(cuMemAllocManaged(&raw mut other, 0, 1), 1);
        }
        assert_eq!(ringmem_double_violations(), 0);
    });
}

#[test]
fn advice_and_prefetches_are_kept_per_page() {
    alone("managed::advice_and_prefetches_are_kept_per_page", &[("RINGMEM_DOUBLE_DEVICES", "2")], || {
        begin();
        let (at, stream) = (managed(), stream(NON_BLOCKING));
        let second = Location { kind: 1, id: 1 };
        let host = Location { kind: 2, id: 0 };
        assert_eq!((range::<1>(1, at, LEN), range::<1>(2, at, LEN), range::<2>(3, at, LEN)), ([0], [NOWHERE], [NOWHERE; 2]));
        // SAFETY: live memory.
        unsafe {
            ok(cuMemAdvise(at, 1, 1, 0));
            ok(cuMemAdvise(at + 4095, 2, 3, HOST));
            ok(cuMemAdvise_v2(at, LEN, 5, second));
            ok(cuMemAdvise(at, LEN, 5, 0));
            ok(cuMemAdvise(at + 4096, 1, 5, HOST));
            ok(cuMemPrefetchAsync(at, LEN, 1, stream));
            assert_eq!((range::<1>(4, at, LEN), range::<1>(7, at, LEN), range::<1>(8, at, LEN)), ([1], [1], [1]));
            ok(cuMemPrefetchAsync_v2(at, 4096, host, 0, stream));
        }
        assert_eq!((range::<1>(1, at, 4096), range::<1>(1, at, 4097)), ([1], [0]));
        assert_eq!((range::<1>(2, at, 8192), range::<1>(2, at, LEN), range::<1>(5, at, 8192)), ([HOST], [NOWHERE], [2]));
        assert_eq!((range::<3>(3, at, LEN), range::<4>(3, at + 4096, 4096)), ([0, 1, NOWHERE], [0, 1, HOST, NOWHERE]));
        assert_eq!((range::<1>(4, at, 4096), range::<1>(4, at, LEN), range::<1>(4, at + 4096, 1)), ([HOST], [NOWHERE], [1]));
        // SAFETY: foreign memory is refused.
        unsafe {
            ok(cuMemAdvise(at, LEN, 2, 0));
            ok(cuMemAdvise(at, LEN, 4, 0));
            ok(cuMemAdvise_v2(at, LEN, 6, second));
            assert_eq!((range::<1>(1, at, LEN), range::<1>(2, at, LEN), range::<2>(3, at, LEN)), ([0], [NOWHERE], [0, NOWHERE]));
            assert_eq!(cuMemAdvise(at, LEN, 7, 0), 1);
            assert_eq!(cuMemAdvise(at, LEN, 3, 2), 101);
            assert_eq!(cuMemAdvise(at, LEN + 1, 1, 0), 1);
            assert_eq!(cuMemAdvise(device(64), 64, 1, 0), 1);
            assert_eq!(cuMemPrefetchAsync(at, LEN, 2, stream), 101);
            assert_eq!(cuMemPrefetchAsync(device(64), 64, 0, stream), 1);
            assert_eq!(cuMemPrefetchAsync_v2(at, LEN, Location { kind: 0, id: 0 }, 0, stream), 1);
            assert_eq!(cuMemPrefetchAsync_v2(at, LEN, host, 1, stream), 1);
            let mut number = 0_i32;
            assert_eq!(cuMemRangeGetAttribute((&raw mut number).cast(), 8, 1, at, LEN), 1);
            assert_eq!(cuMemRangeGetAttribute((&raw mut number).cast(), 4, 9, at, LEN), 1);
        }
    });
}

#[test]
fn without_concurrent_access_prefetches_fail() {
    alone("managed::without_concurrent_access_prefetches_fail", &[("RINGMEM_DOUBLE_ATTRIBUTES", "89=0")], || {
        begin();
        let (at, stream) = (managed(), stream(NON_BLOCKING));
        // SAFETY: live memory.
        unsafe {
            assert_eq!([cuMemPrefetchAsync(at, LEN, 0, stream), cuMemPrefetchAsync(at, LEN, HOST, stream)], [101; 2]);
            assert_eq!([cuMemAdvise(at, LEN, 3, 0), cuMemAdvise(at, LEN, 3, HOST), cuMemAdvise(at, LEN, 1, 0)], [101, 0, 0]);
        }
    });
}

#[test]
fn without_managed_memory_allocations_fail() {
    alone("managed::without_managed_memory_allocations_fail", &[("RINGMEM_DOUBLE_ATTRIBUTES", "83=0,99=0")], || {
        begin();
        let (mut at, mut own) = (0, [0_u8; 64]);
        // SAFETY: writes one address; memory that lives until the end.
        unsafe {
            assert_eq!(cuMemAllocManaged(&raw mut at, LEN, 1), 801);
            assert_eq!(cuMemHostRegister_v2(own.as_mut_ptr().cast(), 64, 0), 801);
        }
    });
}

#[derive(Debug, PartialEq)]
struct Known {
    has_context: bool,
    kind: u32,
    addresses: [u64; 2],
    is_managed: bool,
    ordinal: i32,
    start: u64,
    len: u64,
    pool: usize,
}

fn known(at: u64) -> Known {
    let (mut context, mut kind, mut device, mut is_managed) = (0_usize, 0_u32, 0_u64, 0_u8);
    let (mut ordinal, mut start, mut len, mut pool) = (0_i32, 0_u64, 0_u64, 0_usize);
    let mut numbers = [1, 2, 3, 8, 9, 11, 12, 17];
    let mut places: [*mut c_void; 8] = [
        (&raw mut context).cast(),
        (&raw mut kind).cast(),
        (&raw mut device).cast(),
        (&raw mut is_managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut start).cast(),
        (&raw mut len).cast(),
        (&raw mut pool).cast(),
    ];
    let mut host = 0_u64;
    // SAFETY: places as wide as the attributes.
    unsafe {
        ok(cuPointerGetAttributes(8, numbers.as_mut_ptr(), places.as_mut_ptr(), at));
        if start != 0 && kind == 1 {
            ok(cuPointerGetAttribute((&raw mut host).cast(), 4, at));
        }
    }
    Known { has_context: context != 0, kind, addresses: [device, host], is_managed: is_managed == 1, ordinal, start, len, pool }
}

#[test]
fn pointer_attributes_describe_every_memory_kind() {
    alone("managed::pointer_attributes_describe_every_memory_kind", &[], || {
        begin();
        let (on_device, host, managed, in_order) = (device(100), pinned(100), managed(), ordered(100, 0));
        let (mut pool, mut base, mut bytes, mut flags, mut number) = (0, 0, 0, 0, 0_u64);
        let host_at = host.as_ptr().addr() as u64;
        // SAFETY: valid output pointers.
        unsafe {
            ok(cuDeviceGetDefaultMemPool(&raw mut pool, 0));
            let all = Known {
                has_context: true,
                kind: 2,
                addresses: [on_device + 7, 0],
                is_managed: false,
                ordinal: 0,
                start: on_device,
                len: 100,
                pool: 0,
            };
            assert_eq!(known(on_device + 7), all);
            assert_eq!(known(in_order), Known { addresses: [in_order, 0], start: in_order, pool, ..all });
            let of_managed = Known { addresses: [managed, 0], is_managed: true, start: managed, len: LEN as u64, pool: 0, ..all };
            assert_eq!(known(managed), of_managed);
            let of_host = Known { kind: 1, addresses: [host_at + 99; 2], is_managed: false, start: host_at, len: 100, ..of_managed };
            assert_eq!(known(host_at + 99), of_host);
            let nothing = Known { has_context: false, kind: 0, addresses: [0; 2], ordinal: NOWHERE, start: 0, len: 0, ..of_host };
            assert_eq!(known(8), nothing);
            assert_eq!(cuPointerGetAttribute((&raw mut number).cast(), 2, 8), 1);
            assert_eq!(cuPointerGetAttribute((&raw mut number).cast(), 4, on_device), 1);
            assert_eq!(cuPointerGetAttribute((&raw mut number).cast(), 99, on_device), 1);
            ok(cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, on_device + 99));
            assert_eq!((base, bytes), (on_device, 100));
            ok(cuMemGetAddressRange_v2(null_mut(), null_mut(), host_at));
            assert_eq!(cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, on_device + 100), 500);
            let mut other = null_mut();
            ok(cuMemHostAlloc(&raw mut other, 8, 4));
            ok(cuMemHostGetFlags(&raw mut flags, other));
            assert_eq!(flags, 6);
            ok(cuMemHostGetFlags(&raw mut flags, host.as_ptr().cast()));
            assert_eq!(flags, 3);
            assert_eq!(cuMemHostGetFlags(&raw mut flags, std::ptr::without_provenance_mut(on_device as usize)), 1);
        }
    });
}

#[test]
fn stream_words_of_managed_memory_are_errors() {
    alone("managed::stream_words_of_managed_memory_are_errors", &[], || {
        begin();
        let (at, stream) = (managed(), stream(NON_BLOCKING));
        // SAFETY: refused.
        unsafe {
            assert_eq!((cuStreamWriteValue64_v2(stream, at, 1, 0), cuStreamWaitValue64_v2(stream, at, 0, 0)), (1, 1));
            ok(cuStreamWriteValue64_v2(stream, pinned(8).addr().get() as u64, 1, 0));
        }
    });
}

#[test]
fn an_attribute_unknown_to_an_old_driver_is_an_error() {
    alone("managed::an_attribute_unknown_to_an_old_driver_is_an_error", &[("RINGMEM_DOUBLE_ATTRIBUTES", "115=-,122=0")], || {
        begin();
        let mut value = 7;
        // SAFETY: each writes one integer, or none.
        let said = unsafe { [cuDeviceGetAttribute(&raw mut value, 115, 0), cuDeviceGetAttribute(&raw mut value, 122, 0)] };
        assert_eq!((said, value), ([1, 0], 0));
    });
}
