//! A device's memory: its bytes, sizes, addresses and limits.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use ringmem::Error;
use ringmem::backend::host::{HostBackend, POISON};
use ringmem::backend::{Address, Backend, Block, Copy, DeviceAddress, Fill, MemoryInfo, MemoryLocation, Options, Uses};
use ringmem::memory::{Buffer, Device, GpuBuffer, Limited, Memory, Pinned, PinnedBuffer};

use super::setup::*;

#[test]
fn memory_is_poisoned_on_allocation_and_free() {
    let setup = setup(1 << 20);
    let mut memory = setup.device(5000);
    assert_eq!(memory.to_vec().expect("a copy"), [POISON; 5000], "fresh");
    memory.zero().expect("a fill");
    let at = address(&memory);
    let place = setup.place(at, 5000) as usize;
    drop(memory);
    for i in 0..5000 {
        // SAFETY: mapped while the backend lives; no other allocation.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(place + i).read() };
        assert_eq!(byte, POISON, "byte {i} after the free");
        // SAFETY: mapped while the backend lives; no other allocation.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(place + i).write(1) };
    }
    let memory = setup.device(5000);
    assert_eq!(address(&memory), at, "first fit");
    assert_eq!(memory.to_vec().expect("a copy"), [POISON; 5000], "reused, after a stray write");
}

#[test]
fn memory_that_is_not_poisoned_is_not_touched() {
    let backend = HostBackend::builder().device_memory(1 << 40).poison(false).build().expect("a backend");
    // More than a machine has: it would not be here if a byte of each page were written.
    let large = GpuBuffer::<u8>::new(Device::new(&backend, 0), 1 << 39).expect("addresses");
    if let Some(granularity) = backend.capabilities(0).expect("a device").mapping_granularity {
        let range = backend.reserve(0, 1 << 39).expect("addresses");
        let part = backend.map(&range, 0, (1 << 38) / granularity * granularity).expect("room");
        // SAFETY: nothing uses it.
        unsafe { backend.free(&part, &Uses::NONE) }.expect("a live block");
    }
    drop(large);
    let zeroed = || GpuBuffer::<u8>::new(Device::new(&backend, 0).with(Options::ZEROED), 5000).expect("room");
    let mut memory = zeroed();
    memory.fill(7).expect("a fill");
    let at = address(&memory);
    drop(memory);
    let memory = zeroed();
    assert_eq!((address(&memory), memory.to_vec().expect("a copy")), (at, vec![0; 5000]), "on request it is still zeroed");
}

#[test]
fn out_of_memory_has_requested_free_and_largest() {
    let setup = setup(4096);
    let refused = |bytes| setup.allocate(MemoryLocation::Device, bytes, 1).expect_err("no room");
    let blocks: Vec<_> = (0..4).map(|_| setup.device(1024)).collect();
    let error = refused(1);
    assert!(matches!(error, Error::OutOfMemory { requested: 1, free: 0, largest: 0, limit: None, .. }), "{error}");
    let [a, b, c, d] = blocks.try_into().expect("four");
    drop((a, c));
    let error = refused(1025);
    assert!(matches!(error, Error::OutOfMemory { requested: 1025, free: 2048, largest: 1024, limit: None, .. }), "{error}");
    let most = isize::MAX as usize;
    let error = refused(most);
    assert!(
        matches!(error, Error::OutOfMemory { requested, free: 2048, largest: 1024, limit: None, .. } if requested == most as u64),
        "{error}"
    );
    let info = || setup.backend.memory_info(0).expect("device 0");
    assert_eq!(info(), Some(MemoryInfo { total: 4096, free: 2048 }));
    drop(b);
    let joined = setup.device(3072);
    drop((d, joined));
    drop(setup.device(4096));
    assert_eq!(info(), Some(MemoryInfo { total: 4096, free: 4096 }));
}

#[test]
fn an_allocation_reduces_the_free_bytes_of_its_device() {
    let backend = HostBackend::builder().devices(2).build().expect("a backend");
    let free = |device| backend.memory_info(device).expect("a device").expect("a simulation knows").free;
    let before = [0, 1].map(free);
    let buffer = GpuBuffer::<f32>::new(Device::new(&backend, 1), 10_000_000).expect("room");
    assert_eq!([0, 1].map(free), [before[0], before[1] - 40_000_000]);
    drop(buffer);
    assert_eq!([0, 1].map(free), before);
}

#[test]
fn a_simulated_device_is_reported_as_simulated() {
    let setup = setup(4096);
    let (backend, memory) = (&setup.backend, Device::new(&setup.backend, 0));
    assert!(backend.is_simulated() && !setup.device(64).is_device_backed());
    let through: Arc<dyn Memory<Visibility = _>> = Arc::new(Limited::new(memory, 8192));
    assert!(!Buffer::<u8, _>::new(Arc::clone(&through), 64).expect("room").is_device_backed());
    let error = Buffer::<u8, _>::new(through, 4097).expect_err("more than it has");
    assert!(matches!(error, Error::OutOfMemory { requested: 4097, .. }), "{error}");
    let counters = backend.counters();
    assert_eq!([counters.host_allocations, counters.pinned_allocations, counters.unified_allocations].map(|tally| tally.count), [0; 3]);
}

#[test]
fn addresses_and_places_are_aligned() {
    for odd in 1..=4 {
        let setup = setup((16 << 20) + odd * 4096);
        let (mut kept, mut blocks) = (Vec::new(), Vec::new());
        for shift in 0..=21 {
            let align = 1 << shift;
            kept.push(setup.device(3));
            let block = setup.allocate(MemoryLocation::Device, 64, align as usize).expect("room");
            let address = block.device_address.expect("device memory").get();
            let place = setup.place(address, 64);
            assert!(
                place != 0 && address.is_multiple_of(align) && place.is_multiple_of(align),
                "{address:#x} is at {place:#x}, alignment {align}"
            );
            blocks.push(block);
        }
        // SAFETY: unused.
        blocks.iter().for_each(|block| unsafe { setup.backend.free(block, &Uses::NONE) }.expect("it lives"));
    }
    let error = setup(4096).allocate(MemoryLocation::Device, 8, 4 << 20).expect_err("too much");
    assert!(matches!(error, Error::Align { asked: 0x40_0000, most: 0x20_0000, .. }), "{error}");
}

#[test]
fn impossible_sizes_are_errors_with_the_limits() {
    for bytes in [0, (1 << 40) + 1, u64::MAX] {
        let error = HostBackend::builder().device_memory(bytes).build().expect_err("absurd");
        assert!(matches!(error, Error::Size { asked, least: 1, most, .. } if asked == bytes && most <= 1 << 40), "{error}");
    }
    let error = HostBackend::builder().devices(0).build().expect_err("no devices");
    assert!(matches!(error, Error::NoDevice { asked: 0, devices: 0 }), "{error}");
    let setup = setup(4096);
    let error = setup.allocate(MemoryLocation::Device, 0, 1).expect_err("nothing");
    assert!(matches!(error, Error::Size { asked: 0, least: 1, most: 4096, .. }), "{error}");
    let error = setup.allocate(MemoryLocation::Pinned, 0, 1).expect_err("nothing");
    assert!(matches!(error, Error::Size { asked: 0, least: 1, .. }), "{error}");
    for bytes in [1 << 50, isize::MAX as usize] {
        let error = setup.allocate(MemoryLocation::Pinned, bytes, 1).expect_err("more than any machine has");
        assert!(matches!(error, Error::Map { bytes: b, .. } if b == bytes as u64), "{error}");
        assert!(std::error::Error::source(&error).is_some(), "the system's answer");
    }
    let error = setup.allocate(MemoryLocation::Pinned, 8, 4 << 20).expect_err("too much");
    assert!(matches!(error, Error::Align { asked: 0x40_0000, most: 0x20_0000, .. }), "{error}");
}

#[test]
fn a_kernel_accesses_only_live_memory_of_its_backend() {
    let (setup, other) = (setup(1 << 20), setup(1 << 20));
    let (pinned, memory, foreign) = (setup.pinned(&[0; 100]), setup.device(100), other.device(100));
    let (device, host) = (address(&memory), address(&pinned));
    assert_eq!(host, pinned.as_ptr().expect("bytes").as_ptr() as u64);
    for start in [device, host] {
        assert_ne!(setup.place(start, 100), 0);
        assert_eq!(setup.place(start + 99, 1), setup.place(start, 1) + 99);
        for (address, bytes) in [(start, 101), (start + 100, 1), (start + 99, 2), (start - 1, 2), (start + 1, u64::MAX), (start, u64::MAX)]
        {
            assert_eq!(setup.place(address, bytes), 0, "{bytes} bytes at {address:#x}");
        }
    }
    assert_eq!(setup.place(host, 100), host);
    let on_the_stack = 0_u64;
    for address in [0, 1, u64::MAX, &raw const on_the_stack as u64, device + 4096, address(&foreign)] {
        assert_eq!(setup.place(address, 1), 0, "{address:#x}");
    }
    // Before the free, or it could get the freed address.
    let result = PinnedBuffer::new(Pinned::new(&setup.backend, 0), 1).expect("pinned memory");
    drop((memory, pinned));
    assert_eq!([device, host].map(|address| setup.place_by(&result, address, 1)), [0, 0], "freed");
}

#[test]
fn addresses_outside_live_memory_are_errors_at_the_call() {
    let setup = setup(1 << 20);
    let (backend, memory) = (&*setup.backend, setup.device(100));
    let (live, mut host) = (memory.device_address().expect("bytes"), [0_u8; 200]);
    let place = Address::Host(NonNull::from(&mut host).cast());
    let freed = setup.device(100).device_address().expect("bytes");
    let past = live.offset(100).expect("within the numbers");
    let before = backend.counters();
    for (at, bytes) in [(freed, 1), (past, 1), (DeviceAddress::new(0), 8), (live, 101), (live.offset(99).expect("within"), 2)] {
        let is_outside = |error: &Error, call: &str| match error {
            Error::Foreign { call: c, address, layouts: None } => *c == call && *address == at.get(),
            Error::Range { offset, len, size: 100, .. } => (*offset, *len) == (at.get() - live.get(), bytes),
            _ => false,
        };
        let copies = [Copy { to: Address::Device(at), from: place, bytes }, Copy { to: place, from: Address::Device(at), bytes }];
        let fill = Fill { to: Address::Device(at), pattern: 0, size: 1, count: bytes };
        for copy in &copies {
            // SAFETY: must be rejected; otherwise unused bytes.
            let refused = unsafe { [backend.copy_now(copy).err(), backend.copy(copy, setup.stream.id()).err()] };
            for error in refused {
                assert!(error.as_ref().is_some_and(|error| is_outside(error, "copy")), "{copy:?}: {error:?}");
            }
        }
        // SAFETY: must be rejected; otherwise unused bytes.
        let refused = unsafe { [backend.fill_now(&fill).err(), backend.fill(&fill, setup.stream.id()).err()] };
        for error in refused {
            assert!(error.as_ref().is_some_and(|error| is_outside(error, "fill")), "{fill:?}: {error:?}");
        }
    }
    let block = setup.allocate(MemoryLocation::Device, 64, 64).expect("room");
    let address = block.device_address.expect("device memory").get();
    let shorter = Block { layout: Layout::new::<u8>(), device_address: block.device_address, ..Block::empty(MemoryLocation::Device, 1) };
    // SAFETY: unused; must be rejected.
    let outcomes = unsafe { [&shorter, &block, &block].map(|block| backend.free(block, &Uses::NONE)) };
    let refused =
        |outcome: &Result<(), Error>| matches!(outcome, Err(Error::Foreign { call: "free", address: a, layouts: None }) if *a == address);
    let is_wrong = matches!(&outcomes[0], Err(Error::Foreign { layouts: Some(_), address: a, .. }) if *a == address);
    assert!(is_wrong && outcomes[1].is_ok() && refused(&outcomes[2]), "{outcomes:?}");
    setup.stream.synchronize().expect("nothing was queued");
    let after = backend.counters();
    assert_eq!((after.uploads, after.downloads, after.fills), (before.uploads, before.downloads, before.fills));
}
