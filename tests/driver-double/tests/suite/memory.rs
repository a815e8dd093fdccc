use std::ffi::c_void;
use std::ptr::null_mut;

use crate::alone::alone;
use crate::rig::{Held, NON_BLOCKING, begin, bytes_at, device, ok, pinned, stream};
use ringmem_driver_double::*;

#[test]
fn device_memory_is_poisoned_until_it_is_written() {
    alone("memory::device_memory_is_poisoned_until_it_is_written", &[], || {
        begin();
        let (a, b) = (device(100), device(100));
        assert_eq!(bytes_at(a, 100), [POISON; 100]);
        let source: Vec<u8> = (0..100).collect();
        // SAFETY: live memory, of the stated length.
        unsafe {
            ok(cuMemsetD8_v2(a + 10, 7, 80));
            ok(cuMemcpyHtoD_v2(a + 20, source.as_ptr().cast(), 30));
            ok(cuMemcpyDtoD_v2(b + 1, a, 99));
        }
        let expected: Vec<u8> = (0..100)
            .map(|i| match i {
                20..50 => i - 20,
                10..90 => 7,
                _ => POISON,
            })
            .collect();
        assert_eq!(bytes_at(a, 100), expected);
        assert_eq!((bytes_at(b, 1), bytes_at(b + 1, 99)), (vec![POISON], expected[..99].to_vec()));
    });
}

#[test]
fn a_range_outside_one_allocation_is_an_error() {
    alone("memory::a_range_outside_one_allocation_is_an_error", &[], || {
        begin();
        let (at, next, freed) = (device(64), device(64), device(64));
        let (host, stream, mut own) = (pinned(64), stream(NON_BLOCKING), [0_u8; 128]);
        let (own, host): (*mut c_void, *mut c_void) = (own.as_mut_ptr().cast(), host.as_ptr().cast());
        // SAFETY: names of no live memory are rejected.
        unsafe {
            ok(cuMemFree_v2(freed));
            for (address, bytes) in [(at, 65), (at + 64, 1), (at + 1, 64), (at - 1, 2), (freed, 1), (at, usize::MAX), (u64::MAX, 2), (0, 1)]
            {
                assert_eq!(cuMemsetD8_v2(address, 0, bytes), 1, "{address:#x}, {bytes}");
                assert_eq!(cuMemsetD8Async(address, 0, bytes, stream), 1);
                assert_eq!(cuMemcpyDtoD_v2(address, next, bytes), 1);
                assert_eq!(cuMemcpyDtoDAsync_v2(next, address, bytes, stream), 1);
                assert_eq!(cuMemcpyHtoD_v2(address, own, bytes), 1);
                assert_eq!(cuMemcpyDtoHAsync_v2(own, address, bytes, stream), 1);
            }
            assert_eq!(cuMemcpyHtoDAsync_v2(at, host.byte_add(1), 64, stream), 1);
            assert_eq!(cuMemcpyDtoH_v2(host.byte_sub(1), at, 2), 1);
            assert_eq!(cuStreamWriteValue64_v2(stream, at + 4, 1, 0), 1);
            assert_eq!(cuStreamWriteValue64_v2(stream, at + 64, 1, 0), 1);
            assert_eq!(cuMemcpyDtoD_v2(at, at + 8, 16), 1);
            ok(cuMemcpyDtoD_v2(at, at + 16, 16));
        }
    });
}

#[test]
fn a_foreign_pointer_is_an_error() {
    alone("memory::a_foreign_pointer_is_an_error", &[], || {
        begin();
        let (at, host, own) = (device(64), pinned(64), [0_u8; 64]);
        let (device_as_host, mut address) = (std::ptr::without_provenance_mut::<c_void>(at as usize), 0);
        // SAFETY: names of no live memory of the kind are rejected.
        unsafe {
            assert_eq!(cuMemcpyHtoD_v2(own.as_ptr().addr() as u64, host.as_ptr().cast(), 8), 1);
            assert_eq!(cuMemcpyHtoD_v2(at, device_as_host, 8), 1);
            assert_eq!(cuMemFree_v2(host.addr().get() as u64), 1);
            assert_eq!(cuMemFree_v2(at + 1), 1);
            assert_eq!(cuMemFreeHost(device_as_host), 1);
            assert_eq!(cuMemFreeHost(host.add(8).as_ptr().cast()), 1);
            assert_eq!(cuMemHostGetDevicePointer_v2(&raw mut address, device_as_host, 0), 1);
            assert_eq!(cuMemHostGetDevicePointer_v2(&raw mut address, own.as_ptr().cast_mut().cast(), 0), 1);
            assert_eq!(address, 0);
            ok(cuMemHostGetDevicePointer_v2(&raw mut address, host.add(8).as_ptr().cast(), 0));
            assert_eq!(address, host.addr().get() as u64 + 8);
            ok(cuMemFree_v2(at));
            assert_eq!(cuMemFree_v2(at), 1);
            ok(cuMemFreeHost(host.as_ptr().cast()));
            assert_eq!(cuMemFreeHost(host.as_ptr().cast()), 1);
        }
    });
}

#[test]
fn write_combined_memory_has_another_device_address() {
    alone("memory::write_combined_memory_has_another_device_address", &[], || {
        begin();
        let (mut host, mut address, mut again) = (null_mut::<c_void>(), 0, 0);
        // SAFETY: live memory of 64 bytes at either address.
        unsafe {
            ok(cuMemHostAlloc(&raw mut host, 64, 7));
            ok(cuMemHostGetDevicePointer_v2(&raw mut address, host, 0));
            ok(cuMemHostGetDevicePointer_v2(&raw mut again, host.byte_add(8), 0));
            assert_ne!(address, host.addr() as u64);
            assert_eq!(again, address + 8);
            ok(cuMemsetD8_v2(address, 3, 64));
            ok(cuCtxSynchronize());
            assert_eq!(host.cast::<[u8; 64]>().read(), [3; 64]);
            let at = device(64);
            ok(cuMemcpyHtoD_v2(at, host, 64));
            assert_eq!(bytes_at(at, 64), [3; 64]);
            assert_eq!((ringmem_double_violations(), cuMemsetD8_v2(host.addr() as u64, 0, 1), ringmem_double_violations()), (0, 1, 1));
            assert_eq!(cuMemFreeHost(std::ptr::without_provenance_mut(address as usize)), 1);
            let live = ringmem_double_live();
            ok(cuMemFreeHost(host));
            assert_eq!((ringmem_double_live(), cuMemsetD8_v2(address, 0, 1)), (live - 1, 1));
        }
    });
}

#[test]
fn host_memory_is_registered_once() {
    alone("memory::host_memory_is_registered_once", &[], || {
        begin();
        let mut own = vec![0_u8; 4096];
        let at: *mut c_void = own.as_mut_ptr().cast();
        // SAFETY: within memory that lives until the end.
        unsafe {
            assert_eq!(cuMemHostUnregister(at), 713);
            ok(cuMemHostRegister_v2(at, 2048, 2));
            assert_eq!(cuMemHostRegister_v2(at.byte_add(2047), 2, 0), 712);
            ok(cuMemHostRegister_v2(at.byte_add(2048), 2048, 0));
            assert_eq!(cuMemHostRegister_v2(at, 0, 0), 1);
            assert_eq!(cuMemHostRegister_v2(at, 1, 4), 1);
            assert_eq!(cuMemHostUnregister(at.byte_add(1)), 713);
            assert_eq!(cuMemcpyHtoD_v2(device(8), at.byte_add(2044), 8), 1);
            assert_eq!(cuMemFreeHost(at), 1);
            ok(cuMemHostUnregister(at));
            assert_eq!(cuMemHostUnregister(at), 713);
        }
    });
}

#[test]
fn async_copies_read_pinned_memory_late_and_pageable_early() {
    alone("memory::async_copies_read_pinned_memory_late_and_pageable_early", &[], || {
        begin();
        let (at, host, mut own) = (device(128), pinned(64), vec![1_u8; 64]);
        let held = Held::new(NON_BLOCKING);
        // SAFETY: live memory; nothing else uses it while it is written here.
        unsafe {
            host.write_bytes(1, 64);
            ok(cuMemcpyHtoDAsync_v2(at, host.as_ptr().cast(), 64, held.stream));
            ok(cuMemcpyHtoDAsync_v2(at + 64, own.as_ptr().cast(), 64, held.stream));
            host.write_bytes(2, 64);
            own.fill(2);
            held.release();
        }
        assert_eq!(bytes_at(at, 128), [[2; 64], [1; 64]].concat());
    });
}

#[test]
fn a_copy_to_pageable_memory_is_complete_on_return() {
    alone("memory::a_copy_to_pageable_memory_is_complete_on_return", &[], || {
        begin();
        let (at, stream, mut own) = (device(1 << 20), stream(NON_BLOCKING), vec![0_u8; 1 << 20]);
        // SAFETY: live memory.
        unsafe {
            ok(cuMemsetD8Async(at, 9, 1 << 20, stream));
            ok(cuMemcpyDtoHAsync_v2(own.as_mut_ptr().cast(), at, 1 << 20, stream));
        }
        assert!(own.iter().all(|&byte| byte == 9));
    });
}

#[test]
fn a_word_is_written_after_earlier_work() {
    alone("memory::a_word_is_written_after_earlier_work", &[], || {
        begin();
        let (at, stream) = (device(64), stream(NON_BLOCKING));
        // SAFETY: live memory.
        unsafe {
            ok(cuMemsetD8Async(at, 9, 64, stream));
            ok(cuStreamWriteValue64_v2(stream, at + 8, 0x0102, 0));
            ok(cuStreamSynchronize(stream));
        }
        assert_eq!(bytes_at(at, 17), [[9; 8].as_slice(), &[2, 1, 0, 0, 0, 0, 0, 0], &[9]].concat());
    });
}

#[test]
fn mem_get_info_counts_allocations() {
    alone("memory::mem_get_info_counts_allocations", &[], || {
        begin();
        let (mut free, mut total, mut address, mut pointer) = (0, 0, 0, null_mut());
        let at = device(1000);
        // SAFETY: valid output pointers.
        unsafe {
            ok(cuMemGetInfo_v2(&raw mut free, &raw mut total));
            assert_eq!(total - free, 1000);
            assert_eq!(cuMemAlloc_v2(&raw mut address, free + 1), 2);
            assert_eq!(cuMemAlloc_v2(&raw mut address, usize::MAX), 2);
            assert_eq!(cuMemAlloc_v2(&raw mut address, 0), 1);
            assert_eq!(cuMemHostAlloc(&raw mut pointer, 0, 0), 1);
            assert_eq!(cuMemHostAlloc(&raw mut pointer, 8, 16), 1);
            assert_eq!([cuMemHostAlloc(&raw mut pointer, 1 << 40, 0), cuMemAllocManaged(&raw mut address, 1 << 40, 1)], [2; 2]);
            assert_eq!((address, pointer), (0, null_mut()));
            ok(cuMemFree_v2(at));
            ok(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        }
        assert_eq!((total, free), (2 << 30, 2 << 30));
        assert_ne!(device(1000), at);
    });
}

#[test]
fn only_large_host_allocations_are_page_aligned() {
    alone("memory::only_large_host_allocations_are_page_aligned", &[], || {
        begin();
        for bytes in [1, 100, 4096, 60_000] {
            let mut managed = 0;
            // SAFETY: writes one address.
            ok(unsafe { cuMemAllocManaged(&raw mut managed, bytes, 1) });
            for address in [pinned(bytes).addr().get() as u64, managed] {
                assert!(address.is_multiple_of(256) && !address.is_multiple_of(4096), "{bytes}: {address:#x}");
            }
        }
        assert!(pinned(1 << 20).addr().get().is_multiple_of(4096));
    });
}

#[test]
fn a_host_to_host_copy_is_complete_on_return() {
    alone("memory::a_host_to_host_copy_is_complete_on_return", &[("RINGMEM_DOUBLE_DELAY_US", "20000")], || {
        begin();
        let (from, to, stream) = (pinned(64), pinned(64), stream(NON_BLOCKING));
        // SAFETY: live memory, which nothing uses after the call.
        unsafe {
            from.write_bytes(9, 64);
            ok(cuMemcpyHtoDAsync_v2(to.addr().get() as u64, from.as_ptr().cast(), 64, stream));
            assert_eq!(to.cast::<[u8; 64]>().read(), [9; 64]);
        }
    });
}

#[test]
fn pageable_memory_is_read_late_only_with_attribute_88() {
    for attributes in ["88=0", "88=1"] {
        let environment = [("RINGMEM_DOUBLE_ATTRIBUTES", attributes), ("RINGMEM_DOUBLE_DELAY_US", "20000")];
        alone("memory::pageable_memory_is_read_late_only_with_attribute_88", &environment, || {
            let expected = if std::env::var("RINGMEM_DOUBLE_ATTRIBUTES").is_ok_and(|text| text == "88=1") { 2 } else { 1 };
            begin();
            let (at, stream, mut own) = (device(1), stream(NON_BLOCKING), Box::new(1_u8));
            let place = &raw mut *own;
            // SAFETY: live memory; only this thread writes the byte, as a whole.
            unsafe {
                ok(cuMemcpyHtoDAsync_v2(at, place.cast(), 1, stream));
                place.write_volatile(2);
                ok(cuStreamSynchronize(stream));
            }
            assert_eq!(bytes_at(at, 1), [expected]);
        });
    }
}
