//! Address ranges: what the conformance suite cannot see of the driver.

use std::ptr::NonNull;
use std::sync::Arc;

use ringmem::Error;
use ringmem::backend::cuda::{CudaBackend, Settings};
use ringmem::backend::{Address, Backend, Block, Copy, DeviceAddress, Fill, Uses};
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::{Module, Stream};
use ringmem_kernels::{ABI, IMAGE};

use crate::busy_stream::Held;
use crate::rig::{self, Alone, Double, alone};

const UNIT: u64 = 2 << 20;

const CALLS: [&str; 7] =
    ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"];

fn free(backend: &CudaBackend, blocks: impl IntoIterator<Item = Block>) {
    for block in blocks {
        // SAFETY: each block is freed once, and unused.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("a live block");
    }
}

fn bytes(backend: &CudaBackend, at: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    let to = Address::Host(NonNull::from(&mut bytes).cast());
    // SAFETY: live memory of the test on both sides.
    unsafe { backend.copy_now(&Copy { to, from: Address::Device(DeviceAddress::new(at)), bytes: 16 }) }.expect("a copy");
    bytes
}

/// Returns whether a kernel of a device has added 1 to the 16 bytes around an address. Without access, its host build does nothing.
fn increments(backend: &Arc<CudaBackend>, device: u32, border: u64) -> bool {
    let (stream, module) = (Stream::new(backend, device).expect("a stream"), Module::load(backend, &IMAGE, &ABI).expect("our ABI"));
    let before = bytes(backend, border - 8);
    // SAFETY: live memory of the test.
    unsafe { stream.launch(&module, "increment", &[border - 8, 16]) }.expect("a launch").wait().expect("done");
    bytes(backend, border - 8) == before.map(|byte| byte.wrapping_add(1))
}

alone! {
    fn each_step_makes_its_calls() {
        let (backend, double) = (rig::open(), Double::new());
        let calls = || CALLS.map(|call| double.calls(call));
        assert_eq!(backend.capabilities(0).expect("a device").mapping_granularity, Some(UNIT));
        let range = backend.reserve(0, 5 * UNIT - 1).expect("addresses");
        assert_eq!((range.bytes(), calls()), (5 * UNIT, [1, 0, 0, 0, 0, 0, 0]));
        let mut block = backend.map(&range, 0, 2 * UNIT).expect("room");
        assert_eq!(calls(), [1, 1, 1, 1, 0, 0, 0]);
        // SAFETY: nothing uses it.
        unsafe { backend.remap(&mut block, 2 * UNIT) }.expect("it is vacant");
        assert_eq!(calls(), [1, 1, 2, 2, 1, 0, 0]);
        free(&backend, [block]);
        assert_eq!(calls(), [1, 1, 2, 2, 2, 1, 0]);
        drop(range);
        assert_eq!(backend.waiting(), 0, "addresses are given back at the next call");
        assert_eq!(calls(), [1, 1, 2, 2, 2, 1, 1]);
    }

    fn without_the_attribute_there_are_no_ranges() with("RINGMEM_DOUBLE_ATTRIBUTES" = "102=0") {
        let backend = rig::open();
        assert_eq!(backend.capabilities(0).expect("a device").mapping_granularity, None);
        assert!(matches!(backend.reserve(0, UNIT), Err(Error::Unsupported { .. })));
    }

    fn without_an_unknown_attribute_there_are_no_ranges() with("RINGMEM_DOUBLE_ATTRIBUTES" = "102=-") {
        assert_eq!(rig::open().capabilities(0).expect("a device").mapping_granularity, None);
    }

    fn peers_see_the_parts_of_before_and_after() with("RINGMEM_DOUBLE_DEVICES" = 2, "RINGMEM_DOUBLE_PEERS" = "1>0") {
        let (backend, double) = (rig::open(), Double::new());
        let range = backend.reserve(0, 4 * UNIT).expect("addresses");
        let before = backend.map(&range, 0, UNIT).expect("room");
        backend.set_peer(1, 0, true).expect("it is listed");
        assert_eq!(double.calls("cuMemSetAccess"), 2, "of the part that was there");
        let after = backend.map(&range, UNIT, UNIT).expect("room");
        let border = range.address().get() + UNIT;
        // SAFETY: two parts of the test alone.
        unsafe { backend.fill_now(&Fill::of(Address::Device(range.address()), 7_u8, 2 * UNIT)) }.expect("a fill");
        assert!(increments(&backend, 1, border));
        let mut moved = after;
        // SAFETY: nothing uses it.
        unsafe { backend.remap(&mut moved, 2 * UNIT) }.expect("it is vacant");
        assert!(increments(&backend, 1, border + UNIT + 16));
        let calls = double.calls("cuMemSetAccess");
        backend.set_peer(1, 0, false).expect("it was enabled");
        assert_eq!(double.calls("cuMemSetAccess"), calls + 2, "of both parts");
        free(&backend, [before, moved]);
    }

    fn the_driver_s_pool_makes_room_for_a_part() with("RINGMEM_DOUBLE_MEMORY" = 40 << 20) {
        let backend = CudaBackend::with(Settings { threshold: u64::MAX, ..Settings::default() }).expect("a driver");
        drop(GpuBuffer::<u8>::new(Device::new(&backend, 0), 30 << 20).expect("room"));
        let range = backend.reserve(0, 64 << 20).expect("addresses");
        let block = backend.map(&range, 0, 32 << 20).expect("the pool's bytes are idle");
        let error = backend.map(&range, 32 << 20, 16 << 20).expect_err("too little");
        assert!(matches!(error, Error::OutOfMemory { requested: 0x100_0000, .. }), "{error}");
        free(&backend, [block]);
    }

    fn a_move_that_fails_leaves_the_block_where_it_was() {
        let (backend, double) = (rig::open(), Double::new());
        let range = backend.reserve(0, 4 * UNIT).expect("addresses");
        for (call, calls) in [("cuMemUnmap", 1), ("cuMemMap", 1), ("cuMemSetAccess", 1), ("cuMemMap", 2)] {
            let mut block = backend.map(&range, 0, UNIT).expect("room");
            // SAFETY: memory of the test alone.
            unsafe { backend.fill_now(&Fill::of(Address::Device(range.address()), 7_u8, UNIT)) }.expect("a fill");
            double.reset();
            (1..=calls).for_each(|number| double.fail(call, number, 999));
            // SAFETY: nothing uses it.
            let error = unsafe { backend.remap(&mut block, 2 * UNIT) }.expect_err("it fails");
            assert!(matches!(error, Error::Driver { call: failed, code: 999, .. } if failed == call), "{call}: {error}");
            double.reset();
            if calls == 2 {
                assert_eq!((block.layout.size(), block.device_address), (0, None), "its old place is refused, too");
            } else {
                assert!(increments(&backend, 0, range.address().get() + 8), "{call}");
                free(&backend, [block]);
            }
            assert_eq!(backend.counters().device_live.bytes, 0);
            free(&backend, [backend.map(&range, 0, 4 * UNIT).expect("every place is vacant")]);
        }
    }

    fn closing_frees_parts_that_nobody_has_freed() {
        let (backend, double) = (rig::open(), Double::new());
        let range = backend.reserve(0, 4 * UNIT).expect("addresses");
        let _forgotten = backend.map(&range, UNIT, 2 * UNIT).expect("room");
        drop(backend);
        assert_eq!(CALLS.map(|call| double.calls(call)), [1, 1, 1, 1, 1, 1, 0]);
        drop(range);
        assert_eq!(double.calls("cuMemAddressFree"), 1, "without a backend, at once");
    }

    fn a_peer_that_cannot_see_every_part_sees_none() with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let (backend, double) = (rig::open(), Double::new());
        let range = backend.reserve(0, 4 * UNIT).expect("addresses");
        let parts = [0, 1].map(|at| backend.map(&range, at * UNIT, UNIT).expect("room"));
        double.reset();
        double.fail("cuMemSetAccess", 2, 999);
        let error = backend.set_peer(1, 0, true).expect_err("the second part");
        assert!(matches!(error, Error::Driver { call: "cuMemSetAccess", code: 999, .. }), "{error}");
        assert_eq!(["cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess", "cuMemSetAccess"].map(|call| double.calls(call)), [1, 1, 4]);
        backend.set_peer(1, 0, true).expect("nothing fails now");
        assert_eq!(double.calls("cuCtxEnablePeerAccess"), 2);
        double.reset();
        double.fail("cuMemSetAccess", 2, 999);
        backend.set_peer(1, 0, false).expect_err("the second part");
        assert_eq!(["cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess", "cuMemSetAccess"].map(|call| double.calls(call)), [1, 1, 4], "as before");
        backend.set_peer(1, 0, true).expect("it is enabled");
        assert_eq!(double.calls("cuCtxEnablePeerAccess"), 1);
        free(&backend, parts);
    }

    fn under_a_kernel_parts_stay_where_they_are() {
        let (backend, double) = (rig::open(), Double::new());
        let range = backend.reserve(0, 4 * UNIT).expect("addresses");
        let [mut stays, freed] = [0, 1].map(|at| backend.map(&range, at * UNIT, UNIT).expect("room"));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let calls = || CALLS.map(|call| double.calls(call));
        let before = calls();
        assert!(matches!(backend.map(&range, 2 * UNIT, UNIT), Err(Error::Busy { .. })));
        // SAFETY: nothing uses it.
        assert!(matches!(unsafe { backend.remap(&mut stays, 2 * UNIT) }, Err(Error::Busy { .. })));
        free(&backend, [freed]);
        assert!(matches!(backend.map(&range, UNIT, UNIT), Err(Error::Busy { .. })));
        assert_eq!((calls(), backend.waiting()), (before, 1));
        free(&backend, [stays]);
        drop(range);
        assert_eq!((calls(), backend.waiting()), (before, 2));
        drop(held);
        stream.synchronize().expect("the kernel has ended");
        assert_eq!(backend.waiting(), 0);
    }
}

/// The driver refuses to unmap what a failed move has mapped: the memory is lost until the process ends, and its place with it.
fn a_refused_unmapping_loses_one_place() {
    let (backend, double) = (rig::open(), Double::new());
    for (plan, lost) in
        [(&[("cuMemSetAccess", 1), ("cuMemUnmap", 2)][..], 2), (&[("cuMemSetAccess", 1), ("cuMemSetAccess", 2), ("cuMemUnmap", 3)], 0)]
    {
        let range = backend.reserve(0, 4 * UNIT).expect("addresses");
        let mut block = backend.map(&range, 0, UNIT).expect("room");
        double.reset();
        plan.iter().for_each(|&(call, number)| double.fail(call, number, 999));
        // SAFETY: nothing uses it.
        let error = unsafe { backend.remap(&mut block, 2 * UNIT) }.expect_err("it fails");
        assert!(matches!(error, Error::Driver { call: "cuMemSetAccess", .. }), "{error}");
        double.reset();
        assert_eq!((block.layout.size(), backend.counters().device_live.bytes), (0, 0), "{plan:?}");
        for at in 0..4 {
            match backend.map(&range, at * UNIT, UNIT) {
                Ok(block) => free(&backend, [block]),
                Err(error) => assert!(matches!(error, Error::Busy { .. }) && at == lost, "{plan:?}, {at}: {error}"),
            }
        }
    }
}

#[test]
fn a_move_that_can_be_neither_made_nor_reverted_loses_its_memory_alone() {
    let alone = Alone::new(concat!(module_path!(), "::a_move_that_can_be_neither_made_nor_reverted_loses_its_memory_alone"));
    if alone.is_here() {
        return a_refused_unmapping_loses_one_place();
    }
    let said = alone.run();
    assert!(!said.contains("violations"), "{said}");
}
