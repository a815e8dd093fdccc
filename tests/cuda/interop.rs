use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::channel;
use std::thread::{scope, spawn, yield_now};

use ringmem::Error;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::cuda::cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use ringmem::backend::{Address, Backend, Copy, DeviceAddress, StreamId, Uses};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::Stream;

use crate::busy_stream::Held;
use crate::rig::{self, Double, LIMIT, Step, alone};

/// A stream of cudarc's and the legacy default stream, adopted.
fn both_adopted(backend: &CudaBackend) -> [(StreamId, Arc<CudaStream>); 2] {
    let context = CudaContext::new(0).expect("cudarc's");
    let stream = context.new_stream().expect("a stream");
    let adopted = backend.adopt_stream(&stream).expect("of the primary context");
    let default = backend.adopt_default_stream(0).expect("device 0");
    [(adopted, stream), (default, context.default_stream())]
}

alone! {
    fn both_libraries_share_the_primary_context() {
        let backend = rig::open();
        let theirs = CudaContext::new(0).expect("cudarc's");
        assert_eq!(backend.ordinal_of(&theirs).expect("the primary one"), 0);
        let ours = backend.context(0).expect("device 0");
        assert_eq!((ours.cu_ctx(), backend.raw_context(0).expect("device 0")), (theirs.cu_ctx(), theirs.cu_ctx()));
        assert!(matches!(backend.context(7), Err(Error::NoDevice { asked: 7, .. })));
    }

    fn context_is_busy_while_a_kernel_runs() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        assert!(matches!(backend.context(0), Err(Error::Busy { .. })), "its first stream would wait for the kernel");
        drop(held);
        stream.synchronize().expect("done");
        let context = backend.context(0).expect("device 0");
        let held = Held::on(&stream);
        let theirs = context.new_stream().expect("no wait for the kernel");
        assert!(Arc::ptr_eq(&context, &backend.context(0).expect("opened before")));
        drop((theirs, held));
    }

    fn an_adopted_cudarc_stream_works_and_outlives_its_adoption() {
        let backend = rig::open();
        let context = CudaContext::new(0).expect("cudarc's");
        let stream = context.new_stream().expect("a stream");
        let id = backend.adopt_stream(&stream).expect("of the primary context");
        assert_eq!(backend.raw_stream(id).expect("it is open"), stream.cu_stream());
        let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).expect("room");
        let fill = ringmem::backend::Fill::of(Address::Device(buffer.device_address().expect("it has one")), 6_u8, 100);
        // SAFETY: the buffer's bytes, waited for.
        let ticket = unsafe { backend.fill(&fill, id) }.expect("queued");
        backend.wait(ticket, None).expect("done");
        assert_eq!(buffer.to_vec().expect("a copy"), [6; 100]);
        backend.close_stream(id);
        assert!(matches!(backend.raw_stream(id), Err(Error::Closed { what: "stream" })));
        stream.synchronize().expect("it is still cudarc's");
        for refused in [context.default_stream(), context.per_thread_stream()] {
            assert!(matches!(backend.adopt_stream(&refused), Err(Error::Unsupported { .. })), "{:?}", refused.cu_stream());
        }
    }

    fn an_adopted_raw_stream_keeps_its_owner_until_the_close() {
        let backend = rig::open();
        let stream = CudaContext::new(0).expect("cudarc's").new_stream().expect("a stream");
        let (raw, keeps) = (stream.cu_stream(), Arc::new(stream));
        // SAFETY: `keeps` owns the stream.
        let id = unsafe { backend.adopt_raw_stream(0, raw, Box::new(Arc::clone(&keeps))) }.expect("of the primary context");
        let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).expect("room");
        let fill = ringmem::backend::Fill::of(Address::Device(buffer.device_address().expect("it has one")), 6_u8, 100);
        // SAFETY: `keeps` owns the stream; the buffer is live and unused until the wait.
        let ticket = unsafe { backend.fill(&fill, id) }.expect("queued");
        backend.wait(ticket, None).expect("done");
        assert_eq!((buffer.to_vec().expect("a copy"), Arc::strong_count(&keeps)), (vec![6; 100], 2));
        backend.close_stream(id);
        backend.memory_info(0).expect("device 0");
        assert_eq!(Arc::strong_count(&keeps), 1, "the backend has let go of it");
        for (refused, device) in [(0, 0), (1, 0), (2, 0), (raw.addr(), 7)] {
            // SAFETY: rejected before the handle is used.
            let error = unsafe { backend.adopt_raw_stream(device, std::ptr::without_provenance_mut(refused), Box::new(())) };
            assert!(matches!(error, Err(Error::Unsupported { .. } | Error::NoDevice { .. })), "{refused} on {device}");
        }
    }

    fn a_position_in_an_adopted_stream_covers_the_operations_of_its_owner() {
        let (backend, double) = (rig::open(), Double::new());
        for (id, stream) in both_adopted(&backend) {
            let from = stream.clone_htod(&[7_u8; 64]).expect("memory");
            let mut to = stream.alloc_zeros::<u8>(64).expect("memory");
            stream.synchronize().expect("done");
            assert!(backend.wait(backend.record_position(id).expect("open"), Some(LIMIT)).expect("no failure"));
            double.hold(Step::Copy, 1);
            stream.memcpy_dtod(&from, &mut to).expect("queued");
            let position = backend.record_position(id).expect("open");
            assert!(!backend.is_complete(position), "the copy is not executed");
            let other = Stream::new(&backend, 0).expect("a stream");
            backend.stream_wait(position, other.id()).expect("queued");
            let after = backend.record_position(other.id()).expect("open");
            assert!(!backend.is_complete(after), "the copy is not executed");
            double.hold(Step::Copy, 0);
            assert!(backend.wait(position, Some(LIMIT)).expect("no failure") && backend.wait(after, Some(LIMIT)).expect("no failure"));
            assert_eq!(stream.clone_dtoh(&to).expect("a copy"), [7; 64]);
            backend.close_stream(id);
        }
    }

    fn synchronizing_an_adopted_stream_waits_for_the_operations_of_its_owner() {
        let (backend, double) = (rig::open(), Double::new());
        for (id, stream) in both_adopted(&backend) {
            let from = stream.clone_htod(&[7_u8; 64]).expect("memory");
            let mut to = stream.alloc_zeros::<u8>(64).expect("memory");
            backend.synchronize(id).expect("done");
            // Of the owner, after the backend's last position.
            double.hold(Step::Copy, 1);
            stream.memcpy_dtod(&from, &mut to).expect("queued");
            let (asked, has_returned) = (double.calls("cuStreamQuery"), AtomicBool::new(false));
            let has_waited = scope(|scope| {
                // Releases the copy at the first query of the stream.
                let executed = scope.spawn(|| {
                    while double.calls("cuStreamQuery") == asked && !has_returned.load(Acquire) {
                        yield_now();
                    }
                    let has_waited = !has_returned.load(Acquire);
                    double.hold(Step::Copy, 0);
                    has_waited
                });
                let synchronized = backend.synchronize(id);
                has_returned.store(true, Release);
                synchronized.expect("no failure");
                executed.join().expect("no panic")
            });
            assert!(has_waited, "it returned without a question to the driver");
            assert_eq!(stream.clone_dtoh(&to).expect("a copy"), [7; 64]);
            backend.close_stream(id);
        }
    }

    fn a_value_kept_by_an_adopted_stream_can_use_the_backend_when_it_is_dropped() {
        // In a thread, which owns the backend: a blocked drop must not block the test.
        let (sender, receiver) = channel();
        let thread = spawn(move || {
            let backend = rig::open();
            let stream = CudaContext::new(0).expect("cudarc's").new_stream().expect("a stream");
            let raw = stream.cu_stream();
            let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100).expect("room");
            let before = backend.counters().pinned_frees.count;
            // SAFETY: the value owns the stream.
            let id = unsafe { backend.adopt_raw_stream(0, raw, Box::new((stream, pinned))) }.expect("of the primary context");
            // The stream is closed before its work is complete: a later call of the backend drops the value.
            let other = Stream::new(&backend, 0).expect("a stream");
            let held = Held::on(&other);
            backend.stream_wait(backend.record_position(other.id()).expect("it is open"), id).expect("queued");
            backend.close_stream(id);
            drop(held);
            other.synchronize().expect("done");
            // The memory of the value, and that of the kernel.
            while backend.counters().pinned_frees.count < before + 2 {
                yield_now();
            }
            sender.send(()).expect("the test waits");
        });
        assert!(receiver.recv_timeout(LIMIT / 6).is_ok(), "the drop is blocked, or has failed");
        thread.join().expect("no panic");
    }

    fn adopting_a_stream_of_another_device_is_an_error() with("RINGMEM_DOUBLE_DEVICES" = "2") {
        let backend = rig::open();
        let stream = CudaContext::new(1).expect("cudarc's").new_stream().expect("a stream");
        // SAFETY: a live stream.
        let error = unsafe { backend.adopt_raw_stream(0, stream.cu_stream(), Box::new(Arc::clone(&stream))) }.expect_err("of device 1");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    fn adopted_cudarc_memory_can_be_copied_until_its_free() {
        let backend = rig::open();
        let stream = CudaContext::new(0).expect("cudarc's").new_stream().expect("a stream");
        let slice = stream.clone_htod(&[8_u8; 64]).expect("memory");
        stream.synchronize().expect("done");
        let address = DeviceAddress::new(slice.device_ptr(&stream).0);
        let keeps = Box::new(slice);
        // SAFETY: the slice's bytes, otherwise unused.
        let block = unsafe { backend.adopt(0, address, Layout::new::<[u8; 64]>(), keeps) }.expect("it is new");
        let mut bytes = [0_u8; 64];
        let copy = Copy { to: Address::Host(std::ptr::NonNull::from(&mut bytes).cast()), from: Address::Device(address), bytes: 64 };
        // SAFETY: both live.
        unsafe { backend.copy_now(&copy) }.expect("a copy");
        assert_eq!(bytes, [8; 64]);
        // SAFETY: unused.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("a live block");
        // SAFETY: rejected.
        assert!(matches!(unsafe { backend.copy_now(&copy) }, Err(Error::Foreign { layouts: None, .. })));
    }
}
