use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::hostile::write;
use super::*;

#[test]
fn a_bridge_dropped_or_forgotten_with_transfers_is_safe() {
    for forget in [false, true] {
        let backend = backend();
        for _ in 0..50 {
            let Opened { mut sender, receiver, mut bridge } = open(&backend, &options(TransferStrategy::Async, Placement::DEVICE, 64));
            for number in 0..64 {
                sender.push(message(number)).expect("room");
            }
            assert_eq!(bridge.flush_to_device().expect("no fault"), 64);
            if forget {
                std::mem::forget(bridge);
                (0..6).for_each(|_| backend.forgets());
            } else {
                drop(bridge);
                assert!(sender.is_disconnected() && receiver.is_disconnected());
            }
        }
        if !forget {
            eventually("all memory is given back", || {
                backend.counters().device_live.bytes == 0 && backend.counters().pinned_live.bytes == 0
            });
        }
    }
}

#[test]
fn an_idle_kernel_s_ring_fills_up_to_its_capacity() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        let backend = backend();
        let Opened { mut sender, mut bridge, .. } = open(&backend, &options(strategy, Placement::SPLIT, 4));
        let mut sent = 0;
        eventually("four are at the device, four at the host", || {
            sent += u64::from(sender.push(message(sent)).is_ok());
            bridge.flush_to_device().expect("no fault");
            sent == 8
        });
        for _ in 0..100 {
            assert_eq!(bridge.flush_to_device().expect("no fault"), 0);
            assert!(sender.push(message(sent)).is_err());
        }
        assert_eq!((bridge.pending()[0], bridge.metrics()[0].messages), (4, 4));
    }
}

#[test]
fn the_ends_outlive_the_bridge_and_the_backend() {
    for strategy in STRATEGIES {
        let backend = HostBackend::builder().device_memory(1 << 20).build().expect("a backend");
        let placement = if strategy == TransferStrategy::Unified { Placement::PINNED } else { Placement::SPLIT };
        let Opened { mut sender, mut receiver, mut bridge } = open(&backend, &options(strategy, placement, 4));
        let [_, down] = bridge.addresses().expect("addresses");
        write(&backend, down.peer, receiver.head().wrapping_add(2));
        eventually("two have arrived", || bridge.poll().is_ok() && receiver.refresh() == Ok(2));
        sender.push(message(0)).expect("room");
        bridge.flush_to_device().expect("no fault");
        drop(bridge);
        drop(backend);
        let refused = (1..6).filter(|&number| sender.push(message(number)).is_err()).count();
        assert!((1..=2).contains(&refused), "{strategy:?}: four slots, and what has arrived");
        assert!(receiver.pop().is_ok() && receiver.pop().is_ok());
        assert_eq!(receiver.pop(), Err(PopError::Empty), "{strategy:?}");
    }
}

static THAWED: AtomicBool = AtomicBool::new(false);

struct Thaw;

impl Drop for Thaw {
    fn drop(&mut self) {
        THAWED.store(true, Release);
    }
}

unsafe fn freezes(host: &dyn KernelHost, _: &[u64]) {
    let begun = Instant::now();
    let mut times = 0;
    while !THAWED.load(Acquire) && begun.elapsed() < LIMIT {
        host.pause(times);
        times += 1;
    }
}

#[test]
fn dropping_a_pump_keeps_the_rings_of_a_running_kernel() {
    let backend = backend();
    let image = Image { host: &[Entry { name: "freezes", arguments: 0, run: freezes }], ..IMAGE };
    let module = Module::load(&backend, &image, &ABI).expect("our ABI");
    let thaw = Thaw;
    let mut kernels = Vec::new();
    for strategy in STRATEGIES {
        let placement = if strategy == TransferStrategy::Unified { Placement::PINNED } else { Placement::DEVICE };
        let Opened { mut sender, receiver, mut bridge } = open(&backend, &options(strategy, placement, 4));
        let stream = Stream::new(&backend, 0).expect("a stream");
        // SAFETY: it takes no arguments.
        let kernel = unsafe { stream.launch(&module, "freezes", &[]) }.expect("a kernel");
        bridge.used_by(&kernel).expect("one launch");
        let pump = bridge.pump().expect("a thread");
        while sender.push(message(0)).is_ok() {}
        drop(pump);
        drop((sender, receiver));
        assert!(!kernel.is_done(), "{strategy:?}: nobody waited for it");
        kernels.push(kernel);
    }
    assert_eq!((backend.counters().device_live.bytes, backend.counters().pinned_live.bytes), (6 * 4096, 2 * 4096));
    drop(thaw);
    eventually("the kernels have left", || kernels.iter().all(Pending::is_done));
    eventually("all memory is given back", || backend.counters().device_live.bytes == 0 && backend.counters().pinned_live.bytes == 0);
}
