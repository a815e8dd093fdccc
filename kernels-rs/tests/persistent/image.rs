use std::collections::BTreeMap;

use ringmem_kernels::{ABI, IMAGE};
use ringmem_layouts::image::KernelHost;

use crate::memory::Device;

fn ptx() -> &'static str {
    std::str::from_utf8(IMAGE.ptx).expect("PTX is text")
}

fn between<'t>(text: &'t str, opening: &str, closing: char) -> Option<&'t str> {
    let (_, rest) = text.split_once(opening)?;
    rest.split_once(closing).map(|(inside, _)| inside)
}

#[test]
fn the_ptx_contains_the_host_abi_hash() {
    let bytes = between(ptx(), ".visible .global .align 8 .b8 RINGMEM_ABI[8] = {", '}').expect("the symbol");
    let bytes: Vec<u8> = bytes.split(',').map(|byte| byte.trim().parse().expect("a byte")).collect();
    let hash = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    assert_eq!(format!("{hash:#018x}"), format!("{:#018x}", IMAGE.abi.hash), "the PTX is stale: run `cargo xtask ptx`");
    assert_eq!(IMAGE.abi, ABI);
}

#[test]
fn ptx_and_host_kernel_signatures_match() {
    let device: BTreeMap<&str, usize> = ptx()
        .split(".visible .entry ")
        .skip(1)
        .map(|entry| {
            let (name, rest) = entry.split_once('(').expect("a list of parameters");
            let (parameters, body) = rest.split_once(')').expect("its end");
            // A kernel over buffers has values of other sizes, here of at most a word.
            let is_over_buffers = body.contains("%tid.x");
            let wide = parameters.matches(".param .u64").count();
            assert!(is_over_buffers || wide == parameters.matches(".param").count(), "{name}: 64 bits each");
            assert!(!parameters.contains('['), "{name}: a word each");
            (name.trim(), parameters.matches(".param").count())
        })
        .collect();
    let host: BTreeMap<&str, usize> = IMAGE.host.iter().map(|entry| (entry.name, entry.arguments)).collect();
    assert_eq!(device, host);
    assert_eq!(host.len(), IMAGE.host.len(), "no name twice");
}

#[test]
fn a_kernel_with_a_wrong_argument_count_returns() {
    struct Nowhere;
    impl KernelHost for Nowhere {
        fn translate(&self, _: u64, _: u64) -> Option<std::ptr::NonNull<u8>> {
            panic!("a kernel without its arguments looks for memory")
        }
        fn now_ns(&self) -> u64 {
            Device::new([]).now_ns()
        }
        fn pause(&self, _: u32) {}
    }
    for entry in IMAGE.host {
        for wrong in [0, entry.arguments - 1, entry.arguments + 1] {
            // SAFETY: no address is passed; the device maps nothing.
            unsafe { (entry.run)(&Nowhere, &vec![0; wrong]) };
        }
    }
}
