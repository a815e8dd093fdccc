use ringmem::backend::host::{Call, Phase, Verb};
use ringmem::image::{Entry, KernelHost};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::stream::Module;
use ringmem::{Abi, Image, LAYOUTS};

use super::*;

fn add(host: &dyn KernelHost, arguments: &[u64]) {
    let first = host.translate(arguments[0], 4 * arguments[1]).expect("mapped elements").cast::<u32>();
    for index in 0..arguments[1] as usize {
        // SAFETY: translated for that many elements, otherwise unused.
        unsafe { first.add(index).write(first.add(index).read() + 1) };
    }
}

const KERNELS: Image = Image { ptx: b"", host: &[Entry { name: "add", arguments: 2, run: add }], abi: Abi::of(LAYOUTS) };

fn place(log: &[Call], verb: Verb, phase: Phase, address: u64) -> usize {
    let of = |call: &Call| call.verb == verb && call.phase == phase && [call.from, call.to].contains(&Some(address));
    log.iter().position(of).unwrap_or_else(|| panic!("no {verb:?} of {address:#x} {phase:?}"))
}

fn is_in_order(log: &[Call], address: u64) -> usize {
    let touches = |call: &&Call| matches!(call.verb, Verb::Copy | Verb::Fill) && [call.from, call.to].contains(&Some(address)) && call.ok;
    let of = |phase| log.iter().filter(touches).filter(move |call| call.phase == phase).map(|call| (call.stream, call.ticket));
    let executed: Vec<_> = of(Phase::Executed).collect();
    assert!(of(Phase::Called).eq(executed.iter().copied()), "{address:#x}");
    executed.len()
}

fn address(source: &GpuBuffer<u32>) -> u64 {
    source.device_address().expect("it has bytes").get()
}

#[test]
fn a_transfer_waits_for_the_uses_of_its_source() {
    let mut rig = Rig::new(2, EVERY);
    let source = rig.source.as_mut().expect("it is there");
    let held = Held::new(&rig.backend, &rig.work);
    source.used_by(&rig.work).expect("a live stream");
    rig.writer.start(source, ..).expect("a slot");
    let source = address(source);
    // Without the wait it would be executed by now.
    thread::sleep(Duration::from_millis(20));
    held.let_go();
    assert!(rig.reader.next(LIMIT).expect("no fault").is_some());
    let log = rig.backend.call_log();
    let copy = log[place(&log, Verb::Copy, Phase::Called, source)];
    assert_ne!(copy.stream, Some(rig.work.id()), "transfers have a stream of their own");
    let waits = log.iter().position(|call| call.verb == Verb::StreamWait && call.stream == copy.stream).expect("it waits for the other");
    assert!(waits < place(&log, Verb::Copy, Phase::Called, source));
    let left = log.iter().position(|call| call.verb == Verb::Launch && call.phase == Phase::Executed).expect("it has left");
    assert!(left < place(&log, Verb::Copy, Phase::Executed, source));
}

#[test]
fn frames_and_source_writes_execute_in_call_order() {
    for slots in 1..=3 {
        let mut rig = Rig::new(slots, Policy::Newest);
        let mut others = [(); 2].map(|()| Some(GpuBuffer::new(Device::new(&rig.backend, 0), LEN).expect("room")));
        let mut addresses = Vec::new();
        for value in 1..=60 {
            std::mem::swap(&mut rig.source, &mut others[value as usize % 2]);
            addresses.push(address(rig.source.as_ref().expect("it is there")));
            let _ = rig.start(value);
            if value % 3 == 0 {
                let frame = rig.latest();
                assert!(frame.is_none_or(|(_, seen)| seen <= value), "{frame:?}");
            }
        }
        rig.landed();
        for source in others.iter().chain([&rig.source]).flatten() {
            source.ready_on(&rig.work).expect("a live stream");
        }
        rig.work.synchronize().expect("no fault");
        let log = rig.backend.call_log();
        addresses.sort_unstable();
        addresses.dedup();
        let executed: usize = addresses.iter().map(|&address| is_in_order(&log, address)).sum();
        assert!(executed > 60, "60 fills and some frames");
        let slots: Vec<_> =
            log.iter().filter(|call| call.verb == Verb::Copy && call.phase == Phase::Called).filter_map(|call| call.to).collect();
        assert!(slots.iter().all(|&slot| is_in_order(&log, slot) > 0));
    }
}

#[test]
fn each_transfer_is_one_copy_with_one_wait() {
    let mut rig = Rig::new(3, EVERY);
    for value in 1..=30 {
        rig.arrive(value);
        assert_eq!(rig.next(), Some((value.into(), value)));
    }
    let log = rig.backend.call_log();
    let stream = log.iter().find(|call| call.verb == Verb::Copy).and_then(|call| call.stream);
    let called = |verb| log.iter().filter(|call| call.verb == verb && call.phase == Phase::Called && call.stream == stream).count();
    assert_eq!([Verb::Copy, Verb::StreamWait, Verb::RecordPosition].map(called), [30; 3]);
}

#[test]
fn a_launch_after_a_transfer_does_not_change_the_frame() {
    let mut rig = Rig::new(2, EVERY);
    let module = Module::load(&rig.backend, &KERNELS, &Abi::of(LAYOUTS)).expect("our ABI");
    let other = Stream::new(&rig.backend, 0).expect("a stream");
    let held = Held::new(&rig.backend, &rig.work);
    rig.start(40).expect("a slot");
    let source = rig.source.as_mut().expect("it is there");
    source.ready_on(&other).expect("a live stream");
    // SAFETY: elements of a live buffer, which records the launch; other uses precede it.
    let launched = unsafe { other.launch(&module, "add", &[address(source), LEN as u64]) }.expect("queued");
    source.used_by(&other).expect("a live stream");
    thread::sleep(Duration::from_millis(20));
    assert!(!launched.is_done(), "it is behind the transfer, which is behind a kernel");
    rig.writer.start(source, ..).expect("the other slot");
    held.let_go();
    assert_eq!([1, 2].map(|_| whole(rig.reader.next(LIMIT))), [Some((1, 40)), Some((2, 41))]);
    launched.wait().expect("it does not fail");
}

#[test]
fn a_dropped_source_is_freed_after_its_transfer() {
    let mut rig = Rig::new(2, EVERY);
    let held = Held::new(&rig.backend, &rig.work);
    rig.start(6).expect("a slot");
    let source = rig.source.take().expect("it is there");
    let address = address(&source);
    drop(source);
    assert_eq!(rig.backend.counters().device_live.bytes, BYTES, "a transfer reads it");
    held.let_go();
    assert_eq!(whole(rig.reader.next(LIMIT)), Some((1, 6)));
    eventually("it is freed", || rig.backend.counters().device_live.bytes == 0);
    let log = rig.backend.call_log();
    assert!(place(&log, Verb::Free, Phase::Called, address) < place(&log, Verb::Copy, Phase::Executed, address));
    assert!(place(&log, Verb::Copy, Phase::Executed, address) < place(&log, Verb::Free, Phase::Freed, address));
}

#[test]
fn dropped_slots_are_freed_after_their_transfers() {
    let mut rig = Rig::new(2, EVERY);
    let held = Held::new(&rig.backend, &rig.work);
    rig.start(1).expect("a slot");
    rig.start(2).expect("the other");
    let Rig { writer, reader, source, work, backend } = rig;
    drop((writer, reader));
    assert_eq!(backend.counters().pinned_live.bytes, 2 * BYTES + 8, "transfers write them");
    held.let_go();
    eventually("all is freed", || backend.counters().pinned_live.bytes == 0);
    let log = backend.call_log();
    let slots: Vec<_> =
        log.iter().filter(|call| call.verb == Verb::Copy && call.phase == Phase::Called).filter_map(|call| call.to).collect();
    assert_eq!(slots.len(), 2);
    for slot in slots {
        assert!(place(&log, Verb::Copy, Phase::Executed, slot) < place(&log, Verb::Free, Phase::Freed, slot));
    }
    drop((source, work));
}

#[test]
fn a_managed_buffer_grows_after_its_transfer() {
    let mut rig = Rig::new(2, EVERY);
    let manager = MemoryManager::new(Device::new(&rig.backend, 0));
    let named = manager.create::<u32>("a", LEN, BufferConfig::new().with_async(true)).expect("room");
    let mut lease = manager.lease_mut(named).expect("nobody else");
    let held = Held::new(&rig.backend, &rig.work);
    lease.fill_on(&rig.work, .., 3).expect("queued");
    rig.writer.start(&mut lease, ..).expect("a slot");
    assert_eq!(manager.statistics().queued, 2);
    let before = lease.device_address().expect("it has bytes").get();
    let grown = lease.capacity() + LEN;
    thread::scope(|scope| {
        let grows = scope.spawn(|| lease.resize(grown).expect("room"));
        thread::sleep(Duration::from_millis(50));
        assert!(!grows.is_finished());
        held.let_go();
        grows.join().expect("no panic");
    });
    lease.fill_on(&rig.work, .., 4).expect("queued");
    rig.writer.start(&mut lease, ..).expect("the other slot");
    lease.ready_on(&rig.work).expect("a live stream");
    assert_eq!(whole(rig.reader.next(LIMIT)), Some((1, 3)));
    assert_eq!(rig.reader.next(LIMIT).expect("no fault").expect("in time").elements, vec![4; grown]);
    let log = rig.backend.call_log();
    assert!(place(&log, Verb::Copy, Phase::Executed, before) < place(&log, Verb::Free, Phase::Freed, before));
    drop(lease);
    manager.free(named).expect("nobody has it");
}

#[test]
fn a_registered_buffer_is_freed_after_its_transfer() {
    let mut rig = Rig::new(2, EVERY);
    let manager = MemoryManager::new(Device::new(&rig.backend, 0));
    let held = Held::new(&rig.backend, &rig.work);
    rig.write(5);
    let id = manager.register(rig.source.take().expect("it is there")).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let source = lease.device_address().expect("it has bytes").get();
    rig.writer.start(&mut lease, ..).expect("a slot");
    lease.ready_on(&rig.work).expect("a live stream");
    drop(lease.take());
    held.let_go();
    assert_eq!(whole(rig.reader.next(LIMIT)), Some((1, 5)));
    eventually("it is freed", || rig.backend.counters().device_live.bytes == 0);
    let log = rig.backend.call_log();
    assert!(place(&log, Verb::Copy, Phase::Executed, source) < place(&log, Verb::Free, Phase::Freed, source));
}
