use std::sync::Arc;

use ringmem::backend::MemoryLocation;
use ringmem::backend::host::{Counters, Fault, Faults, HostBackend, Verb};
use ringmem::config::{Config, ConfigError};
use ringmem::error::LimitOf;
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Buffer, Memory};
use ringmem::pool::{AnyMemory, Pools};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, Image, LAYOUTS};

use super::{KIB, MIB};
use crate::rig::leak_checked::Clean;

const LOCATIONS: [MemoryLocation; 4] = [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified, MemoryLocation::Host];

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(128 * MIB))
}

fn pools(backend: &Arc<HostBackend>, config: &Config) -> Pools {
    Pools::new(backend, 0, config).expect("a configuration that makes sense")
}

fn given(counters: &Counters, location: MemoryLocation) -> (u64, u64) {
    let (tally, live) = match location {
        MemoryLocation::Device => (counters.device_allocations, counters.device_live),
        MemoryLocation::Pinned => (counters.pinned_allocations, counters.pinned_live),
        MemoryLocation::Unified => (counters.unified_allocations, counters.unified_live),
        MemoryLocation::Host => (counters.host_allocations, counters.host_live),
    };
    (tally.count, live.bytes)
}

#[test]
fn pooling_is_on_or_off_for_every_memory_kind() {
    for enabled in [true, false] {
        let backend = backend();
        let config = Config::host().with_managed(true).with_setting("MemoryPooling.Enabled", &enabled.to_string()).expect("a setting");
        let pools = pools(&backend, &config);
        for location in [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified] {
            for round in 1..=10 {
                drop(pools.buffer_in::<u8>(location, 100_000).expect("room"));
                let (count, bytes) = given(&backend.counters(), location);
                assert_eq!(count, if enabled { 1 } else { round }, "{location:?}");
                assert_eq!(bytes > 0, enabled, "{location:?}");
            }
        }
    }
}

#[test]
fn settings_with_dotcompute_s_names_change_what_the_backend_allocates() {
    let host = Config::host();
    let of = |name: &str, value: &str| host.with_setting(name, value).expect("a known setting");
    let locations = [
        (of("Metal.UseSharedMemory", "true"), MemoryLocation::Unified),
        (of("Metal.StorageMode", "Private"), MemoryLocation::Device),
        (of("OpenCL.UseZeroCopyBuffers", "true"), MemoryLocation::Pinned),
    ];
    for (config, location) in locations {
        let backend = backend();
        drop(pools(&backend, &config).buffer::<u8>(100_000).expect("room"));
        for other in LOCATIONS {
            assert_eq!(given(&backend.counters(), other).0, u64::from(other == location), "{location:?}: {other:?}");
        }
    }
    let backend = backend();
    let limited = |config: &Config, location| match pools(&backend, config).buffer_in::<u8>(location, 3 << 20) {
        Err(Error::Limit { limit, .. }) => limit,
        more => panic!("{location:?}: {more:?}"),
    };
    assert_eq!(limited(&of("MemoryPooling.MaxPoolSizeBytes", "2097152"), MemoryLocation::Device), 2 * MIB);
    assert_eq!(limited(&of("CUDA.PinnedMemoryPoolSize", "1048576"), MemoryLocation::Pinned), MIB);
    assert!(pools(&backend, &of("CUDA.EnableManagedMemory", "true")).unified().is_ok());
    assert!(pools(&backend, &of("CUDA.EnableManagedMemory", "false")).unified().is_err());
}

#[test]
fn disabled_pools_limit_only_pinned_memory() {
    for max_bytes in [0, MIB, u64::MAX] {
        let backend = backend();
        let pools =
            pools(&backend, &Config::host().with_managed(true).with_pooling(false).with_pool_bytes(max_bytes).with_pinned_bytes(MIB));
        for location in [MemoryLocation::Device, MemoryLocation::Unified] {
            pools.buffer_in::<u8>(location, 2 << 20).expect("the backend has it");
        }
        let more = pools.buffer_in::<u8>(MemoryLocation::Pinned, 2 << 20);
        assert!(matches!(more, Err(Error::Limit { of: LimitOf::Pinned, limit: MIB, .. })), "{more:?}");
    }
}

#[test]
fn pools_hold_at_most_the_configured_bytes() {
    let backend = backend();
    let pools = pools(&backend, &Config::host().with_managed(true).with_pool_bytes(4 * MIB));
    for location in [MemoryLocation::Device, MemoryLocation::Unified] {
        let first = pools.buffer_in::<u8>(location, 3 << 20).expect("within");
        let more = pools.buffer_in::<u8>(location, 2 << 20);
        assert!(matches!(more, Err(Error::OutOfMemory { requested, .. }) if requested == 2 * MIB), "{more:?}");
        drop(first);
        pools.buffer_in::<u8>(location, 4 << 20).expect("all of it");
    }
    let counters = backend.counters();
    assert_eq!((counters.device_live.peak, counters.unified_live.peak), (4 * MIB, 4 * MIB));
}

#[test]
fn managed_memory_is_unsupported_unless_configured() {
    let backend = backend();
    assert!(pools(&backend, &Config::host()).pinned().budget() > 0);
    let without = pools(&backend, &Config::host());
    assert!(matches!(without.unified(), Err(Error::Unsupported { .. })));
    assert!(matches!(without.buffer_in::<u8>(MemoryLocation::Unified, 1), Err(Error::Unsupported { .. })));
    assert_eq!(backend.counters().unified_allocations.count, 0);
    let with = pools(&backend, &Config::host().with_managed(true));
    let buffer = Buffer::<u8, _>::new(with.unified().expect("it is on").clone(), 1000).expect("room");
    assert_eq!((buffer.location(), backend.counters().unified_allocations.count), (MemoryLocation::Unified, 1));
}

#[test]
fn a_buffer_has_the_configured_location_and_its_elements() {
    let backend = backend();
    for location in LOCATIONS {
        let pools = pools(&backend, &Config::host().with_managed(true).with_location(location));
        let before = given(&backend.counters(), location).0;
        let mut buffer = pools.buffer::<u32>(1000).expect("room");
        assert_eq!((buffer.location(), buffer.len(), buffer.is_empty()), (location, 1000, false));
        assert_eq!(given(&backend.counters(), location).0, before + 1, "{location:?}");
        assert_eq!(buffer.device_address().is_some(), location != MemoryLocation::Host);
        let elements: Vec<u32> = (0..1000).collect();
        buffer.copy_from(&elements).expect("as many");
        assert_eq!(buffer.to_vec().expect("a copy"), elements);
    }
    let empty = pools(&backend, &Config::host()).buffer::<u8>(0).expect("no bytes");
    assert!(empty.is_empty() && matches!(empty.memory(), AnyMemory::Device(_)));
}

#[test]
fn a_buffer_has_all_operations_in_every_location() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    for location in LOCATIONS {
        let pools = pools(&backend, &Config::host().with_managed(true));
        let mut buffer = pools.buffer_in::<u32>(location, 10).expect("room");
        assert_eq!((buffer.size_bytes(), buffer.is_pinned()), (40, location == MemoryLocation::Pinned));
        buffer.fill(7).expect("live");
        buffer.copy_from_at(2, &[1, 2, 3]).expect("within");
        buffer.copy_within(2..5, 6).expect("apart");
        let mut out = [0; 10];
        buffer.copy_to(&mut out).expect("as many");
        assert_eq!(out, [7, 7, 1, 2, 3, 7, 1, 2, 3, 7], "{location:?}");
        buffer.copy_to_at(7, &mut out[..3]).expect("within");
        assert_eq!(out[..3], [2, 3, 7]);
        let part = buffer.slice(2..5).expect("within");
        assert_eq!((part.len(), part.slice(1..).expect("within").read(|seen| seen[0]).expect("live")), (3, 2));
        assert_eq!(part.to_vec().expect("live"), [1, 2, 3]);
        let offset = part.device_address().zip(buffer.device_address()).map(|(part, whole)| part.get() - whole.get());
        assert_eq!(offset, (location != MemoryLocation::Host).then_some(8));
        let mut part = buffer.slice_mut(..2).expect("within");
        part.fill(9).expect("live");
        part.reborrow().slice(1..).expect("within").zero().expect("live");
        part.update(|seen| seen[0] += 1).expect("live");
        assert_eq!(part.as_view().to_vec().expect("live"), [10, 0]);
        assert!(matches!(buffer.slice(5..11), Err(Error::Range { .. })) && matches!(buffer.slice_mut(5..11), Err(Error::Range { .. })));
        assert!(matches!(buffer.copy_to(&mut out[..9]), Err(Error::Size { what: "length in elements", .. })));
        for other in LOCATIONS {
            let mut target = pools.buffer_in::<u32>(other, 3).expect("room");
            target.as_view_mut().copy_from_view(buffer.slice(2..5).expect("within")).expect("as many");
            assert_eq!(target.to_vec().expect("live"), [1, 2, 3], "{location:?} to {other:?}");
        }
        buffer.write(|made| made.fill(4)).expect("live");
        assert_eq!(buffer.read(<[u32]>::to_vec).expect("live"), [4; 10]);
        let copies = || backend.counters().uploads.count + backend.counters().downloads.count;
        let before = copies();
        buffer.update(|words| words[0] = 5).expect("live");
        assert_eq!(copies() - before, if location == MemoryLocation::Device { 2 } else { 0 }, "in place where the host sees it");
        buffer.ready_on(&stream).and_then(|()| buffer.used_by(&stream)).and_then(|()| buffer.settle()).expect("a live stream");
        buffer.zero().expect("live");
        assert_eq!(buffer.to_vec().expect("live"), [0; 10]);
        buffer.close().expect("freed");
    }
}

#[test]
fn a_launch_accepts_any_buffer_except_pageable_ones() {
    let backend = backend();
    let (stream, pools) = (Stream::new(&backend, 0).expect("a stream"), pools(&backend, &Config::host().with_managed(true)));
    unsafe fn add(host: &dyn KernelHost, arguments: &[u64]) {
        let Some(number) = host.translate(arguments[0], 8) else { return };
        // SAFETY: translated; the launch's.
        unsafe { *number.cast::<u64>().as_mut() += 1 };
    }
    let kernels = &[Entry { name: "add", arguments: 1, run: add }];
    let module = Module::load(&backend, &Image { ptx: b"", host: kernels, abi: Abi::of(LAYOUTS) }, &Abi::of(LAYOUTS)).expect("a module");
    for location in LOCATIONS {
        let mut buffer = pools.buffer_in::<u64>(location, 10).expect("room");
        buffer.fill(6).expect("live");
        // SAFETY: it accesses only the launch's first number.
        let (buffer, first) = match unsafe { stream.launch_with(&module, "add", buffer, &[]) } {
            Ok(pending) => (pending.wait().expect("it ends"), 7),
            Err(refused) => {
                assert!(matches!(refused.error, Error::Unsupported { .. }) && location == MemoryLocation::Host, "{location:?}: {refused}");
                (refused.value, 6)
            }
        };
        assert_eq!((buffer.to_vec().expect("live")[..2].to_vec(), first == 6), (vec![first, 6], location == MemoryLocation::Host));
    }
}

#[test]
fn invalid_configurations_and_devices_are_errors() {
    let backend = backend();
    let refused = Pools::new(&backend, 0, &Config::host().with_pool_bytes(0)).map(drop);
    assert!(matches!(refused, Err(Error::Config(ConfigError::Bytes { field: "pooling.max_bytes", got: 0, .. }))), "{refused:?}");
    let refused = Pools::new(&backend, 3, &Config::host()).map(drop);
    assert!(matches!(refused, Err(Error::NoDevice { asked: 3, devices: 1 })), "{refused:?}");
    let pools = pools(&backend, &Config::metal());
    assert_eq!((*pools.config(), pools.ordinal(), pools.pinned().device()), (Config::metal(), 0, 0));
}

#[test]
fn staging_is_pinned_for_frequent_copies_within_the_budget() {
    let backend = backend();
    let pools = pools(&backend, &Config::host().with_pinned_bytes(MIB));
    let staged = |bytes: u64, transfers| pools.staging::<u8>(bytes as usize, transfers).expect("room somewhere");
    assert_eq!(staged(512 * KIB, 10).location(), MemoryLocation::Host, "too seldom");
    assert_eq!(staged(64 * KIB, 11).location(), MemoryLocation::Host, "too small");
    assert_eq!(staged(MIB + 1, 11).location(), MemoryLocation::Host, "above the budget");
    assert_eq!(backend.counters().pinned_allocations.count, 0);
    let first = staged(512 * KIB, 11);
    assert_eq!(first.location(), MemoryLocation::Pinned);
    assert_eq!(staged(513 * KIB, 11).location(), MemoryLocation::Host, "above what is left");
    drop(first);
    assert_eq!(staged(MIB, 11).location(), MemoryLocation::Pinned);
    assert!(backend.counters().pinned_live.peak <= MIB);
    let less = Clean::build(HostBackend::builder().pinned_budget(100_000));
    let pools = self::pools(&less, &Config::host().with_pinned_bytes(MIB));
    assert_eq!(pools.staging::<u8>(512 << 10, 11).expect("room somewhere").location(), MemoryLocation::Host);
}

const fn four_fifths(bytes: u64) -> u64 {
    bytes / 5 * 4 + bytes % 5 * 4 / 5
}

#[test]
fn batch_bytes_is_four_fifths_of_the_available_bytes() {
    let hint = |pools: &Pools, requested| pools.batch_bytes(requested).expect("known");
    let backend = backend();
    let most = pools(&backend, &Config::host());
    assert_eq!((hint(&most, 1000), hint(&most, u64::MAX)), (1000, four_fifths(64 * MIB)));
    let live = most.buffer::<u8>(40 << 20).expect("room");
    assert_eq!(hint(&most, u64::MAX), four_fifths(24 * MIB));
    drop(live);
    assert_eq!(hint(&most, u64::MAX), four_fifths(64 * MIB), "what is idle is there");
    let off = pools(&backend, &Config::host().with_pooling(false));
    assert_eq!(hint(&off, u64::MAX), four_fifths(88 * MIB), "what another pool holds is not");
    drop(off.buffer::<u8>(hint(&off, u64::MAX) as usize).expect("as much as was said"));
    let wide = pools(&backend, &Config::opencl());
    assert_eq!(hint(&wide, u64::MAX), four_fifths(88 * MIB), "nor what the device has not");
    let alone = self::backend();
    let wide = pools(&alone, &Config::opencl());
    drop(wide.buffer::<u8>(100 << 20).expect("room"));
    assert_eq!(hint(&wide, u64::MAX), four_fifths(128 * MIB), "what is idle in it is the device's, too");
    let unknown = Clean::build(HostBackend::builder().unknown_memory_info(true));
    assert_eq!(hint(&pools(&unknown, &Config::opencl()), u64::MAX), four_fifths(4 << 30));
}

#[test]
fn batch_bytes_can_be_allocated_in_a_fragmented_pool() {
    let backend = backend();
    let pools = pools(&backend, &Config::host());
    let mut live: Vec<_> = (0..16).map(|_| Some(pools.buffer::<u8>(4 << 20).expect("room"))).collect();
    live.iter_mut().step_by(2).for_each(|buffer| *buffer = None);
    // 32 MiB are free, of which every second 4 MiB.
    let hint = pools.batch_bytes(u64::MAX).expect("known");
    assert_eq!(hint, four_fifths(if cfg!(target_os = "linux") { 32 * MIB } else { 4 * MIB }), "moved together");
    drop(pools.buffer::<u8>(hint as usize).expect("as much as was said"));
    live[3] = None;
    assert_eq!(
        pools.batch_bytes(u64::MAX).expect("known"),
        four_fifths(if cfg!(target_os = "linux") { 36 * MIB } else { 12 * MIB }),
        "or in a row"
    );
    drop(live);
    assert_eq!(pools.batch_bytes(u64::MAX).expect("known"), four_fifths(64 * MIB), "empty slabs can be freed for a longer one");
}

#[test]
fn batch_bytes_can_be_allocated_after_any_calls() {
    let backend = backend();
    let (pools, mut live) = (pools(&backend, &Config::host()), Vec::new());
    let mut random = 1_u64;
    for step in 0..300 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = (random >> 40) as usize % (6 << 20) + 1;
        if random >> 63 == 0 {
            live.extend(pools.buffer::<u8>(bytes));
        } else if !live.is_empty() {
            live.swap_remove(bytes % live.len());
        }
        let hint = pools.batch_bytes(u64::MAX).expect("known");
        let batch = pools.buffer::<u8>(hint as usize).map(drop);
        assert!(batch.is_ok(), "step {step}: {hint} bytes: {batch:?}");
    }
}

#[test]
fn batch_bytes_can_be_allocated_on_a_fragmented_device() {
    let backend = backend();
    let others = pools(&backend, &Config::host().with_pooling(false));
    let mut live: Vec<_> = (0..16).map(|_| Some(others.buffer::<u8>(8 << 20).expect("room"))).collect();
    live.iter_mut().step_by(2).for_each(|buffer| *buffer = None);
    let pools = pools(&backend, &Config::host());
    for pools in [&others, &pools] {
        let hint = pools.batch_bytes(u64::MAX).expect("known");
        let is_range = cfg!(target_os = "linux") && pools.config().pooling.enabled;
        assert_eq!(hint, four_fifths(if is_range { 64 * MIB } else { 8 * MIB }), "mapped page by page");
        drop(pools.buffer::<u8>(hint as usize).expect("as much as was said"));
    }
    // What stays in the pool can be freed for a longer slab.
    live[1] = None;
    let most = if cfg!(target_os = "linux") { 64 * MIB } else { 24 * MIB };
    assert_eq!(pools.batch_bytes(u64::MAX).expect("known"), four_fifths(most));
}

#[test]
fn staging_falls_back_to_pageable_memory() {
    let backend = backend();
    let pools = pools(&backend, &Config::host());
    let is_refused = |outcome: Result<Buffer<f32, AnyMemory>, Error>| matches!(outcome, Err(Error::Map { .. }));
    backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::from(1)));
    assert!(is_refused(pools.staging(1_000_000, 100)), "neither kind is had");
    let calls = backend.calls(Verb::Allocate).expect("they are counted");
    assert!(calls > 1, "page-locked memory was asked for first");
    backend.set_faults(&(1..calls).fold(Faults::new(), |faults, call| faults.on(Verb::Allocate, Fault::nth(call))));
    assert_eq!(pools.staging::<f32>(1_000_000, 100).expect("it is only slower").location(), MemoryLocation::Host);
}
