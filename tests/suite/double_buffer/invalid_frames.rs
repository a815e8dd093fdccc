use ringmem::Error;
use ringmem::backend::host::Verb;
use ringmem::double_buffer::Uploads;
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{HostReadable, Limited, Memory, Unified};

use super::*;

#[test]
fn zero_slots_and_a_missing_device_are_errors() {
    let backend = Clean::build(HostBackend::builder());
    let pinned = |device| Pinned::new(&backend, device);
    let refused = double_buffer::pair::<u32, _>(pinned(0), 0, EVERY).map(drop).expect_err("no slots");
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let refused = Uploads::<u32, _>::new(pinned(0), 0, LIMIT).map(drop).expect_err("no slots");
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let refused = double_buffer::pair::<u32, _>(pinned(9), 2, EVERY).map(drop).expect_err("no such device");
    assert!(matches!(refused, Error::NoDevice { asked: 9, devices: 1 }), "{refused}");
}

#[test]
fn more_than_1024_slots_are_refused() {
    let backend = Clean::build(HostBackend::builder());
    let pinned = || Pinned::new(&backend, 0);
    for slots in [1025, usize::MAX] {
        let pair = double_buffer::pair::<u32, _>(pinned(), slots, EVERY).map(drop);
        let uploads = Uploads::<u32, _>::new(pinned(), slots, LIMIT).map(drop);
        for refused in [pair, uploads] {
            assert!(matches!(refused, Err(Error::Size { least: 1, most: 1024, .. })), "{refused:?}");
        }
    }
    double_buffer::pair::<u32, _>(pinned(), 1024, EVERY).map(drop).expect("slots are allocated on first use");
}

#[test]
fn a_rejected_transfer_takes_no_number_and_no_slot() {
    let other = Clean::build(HostBackend::builder());
    let mut theirs = GpuBuffer::<u32>::new(Device::new(&other, 0), LEN).expect("room");
    let mut rig = Rig::new(1, EVERY);
    let manager = MemoryManager::new(Device::new(&rig.backend, 0));
    let named = manager.create::<u32>("a", LEN, BufferConfig::new()).expect("room");
    let mut lease = manager.lease_mut(named).expect("nobody else");
    let calls = rig.backend.calls(Verb::Copy).expect("it is watched");
    for _ in 0..3 {
        let mut source = rig.source.take().expect("it is there");
        let refused = rig.writer.start(&mut source, 1..LEN + 1).expect_err("past the end");
        assert!(matches!(refused, Error::Range { size, .. } if size == LEN as u64), "{refused}");
        let refused = rig.writer.start(&mut theirs, ..).expect_err("another backend's");
        assert!(matches!(refused, Error::OtherBackend { .. }), "{refused}");
        let refused = rig.writer.start(&mut lease, ..).expect_err("not configured for it");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        rig.source = Some(source);
    }
    assert_eq!(rig.backend.calls(Verb::Copy), Some(calls));
    assert_eq!(rig.arrive(8), 1);
    assert_eq!(rig.next(), Some((1, 8)));
}

#[test]
fn a_failed_slot_allocation_is_an_error_and_others_continue() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20));
    let short = Limited::new(Pinned::new(&backend, 0), BYTES);
    let (mut writer, mut reader) = double_buffer::pair::<u32, _>(std::sync::Arc::new(short), 2, EVERY).expect("a stream");
    let mut source = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[3; LEN]).expect("room");
    assert_eq!(writer.start(&mut source, ..).expect("room"), 1);
    let refused = writer.start(&mut source, ..).expect_err("for one, not for two");
    assert!(matches!(refused, Error::Limit { .. }), "{refused}");
    for sequence in 1..10 {
        assert_eq!(whole(reader.next(LIMIT)), Some((sequence, 3)));
        reader.release();
        assert_eq!(writer.start(&mut source, ..).expect("the one"), sequence + 1);
    }
}

#[test]
fn starting_a_transfer_without_a_reader_returns_closed() {
    let mut rig = Rig::new(2, Policy::Newest);
    rig.arrive(1);
    assert!(rig.writer.has_reader());
    let Rig { mut writer, reader, mut source, .. } = rig;
    drop(reader);
    assert!(!writer.has_reader());
    let refused = writer.start(source.as_mut().expect("it is there"), ..).expect_err("for nobody");
    assert!(matches!(refused, Error::Closed { what: "reader of these frames" }), "{refused}");
}

fn reads_all<H: Memory<Visibility: HostReadable> + Clone>(backend: &Clean, memory: H) {
    let (mut writer, mut reader) = double_buffer::pair::<u32, _>(memory, 2, EVERY).expect("a stream");
    let mut source = GpuBuffer::<u32>::new(Device::new(backend, 0), LEN).expect("room");
    for value in 1..10 {
        source.fill(value).expect("live");
        writer.start(&mut source, ..).expect("a slot");
        assert_eq!(whole(reader.next(LIMIT)), Some((value.into(), value)));
    }
}

#[test]
fn slots_can_be_in_managed_or_pageable_memory() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20));
    reads_all(&backend, Unified::new(&backend, 0));
    reads_all(&backend, ringmem::memory::Host::new(&backend, 0));
}

#[test]
fn a_frame_in_managed_memory_is_busy_while_a_kernel_runs() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).concurrent_managed_access(false));
    let work = Stream::new(&backend, 0).expect("a stream");
    let (mut writer, mut reader) = double_buffer::pair::<u32, _>(Unified::new(&backend, 0), 2, EVERY).expect("a stream");
    let mut source = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[4; LEN]).expect("room");
    writer.start(&mut source, ..).expect("a slot");
    let held = Held::new(&backend, &work);
    let refused = reader.next(LIMIT).expect_err("a kernel runs");
    assert!(matches!(refused, Failed { sequence: 1, error: Error::Busy { .. } }), "{refused}");
    held.let_go();
    assert_eq!(whole(reader.latest()), Some((1, 4)));
}
