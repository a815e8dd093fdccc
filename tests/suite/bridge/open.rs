use ringmem::backend::Backend;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::memory::{Device, GpuBuffer};
use ringmem::{Error, MemoryVisibility};

use super::*;
use crate::passes_with_visibility;

fn live(backend: &HostBackend) -> [u64; 3] {
    let counters = backend.counters();
    [counters.device_live.bytes, counters.pinned_live.bytes, counters.unified_live.bytes]
}

#[test]
fn a_failed_open_leaves_nothing_allocated() {
    for (strategy, placement, calls) in [
        (TransferStrategy::Unified, Placement::PINNED, [2, 0, 0]),
        (TransferStrategy::Sync, Placement::UNIFIED, [6, 0, 2]),
        (TransferStrategy::Async, Placement::SPLIT, [8, 2, 4]),
    ] {
        for (verb, calls) in [Verb::Allocate, Verb::OpenStream, Verb::Copy].into_iter().zip(calls) {
            for nth in 1..=calls + 1 {
                let backend = backend();
                backend.set_faults(&Faults::new().on(verb, Fault::nth(nth)));
                let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options(strategy, placement, 8)).map(drop);
                assert_eq!(opened.is_ok(), nth > calls, "{strategy:?}: call {nth} of {verb:?}: {opened:?}");
                eventually("nothing is left", || live(&backend) == [0; 3]);
            }
        }
    }
}

#[test]
fn a_full_device_is_an_error_and_keeps_existing_memory() {
    let backend = backend();
    let kept = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &vec![7; (1 << 20) - 4096]).expect("room");
    let before = live(&backend);
    for _ in 0..3 {
        let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options(TransferStrategy::Async, Placement::DEVICE, 8));
        assert!(matches!(opened.map(drop), Err(Error::OutOfMemory { .. })));
        assert_eq!(live(&backend), before);
    }
    assert!(kept.to_vec().expect("live").iter().all(|&byte| byte == 7));
    drop(kept);
    open(&backend, &options(TransferStrategy::Async, Placement::DEVICE, 8));
}

#[test]
fn pinned_rings_need_system_scope_visibility() {
    let backend = Clean::build(HostBackend::builder().system_scope(false).device_memory(1 << 20));
    for strategy in STRATEGIES.into_iter().chain([TransferStrategy::Flagged]) {
        for (placement, served) in [(Placement::PINNED, false), (Placement::SPLIT, false), (Placement::DEVICE, true)] {
            let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options(strategy, placement, 8)).map(drop);
            let served = served && !is_shared(strategy);
            assert_eq!(opened.is_ok(), served, "{strategy:?} {placement:?}: {opened:?}");
            assert!(served || matches!(opened, Err(Error::Unsupported { .. })));
        }
    }
}

fn is_shared(strategy: TransferStrategy) -> bool {
    matches!(strategy, TransferStrategy::Unified | TransferStrategy::Flagged)
}

#[test]
#[ignore = "needs its own environment"]
fn shared_rings_are_rejected_under_explicit_dma() {
    let backend = backend();
    assert_eq!(MemoryVisibility::detect(&backend, 0).expect("a device").visibility, MemoryVisibility::ExplicitDma);
    let seen = backend.capabilities(0).expect("a device");
    for strategy in STRATEGIES.into_iter().chain([TransferStrategy::Flagged]) {
        let placement = if is_shared(strategy) { Placement::PINNED } else { Placement::DEVICE };
        let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options(strategy, placement, 8)).map(drop);
        assert_eq!(opened.is_ok(), !is_shared(strategy), "{strategy:?}: {opened:?}");
    }
    assert_ne!(TransferStrategy::for_device(MemoryVisibility::ExplicitDma, &seen), TransferStrategy::Unified);
}

#[test]
fn ringmem_visibility_dma_disables_shared_rings() {
    passes_with_visibility("dma", "bridge::open::shared_rings_are_rejected_under_explicit_dma");
}

#[test]
fn used_by_forgets_finished_launches() {
    for placement in [Placement::DEVICE, Placement::SPLIT] {
        let backend = backend();
        let Rig { mut sender, mut bridge, kernel, .. } = rig(&backend, &options(TransferStrategy::Sync, placement, 8), 1);
        for _ in 0..10 {
            let over = rig(&backend, &options(TransferStrategy::Sync, placement, 8), 0).kernel;
            eventually("it has left", || over.is_done());
            bridge.used_by(&over).expect("there is room for it");
        }
        assert!(!kernel.is_done());
        sender.push(message(0)).expect("room");
        eventually("the other has left", || bridge.poll().is_ok() && kernel.is_done());
    }
}
