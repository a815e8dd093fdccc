//! Blocks that are freed, foreign or too short, and misaligned fills, are errors at the call.

use std::ptr::NonNull;

use ringmem::backend::{Fill, Uses};

use super::*;

fn free(backend: &Arc<HostBackend>, block: &Block) -> Result<(), Error> {
    // SAFETY: unused; the test checks whether it is a block.
    unsafe { backend.free(block, &Uses::NONE) }
}

fn other(block: &Block, location: MemoryLocation, bytes: usize, align: usize) -> Block {
    let layout = Layout::from_size_align(bytes, align).expect("a layout");
    Block { layout, location, ready: None, ..*block }
}

#[test]
fn every_operation_rejects_freed_memory() {
    let backend = build(HostBackend::builder());
    let stream = backend.open_stream(0).expect("a stream");
    for location in [MemoryLocation::Device, MemoryLocation::Unified] {
        let (block, live) = (give(&backend, location, 0, 64).expect("room"), give(&backend, MemoryLocation::Device, 0, 64).expect("room"));
        let address = block.device_address.expect("a device sees it");
        free(&backend, &block).expect("it is live");
        let error = free(&backend, &block).expect_err("freed twice");
        assert!(matches!(error, Error::Foreign { call: "free", address: at, layouts: None } if at == address.get()), "{error:?}");
        let (gone, there) = (Address::Device(address), start(&live));
        for (to, from) in [(gone, there), (there, gone)] {
            let copy = Copy { to, from, bytes: 8 };
            // SAFETY: rejected.
            let error = unsafe { backend.copy_now(&copy) }.expect_err("freed");
            assert!(matches!(error, Error::Foreign { call: "copy", address: at, layouts: None } if at == address.get()), "{error:?}");
            // SAFETY: rejected.
            assert!(matches!(unsafe { backend.copy(&copy, stream) }, Err(Error::Foreign { call: "copy", layouts: None, .. })));
        }
        let fill = Fill { to: gone, pattern: 0, size: 1, count: 1 };
        // SAFETY: rejected.
        assert!(matches!(unsafe { backend.fill_now(&fill) }, Err(Error::Foreign { call: "fill", layouts: None, .. })));
        // SAFETY: rejected.
        assert!(matches!(unsafe { backend.fill(&fill, stream) }, Err(Error::Foreign { call: "fill", layouts: None, .. })));
    }
}

#[test]
fn freeing_a_block_of_another_backend_is_an_error() {
    let (ours, theirs) = (build(HostBackend::builder()), build(HostBackend::builder()));
    for location in [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified, MemoryLocation::Host] {
        let block = give(&theirs, location, 0, 64).expect("room");
        assert!(matches!(free(&ours, &block), Err(Error::Foreign { call: "free", layouts: None, .. })), "{location:?}");
        free(&theirs, &block).expect("it is theirs");
    }
}

#[test]
fn freeing_a_block_with_a_wrong_layout_is_an_error() {
    let backend = build(HostBackend::builder());
    let block = give(&backend, MemoryLocation::Device, 0, 64).expect("room");
    for wrong in [
        other(&block, MemoryLocation::Device, 63, 64),
        other(&block, MemoryLocation::Device, 64, 128),
        other(&block, MemoryLocation::Unified, 64, 64),
    ] {
        let error = free(&backend, &wrong).expect_err("not what was allocated");
        let Error::Foreign { layouts: Some(layouts), .. } = &error else { panic!("{error:?}") };
        assert_eq!(**layouts, [(block.location, block.layout), (wrong.location, wrong.layout)]);
        assert_eq!(backend.counters().device_live.bytes, 64, "{error}");
    }
    let address = block.device_address.expect("a device sees it").get();
    let error = free(&backend, &other(&block, MemoryLocation::Device, 63, 64)).expect_err("as above");
    let expected = format!(
        "free: the block at {address:#x} was allocated as 64 bytes of Device aligned to 64 and freed as 63 bytes of Device aligned to 64"
    );
    assert_eq!(error.to_string(), expected);
    free(&backend, &block).expect("it is live");
}

#[test]
fn an_access_past_its_block_is_an_error_with_both_sizes() {
    let backend = build(HostBackend::builder());
    let large = give(&backend, MemoryLocation::Device, 0, 128).expect("room");
    for location in [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified, MemoryLocation::Host] {
        let block = give(&backend, location, 0, 64).expect("room");
        for (from, to) in [(&block, &large), (&large, &block)] {
            assert!(matches!(copy(&backend, from, to, 65), Err(Error::Range { offset: 0, len: 65, size: 64, .. })), "{location:?}");
        }
        // SAFETY: rejected.
        let error = unsafe { backend.fill_now(&Fill { to: start(&block), pattern: 0, size: 8, count: 9 }) };
        assert!(matches!(error, Err(Error::Range { offset: 0, len: 72, size: 64, .. })), "{error:?}");
    }
}

#[test]
fn a_fill_with_a_bad_alignment_or_size_is_an_error() {
    let backend = build(HostBackend::builder());
    let stream = backend.open_stream(0).expect("a stream");
    let block = give(&backend, MemoryLocation::Device, 0, 64).expect("room");
    // SAFETY: 2 is within the block.
    let odd = unsafe { block.address_at(2) }.expect("it has bytes");
    let mut bytes = [0_u64; 3];
    // SAFETY: within the array.
    let odd_host = Address::Host(unsafe { NonNull::from(&mut bytes).cast::<u8>().add(2) });
    for to in [odd, odd_host] {
        for size in [4, 8] {
            let fill = Fill { to, pattern: 0, size, count: 1 };
            // SAFETY: rejected.
            let error = unsafe { backend.fill_now(&fill) }.expect_err("at 2");
            let size = u64::from(size);
            assert!(
                matches!(error, Error::Cast { bytes, align: 2, size: s, needed } if (bytes, s, needed) == (size, size, size)),
                "{error:?}"
            );
            // SAFETY: rejected.
            assert!(matches!(unsafe { backend.fill(&fill, stream) }, Err(Error::Cast { .. })));
        }
        // SAFETY: within the block or the array, otherwise unused.
        unsafe { backend.fill_now(&Fill { to, pattern: 7, size: 2, count: 3 }) }.expect("aligned to 2");
        // SAFETY: as above.
        unsafe { backend.fill_now(&Fill { to, pattern: 1 << 64 | 2, size: 16, count: 1 }) }.expect("at any address");
    }
    // SAFETY: initialised words.
    let written = unsafe { NonNull::from(&bytes).cast::<[u8; 24]>().read() };
    assert_eq!(written[2..18], (1_u128 << 64 | 2).to_le_bytes());
    for size in [0, 3, 12, 32] {
        let fill = Fill { to: start(&block), pattern: 0, size, count: 1 };
        // SAFETY: rejected.
        assert!(matches!(unsafe { backend.fill_now(&fill) }, Err(Error::Unsupported { .. })), "{size}");
    }
}

#[test]
fn a_kernel_cannot_access_pageable_memory() {
    let backend = build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let result = PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 1).expect("room");
    let word = result.device_address().expect("it has bytes").get();
    for (location, sees) in
        [(MemoryLocation::Host, 0), (MemoryLocation::Pinned, 1), (MemoryLocation::Unified, 1), (MemoryLocation::Device, 1)]
    {
        let block = give(&backend, location, 0, 64).expect("room");
        let address = match start(&block) {
            Address::Host(place) => place.as_ptr() as u64,
            Address::Device(address) => address.get(),
        };
        // SAFETY: the kernel only writes the result, unread until the end.
        done(unsafe { stream.launch(&load(&backend), "place", &[address, 64, word]) }.expect("a launch"));
        assert_eq!(result.as_slice().expect("idle"), [sees], "{location:?}");
    }
}
