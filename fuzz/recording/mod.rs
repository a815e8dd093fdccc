//! What holds for every recording that is read from any bytes.

use std::collections::HashMap;

use ringmem::memory::Trace;
use ringmem_recordings::models::{Direct, Expandable, Model, PyTorch};
use ringmem_recordings::{Device, Kind, Recording, Segment};

pub fn check(bytes: Vec<u8>) {
    match Recording::parse(bytes) {
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        Ok(recording) => {
            for device in &recording.devices {
                let live = blocks_live_once(device);
                traces_are_written_as_they_are_read(device);
                for limit in [u64::MAX, 64 << 20] {
                    models_keep_their_limit(device, limit, live);
                }
                segments_are_apart(device);
                for event in &device.events {
                    let _ = recording.stacks.place(event.stack).map(|frame| frame.to_string());
                    let _ = recording.stacks.name(event.name);
                }
            }
        }
    }
}

/// Returns whether all sizes are possible.
fn blocks_live_once(device: &Device) -> bool {
    let (mut next, mut live, mut total, mut unknown) = (0, HashMap::new(), 0_u64, 0);
    let mut is_possible = true;
    for (index, event) in device.events.iter().enumerate() {
        match event.kind {
            Kind::Alloc => {
                assert_eq!(event.block, next, "blocks are numbered in order");
                next += 1;
                live.insert(event.block, event.size);
                is_possible &= event.size < 1 << 50;
                total = total.saturating_add(event.size);
            }
            Kind::Free if event.block == u32::MAX => unknown += 1,
            Kind::Free => assert_eq!(live.remove(&event.block), Some(event.size), "freed once, and after its allocation"),
            Kind::Refused => {}
        }
        assert!(index >= device.before || event.kind == Kind::Alloc);
    }
    assert!(unknown <= device.unknown_frees);
    assert!(device.peak().1 <= device.events.len());
    is_possible && total < 1 << 55
}

/// No byte is in two segments at a time, of those that the file allocates. A damaged file may free others.
fn segments_are_apart(device: &Device) {
    let last = device.events.len();
    let lasts = |segment: &Segment| (segment.begin.unwrap_or(0), segment.end.unwrap_or(usize::MAX));
    for segment in &device.segments {
        let (begin, end) = lasts(segment);
        assert!(segment.bytes > 0 && segment.address.checked_add(segment.bytes).is_some(), "{segment:?}");
        assert!(begin <= end && begin <= last && (end <= last || end == usize::MAX), "{segment:?}");
    }
    // Each with each: of long lists the first.
    let some: Vec<&Segment> = device.segments.iter().filter(|segment| segment.begin.is_some()).take(100).collect();
    for (index, one) in some.iter().enumerate() {
        for other in &some[index + 1..] {
            let is_apart = one.address + one.bytes <= other.address || other.address + other.bytes <= one.address;
            assert!(is_apart || lasts(one).1 <= lasts(other).0 || lasts(other).1 <= lasts(one).0, "{one:?}, {other:?}");
        }
    }
}

fn traces_are_written_as_they_are_read(device: &Device) {
    let trace = device.trace();
    assert_eq!(trace.events().len(), device.events.len());
    assert_eq!(Trace::parse(&trace.to_string()).as_ref(), Ok(&*trace));
}

fn models_keep_their_limit(device: &Device, limit: u64, is_possible: bool) {
    let models: [Box<dyn Model>; 3] = [Box::new(PyTorch::new(limit)), Box::new(Expandable::new(limit)), Box::new(Direct::new(limit))];
    for mut model in models {
        let (mut live, mut bytes) = (HashMap::new(), 0_u64);
        for event in device.events.iter().filter(|event| event.kind != Kind::Refused) {
            if event.kind == Kind::Free {
                if let Some(block) = live.remove(&event.block) {
                    bytes -= event.size;
                    model.give(block);
                }
            } else if let Some(block) = model.take(event.size, event.stream) {
                bytes += event.size;
                live.insert(event.block, block);
            } else {
                assert!(!is_possible || limit < u64::MAX, "refused without a limit");
            }
            let driver = model.driver();
            assert!(bytes <= driver.reserved && driver.reserved <= driver.peak && driver.peak <= limit, "{bytes}: {driver:?}");
        }
    }
}
