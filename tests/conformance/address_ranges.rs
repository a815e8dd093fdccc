use std::ptr::NonNull;

use ringmem::Error;
use ringmem::backend::{Address, AddressRange, Block, Copy, Fill, Uses};

use super::subject::{Subject, done, eventually, pattern};

/// A range of as many units; `None` for a backend that says that it has none.
fn range(subject: &Subject, units: u64) -> Option<AddressRange> {
    let Some(unit) = subject.backend.capabilities(0).expect("device 0").mapping_granularity else {
        let error = subject.backend.reserve(0, 4096).expect_err("no granularity");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        return None;
    };
    let range = subject.nothing("a reservation", || subject.backend.reserve(0, unit * units).expect("addresses"));
    assert!(unit.is_power_of_two() && range.address().get().is_multiple_of(unit), "{range:?}");
    assert_eq!((range.bytes(), range.granularity(), range.device()), (unit * units, unit, 0));
    Some(range)
}

impl Subject {
    fn map(&self, range: &AddressRange, unit: u64, units: u64) -> Block {
        let (offset, bytes) = (unit * range.granularity(), units * range.granularity());
        let block = self.backend.map(range, offset, bytes).expect("room");
        assert_eq!((block.device_address, block.layout.size() as u64), (range.address().offset(offset), bytes));
        assert!(block.host.is_none() && block.ready.is_none() && block.device == 0);
        block
    }

    fn unmap(&self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            // SAFETY: each block is freed once, and unused.
            unsafe { self.backend.free(&block, &Uses::NONE) }.expect("a live block");
        }
    }

    fn write(&self, range: &AddressRange, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let from = Address::Host(NonNull::from(bytes).cast());
        // SAFETY: the source has the bytes; the target is memory of the test alone, or refused.
        unsafe { self.backend.copy_now(&Copy { to: at(range, offset), from, bytes: bytes.len() as u64 }) }
    }

    fn read(&self, range: &AddressRange, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        let to = Address::Host(NonNull::from(&mut bytes[..]).cast());
        // SAFETY: the target has the bytes; the source is memory of the test alone, or refused.
        unsafe { self.backend.copy_now(&Copy { to, from: at(range, offset), bytes: len as u64 }) }.map(|()| bytes)
    }
}

fn at(range: &AddressRange, offset: u64) -> Address {
    Address::Device(range.address().offset(offset).expect("within the range"))
}

pub fn mapped_memory_counts_as_allocated_at_its_offset(subject: &Subject) {
    let Some(range) = range(subject, 4) else { return };
    let unit = range.granularity();
    for (at, units) in [(0, 1), (3, 1), (1, 2), (0, 4)] {
        let block = subject.changes(
            "map",
            |figures| (figures.allocations, figures.live_bytes) = (figures.allocations + 1, figures.live_bytes + units * unit),
            || subject.map(&range, at, units),
        );
        let bytes = pattern(1000);
        subject.write(&range, at * unit + 7, &bytes).expect("a copy");
        assert_eq!(subject.read(&range, at * unit + 7, 1000).expect("a copy"), bytes);
        subject.changes(
            "free",
            |figures| (figures.frees, figures.live_bytes) = (figures.frees + 1, figures.live_bytes - units * unit),
            || subject.unmap([block]),
        );
        let error = subject.read(&range, at * unit, 1).expect_err("no memory is there");
        assert!(matches!(error, Error::Foreign { .. }), "{error}");
    }
}

pub fn adjacent_mapped_blocks_are_one_range(subject: &Subject) {
    let Some(range) = range(subject, 4) else { return };
    let unit = range.granularity();
    let middle = subject.map(&range, 1, 1);
    let bytes = pattern(3000);
    let beyond = subject.write(&range, 2 * unit - 1000, &bytes).expect_err("beyond the memory");
    assert!(matches!(beyond, Error::Range { .. }), "{beyond}");
    subject.write(&range, 2 * unit - 1000, &bytes[..1000]).expect("the first of them");
    let others = [subject.map(&range, 2, 1), subject.map(&range, 0, 1)];
    assert_eq!(subject.read(&range, 2 * unit - 1000, 1000).expect("a copy"), bytes[..1000], "what was there stays");
    subject.write(&range, 2 * unit - 1000, &bytes).expect("over a border");
    assert_eq!(subject.read(&range, 2 * unit - 1000, 3000).expect("a copy"), bytes);
    let copy = Copy { to: at(&range, unit - 1500), from: at(&range, 2 * unit - 1000), bytes: 3000 };
    // SAFETY: two parts of the test's memory, without overlap.
    unsafe { subject.backend.copy_now(&copy) }.expect("from one border to another");
    assert_eq!(subject.read(&range, unit - 1500, 3000).expect("a copy"), bytes);
    let (stream, module) = (subject.stream(), subject.module());
    let arguments = [range.address().get() + unit - 1500, 3000];
    // SAFETY: memory of the test alone, until the launch is complete.
    done(unsafe { stream.launch(&module, "increment", &arguments) }.expect("a launch"));
    let incremented: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(1)).collect();
    assert_eq!(subject.read(&range, unit - 1500, 3000).expect("a copy"), incremented);
    let fill = Fill::of(at(&range, 10), 9_u8, 3 * unit - 20);
    // SAFETY: memory of the test alone.
    unsafe { subject.backend.fill_now(&fill) }.expect("over all of it");
    let all = subject.read(&range, 10, 3 * unit as usize - 20).expect("a copy");
    assert!(all.iter().all(|&byte| byte == 9));
    subject.unmap([middle]);
    let gap = subject.read(&range, unit - 1, 2).expect_err("the middle is gone");
    assert!(matches!(gap, Error::Range { .. } | Error::Foreign { .. }), "{gap}");
    assert_eq!(subject.read(&range, unit - 2, 2).expect("a copy"), [9, 9]);
    subject.unmap(others);
}

pub fn a_moved_block_keeps_its_bytes(subject: &Subject) {
    let Some(range) = range(subject, 6) else { return };
    let unit = range.granularity();
    let [first, mut moved] = [subject.map(&range, 0, 1), subject.map(&range, 1, 2)];
    let bytes = pattern(5000);
    subject.write(&range, 2 * unit - 2500, &bytes).expect("a copy");
    // SAFETY: nothing uses it.
    subject.nothing("a move", || unsafe { subject.backend.remap(&mut moved, 4 * unit) }.expect("it is vacant"));
    assert_eq!((moved.device_address, moved.layout.size() as u64), (range.address().offset(4 * unit), 2 * unit));
    assert_eq!(subject.read(&range, 5 * unit - 2500, 5000).expect("a copy"), bytes);
    let error = subject.read(&range, unit, 1).expect_err("no memory is there");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    let third = subject.map(&range, 1, 3);
    subject.write(&range, 0, &pattern(4 * unit as usize)).expect("before it");
    assert_eq!(subject.read(&range, 5 * unit - 2500, 5000).expect("a copy"), bytes, "of no other part");
    subject.unmap([first, third, moved]);
    // Over places that others have come from and gone to.
    let (mut small, all) = (subject.map(&range, 0, 1), pattern(3 * unit as usize));
    // SAFETY: nothing uses it.
    unsafe { subject.backend.remap(&mut small, 2 * unit) }.expect("it is vacant");
    subject.unmap([small]);
    let mut large = Block { tag: 7, ..subject.map(&range, 0, 3) };
    subject.write(&range, 0, &all).expect("a copy");
    // SAFETY: nothing uses it.
    unsafe { subject.backend.remap(&mut large, 3 * unit) }.expect("it is vacant");
    assert_eq!(subject.read(&range, 3 * unit, all.len()).expect("a copy"), all);
    assert_eq!(large.tag, 7, "of its owner");
    subject.unmap([large]);
}

pub fn a_place_is_occupied_until_its_free_is_complete(subject: &Subject) {
    let Some(range) = range(subject, 3) else { return };
    let unit = range.granularity();
    let [first, block] = [subject.map(&range, 0, 1), subject.map(&range, 1, 2)];
    let is_busy = |outcome: Result<Block, Error>| match outcome {
        Err(Error::Busy { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok(block) => {
            subject.unmap([block]);
            false
        }
    };
    assert!(is_busy(subject.backend.map(&range, 2 * unit, unit)), "it is mapped");
    let stream = subject.stream();
    let mut held = subject.hold(&stream);
    let fill = Fill::of(at(&range, unit), 1_u8, 100);
    let id = stream.id();
    // SAFETY: memory of the test, freed after the fill.
    let ticket = unsafe { subject.backend.fill(&fill, id) }.expect("a fill");
    let before = subject.live_bytes();
    // SAFETY: freed once, after its only use.
    unsafe { subject.backend.free(&block, &Uses::of(ticket)) }.expect("a live block");
    assert_eq!(subject.live_bytes(), before, "the fill is queued behind a kernel");
    assert!(is_busy(subject.backend.map(&range, unit, unit)), "its free is not complete");
    let error = subject.read(&range, unit - 1, 2).expect_err("the second byte is of a freed block");
    assert!(matches!(error, Error::Range { .. }), "{error}");
    let pending = held.take();
    drop(held);
    done(pending);
    stream.synchronize().expect("the fill succeeds");
    eventually("the place is vacant", || !is_busy(subject.backend.map(&range, unit, 2 * unit)));
    subject.unmap([first]);
}

pub fn mapping_beside_a_kernel_succeeds_or_is_busy(subject: &Subject) {
    let Some(range) = range(subject, 4) else { return };
    let unit = range.granularity();
    let [mut first, second] = [subject.map(&range, 0, 1), subject.map(&range, 1, 1)];
    let stream = subject.stream();
    let mut held = subject.hold(&stream);
    let mut blocks = Vec::new();
    match subject.backend.map(&range, 3 * unit, unit) {
        Ok(block) => blocks.push(block),
        Err(error) => assert!(matches!(error, Error::Busy { .. }), "{error}"),
    }
    // SAFETY: nothing uses it.
    let moved = unsafe { subject.backend.remap(&mut first, 2 * unit) };
    let at = if moved.is_ok() { 2 * unit } else { 0 };
    assert!(matches!(moved, Ok(()) | Err(Error::Busy { .. })), "{moved:?}");
    assert_eq!(first.device_address, range.address().offset(at));
    blocks.push(first);
    subject.unmap([second]);
    let pending = held.take();
    drop(held);
    done(pending);
    eventually("the place is vacant", || match subject.backend.map(&range, unit, unit) {
        Err(Error::Busy { .. }) => false,
        mapped => {
            subject.unmap([mapped.expect("room")]);
            true
        }
    });
    subject.unmap(blocks);
}

pub fn parts_that_cannot_be_mapped_are_errors_without_effects(subject: &Subject) {
    let Some(range) = range(subject, 4) else { return };
    let unit = range.granularity();
    let block = subject.map(&range, 1, 1);
    subject.write(&range, unit, &pattern(100)).expect("a copy");
    subject.nothing("refused parts", || {
        let refused = |offset, bytes| subject.backend.map(&range, offset, bytes).expect_err("it cannot be mapped");
        for (offset, bytes) in [(0, 0), (0, unit / 2), (unit / 2, unit), (1, unit), (0, unit + 1)] {
            let error = refused(offset, bytes);
            assert!(matches!(error, Error::Granularity { granularity, .. } if granularity == unit), "{offset}, {bytes}: {error}");
        }
        for (offset, bytes) in [(4 * unit, unit), (3 * unit, 2 * unit), (0, 1 << 62), (0_u64.wrapping_sub(unit), unit)] {
            let error = refused(offset, bytes);
            assert!(matches!(error, Error::Range { element_bytes: 1, .. }), "{offset}, {bytes}: {error}");
        }
        for (offset, bytes) in [(0, 2 * unit), (unit, unit), (0, 4 * unit), (unit, 3 * unit)] {
            let error = refused(offset, bytes);
            assert!(matches!(error, Error::Busy { .. }), "{offset}, {bytes}: {error}");
        }
        assert!(matches!(subject.backend.reserve(0, 0), Err(Error::Size { asked: 0, .. })));
        assert!(matches!(subject.backend.reserve(0, u64::MAX), Err(Error::Size { .. })));
        assert!(matches!(subject.backend.reserve(u32::MAX, unit), Err(Error::NoDevice { .. })));
    });
    let mut block = block;
    for (offset, what) in [(unit, "itself"), (unit / 2, "half"), (4 * unit, "beyond")] {
        // SAFETY: nothing uses it.
        let error = subject.nothing(what, || unsafe { subject.backend.remap(&mut block, offset) }.expect_err(what));
        assert!(matches!(error, Error::Busy { .. } | Error::Granularity { .. } | Error::Range { .. }), "{what}: {error}");
        assert_eq!(block.device_address, range.address().offset(unit), "{what}");
    }
    assert_eq!(subject.read(&range, unit, 100).expect("a copy"), pattern(100));
    subject.unmap([block]);
    let buffer = subject.gpu::<u8>(100);
    let address = buffer.device_address();
    let mut forged = Block { device_address: address, ..Block::empty(ringmem::backend::MemoryLocation::Device, 1) };
    // SAFETY: nothing uses it, and it is refused.
    let error = unsafe { subject.backend.remap(&mut forged, 0) }.expect_err("it is not mapped");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
}

pub fn a_range_has_more_addresses_than_the_device_memory(subject: &Subject) {
    let Some(info) = subject.backend.memory_info(0).expect("device 0") else { return };
    let Some(unit) = subject.backend.capabilities(0).expect("device 0").mapping_granularity else { return };
    let part = (info.free / 3).max(1).next_multiple_of(unit);
    let range = subject.backend.reserve(0, 8 * info.total.next_multiple_of(unit)).expect("addresses alone");
    let mut blocks = Vec::new();
    let error = loop {
        match subject.backend.map(&range, blocks.len() as u64 * 2 * part, part) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        assert!(blocks.len() < 10, "there is no end to it");
    };
    assert!(matches!(error, Error::OutOfMemory { requested, largest, .. } if requested == part && largest < part), "{error}");
    assert!(blocks.len() >= 2, "{} parts of {part} of {info:?}", blocks.len());
    let now = subject.backend.memory_info(0).expect("device 0").expect("known before");
    assert!(now.free + part * blocks.len() as u64 <= info.free + unit, "{info:?}, then {now:?}");
    let count = blocks.len() as u64;
    subject.unmap(blocks.pop());
    let block = subject.backend.map(&range, count * 2 * part, part).expect("room again, elsewhere");
    subject.unmap(blocks.into_iter().chain([block]));
}

pub fn mapped_memory_outlives_the_range(subject: &Subject) {
    let Some(range) = range(subject, 2) else { return };
    let (mut moved, unit) = (subject.map(&range, 0, 1), range.granularity());
    let address = range.address();
    drop(range);
    let fill = Fill::of(Address::Device(address), 3_u8, unit);
    // SAFETY: memory of the test alone.
    unsafe { subject.backend.fill_now(&fill) }.expect("it is live");
    // SAFETY: nothing uses it.
    unsafe { subject.backend.remap(&mut moved, unit) }.expect("it is vacant");
    assert_eq!(moved.device_address, address.offset(unit));
    subject.unmap([moved]);
    for _ in 0..100 {
        let range = subject.backend.reserve(0, 64 << 30).expect("addresses are given back");
        subject.unmap([subject.backend.map(&range, 0, unit).expect("room")]);
    }
}
