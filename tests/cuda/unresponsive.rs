//! A driver that stops reporting completion: possibly used memory stays allocated.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use ringmem::backend::{Address, Backend, Copy};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Buffer, Device, Pinned, PinnedBuffer};
use ringmem::mirror::MirroredBuffer;
use ringmem::peer::{Peers, Strategy};
use ringmem::stream::Stream;
use ringmem::{Error, Rejected};
use ringmem_kernels::grid::SAXPY;

use crate::busy_stream::Held;
use crate::rig::{self, Double, alone, eventually};

const OFTEN: u64 = 5000;

fn silence(double: &Double) {
    double.reset();
    for symbol in ["cuEventQuery", "cuStreamQuery", "cuEventSynchronize"] {
        (1..OFTEN).for_each(|number| double.fail(symbol, number, 999));
    }
}

fn is_silence(error: &Error) -> bool {
    matches!(error, Error::Driver { code: 999, .. })
}

alone! {
    fn a_use_with_a_failed_wait_stays_listed() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100).expect("room");
        let mut filled = stream.fill(pinned, .., 7).expect("a fill").detach();
        silence(&double);
        let error = filled.settle().expect_err("nobody can say");
        assert!(is_silence(&error), "{error}");
        double.reset();
        let error = filled.as_slice().map(<[u8]>::to_vec).expect_err("the fill is behind the kernel");
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        drop(held);
        filled.settle().expect("the driver says so");
        assert_eq!(filled.as_slice().expect("nothing is queued"), [7; 100]);
    }

    fn run_returns_after_its_kernel_although_a_wait_has_failed() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let x = Buffer::<f32, _>::from_slice(Device::new(&backend, 0), &[1.0; 100]).expect("room");
        let mut y = Buffer::<f32, _>::from_slice(Device::new(&backend, 0), &[0.0; 100]).expect("room");
        stream.run(SAXPY, (&x, &mut y, 1.0)).expect("the image is loaded");
        let held = Held::on(&stream);
        silence(&double);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let run = scope.spawn(|| {
                let outcome = stream.run(SAXPY, (&x, &mut y, 1.0));
                is_over.store(true, Release);
                assert!(outcome.as_ref().is_err_and(is_silence), "{outcome:?}");
            });
            // A wait fails after 1001 queries of the event and of the stream, or some more, until it reads the clock; others follow it until the kernel has ended.
            let queries = || double.calls("cuEventQuery") + double.calls("cuStreamQuery");
            eventually("the launch is waited for", || double.calls("cuLaunchKernel") == 1 && queries() > 4000);
            assert!(!is_over.load(Acquire), "the kernel is behind another");
            double.reset();
            drop(held);
            run.join().expect("no panic");
        });
        assert_eq!(y.to_vec().expect("a copy"), [2.0; 100]);
    }

    fn a_buffer_returned_by_a_failed_wait_lists_its_operation() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100).expect("room");
        let pending = stream.fill(pinned, .., 7).expect("a fill");
        silence(&double);
        let Rejected { error, value: mut filled } = pending.wait().expect_err("nobody can say");
        assert!(is_silence(&error), "{error}");
        assert!(stream.synchronize().is_err_and(|error| is_silence(&error)));
        double.reset();
        assert!(matches!(filled.as_slice(), Err(Error::Busy { .. })));
        drop(held);
        filled.settle().expect("the driver says so");
        assert_eq!(filled.as_slice().expect("nothing is queued"), [7; 100]);
    }

    fn a_mirror_repeats_a_failed_wait() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut mirror = MirroredBuffer::<u8, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 100).expect("a mirror");
        mirror.host_mut().expect("a copy").fill(7);
        let held = Held::on(&stream);
        mirror.sync_to_device_on(&stream).expect("queued");
        silence(&double);
        let error = mirror.host_mut().map(|_| ()).expect_err("it is being read");
        assert!(is_silence(&error), "{error}");
        double.reset();
        assert!(!mirror.is_settled(), "it is behind the kernel");
        drop(held);
        mirror.host_mut().expect("the driver says so").fill(8);
        assert_eq!(mirror.statistics().to_device.count, 1);
    }

    fn a_buffer_with_a_failed_resize_lists_its_copy() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let manager = MemoryManager::new(Pinned::new(&backend, 0));
        let id = manager.create::<u8>("bytes", 100, BufferConfig::new()).expect("room");
        let held = Held::on(&stream);
        let mut lease = manager.lease_mut(id).expect("it is there");
        silence(&double);
        let error = lease.resize_on(5000, &stream).expect_err("nobody can say");
        assert!(is_silence(&error), "{error}");
        double.reset();
        assert!(matches!(lease.view().as_slice(), Err(Error::Busy { .. })), "it is being copied");
        drop((lease, held));
        stream.synchronize().expect("done");
    }

    fn a_blocking_copy_completes_despite_failed_queries() with("RINGMEM_DOUBLE_DELAY_US" = 20_000) {
        let (backend, double) = (rig::open(), Double::new());
        let gpu = Buffer::<u8, _>::from_slice(Device::new(&backend, 0), &[7; 100]).expect("room");
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100).expect("room");
        let (to, from) = (pinned.as_ptr().expect("bytes"), gpu.device_address().expect("it has one"));
        let copy = Copy { to: Address::Host(to), from: Address::Device(from), bytes: 100 };
        double.reset();
        // More often than a wait that can return early puts up with.
        for symbol in ["cuStreamSynchronize", "cuStreamQuery"] {
            (1..1500).for_each(|number| double.fail(symbol, number, 999));
        }
        // SAFETY: live bytes on both sides, until it returns.
        let _ = unsafe { backend.copy_now(&copy) };
        assert_eq!(pinned.as_slice().expect("nothing is queued"), [7; 100]);
    }

    fn a_peer_copy_of_borrowed_buffers_ends_after_a_failed_wait() with("RINGMEM_DOUBLE_DEVICES" = 2, "RINGMEM_DOUBLE_DELAY_US" = 300_000) {
        let (backend, double) = (rig::open(), Double::new());
        let peers = Peers::new(Pinned::new(&backend, 0)).expect("two devices");
        let from = Buffer::<u8, _>::from_slice(Device::new(&backend, 0), &[7; 100]).expect("room");
        let mut to = Buffer::<u8, _>::from_slice(Device::new(&backend, 1), &[1; 100]).expect("room");
        silence(&double);
        let error = peers.copy(&from, &mut to).expect_err("no answer");
        assert!(is_silence(&error), "{error}");
        assert_eq!(to.to_vec().expect("a copy"), [7; 100], "the buffers are the caller's again");
    }

    fn a_failed_event_query_falls_back_to_the_stream() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let pending = stream.fill(Buffer::<u8, _>::new(Device::new(&backend, 0), 100).expect("room"), .., 7).expect("a fill");
        double.reset();
        (1..OFTEN).for_each(|number| double.fail("cuEventQuery", number, 400));
        assert_eq!(pending.wait().expect("its stream says so").to_vec().expect("a copy"), [7; 100]);
    }

    fn buffers_of_a_peer_copy_list_it_after_a_failed_wait() with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let (backend, double) = (rig::open(), Double::new());
        let peers = Peers::new(Pinned::new(&backend, 0)).expect("two devices");
        let [from, to] = [0, 1].map(|device| Buffer::<u8, _>::new(Device::new(&backend, device), 100).expect("room"));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let held = Held::on(&stream);
        let from = stream.fill(from, .., 7).expect("a fill").detach();
        let copy = peers.queue(from, to, Some(Strategy::Direct)).expect("queued");
        silence(&double);
        let Rejected { error, value } = copy.wait().expect_err("nobody can say");
        assert!(is_silence(&error), "{error}");
        double.reset();
        drop(value);
        assert_eq!(backend.waiting(), 2, "the copy is behind the kernel, and so are its place among the copies and the free of the other device's buffer");
        drop(held);
        stream.synchronize().expect("done");
    }
}
