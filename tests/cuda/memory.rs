use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ringmem::backend::cuda::{Advice, CudaBackend, Settings};
use ringmem::backend::{Address, Backend, Block, Copy, DeviceAddress, MemoryLocation, Options, Request, Uses};
use ringmem::bridge::TransferStrategy;
use ringmem::config::Config;
use ringmem::error::LimitOf;
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Buffer, Device, GpuBuffer, Limited, Pinned, PinnedBuffer, Prefetching, Unified, UnifiedBuffer};
use ringmem::pool::{self, PinnedPool, Pool};
use ringmem::stream::Stream;
use ringmem::{Error, MemoryVisibility};

use crate::busy_stream::Held;
use crate::rig::{self, Alone, Double, alone};

fn request(location: MemoryLocation, bytes: usize, align: usize, options: Options) -> Request {
    Request { location, device: 0, layout: Layout::from_size_align(bytes, align).expect("a layout"), options }
}

fn free(backend: &Arc<CudaBackend>, block: &Block) -> Result<(), Error> {
    // SAFETY: unused.
    unsafe { backend.free(block, &Uses::NONE) }
}

struct Asks(Limited<Device>);

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.0.used();
    }
}

fn limited() -> (Arc<CudaBackend>, Stream, Limited<Device>) {
    let backend = rig::open();
    let (stream, limited) = (Stream::new(&backend, 0).expect("a stream"), Limited::new(Device::new(&backend, 0), 1000));
    (backend, stream, limited)
}

/// Fails if it waits for itself.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        body();
        sender.send(()).expect("somebody waits");
    });
    receiver.recv_timeout(rig::LIMIT).expect("nobody waits for himself");
}

struct Slow(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.send(());
        let _ = self.1.recv_timeout(rig::LIMIT);
    }
}

/// # Safety
///
/// The byte offset is within the buffer.
unsafe fn backend_place(words: &PinnedBuffer<u64>, offset: usize) -> Address {
    // SAFETY: the caller promises a byte offset within the buffer.
    Address::Host(unsafe { words.as_ptr().expect("host memory").cast::<u8>().add(offset) })
}

alone! {
    fn a_driver_pool_keeps_freed_memory_until_trimmed() {
        let (backend, double) = (rig::open(), Double::new());
        assert!(backend.capabilities(0).expect("device 0").stream_ordered);
        assert!(Buffer::<u8, _>::new(Device::new(&backend, 0), 1).expect("room").is_device_backed());
        assert!(!UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 1).expect("room").is_device_backed());
        let before = backend.memory_info(0).expect("device 0");
        double.reset();
        for _ in 0..10 {
            drop(Buffer::<u8, _>::new(Device::new(&backend, 0), 1 << 20).expect("room"));
        }
        assert_eq!(backend.memory_info(0).expect("device 0"), before, "what the pool keeps is free");
        assert_eq!((double.calls("cuMemAlloc_v2"), double.calls("cuMemAllocFromPoolAsync"), double.calls("cuMemFreeAsync")), (0, 10, 10));
        backend.trim(0).expect("nothing is used");
        assert_eq!((backend.memory_info(0).expect("device 0"), double.calls("cuMemPoolTrimTo")), (before, 1));
    }

    fn trim_is_busy_while_a_kernel_runs() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        double.reset();
        assert!(matches!(backend.trim(0), Err(Error::Busy { .. })));
        assert_eq!(double.calls("cuMemPoolTrimTo"), 0);
        drop(held);
        stream.synchronize().expect("the kernel has ended");
        backend.trim(0).expect("idle");
    }

    fn memory_freed_behind_a_kernel_is_out_of_memory_until_the_kernel_ends() with("RINGMEM_DOUBLE_MEMORY" = 64 << 20) {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let allocate = || Buffer::<u8, _>::new(Device::new(&backend, 0), 40 << 20);
        let mut first = allocate().expect("room");
        let held = Held::on(&stream);
        // Its free is queued behind the kernel.
        first.used_by(&stream).expect("its own stream");
        drop(first);
        assert!(matches!(allocate(), Err(Error::OutOfMemory { .. })));
        held.release();
        stream.synchronize().expect("the kernel has ended");
        allocate().expect("freed");
    }

    fn stream_ordered_memory_has_a_ready_ticket() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let block = backend.allocate(&request(MemoryLocation::Device, 100, 8, Options::ZEROED), Some(stream.id())).expect("room");
        let ready = block.ready.expect("a ticket");
        assert_eq!(ready.stream, stream.id());
        backend.wait(ready, None).expect("done");
        free(&backend, &block).expect("a live block");
        let settings = Settings { stream_ordered: false, ..Settings::default() };
        let plain = CudaBackend::with(settings).expect("a driver");
        assert!(!plain.capabilities(0).expect("device 0").stream_ordered);
        let stream = Stream::new(&plain, 0).expect("a stream");
        let block = plain.allocate(&request(MemoryLocation::Device, 100, 8, Options::ZEROED), Some(stream.id())).expect("room");
        assert_eq!(block.ready, None);
        free(&plain, &block).expect("a live block");
    }

    fn without_pools_memory_uses_plain_driver_calls() with("RINGMEM_DOUBLE_ATTRIBUTES" = "115=0") {
        let (backend, double) = (rig::open(), Double::new());
        assert!(!backend.capabilities(0).expect("device 0").stream_ordered);
        double.reset();
        drop(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"));
        assert_eq!((double.calls("cuMemAlloc_v2"), double.calls("cuMemFree_v2")), (1, 1));
    }

    fn every_alignment_up_to_the_largest_works_everywhere() {
        let backend = rig::open();
        let most = backend.capabilities(0).expect("device 0").largest_align as usize;
        for location in [MemoryLocation::Host, MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified] {
            for align in [512, 8192, most] {
                let block = backend.allocate(&request(location, 10, align, Options::empty()), None).expect("room");
                let address = block.host.map_or(0, |host| host.as_ptr().addr() as u64) | block.device_address.map_or(0, |address| address.get());
                assert!(address.is_multiple_of(align as u64), "{block:?}");
                free(&backend, &block).expect("a live block");
            }
        }
    }

    fn a_block_is_freed_once_with_its_own_layout() {
        let backend = rig::open();
        let block = backend.allocate(&request(MemoryLocation::Pinned, 100, 8, Options::WRITE_COMBINED), None).expect("room");
        let wrong = Block { layout: Layout::new::<u8>(), ready: None, ..block };
        assert!(matches!(free(&backend, &wrong), Err(Error::Foreign { layouts: Some(_), .. })));
        free(&backend, &block).expect("a live block");
        assert!(matches!(free(&backend, &block), Err(Error::Foreign { call: "free", layouts: None, .. })));
        let place = Address::Device(block.device_address.expect("it had one"));
        // SAFETY: rejected.
        let error = unsafe { backend.copy_now(&Copy { to: place, from: place, bytes: 1 }) }.expect_err("it is gone");
        assert!(matches!(error, Error::Foreign { call: "copy", layouts: None, .. }), "{error}");
    }

    fn write_combined_memory_works_at_its_device_address() {
        let backend = rig::open();
        let memory = Pinned::new(&backend, 0).with(Options::WRITE_COMBINED);
        let mut words = PinnedBuffer::<u64>::new(memory.clone(), 4).expect("room");
        let host = words.as_ptr().expect("host memory").as_ptr().addr() as u64;
        assert_ne!(words.device_address().expect("it is mapped").get(), host, "the double's addresses differ, as a driver's may");

        let mut device = GpuBuffer::<u64>::new(Device::new(&backend, 0), 4).expect("room");
        words.copy_from(&[1, 2, 3, 4]).expect("a copy");
        device.as_view_mut().copy_from_view(words.as_view()).expect("a copy to the device");
        assert_eq!(device.to_vec().expect("a copy"), [1, 2, 3, 4]);
        device.fill(7).expect("a fill");
        words.as_view_mut().copy_from_view(device.as_view()).expect("a copy from the device");
        assert_eq!(words.to_vec().expect("a copy"), [7; 4]);

        // SAFETY: within the buffer.
        let word = unsafe { backend_place(&words, 8) };
        let stream = Stream::new(&backend, 0).expect("a stream");
        let since = backend.record_position(stream.id()).expect("a mark");
        // SAFETY: the second word, unused.
        let ticket = unsafe { backend.publish(word, 9, since, stream.id()) }.expect("queued");
        backend.wait(ticket, None).expect("done");
        assert_eq!(words.to_vec().expect("a copy"), [7, 9, 7, 7]);

        let held = Held::with(&stream, memory);
        held.release();
        stream.synchronize().expect("the kernel has seen the word");
    }

    fn write_combined_memory_is_aligned_at_both_addresses_or_refused() {
        let backend = rig::open();
        let before = backend.counters().pinned_live.bytes;
        let mut refused = 0;
        for align in [256, 512, 4096, 1 << 16, 2 << 20].repeat(3) {
            match backend.allocate(&request(MemoryLocation::Pinned, 100, align, Options::WRITE_COMBINED), None) {
                Ok(block) => {
                    let (host, device) = (block.host.expect("it is pinned"), block.device_address.expect("it is mapped"));
                    let both = host.as_ptr().addr() as u64 | device.get();
                    assert!(both.is_multiple_of(align as u64), "{block:?}");
                    free(&backend, &block).expect("a live block");
                }
                Err(Error::Align { asked, most }) => {
                    assert!(asked == align as u64 && most < asked, "{asked}, {most}");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(backend.counters().pinned_live.bytes, before);
        }
        assert!(refused > 0, "the double's addresses agree on small alignments only");
    }

    fn a_failed_free_is_an_error_and_releases_the_block() {
        let settings = Settings { stream_ordered: false, ..Settings::default() };
        let (backend, double) = (CudaBackend::with(settings).expect("a driver"), Double::new());
        let block = backend.allocate(&request(MemoryLocation::Device, 100, 8, Options::empty()), None).expect("room");
        double.reset();
        double.fail("cuMemFree_v2", 1, 999);
        let error = free(&backend, &block).expect_err("the driver refuses");
        assert!(matches!(error, Error::Driver { call: "cuMemFree_v2", code: 999, name: "CUDA_ERROR_UNKNOWN", .. }), "{error}");
        assert_eq!(backend.counters().device_live.bytes, 0);
        let address = block.device_address.expect("it had one").get();
        // Frees a block of the double behind the backend. SAFETY: the signature; an unused address.
        let said = unsafe {
            let library = libloading::Library::new("libcuda.so.1").expect("the double");
            library.get::<unsafe extern "C" fn(u64) -> u32>(b"cuMemFree_v2\0").expect("a symbol")(address)
        };
        assert_eq!(said, 0);
    }

    fn a_fill_uploads_at_most_one_pattern() {
        let (backend, double) = (rig::open(), Double::new());
        let mut words = Buffer::<u64, _>::new(Device::new(&backend, 0), 100).expect("room");
        let mut halves = Buffer::<u16, _>::new(Device::new(&backend, 0), 100).expect("room");
        for (fill, copies) in [(u64::MAX, 0), (7 << 32 | 7, 0), (7, 1)] {
            double.reset();
            words.fill(fill).expect("a fill");
            halves.fill(fill as u16).expect("a fill");
            assert_eq!(double.calls("cuMemcpyHtoDAsync_v2"), copies, "{fill:#x}");
            assert_eq!((words.to_vec().expect("a copy"), halves.to_vec().expect("a copy")), (vec![fill; 100], vec![fill as u16; 100]));
        }
        let counters = backend.counters();
        assert_eq!((counters.uploads.count, counters.fills.count), (0, 6));
    }

    fn a_fill_of_16_bytes_is_a_memset_or_one_upload_at_any_alignment_of_its_elements() {
        let (backend, double) = (rig::open(), Double::new());
        let mut words = Buffer::<u32, _>::new(Device::new(&backend, 0), 4 * 10 + 1).expect("room");
        let calls = |double: &Double| ["cuMemsetD8Async", "cuMemsetD32Async", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2"].map(|name| double.calls(name));
        for (fill, expected) in [([0; 4], [1, 0, 0, 0]), ([7; 4], [0, 1, 0, 0]), ([7, 8, 7, 8], [0, 0, 1, 4]), ([1, 2, 3, 4], [0, 0, 1, 4])] {
            words.fill(99).expect("a fill");
            double.reset();
            words.slice_mut(1..).expect("within").cast::<[u32; 4]>().expect("whole elements").fill(fill).expect("a fill");
            assert_eq!(calls(&double), expected, "{fill:?}");
            assert_eq!(words.to_vec().expect("a copy"), [&[99][..], [fill; 10].as_flattened()].concat());
        }
        assert_eq!(backend.counters().fills.count, 8);
    }

    fn managed_memory_can_be_advised_prefetched_and_copied() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 5000).expect("managed memory");
        managed.as_mut_slice().expect("nothing is queued").fill(3);
        let block = backend.allocate(&request(MemoryLocation::Unified, 4096, 8, Options::empty()), None).expect("room");
        for advice in [Advice::ReadMostly, Advice::NotReadMostly, Advice::Prefer(Some(0)), Advice::Prefer(None), Advice::NoPreference] {
            backend.advise(&block, advice).expect("advice");
        }
        backend.advise(&block, Advice::MappedBy(Some(0))).expect("advice");
        backend.advise(&block, Advice::NotMappedBy(Some(0))).expect("advice");
        assert!(matches!(backend.advise(&block, Advice::Prefer(Some(9))), Err(Error::NoDevice { asked: 9, .. })));
        free(&backend, &block).expect("a live block");
        assert!(matches!(backend.advise(&block, Advice::ReadMostly), Err(Error::Foreign { layouts: None, .. })));
        let managed = stream.prefetch(managed, Some(0)).expect("a hint").wait().expect("done");
        let managed = stream.prefetch(managed, None).expect("a hint").wait().expect("done");
        assert_eq!(backend.counters().prefetches.bytes, 10_000);
        let gpu = Buffer::<u8, _>::new(Device::new(&backend, 0), 5000).expect("room");
        let (managed, gpu) = stream.copy(managed, gpu).expect("as many").wait().expect("done");
        assert_eq!(gpu.to_vec().expect("a copy"), [3; 5000]);
        drop(managed);
    }

    fn managed_memory_is_unsupported_without_the_attribute() with("RINGMEM_DOUBLE_ATTRIBUTES" = "83=0") {
        let backend = rig::open();
        assert!(!backend.capabilities(0).expect("device 0").unified);
        let error = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 8).expect_err("there is none");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    fn managed_memory_is_busy_under_a_kernel_without_concurrency() with("RINGMEM_DOUBLE_ATTRIBUTES" = "89=0") {
        let backend = rig::open();
        let mut managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 100).expect("managed memory");
        assert!(!backend.capabilities(0).expect("device 0").concurrent_managed_access);
        managed.as_mut_slice().expect("no kernel runs").fill(1);
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        assert!(matches!(managed.as_slice(), Err(Error::Busy { .. })));
        let error = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 100).expect_err("it would be zeroed");
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        drop(held);
        stream.synchronize().expect("done");
        assert_eq!(managed.as_slice().expect("no kernel runs"), [1; 100]);
    }

    /// A kernel of another library may run, during which the host must not access managed memory.
    fn managed_memory_without_concurrency_is_zeroed_by_the_device() with("RINGMEM_DOUBLE_ATTRIBUTES" = "89=0") {
        let (backend, double) = (rig::open(), Double::new());
        let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 100).expect("managed memory");
        assert_eq!(managed.as_slice().expect("no kernel runs"), [0; 100]);
        double.reset();
        double.fail("cuMemsetD8Async", 1, 999);
        let error = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 100).expect_err("planned");
        assert!(matches!(error, Error::Driver { call: "cuMemsetD8Async", code: 999, .. }), "{error}");
        assert_eq!((double.calls("cuMemAllocManaged"), double.calls("cuMemFree_v2")), (1, 1));
    }

    fn unsupported_prefetches_leave_managed_memory_unmoved() with("RINGMEM_DOUBLE_ATTRIBUTES" = "89=0") {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        for to in [Some(0), None] {
            let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 100).expect("managed memory");
            let rejected = stream.prefetch(managed, to).expect_err("the driver calls it no such device");
            assert!(matches!(rejected.error, Error::Unsupported { .. }), "{rejected:?}");
            let memory = Prefetching::new(Unified::new(&backend, 0), stream.clone(), to);
            let managed = Buffer::<u8, _>::new(memory, 100).expect("not moved");
            assert_eq!(managed.as_slice().expect("nothing was queued"), [0; 100]);
        }
        assert_eq!(backend.counters().prefetches.count, 0);
    }

    fn capabilities_follow_the_default_attributes() {
        let backend = rig::open();
        let able = backend.capabilities(0).expect("device 0");
        assert!(able.unified && able.concurrent_managed_access && able.system_scope && able.stream_ordered);
        assert!(!able.host_native_atomics && !able.shared_memory);
        assert!(backend.system_atomics(0).expect("device 0").is_none(), "over PCIe nothing shows it");
    }

    fn capabilities_follow_changed_attributes() with("RINGMEM_DOUBLE_ATTRIBUTES" = "75=6,89=0,86=1,18=1") {
        let backend = rig::open();
        let able = backend.capabilities(0).expect("device 0");
        assert!(!able.system_scope && !able.concurrent_managed_access && able.host_native_atomics && able.shared_memory);
        assert!(backend.system_atomics(0).expect("device 0").is_some(), "it says so");
        let visibility = MemoryVisibility::detect(&backend, 0).expect("device 0").visibility;
        assert_eq!((visibility, TransferStrategy::for_device(visibility, &able)), (MemoryVisibility::DeviceScope, TransferStrategy::Async));
    }

    fn the_pinned_budget_counts_memory_until_the_driver_frees_it() {
        let (settings, double) = (Settings { pinned_budget: 10_000, ..Settings::default() }, Double::new());
        let backend = CudaBackend::with(settings).expect("a driver");
        let pinned = |bytes| backend.allocate(&request(MemoryLocation::Pinned, bytes, 8, Options::empty()), None);
        let refused = |bytes| match pinned(bytes) {
            Err(Error::Limit { of: LimitOf::Pinned, requested: asked, used, limit: 10_000 }) if asked == bytes as u64 => used,
            other => panic!("{bytes} bytes: {other:?}"),
        };
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let block = pinned(6000).expect("within");
        assert_eq!(refused(3985), 6016);
        free(&backend, &block).expect("put off");
        assert_eq!((refused(4000), backend.waiting()), (6016, 1));
        drop(held);
        stream.synchronize().expect("it leaves");
        rig::eventually("all is given back", || backend.waiting() == 0);
        let block = pinned(10_000).expect("all of it");
        let mut bytes = [0_u8; 100];
        // SAFETY: rejected.
        let registered = unsafe { backend.register(0, NonNull::from(&mut bytes).cast(), 100) }.expect_err("it would be locked too");
        assert!(matches!(registered, Error::Limit { of: LimitOf::Pinned, requested: 100, used: 10_000, .. }), "{registered}");
        free(&backend, &block).expect("a live block");
        // SAFETY: the bytes outlive it.
        let registered = unsafe { backend.register(0, NonNull::from(&mut bytes).cast(), 100) }.expect("within");
        assert_eq!(refused(9901), 100);
        drop(registered);
        double.reset();
        double.fail("cuMemHostAlloc", 1, 2);
        assert!(matches!(pinned(10_000), Err(Error::Map { .. })));
        double.fail("cuMemHostRegister_v2", 1, 2);
        // SAFETY: rejected.
        assert!(unsafe { backend.register(0, NonNull::from(&mut bytes).cast(), 100) }.is_err());
        free(&backend, &pinned(10_000).expect("all of it")).expect("a live block");
    }

    fn registered_memory_counts_as_pinned_until_dropped() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut bytes = vec![7_u8; 10_000];
        let place = NonNull::from(&mut bytes[..]).cast::<u8>();
        // SAFETY: the vector outlives it; queued work is waited for.
        let registered = unsafe { backend.register(0, place, bytes.len()) }.expect("it can be locked");
        // SAFETY: rejected.
        let again = unsafe { backend.register(0, place, 1) }.expect_err("it is known");
        assert!(matches!(again, Error::Unsupported { .. }), "{again}");
        let gpu = Buffer::<u8, _>::new(Device::new(&backend, 0), 10_000).expect("room");
        let to = Address::Device(gpu.device_address().expect("it has one"));
        let copy = Copy { to, from: Address::Host(place), bytes: 10_000 };
        // SAFETY: both live, waited for.
        let ticket = unsafe { backend.copy(&copy, stream.id()) }.expect("queued");
        backend.wait(ticket, None).expect("done");
        let counters = backend.counters();
        assert_eq!((counters.uploads.count, counters.staged.count, counters.pinned_live.bytes), (1, 0, 10_000));
        assert_eq!(gpu.to_vec().expect("a copy"), [7; 10_000]);
        drop(registered);
        assert_eq!(backend.counters().pinned_live.bytes, 0);
    }

    fn out_of_memory_has_figures() with("RINGMEM_DOUBLE_MEMORY" = 1 << 20) {
        let backend = rig::open();
        let error = Buffer::<u8, _>::new(Device::new(&backend, 0), 2 << 20).expect_err("not so much");
        assert!(matches!(error, Error::OutOfMemory { requested, free, largest, limit: None, .. } if requested == 2 << 20 && free <= 1 << 20 && largest == free), "{error}");
        let pinned = Buffer::<u8, _>::new(Pinned::new(&backend, 0), 100).expect("room");
        assert!(pinned.is_pinned());
    }

    fn frees_deferred_by_a_kernel_count_against_every_limit() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let memory = || Pinned::new(&backend, 0);
        let limited = Limited::new(memory(), 1 << 20);
        let pinned = PinnedPool::new(memory(), 1 << 20).expect("a pool");
        let [direct, pool] = [false, true].map(|enabled| {
            let builder = Pool::builder(memory()).enabled(enabled).limit(1 << 20).slab(1 << 20);
            builder.patience(Duration::ZERO).build().expect("a pool")
        });
        let held = Held::on(&stream);
        let before = backend.counters().pinned_live.bytes;
        for _ in 0..2 {
            let _ = Buffer::<u8, _>::new(limited.clone(), 1 << 20);
            let _ = Buffer::<u8, _>::new(direct.clone(), 1 << 20);
            drop(Buffer::<u8, _>::new(pinned.clone(), 1 << 20).expect("it stays to be used again"));
            drop(Buffer::<u8, _>::new(pool.clone(), 1 << 20).expect("it stays to be used again"));
            assert_eq!((pinned.trim_older_than(Duration::ZERO), pool.trim_to(0)), (0, 0));
            assert_eq!(backend.counters().pinned_live.bytes - before, 4 << 20, "each has what it may have");
            assert_eq!((limited.used(), pinned.locked()), (1 << 20, 1 << 20));
            assert_eq!([&direct, &pool].map(|pool| pool.statistics().reserved_bytes), [1 << 20; 2]);
        }
        let refused = Buffer::<u8, _>::new(pinned.clone(), 1000);
        assert!(matches!(refused, Err(Error::Limit { of: LimitOf::Pinned, .. })), "{refused:?}");
        assert_eq!(backend.counters().pinned_live.bytes - before, 4 << 20);
        drop(held);
        stream.synchronize().expect("done");
        rig::eventually("the limit has its bytes back", || limited.used() == 0);
        drop(Buffer::<u8, _>::new(limited, 1 << 20).expect("the limit"));
        drop(Buffer::<u8, _>::new(direct, 1000).expect("the limit"));
        drop(Buffer::<u8, _>::new(pinned.clone(), 1000).expect("the budget"));
        assert_eq!((pinned.trim_older_than(Duration::ZERO), pool.trim_to(0)), (1 << 20, 1 << 20));
    }

    fn a_manager_s_deferred_free_counts_until_it_completes() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let manager = MemoryManager::with_limit(Pinned::new(&backend, 0), 3000);
        let [first, second] = ["first", "second"].map(|name| manager.create::<u8>(name, 1000, BufferConfig::new().with_bytes(0, 1000)).expect("room"));
        let held = Held::on(&stream);
        let before = backend.counters().pinned_live.bytes;
        manager.free(first).expect("nobody has it");
        let lease = manager.lease(second).expect("it is there");
        assert_eq!(manager.free(second).expect("it is there"), 1);
        drop(lease);
        assert_eq!((manager.budget().used(), backend.counters().pinned_live.bytes), (2000, before));
        drop(held);
        stream.synchronize().expect("done");
        rig::eventually("the budget has its bytes back", || manager.budget().used() == 0);
    }

    fn a_pool_waits_for_a_pending_free_of_a_limit() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let limited = Limited::new(Pinned::new(&backend, 0), 1000);
        let pool = Pool::builder(limited.clone()).enabled(false).patience(rig::LIMIT).build().expect("a pool");
        let held = Held::on(&stream);
        let mut whole = Buffer::<u8, _>::new(pool.clone(), 1000).expect("the limit");
        whole.used_by(&stream).expect("its backend's");
        let (begun, has_begun) = mpsc::channel();
        let (go, told) = mpsc::channel();
        backend.keep(Box::new(Slow(begun, told)), &Uses::of(backend.record_position(stream.id()).expect("a ticket")), Some(&Block::empty(MemoryLocation::Device, 1)));
        // This thread may drop the value while it frees the kernel's words.
        let teller = thread::spawn(move || {
            has_begun.recv_timeout(rig::LIMIT).expect("its use is over");
            thread::sleep(Duration::from_millis(20));
            go.send(()).expect("it waits");
        });
        drop(whole);
        drop(held);
        drop(Buffer::<u8, _>::new(pool, 1000).expect("the limit has it back"));
        teller.join().expect("no panic");
        assert_eq!(limited.used(), 0);
    }

    fn a_kept_value_that_reads_a_limit_does_not_deadlock() {
        in_time(|| {
            let (backend, stream, limited) = limited();
            let held = Held::on(&stream);
            let mut whole = Buffer::<u8, _>::new(limited.clone(), 1000).expect("the limit");
            whole.used_by(&stream).expect("its backend's");
            backend.keep(Box::new(Asks(limited.clone())), &Uses::of(backend.record_position(stream.id()).expect("a ticket")), None);
            drop(whole);
            drop(held);
            stream.synchronize().expect("done");
            rig::eventually("the limit has its bytes back", || limited.used() == 0);
        });
    }

    fn an_owner_of_adopted_memory_may_read_a_limit_as_it_is_dropped() {
        in_time(|| {
            let (backend, stream, limited) = limited();
            let held = Held::on(&stream);
            let uses = Uses::of(backend.record_position(stream.id()).expect("a ticket"));
            // SAFETY: nothing accesses the address; it is freed once, with its uses.
            unsafe {
                let owner = Box::new(Asks(limited));
                let adopted = backend.adopt(0, DeviceAddress::new(1 << 46), Layout::new::<u64>(), owner).expect("no listed memory");
                backend.free(&adopted, &uses).expect("deferred");
            }
            drop(held);
            stream.synchronize().expect("done");
            rig::eventually("it is freed", || backend.waiting() == 0);
        });
    }

    fn a_pool_waits_for_frees_deferred_by_a_kernel() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let builder = Pool::builder(Pinned::new(&backend, 0)).limit(1 << 20).slab(1 << 19).patience(rig::LIMIT);
        let pool = builder.build().expect("a pool");
        let halves = [(); 2].map(|()| Buffer::<u8, _>::new(pool.clone(), 1 << 19).expect("half of the limit"));
        let held = Held::on(&stream);
        drop(halves);
        let (sender, receiver) = mpsc::channel();
        let theirs = pool.clone();
        let asker = thread::spawn(move || sender.send(Buffer::<u8, _>::new(theirs, 1 << 20).map(drop)));
        let early = receiver.recv_timeout(Duration::from_millis(50));
        drop(held);
        let got = early.unwrap_or_else(|_| receiver.recv_timeout(rig::LIMIT).expect("in time"));
        got.expect("both halves have gone");
        asker.join().expect("no panic").expect("it was heard");
    }
}

/// The pools of the process are never dropped, so the double counts their memory as leaked.
#[test]
fn global_pools_are_of_the_first_gpu_by_default() {
    let path = concat!(module_path!(), "::global_pools_are_of_the_first_gpu_by_default");
    if !Alone::new(path).is_here() {
        Alone::new(path).with("RINGMEM_DOUBLE_FAIL", "cuInit:1:999").run();
        return;
    }
    let error = pool::global().expect_err("the driver cannot be used");
    assert!(matches!(error, Error::Driver { call: "cuInit", code: 999, .. }), "{error}");
    let pools = pool::global().expect("the next call tries again");
    assert_eq!((pools.backend().is_simulated(), pools.ordinal(), pools.config()), (false, 0, &Config::cuda()));
    let mut buffer = pools.buffer::<u32>(1000).expect("room");
    buffer.fill(7).expect("a fill");
    assert_eq!((buffer.is_device_backed(), buffer.to_vec().expect("a copy")), (true, vec![7; 1000]));
}

#[test]
fn global_pools_are_simulated_without_a_gpu() {
    let path = concat!(module_path!(), "::global_pools_are_simulated_without_a_gpu");
    if !Alone::new(path).is_here() {
        for plan in ["cuInit:1:34", "cuInit:1:100"] {
            Alone::new(path).with("RINGMEM_DOUBLE_FAIL", plan).run();
        }
        return;
    }
    let pools = pool::global().expect("the host backend");
    assert_eq!((pools.backend().is_simulated(), pools.config()), (true, &Config::host()));
}
