use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use crate::alone::alone;
use crate::rig::{begin, bytes_at, device, function, module, ok, ptx};
use ringmem_driver_double::*;
use ringmem_kernels::IMAGE;

fn load(text: &CString) -> u32 {
    let mut module = 0;
    // SAFETY: a C string.
    unsafe { cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }
}

#[test]
fn the_checked_in_ptx_loads() {
    alone("module::the_checked_in_ptx_loads", &[], || {
        begin();
        let (mut module, mut address, mut bytes) = (0, 0, 0);
        let text = CString::new(IMAGE.ptx).expect("no zero in it");
        // SAFETY: a C string, and valid output pointers.
        unsafe {
            ok(cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
            ok(cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, Name::new(c"RINGMEM_ABI")));
            assert_eq!(cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, Name::new(c"ringmem_abi")), 500);
        }
        assert_eq!((bytes, bytes_at(address, bytes)), (8, IMAGE.abi.hash.to_le_bytes().to_vec()));
        function(module, c"echo");
    });
}

#[test]
fn ptx_without_a_matching_host_build_is_an_error() {
    let stderr = alone("module::ptx_without_a_matching_host_build_is_an_error", &[], || {
        begin();
        let abi = IMAGE.abi.hash;
        ok(load(&ptx(abi, &[("echo", 4)])));
        assert_eq!(load(&ptx(abi ^ 1, &[("echo", 4)])), 218);
        assert_eq!(load(&ptx(abi, &[("echo", 4), ("nobody", 4)])), 218);
        assert_eq!(load(&ptx(abi, &[("echo", 5)])), 218);
        assert_eq!(load(&c".version 6.3\n.visible .entry echo()\n{ret;}\n".to_owned()), 218);
        assert_eq!(load(&c"echo".to_owned()), 218);
        assert_eq!(load(&c"\x7fELF\x02".to_owned()), 209);
        assert_eq!(ringmem_double_live(), 2);
    });
    for reason in ["its ABI is", "`nobody` has no host build", "`echo` has 5 words of parameters", "it has no RINGMEM_ABI"] {
        assert!(stderr.contains(reason), "{reason}: {stderr}");
    }
}

#[test]
fn a_kernel_absent_from_the_ptx_is_not_found() {
    alone("module::a_kernel_absent_from_the_ptx_is_not_found", &[], || {
        begin();
        let (mut module, mut function, text) = (0, 0, ptx(IMAGE.abi.hash, &[("echo", 4)]));
        // SAFETY: C strings, and valid output pointers.
        unsafe {
            ok(cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
            assert_eq!(cuModuleGetFunction(&raw mut function, module, Name::new(c"histogram")), 500);
            assert_eq!(cuModuleGetFunction(&raw mut function, module, Name::new(c"")), 500);
        }
    });
}

#[test]
fn an_invalid_launch_is_an_error() {
    alone("module::an_invalid_launch_is_an_error", &[], || {
        begin();
        let (module, at) = (module(), device(512));
        let order = function(module, c"order_of_stores");
        let values = [at, 1, 0];
        let mut whole = values.each_ref().map(|value| (&raw const *value).cast_mut().cast::<c_void>());
        let mut hole = whole;
        hole[1] = null_mut();
        let (mut blocks, mut extra) = (0, null_mut());
        // SAFETY: as many arguments as the kernel takes, each readable or rejected.
        unsafe {
            let launch = |grid: u32, block: u32, parameters, extra| cuLaunchKernel(order, grid, 1, 1, block, 1, 1, 0, 0, parameters, extra);
            ok(launch(1, 32, whole.as_mut_ptr(), null_mut()));
            assert_eq!(launch(1, 64, whole.as_mut_ptr(), null_mut()), 1);
            assert_eq!(launch(1, 1, whole.as_mut_ptr(), null_mut()), 1);
            assert_eq!(launch(0, 32, whole.as_mut_ptr(), null_mut()), 1);
            assert_eq!(launch(1, 32, null_mut(), null_mut()), 1);
            assert_eq!(launch(1, 32, hole.as_mut_ptr(), null_mut()), 1);
            assert_eq!(launch(1, 32, whole.as_mut_ptr(), &raw mut extra), 801);
            assert_eq!(cuLaunchKernel(order, 1, 2, 1, 32, 1, 1, 0, 0, whole.as_mut_ptr(), null_mut()), 1);
            ok(cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, order, 32, 0));
            assert_eq!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, order, 2048, 0), 1);
        }
        assert_eq!(blocks, 16);
        assert_eq!(bytes_at(at + 128, 8), 1_u64.to_le_bytes());
    });
}

#[test]
fn the_jit_log_gives_the_reason_for_a_rejected_image() {
    alone("module::the_jit_log_gives_the_reason_for_a_rejected_image", &[], || {
        begin();
        let (mut module, text) = (0, ptx(IMAGE.abi.hash, &[("nobody", 4)]));
        let (mut info, mut error) = ([b'x'; 8], [b'x'; 16]);
        let mut options = [3, 4, 5, 6];
        let size = |bytes: usize| std::ptr::without_provenance_mut::<c_void>(bytes);
        let mut values: [*mut c_void; 4] = [info.as_mut_ptr().cast(), size(8), error.as_mut_ptr().cast(), size(16)];
        let mut load = |text: &CString| {
            // SAFETY: a C string, and `count` options with buffers of the stated lengths.
            unsafe { cuModuleLoadDataEx(&raw mut module, text.as_ptr().cast(), 4, options.as_mut_ptr(), values.as_mut_ptr()) }
        };
        assert_eq!(load(&text), 218);
        assert_eq!((&error, info[0], values[1].addr(), values[3].addr()), (b"`nobody` has no\0", 0, 0, 15));
        let mut other = 0;
        // SAFETY: a C string, and no options.
        unsafe {
            assert_eq!(cuModuleLoadDataEx(&raw mut other, text.as_ptr().cast(), 1, null_mut(), null_mut()), 1);
            ok(cuModuleLoadDataEx(&raw mut other, ptx(IMAGE.abi.hash, &[("echo", 4)]).as_ptr().cast(), 0, null_mut(), null_mut()));
        }
        function(other, c"echo");
    });
}
