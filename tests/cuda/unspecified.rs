//! Properties that drivers neither promise nor report.

use std::alloc::Layout;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc;
use std::thread;

use ringmem::Error;
use ringmem::backend::cuda::{CudaBackend, Settings};
use ringmem::backend::{Address, Backend, Block, Copy, Fill, MemoryLocation, Options, Request, Ticket, Uses};
use ringmem::memory::{Buffer, Device, Pinned, PinnedBuffer};
use ringmem::stream::Stream;

use crate::busy_stream::Held;
use crate::rig::{self, Double, Step, alone};

fn request(location: MemoryLocation, bytes: usize, align: usize, options: Options) -> Request {
    Request { location, device: 0, layout: Layout::from_size_align(bytes, align).expect("a layout"), options }
}

fn free(backend: &CudaBackend, block: &Block) {
    // SAFETY: unused.
    unsafe { backend.free(block, &Uses::NONE) }.expect("a live block");
}

fn place(block: &Block) -> Address {
    Address::Device(block.device_address.expect("a device sees it"))
}

alone! {
    fn aligned_blocks_stay_within_their_driver_allocation() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        for location in [MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified] {
            for align in [8, 256, 512, 1024, 4096, 8192] {
                let block = backend.allocate(&request(location, 4096, align, Options::empty()), None).expect("room");
                let other = backend.allocate(&request(MemoryLocation::Device, 4096, 8, Options::empty()), None).expect("room");
                for copy in [Copy { to: place(&other), from: place(&block), bytes: 4096 }, Copy { to: place(&block), from: place(&other), bytes: 4096 }] {
                    // SAFETY: both live, waited for.
                    let ticket = unsafe { backend.copy(&copy, stream.id()) }.unwrap_or_else(|error| panic!("{location:?}, {align}: {error}"));
                    backend.wait(ticket, None).expect("done");
                }
                free(&backend, &block);
                free(&backend, &other);
            }
        }
    }

    fn a_word_of_managed_memory_can_be_published() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let block = backend.allocate(&request(MemoryLocation::Unified, 16, 8, Options::empty()), None).expect("room");
        let host = block.host.expect("the host sees it").cast::<u64>();
        let since = backend.record_position(stream.id()).expect("a ticket");
        // SAFETY: a live word, otherwise unused.
        let read = unsafe {
            backend.publish_now(place(&block), 4).expect("stored");
            let first = host.read();
            let ticket = backend.publish(place(&block), 5, since, stream.id()).expect("queued");
            backend.wait(ticket, None).expect("done");
            [first, host.read()]
        };
        assert_eq!(read, [4, 5]);
        free(&backend, &block);
    }

    fn queueing_a_pinned_to_pinned_copy_waits_for_no_kernel() with("RINGMEM_DOUBLE_DEADLINE_MS" = 3000) {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let from = Buffer::<u8, _>::from_slice(Pinned::new(&backend, 0), &[6; 100]).expect("room");
        let to = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100).expect("room");
        let held = Held::on(&stream);
        let copy = stream.copy(from, to).expect("as many");
        assert!(!copy.is_done(), "the kernel is first");
        drop(held);
        let (from, to) = copy.wait().expect("done");
        assert_eq!(to.as_slice().expect("nothing is queued"), [6; 100]);
        drop(from);
    }

    fn a_free_concurrent_with_a_launch_waits_for_no_kernel() with("RINGMEM_DOUBLE_DEADLINE_MS" = 3000) {
        let backend = CudaBackend::with(Settings { stream_ordered: false, ..Settings::default() }).expect("a driver");
        let stream = Stream::new(&backend, 0).expect("a stream");
        drop(Held::on(&stream));
        stream.synchronize().expect("done");
        let (freed, done) = (mpsc::sync_channel(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let (backend, done, sender) = (&backend, &done, freed.0);
            scope.spawn(move || {
                while !done.load(Acquire) {
                    drop(PinnedBuffer::<u8>::new(Pinned::new(backend, 0), 8).expect("room"));
                    let _ = sender.try_send(());
                }
            });
            for _ in 0..ROUNDS {
                let held = Held::on(&stream);
                for _ in 0..2 {
                    freed.1.recv_timeout(rig::LIMIT).expect("a free that does not wait for the kernel");
                }
                drop(held);
                stream.synchronize().expect("done");
            }
            done.store(true, Release);
        });
        backend.memory_info(0).expect("device 0");
        rig::eventually("all is freed, perhaps by another thread", || backend.waiting() == 0);
    }

    fn a_driver_without_pools_and_stream_words_works() with("RINGMEM_DOUBLE_ATTRIBUTES" = "115=-,122=-") {
        published_and_read();
    }

    fn publishing_works_with_only_the_old_stream_word_attribute() with("RINGMEM_DOUBLE_ATTRIBUTES" = "122=0,93=1") {
        published_and_read();
    }

    fn eight_byte_fills_work_with_late_pageable_reads()
    with("RINGMEM_DOUBLE_ATTRIBUTES" = "88=1", "RINGMEM_DOUBLE_DELAY_US" = 2000) {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut tickets: Vec<(Block, Ticket)> = Vec::new();
        for round in 1..5_u64 {
            let block = backend.allocate(&request(MemoryLocation::Device, 80, 8, Options::empty()), None).expect("room");
            // SAFETY: live bytes, waited for below.
            let ticket = unsafe { backend.fill(&Fill::of(place(&block), round << 33 | round, 10), stream.id()) }.expect("queued");
            tickets.push((block, ticket));
        }
        for (round, (block, ticket)) in (1..5_u64).zip(tickets) {
            backend.wait(ticket, None).expect("done");
            assert_eq!(words(&backend, &block), [round << 33 | round; 10]);
            // SAFETY: live bytes, otherwise unused.
            unsafe { backend.fill_now(&Fill::of(place(&block), round << 34 | round, 10)) }.expect("done");
            assert_eq!(words(&backend, &block), [round << 34 | round; 10]);
            free(&backend, &block);
        }
    }

    fn memory_with_failed_zeroing_is_freed_in_stream_order() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        double.reset();
        double.fail("cuMemsetD8Async", 1, 999);
        let error = backend.allocate(&request(MemoryLocation::Device, 100, 8, Options::ZEROED), Some(stream.id())).expect_err("it is not zeroed");
        assert!(matches!(error, Error::Driver { call: "cuMemsetD8Async", code: 999, .. }), "{error}");
        assert_eq!(backend.counters().device_live.bytes, 0);
        assert_eq!(["cuMemFreeAsync", "cuMemFree_v2"].map(|symbol| double.calls(symbol)), [1, 0], "behind the kernel");
        drop(held);
    }

    fn closing_the_backend_waits_for_work_of_closed_streams() with("RINGMEM_DOUBLE_DELAY_US" = 30_000) {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        drop(PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100).expect("room"));
        let pending = stream.copy(
            Buffer::<u8, _>::from_slice(Pinned::new(&backend, 0), &[1; 100]).expect("room"),
            Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"),
        );
        double.hold(Step::Copy, 0);
        drop((pending.expect("as many"), held, stream, backend));
        assert_eq!(double.executed(Step::Copy), 1);
    }

    fn drops_in_a_fork_wait_for_no_lock_of_the_parent() with("RINGMEM_DOUBLE_DELAY_US" = 100_000) {
        let (backend, double) = (rig::open(), Double::new());
        let [one, other] = [(); 2].map(|()| PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 8).expect("room"));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let before = double.calls("cuMemFreeHost");
        let filled = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 8).expect("room"), .., 1).expect("a fill");
        let freeing = thread::spawn(move || drop(one));
        while double.calls("cuMemFreeHost") == before {
            thread::yield_now();
        }
        // SAFETY: the child only calls this library, and exits or is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes an integer.
            unsafe { libc::alarm(5) };
            drop((other, filled, stream, backend));
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: writes one integer.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
        freeing.join().expect("it is freed");
        drop(filled.wait().expect("done"));
    }

    fn host_memory_calls_fail_in_a_fork() {
        let backend = rig::open();
        // SAFETY: the child only calls this library, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_told = tried_in_a_fork(&backend);
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(i32::from(!is_told)) };
        }
        let mut status = 0;
        // SAFETY: writes one integer.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
    }

    fn managed_memory_is_copied_by_the_driver_under_a_kernel() with("RINGMEM_DOUBLE_ATTRIBUTES" = "89=0") {
        let (backend, double) = (rig::open(), Double::new());
        let block = backend.allocate(&request(MemoryLocation::Unified, 80, 8, Options::empty()), None).expect("room");
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let calls = || double.calls("cuMemcpyHtoDAsync_v2") + double.calls("cuMemcpyDtoHAsync_v2") + double.calls("cuMemsetD8Async");
        let (before, mut bytes) = (calls(), [3_u64; 10]);
        let own = Address::Host(std::ptr::NonNull::from(&mut bytes).cast());
        // SAFETY: live bytes, otherwise unused.
        unsafe {
            backend.copy_now(&Copy { to: place(&block), from: own, bytes: 80 }).expect("done");
            backend.fill_now(&Fill { to: place(&block), pattern: 1, size: 1, count: 8 }).expect("done");
            backend.publish_now(Address::Host(block.host.expect("it sees it")), 9).expect("done");
            backend.copy_now(&Copy { to: own, from: place(&block), bytes: 80 }).expect("done");
        }
        assert_eq!((bytes, calls() - before), ([9, 3, 3, 3, 3, 3, 3, 3, 3, 3], 4));
        drop(held);
        stream.synchronize().expect("done");
        free(&backend, &block);
    }
}

fn tried_in_a_fork(backend: &CudaBackend) -> bool {
    let mut words = [1_u64, 2];
    let [to, from] = words.each_mut().map(|word| Address::Host(std::ptr::NonNull::from(word).cast()));
    let _ = backend.counters();
    let refused = [
        backend.allocate(&request(MemoryLocation::Host, 8, 8, Options::empty()), None).err(),
        // SAFETY: a local word at each end.
        unsafe { backend.copy_now(&Copy { to, from, bytes: 8 }) }.err(),
        // SAFETY: a local word.
        unsafe { backend.fill_now(&Fill { to, pattern: 0, size: 8, count: 1 }) }.err(),
        // SAFETY: a local word.
        unsafe { backend.publish_now(to, 3) }.err(),
        backend.open_stream(0).err(),
    ];
    refused.iter().all(|error| matches!(error, Some(Error::Driver { code: 3, .. })))
}

const ROUNDS: u32 = 300;

fn published_and_read() {
    let backend = rig::open();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let block = backend.allocate(&request(MemoryLocation::Device, 80, 8, Options::ZEROED), None).expect("room");
    let since = backend.record_position(stream.id()).expect("a ticket");
    // SAFETY: a live word, waited for.
    let ticket = unsafe { backend.publish(place(&block), 5, since, stream.id()) }.expect("queued");
    backend.wait(ticket, None).expect("done");
    assert_eq!(words(&backend, &block)[..2], [5, 0]);
    // SAFETY: a live word.
    unsafe { backend.publish_now(place(&block), 6) }.expect("done");
    assert_eq!(words(&backend, &block)[..2], [6, 0]);
    free(&backend, &block);
}

fn words(backend: &CudaBackend, block: &Block) -> [u64; 10] {
    let mut words = [0; 10];
    let to = Address::Host(std::ptr::NonNull::from(&mut words).cast());
    // SAFETY: live bytes on both sides.
    unsafe { backend.copy_now(&Copy { to, from: place(block), bytes: 80 }) }.expect("a copy");
    words
}
