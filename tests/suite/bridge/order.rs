use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use ringmem::backend::Backend;
use ringmem::backend::host::{Fault, Faults, Verb};

use super::hostile::write;
use super::*;

fn placements(strategy: TransferStrategy) -> Vec<Placement> {
    match strategy {
        TransferStrategy::Unified => vec![Placement::PINNED],
        _ => vec![Placement::DEVICE, Placement::SPLIT, Placement::PINNED, Placement::UNIFIED],
    }
}

#[test]
fn every_strategy_and_placement_keeps_message_order() {
    for strategy in STRATEGIES {
        for placement in placements(strategy) {
            for capacity in [1, 4, 64] {
                let backend = backend();
                let count = 6 * capacity + 60;
                let mut rig = rig(&backend, &options(strategy, placement, capacity), count);
                assert_eq!(exchange(&mut rig, count), 0, "{strategy:?} {placement:?}");
                eventually("the kernel has left", || rig.kernel.is_done());
                let [up, down] = rig.bridge.metrics();
                assert_eq!(down.messages, count, "{strategy:?} {placement:?}");
                eventually("all slots are given back", || rig.bridge.poll().is_ok() && rig.bridge.metrics()[0].messages == count);
                if strategy != TransferStrategy::Unified {
                    assert_eq!((up.bytes, down.bytes), (count * 64, count * 64), "{strategy:?} {placement:?}");
                }
            }
        }
    }
}

#[test]
fn rings_may_have_different_capacities() {
    for strategy in STRATEGIES {
        for capacity in [[1, 64], [64, 1], [2, 8]] {
            let placement = placements(strategy)[0];
            let backend = backend();
            let mut rig = rig(&backend, &Options { capacity, ..options(strategy, placement, 1) }, 300);
            assert_eq!(exchange(&mut rig, 300), 0, "{strategy:?} {capacity:?}");
            eventually("the kernel has left", || rig.kernel.is_done());
        }
    }
}

#[test]
fn a_flush_makes_one_copy_or_two_and_one_publication() {
    let backend = backend();
    let Opened { mut sender, mut bridge, .. } =
        open(&backend, &Options { start: 6, ..options(TransferStrategy::Sync, Placement::SPLIT, 8) });
    let counters = || {
        let counters = backend.counters();
        (counters.uploads.count, counters.uploads.bytes, counters.publications)
    };
    let before = counters();
    for number in 0..5 {
        sender.push(message(number)).expect("room");
    }
    assert_eq!(bridge.flush_to_device().expect("no fault"), 5);
    let after = counters();
    assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (2, 5 * 64, 1), "slots 6 and 7, then 0 to 2");
    sender.push(message(5)).expect("room");
    assert_eq!(bridge.flush_to_device().expect("no fault"), 1);
    let last = counters();
    assert_eq!((last.0 - after.0, last.1 - after.1, last.2 - after.2), (1, 64, 1));
    assert_eq!(bridge.flush_to_device().expect("no fault"), 0);
    assert_eq!(counters(), last, "nothing to move is no call");
    for number in 6..20 {
        let fits = number < 14;
        assert_eq!(sender.push(message(number)).is_ok(), fits, "six are at the device and were given back");
        if !fits {
            break;
        }
    }
    assert_eq!(bridge.flush_to_device().expect("no fault"), 2, "two slots are free at the device");
    assert_eq!(bridge.flush_to_device().expect("no fault"), 0);
    let [up, _] = bridge.metrics();
    assert_eq!((up.messages, up.full, up.flushes), (8, 1, 3));
    assert_eq!(bridge.pending()[0], 6);
}

#[test]
fn a_flush_to_a_pinned_ring_makes_no_backend_calls() {
    let backend = backend();
    let Opened { mut sender, mut bridge, .. } = open(&backend, &options(TransferStrategy::Sync, Placement::PINNED, 8));
    backend.set_faults(&Faults::new());
    let calls = || Verb::ALL.map(|verb| backend.calls(verb).expect("counted"));
    let before = calls();
    for number in 0..3 {
        sender.push(message(number)).expect("room");
    }
    assert_eq!(bridge.poll().expect("no fault"), [3, 0]);
    assert_eq!(calls(), before);
    let [up, _] = bridge.metrics();
    assert_eq!((up.messages, up.copies, up.bytes, up.publications), (3, 1, 192, 1));
}

#[test]
fn a_shared_ring_needs_fences_and_no_copies() {
    for strategy in [TransferStrategy::Unified, TransferStrategy::Flagged] {
        let backend = backend();
        let before = backend.counters();
        let Opened { mut sender, mut bridge, .. } = open(&backend, &options(strategy, Placement::PINNED, 8));
        for number in 0..3 {
            sender.push(message(number)).expect("room");
        }
        assert_eq!((bridge.flush_to_device().expect("no fault"), bridge.flush_to_host().expect("no fault")), (3, 0));
        let after = backend.counters();
        assert_eq!((after.uploads, after.downloads, after.publications), (before.uploads, before.downloads, 0));
        let [up, down] = bridge.metrics();
        assert_eq!((up.fences, down.fences, up.copies, down.copies), (1, 1, 0, 0));
        // A flush is not needed: what is published has arrived.
        sender.push(message(3)).expect("room");
        assert_eq!(bridge.metrics().map(|direction| direction.messages), [4, 0]);
        let pump = bridge.pump().expect("a thread");
        sender.push(message(4)).expect("room");
        eventually("a pump's flush counts them", || pump.metrics()[0].messages == 5);
    }
}

/// Set by the host's half of the test of fences.
static IS_OVER: AtomicBool = AtomicBool::new(false);
static STORES: AtomicU64 = AtomicU64::new(0);
static SEEN_TAILS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Stores a number, then loads the host's index, until the host is over.
unsafe fn answers_stores(host: &dyn KernelHost, arguments: &[u64]) {
    let &[own, peer, slots] = arguments else { return };
    // SAFETY: the addresses of this kernel's bridge.
    let (_, header, _) = unsafe { parts::<Echo>(&Simulated(host), [own, peer, slots]) };
    let mut seen = Vec::with_capacity(1 << 22);
    for number in 1..1 << 22 {
        STORES.store(number, Relaxed);
        fence(SeqCst);
        seen.push(header.producer.tail.load(Relaxed));
        if IS_OVER.load(Relaxed) {
            break;
        }
    }
    *SEEN_TAILS.lock().expect("no panic") = seen;
}

/// A store-buffering litmus test without a synchronisation of its rounds: of two sides that each store, fence and load, at least one sees the
/// other's store.
#[test]
fn a_flush_of_a_shared_ring_puts_its_messages_before_later_loads() {
    const COUNT: u64 = 1 << 16;
    let backend = Clean::build(HostBackend::builder().pinned_budget(64 << 20));
    let options = Options { start: 0, ..options(TransferStrategy::Unified, Placement::PINNED, COUNT) };
    let Opened { mut sender, mut bridge, .. } = open(&backend, &options);
    let image = Image { host: &[Entry { name: "answers stores", arguments: 3, run: answers_stores }], ..IMAGE };
    let module = Module::load(&backend, &image, &ABI).expect("our ABI");
    let stream = Stream::new(&backend, 0).expect("a stream");
    let RingAddresses { own, peer, slots } = bridge.addresses().expect("addresses")[0];
    // SAFETY: the rings record the launch, so they outlive it.
    let kernel = unsafe { stream.launch(&module, "answers stores", &[own, peer, slots]) }.expect("a kernel");
    bridge.used_by(&kernel).expect("one launch");
    eventually("the kernel runs", || STORES.load(Relaxed) > 0);
    let mut seen_stores = Vec::with_capacity(COUNT as usize);
    for number in 0..COUNT {
        sender.push(message(number)).expect("room");
        bridge.flush_to_device().expect("no fault");
        seen_stores.push(STORES.load(Relaxed));
    }
    IS_OVER.store(true, Relaxed);
    eventually("the kernel has left", || kernel.is_done());
    let seen_tails = SEEN_TAILS.lock().expect("no panic");
    for (tail, seen) in (1..).zip(seen_stores) {
        // The store after the last seen one, number `seen + 1`.
        if let Some(&seen_tail) = seen_tails.get(seen as usize) {
            assert!(seen_tail >= tail, "after message {tail} only store {seen} is seen, and after the next store only message {seen_tail}");
        }
    }
}

#[test]
fn the_strategy_follows_the_visibility() {
    use ringmem::MemoryVisibility::{DeviceScope, ExplicitDma, SystemScope};
    let seen = backend().capabilities(0).expect("a device");
    let mut unseen = seen.clone();
    unseen.system_scope = false;
    for (visibility, capabilities, expected) in [
        (SystemScope, &seen, TransferStrategy::Unified),
        (SystemScope, &unseen, TransferStrategy::Async),
        (DeviceScope, &seen, TransferStrategy::Async),
        (ExplicitDma, &seen, TransferStrategy::DmaPolling { poll_interval_us: 50 }),
    ] {
        assert_eq!(TransferStrategy::for_device(visibility, capabilities), expected, "{visibility}");
    }
    let backend = Clean::build(HostBackend::builder().system_scope(false).device_memory(1 << 20));
    let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options(TransferStrategy::Unified, Placement::PINNED, 8));
    assert!(matches!(opened.map(drop), Err(ringmem::Error::Unsupported { .. })));
}

type Flush = fn(&mut RingBufferBridge<Echo, Echo>) -> Result<u64, ringmem::Error>;

#[test]
fn polls_are_limited_by_the_interval() {
    let polls: Flush = |bridge| bridge.poll().map(|moved| moved[0]);
    let flushes: [(Flush, [bool; 2]); 3] =
        [(polls, [true; 2]), (|bridge| bridge.flush_to_device(), [true, false]), (|bridge| bridge.flush_to_host(), [false, true])];
    for placement in [Placement::SPLIT, Placement::DEVICE] {
        for (flush, looks) in flushes {
            let backend = backend();
            let strategy = TransferStrategy::DmaPolling { poll_interval_us: 2000 };
            let Opened { mut sender, mut bridge, .. } = open(&backend, &options(strategy, placement, 1));
            let (begun, mut calls, mut sent) = (Instant::now(), 0_u64, 0);
            eventually("thirty milliseconds have passed, and it has looked", || {
                sent += u64::from(sent < 2 && sender.push(message(sent)).is_ok());
                flush(&mut bridge).expect("no fault");
                calls += 1;
                let has_looked = bridge.metrics().iter().zip(looks).all(|(metrics, looks)| !looks || metrics.polls > 0);
                calls >= 1000 && begun.elapsed() > Duration::from_millis(30) && has_looked
            });
            let most = begun.elapsed().as_micros() as u64 / 2000 + 1;
            for (metrics, looks) in bridge.metrics().into_iter().zip(looks) {
                let polls = metrics.polls;
                let allowed = if looks { 1..=most } else { 0..=0 };
                assert!(allowed.contains(&polls) && calls > polls, "{placement:?}: {polls} looks in {calls} calls, {allowed:?}");
            }
        }
    }
}

#[test]
fn sending_after_idle_time_resets_the_poll_interval() {
    let backend = backend();
    let strategy = TransferStrategy::DmaPolling { poll_interval_us: 1000 };
    let Opened { mut sender, mut bridge, .. } = open(&backend, &options(strategy, Placement::DEVICE, 8));
    eventually("the last of seven looks is on its way, and the next is due 64 ms after it", || {
        bridge.poll().expect("no fault");
        bridge.metrics()[1].polls == 7
    });
    eventually("it has, and so have those the other way", || {
        let [up, down] = bridge.metrics();
        backend.counters().downloads.count == up.polls + down.polls
    });
    let looked = Instant::now();
    while looked.elapsed() < Duration::from_millis(5) {
        bridge.poll().expect("no fault");
    }
    sender.push(message(0)).expect("room");
    assert_eq!(bridge.poll().expect("no fault")[0], 1);
    bridge.poll().expect("no fault");
    assert!(bridge.metrics()[1].polls > 7, "it was due");
}

#[test]
fn a_flush_writes_one_index_even_after_a_failed_publication() {
    let backend = backend();
    let Opened { mut receiver, mut bridge, .. } = open(&backend, &options(TransferStrategy::Sync, Placement::DEVICE, 8));
    let [_, down] = bridge.addresses().expect("addresses");
    let tail = |more| write(&backend, down.peer, (u64::MAX - 100) + more);
    tail(2);
    backend.set_faults(&Faults::new().on(Verb::Publish, Fault::nth(1)));
    assert!(bridge.flush_to_host().is_err(), "the kernel is not told of two");
    assert_eq!((receiver.pop(), bridge.pending()), (Err(PopError::Empty), [0, 2]), "who could not give them back has not got them");
    tail(3);
    let before = backend.counters().publications;
    assert_eq!(bridge.flush_to_host().expect("no fault any more"), 3);
    assert_eq!((backend.counters().publications - before, bridge.metrics()[1].publications), (1, 1), "for all three");
    assert!(receiver.pop().is_ok() && receiver.pop().is_ok());
    tail(4);
    backend.set_faults(&Faults::new().on(Verb::Publish, Fault::nth(1)));
    assert!(bridge.flush_to_host().is_err());
    assert_eq!(bridge.flush_to_host().expect("no fault any more"), 1);
    assert_eq!(bridge.metrics()[1].publications, 2);
}
