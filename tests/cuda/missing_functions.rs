use std::alloc::Layout;
use std::cell::{Cell, OnceCell};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::Error;
use ringmem::backend::cuda::{Advice, CudaBackend, Driver};
use ringmem::backend::{Address, Backend, Copy, Fill, MemoryLocation, Options, Request, Uses};
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, Unified, UnifiedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem_kernels::{ABI, IMAGE};

use crate::busy_stream::Held;
use crate::faults::work;
use crate::rig::{self, Alone, Double, LIMIT, alone};

fn listed(which: &str) -> Vec<&'static str> {
    let source = include_str!("../../src/backend/cuda/driver.rs");
    let (_, list) = source.split_once(&format!("    {which} {{\n")).expect("the list");
    let (list, _) = list.split_once("\n    }").expect("its end");
    list.lines().filter_map(|line| Some(line.strip_prefix("        fn ")?.split_once('(')?.0)).collect()
}

fn without(symbols: &[&str], alone: Alone) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    ringmem_driver_double::without(symbols, folder.path()).expect("the double has them");
    alone.with("LD_LIBRARY_PATH", folder.path().display()).run()
}

#[test]
fn a_missing_required_function_is_named_in_the_error() {
    let path = concat!(module_path!(), "::a_missing_required_function_is_named_in_the_error");
    if Alone::new(path).is_here() {
        let error = CudaBackend::open().expect_err("it lacks a function");
        let Error::NoDriver { source, .. } = error else { panic!("{error}") };
        eprintln!("it is no driver: {source}");
        return;
    }
    let all = listed("must have");
    assert!(all.len() > 35, "{all:?}");
    for symbol in all {
        let said = without(&[symbol], Alone::new(path));
        assert!(said.lines().any(|line| line.starts_with("it is no driver") && line.contains(symbol)), "{symbol}: {said}");
    }
}

#[test]
fn a_missing_optional_function_is_replaced_or_named() {
    let path = concat!(module_path!(), "::a_missing_optional_function_is_replaced_or_named");
    if Alone::new(path).is_here() {
        match work(true).map_err(|error| error.to_string()) {
            Ok(()) => eprintln!("it works"),
            Err(error) => eprintln!("it says {error}"),
        }
        Double::new().settled(0);
        return;
    }
    let all = listed("may lack");
    assert!(all.len() > 18, "{all:?}");
    let mut named = Vec::new();
    for symbol in all {
        let said = without(&[symbol], Alone::new(path));
        assert!(said.contains(": 0 leaked") && !said.contains("violations"), "{symbol}: {said}");
        if !said.contains("it works\n") {
            let expected = if symbol == "cuMemAllocManaged" { "it says managed memory is not supported" } else { symbol };
            assert!(said.lines().any(|line| line.starts_with("it says") && line.contains(expected)), "{symbol}: {said}");
            named.push(symbol);
        }
    }
    assert_eq!(named, ["cuMemAllocManaged", "cuMemPrefetchAsync"], "the others have something in their place");
}

macro_rules! lacking {
    ($($(#[$attribute:meta])* fn $name:ident() without($($symbol:literal),+) $(with($variable:literal = $value:expr))? $body:block)+) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                let alone = Alone::new(concat!(module_path!(), "::", stringify!($name)));
                $(let alone = alone.with($variable, $value);)?
                if alone.is_here() {
                    return rig::clean(&alone, || $body);
                }
                let said = without(&[$($symbol),+], alone);
                assert!(said.contains(": 0 leaked") && !said.contains("violations"), "{said}");
            }
        )+
    };
}

fn unsupported<T>(outcome: Result<T, Error>, symbol: &str) {
    match outcome {
        Err(Error::Unsupported { what }) => assert!(what.contains(symbol), "{what}"),
        Err(error) => panic!("{symbol}: {error}"),
        Ok(_) => panic!("{symbol}: it was called all the same"),
    }
}

lacking! {
    /// A copy to pageable memory holds its stream's lock; a thread that orders that stream keeps the event.
    fn an_event_in_use_is_not_recorded_again() without("cuLaunchHostFunc") {
        let (backend, double) = (rig::open(), Double::new());
        let [first, second] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
        let gpu = || Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room");
        let until = |symbol, more: u64, act: &dyn Fn()| {
            let before = double.calls(symbol);
            act();
            let begun = Instant::now();
            while double.calls(symbol) < before + more {
                assert!(begun.elapsed() < LIMIT, "{symbol} is not called");
                thread::yield_now();
            }
        };
        let (source, target) = (gpu(), Buffer::<u8, _>::new(Host::new(&backend, 0), 100).expect("room"));
        let [of_first, of_second] = [&first, &second].map(Held::on);
        let filled = first.fill(gpu(), .., 1).expect("a fill").detach();
        let done = backend.record_position(first.id()).expect("a ticket");
        thread::scope(|scope| {
            let (copier, waiter) = (OnceCell::new(), OnceCell::new());
            let (backend, ends) = (&backend, Cell::new(Some((source, target))));
            until("cuMemcpyDtoHAsync_v2", 1, &|| {
                let (source, target) = ends.take().expect("once");
                let second = &second;
                let _ = copier.set(scope.spawn(move || drop(second.copy(source, target).expect("as many").detach())));
            });
            until("cuEventRecord", 1, &|| {
                let second = second.id();
                let _ = waiter.set(scope.spawn(move || backend.stream_wait(done, second).expect("queued")));
            });
            thread::sleep(Duration::from_millis(100));
            of_first.release();
            assert!(backend.wait(done, Some(LIMIT)).expect("done"));
            let again = Held::on(&first);
            let behind = first.fill(gpu(), .., 2).expect("a fill").detach();
            until("cuEventRecord", 1, &|| assert!(!backend.is_complete(backend.record_position(first.id()).expect("a ticket")), "a kernel is in front of it"));
            drop(of_second);
            for thread in [copier.into_inner(), waiter.into_inner()] {
                thread.expect("begun").join().expect("no panic");
            }
            let last = backend.record_position(second.id()).expect("a ticket");
            let is_over = backend.wait(last, Some(Duration::from_secs(5))).expect("done");
            drop(again);
            assert!(is_over, "it waits for what came later");
            drop(behind);
        });
        drop((filled, of_first));
    }

    fn without_a_pool_function_memory_is_not_stream_ordered() without("cuMemPoolSetAccess") {
        let backend = rig::open();
        assert!(!backend.capabilities(0).expect("device 0").stream_ordered);
        let buffer = Buffer::<u8, _>::from_slice(Device::new(&backend, 0), &[4; 100]).expect("room");
        assert_eq!(buffer.to_vec().expect("a copy"), [4; 100]);
        assert!(backend.memory_info(0).expect("device 0").is_some());
        backend.trim(0).expect("there is nothing to trim");
    }

    fn without_prefetch_and_advice_both_are_unsupported() without("cuMemPrefetchAsync", "cuMemAdvise") {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 100).expect("managed memory");
        let refused = stream.prefetch(managed, Some(0)).map_err(ringmem::Rejected::into_error);
        unsupported(refused, "cuMemPrefetchAsync");
        let layout = Layout::new::<[u64; 8]>();
        let request = Request { location: MemoryLocation::Unified, device: 0, layout, options: Options::empty() };
        let block = backend.allocate(&request, None).expect("managed memory");
        unsupported(backend.advise(&block, Advice::ReadMostly), "cuMemAdvise");
        // SAFETY: unused.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("a live block");
    }

    fn without_managed_allocation_managed_memory_is_unsupported() without("cuMemAllocManaged") {
        let backend = rig::open();
        assert!(!backend.capabilities(0).expect("device 0").unified);
        unsupported(UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 8), "managed memory");
    }

    fn without_peer_copies_only_those_are_unsupported() without("cuMemcpyPeerAsync") with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let backend = rig::open();
        let [one, other] = [0, 1].map(|device| GpuBuffer::<u8>::new(Device::new(&backend, device), 8).expect("room"));
        let place = |buffer: &GpuBuffer<u8>| Address::Device(buffer.device_address().expect("it has one"));
        let copy = Copy { to: place(&other), from: place(&one), bytes: 8 };
        // SAFETY: both live, exclusive.
        unsupported(unsafe { backend.copy_now(&copy) }, "cuMemcpyPeerAsync");
        let stream = Stream::new(&backend, 0).expect("a stream");
        // SAFETY: both live, exclusive; refused, so nothing is queued.
        unsupported(unsafe { backend.copy(&copy, stream.id()) }, "cuMemcpyPeerAsync");
        let mut bytes = one;
        bytes.fill(3).expect("a fill");
        assert_eq!(bytes.to_vec().expect("a copy"), [3; 8]);
    }

    fn without_peer_enabling_no_peer_is_listed() without("cuCtxEnablePeerAccess") with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let backend = rig::open();
        assert!(backend.capabilities(0).expect("device 0").peers.is_empty());
        unsupported(backend.set_peer(0, 1, true), "peer access");
    }

    fn without_the_peer_query_no_peer_is_listed() without("cuDeviceCanAccessPeer") with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let backend = rig::open();
        assert!(backend.capabilities(0).expect("device 0").peers.is_empty());
        unsupported(backend.set_peer(0, 1, true), "peer access");
    }

    fn without_peer_disabling_a_peer_stays_enabled() without("cuCtxDisablePeerAccess") with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let backend = rig::open();
        backend.set_peer(0, 1, true).expect("it can");
        unsupported(backend.set_peer(0, 1, false), "cuCtxDisablePeerAccess");
        assert_eq!((backend.counters().peer_enables, backend.counters().peer_disables), (1, 0));
    }

    fn without_host_functions_only_pageable_fills_are_unsupported() without("cuLaunchHostFunc") {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let source = Buffer::<u8, _>::from_slice(Host::new(&backend, 0), &[9; 1000]).expect("room");
        let gpu = Buffer::<u8, _>::new(Device::new(&backend, 0), 1000).expect("room");
        let (source, gpu) = stream.copy(source, gpu).expect("as many").wait().expect("done");
        let (gpu, back) = stream.copy(gpu, Buffer::<u8, _>::new(Host::new(&backend, 0), 1000).expect("room")).expect("as many").wait().expect("done");
        assert_eq!(back.as_slice().expect("nothing is queued"), [9; 1000]);
        unsupported(stream.fill(back, .., 1).map_err(ringmem::Rejected::into_error), "cuLaunchHostFunc");
        drop((source, gpu));
    }

    fn without_word_fills_and_stream_words_copies_replace_them() without("cuMemsetD32Async", "cuStreamWriteValue64_v2") {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut buffer = Buffer::<u64, _>::new(Device::new(&backend, 0), 100).expect("room");
        buffer.fill(0x0000_0007_0000_0007).expect("a fill");
        let place = Address::Device(buffer.device_address().expect("it has one"));
        let since = backend.record_position(stream.id()).expect("a ticket");
        // SAFETY: the buffer's first word, waited for.
        let ticket = unsafe { backend.publish(place, 5, since, stream.id()) }.expect("queued");
        backend.wait(ticket, None).expect("done");
        // SAFETY: its second word.
        unsafe { backend.fill_now(&Fill { to: Address::Device(buffer.device_address().and_then(|at| at.offset(8)).expect("a word")), pattern: 6, size: 4, count: 2 }) }.expect("done");
        assert_eq!(buffer.to_vec().expect("a copy")[..3], [5, 0x0000_0006_0000_0006, 0x0000_0007_0000_0007]);
    }

    fn without_cooperative_launch_and_preload_kernels_run() without("cuLaunchCooperativeKernel", "cuFuncLoad", "cuModuleLoadDataEx") {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let launch = ringmem::backend::Launch {
            module: backend.load(&IMAGE, &ABI).expect("loaded"),
            name: "increment",
            arguments: &[0, 0],
            groups: 2,
            warps: 1,
            stays: false,
            operands: &[],
            elements: None,
        };
        // SAFETY: no byte is touched.
        let ticket = unsafe { backend.launch(&launch, stream.id()) }.expect("as many as fit");
        backend.wait(ticket, None).expect("done");
        drop((Held::on(&stream), module));
        stream.synchronize().expect("done");
    }
}

alone! {
    fn a_driver_without_devices_is_an_error() with("RINGMEM_DOUBLE_DEVICES" = 0) {
        let driver = Driver::load().expect("there is a driver");
        assert_eq!(driver.gpus().expect("it can be asked"), []);
        let error = CudaBackend::open().expect_err("there is no device");
        assert!(matches!(error, Error::NoDevice { asked: 0, devices: 0 }), "{error}");
    }
}
